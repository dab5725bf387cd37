"""How long the controller takes to decide and to learn, in microseconds a round.

python scripts/overhead.py [TRACES]

Plays recorded traces as replay does, under the real controller with a draft model and prompt lookup. The time
to choose includes asking both drafters what they offer: the lookup is the real one, which reads the prompt
when it is first asked.
"""

from collections.abc import Callable
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter_ns
from typing import Any

import click

from edgespec.bench.replay import CURVES, ours, play
from edgespec.bench.traces import load
from edgespec.control.controller import Controller

TRACES = Path(__file__).parents[1] / "tests/data/traces/coder.jsonl.gz"
TIMED = ("choose", "wants_more", "keeps", "observe")


@click.command(help=__doc__)
@click.argument("traces", default=TRACES, type=click.Path(exists=True, path_type=Path))
def main(traces: Path) -> None:
    recorded = load(traces)
    for name, costs in CURVES.items():
        policy = ours(costs)
        calls: list[tuple[str, float]] = []
        for method in TIMED:
            _time(policy, method, calls)
        rounds = [done for trace in recorded for done in play(trace, policy, costs, keep=True).rounds]
        click.echo(f"{name}: {len(rounds)} rounds, {len(recorded)} texts")
        for method in TIMED:
            _show(method, [spent for called, spent in calls if called == method])
        own: list[float] = []
        for method, spent in calls:
            if method == "choose":
                own.append(0.0)
            if own:  # else it observes the pass that reads the prompt
                own[-1] += spent
        _show("a round", own)
        share = sum(own) / (1e6 * sum(done.seconds for done in rounds))
        click.echo(f"  share of the time of all passes: {share:.2%}")


def _show(what: str, times: list[float]) -> None:
    """times: microseconds."""
    late = quantiles(times, n=20)[-1]
    click.echo(
        f"  {what:10s}: {len(times):5d} times, median {median(times):6.1f} µs, 95% within {late:6.1f} µs"
    )


def _time(policy: Controller, method: str, calls: list[tuple[str, float]]) -> None:
    """Note every call with its microseconds."""
    timed: Callable[..., Any] = getattr(policy, method)

    def call(*arguments: Any) -> Any:
        started = perf_counter_ns()
        answer = timed(*arguments)
        calls.append((method, (perf_counter_ns() - started) / 1e3))
        return answer

    setattr(policy, method, call)


if __name__ == "__main__":
    main()
