"""How much of what hindsight would have gained each depth policy gets, on recorded traces."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import geometric_mean, mean

from edgespec.bench.foresight import clairvoyant
from edgespec.bench.policies import DEEPEST as DEEPEST_FIXED
from edgespec.bench.policies import Bandit, ConfidenceThreshold, EntropyBound, Goodput, PlusTwoMinusOne
from edgespec.bench.replay import Costs, ours, play
from edgespec.bench.traces import Trace
from edgespec.control.controller import DEEPEST, Controller
from edgespec.control.policy import FixedDepth, Policy

OURS = "edgespec's controller"
THRESHOLDS = (0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)
"""of confidence, below which drafting stops"""
CONTEXT = 256
"""costs are taken behind so many tokens"""


@dataclass(frozen=True)
class Verdict:
    """A policy over all traces, one behind the other."""

    policy: str
    speedup: float
    """geometric mean of tokens per simulated second, against plain decoding"""
    share: float
    """of the best fixed depth for each prompt, known in hindsight: the mean over prompts; 1 − it is regret"""
    texts: int
    """how many traces those were"""


def costs_of(controller: Controller, draft: str) -> Costs:
    """What passes cost here, as the controller has learned; `draft` names its draft model."""
    curve = controller.arms[draft].cost
    if curve is None:
        raise ValueError(f"{draft} is no model")
    sizes = range(1, DEEPEST + 2)
    return Costs(
        {n: controller.target.plainly(n, CONTEXT) for n in sizes},
        {n: curve.seconds(n, CONTEXT) for n in sizes},
    )


def judge(traces: Sequence[Trace], costs: Costs) -> list[Verdict]:
    """Every policy in the comparison, fastest first, on those traces that take time (some must). Takes some
    hundredths of a second per token."""
    traces = timed(traces)
    fixed = [_session(traces, FixedDepth(k), costs) for k in range(DEEPEST_FIXED + 1)]
    plain = fixed[0]
    hindsight = [max(speeds) for speeds in zip(*fixed, strict=True)]
    best = max(range(len(fixed)), key=lambda k: geometric_mean(fixed[k]))
    cautious = {t: _session(traces, ConfidenceThreshold(t), costs) for t in THRESHOLDS}
    tuned = max(THRESHOLDS, key=lambda t: geometric_mean(cautious[t]))
    policies: dict[str, Policy] = {
        "bandit over depths": Bandit(4.0 / costs.target(1)),
        "entropy bound (AdaEDL)": EntropyBound(),
        "goodput (SmartSpec)": Goodput(costs),
        "+2 / −1 heuristic": PlusTwoMinusOne(),
        OURS: ours(costs),
    }
    speeds = {name: _session(traces, policy, costs) for name, policy in policies.items()} | {
        "plain decoding": plain,
        f"best single depth ({best})": fixed[best],
        "confidence ≥ 0.4": cautious[0.4],
        f"best single confidence ({tuned})": cautious[tuned],
        "best depth per prompt, in hindsight": hindsight,
        "clairvoyant": [clairvoyant(trace, costs).speed for trace in traces],
    }
    verdicts = [
        Verdict(
            name,
            geometric_mean(a / b for a, b in zip(found, plain, strict=True)),
            mean(a / b for a, b in zip(found, hindsight, strict=True)),
            len(traces),
        )
        for name, found in speeds.items()
    ]
    return sorted(verdicts, key=lambda verdict: -verdict.speedup)


def _session(traces: Sequence[Trace], policy: Policy, costs: Costs) -> list[float]:
    """Tokens per second on each trace under one policy that goes on learning."""
    return [play(trace, policy, costs).speed for trace in traces]


def timed(traces: Sequence[Trace]) -> list[Trace]:
    """Those that take time to decode: the first token comes with the prompt."""
    return [trace for trace in traces if len(trace.text) > 1]
