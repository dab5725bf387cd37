"""The results of a benchmark as one HTML page that needs nothing else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from jinja2 import Environment, StrictUndefined

from edgespec.bench import plots
from edgespec.bench.passes import Pass
from edgespec.bench.regret import Verdict
from edgespec.bench.run import Compared
from edgespec.bench.summary import of_prompt
from edgespec.device.cores import machine
from edgespec.hub.sizes import counted, human

Figure = tuple[str, str, str]
"""title, SVG, caption"""


def page(
    found: Mapping[str, Any],
    results: Sequence[Compared],
    curves: Sequence[Pass] = (),
    verdicts: Sequence[Verdict] | str = "",
) -> str:
    """The whole document.

    found: the settings and the summary of `results`. curves: passes measured apart, to be shown with those of
    the results. verdicts: of depth policies; or why there are none.
    """
    template = files("edgespec.bench").joinpath("page.html").read_text("utf-8")
    environment = Environment(autoescape=True, trim_blocks=True, undefined=StrictUndefined)
    return environment.from_string(template).render(
        found=found,
        pair=found["pair"],
        conditions=_conditions(found),
        referenced="reference_geomean_speedup" in found,
        beside=all("reference" in r.runs for r in results),
        memory=None if found["peak_memory"] is None else human(found["peak_memory"]),
        figures=[*_figures(found, results, curves), _regret(verdicts)],
        groups=[*found["categories"].items(), ("all", found)],
        prompts=list(map(of_prompt, results)),
    )


def _conditions(found: Mapping[str, Any]) -> str:
    parts = [
        f"{counted(found['prompts'], 'prompt')} of up to {counted(found['max_tokens'], 'token')}",
        f"median of {found['repeats']} repeats" if found["repeats"] > 1 else "run once",
        f"depth {found['depth']}",
        f"temperature {found['temperature']}",
        machine(),
    ]
    if found["too_short"]:
        parts.append(f"{counted(found['too_short'], 'answer')} too short to be timed")
    return ", ".join(parts)


def _figures(found: Mapping[str, Any], results: Sequence[Compared], curves: Sequence[Pass]) -> list[Figure]:
    timed = sorted((r for r in results if r.timed), key=Compared.speedup)
    ranks = {"slowest": timed[0], "median": timed[len(timed) // 2], "fastest": timed[-1]}
    of_few = {result.id: (rank, result) for rank, result in ranks.items()}  # each of them once
    shown = {f"{r.id}, the {rank}: {r.speedup():.2f} × plain": r for rank, r in of_few.values()}
    return [
        (
            "Speed-up by category",
            plots.speedups(found),
            "Geometric means with 95% intervals (bootstrap over prompts), and the worst prompt of each.",
        ),
        (
            "What a pass costs",
            plots.cost_curves([*curves, *(p for r in results for p in r.passes)]),
            "Medians of this run's passes; the reference's were measured before it.",
        ),
        ("Speed-up by prompt", plots.by_prompt(timed), "Sorted for each comparison on its own."),
        (
            "Depth over time",
            plots.depths(shown),
            "Tokens drafted in each round; rings are rounds that were decoded plainly.",
        ),
    ]


def _regret(verdicts: Sequence[Verdict] | str) -> Figure:
    title = "Depth policies, replayed"
    if isinstance(verdicts, str):
        return title, "", f"Not shown: {verdicts}."
    answers = verdicts[0].texts
    return (
        title,
        plots.regret(verdicts),
        f"Every policy on the same recorded proposals, along {counted(answers, 'answer')}, and the "
        "costs measured here; that the draft model reads the prompt is left out. In brackets, the mean "
        "difference to the best fixed depth of each prompt, which is known in hindsight only.",
    )
