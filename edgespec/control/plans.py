"""What a round with a drafter promises, at its best depth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple


class Plan(NamedTuple):
    """What a round with one drafter promises."""

    drafter: str
    depth: int
    tokens: float
    seconds: float
    reading: float = 0.0
    """seconds that it takes to read what the drafter lags behind, once"""
    later: float = 0.0
    """its speed when it has read that"""
    barred: str = ""
    """why it is not let, however fast it is"""

    @property
    def speed(self) -> float:
        return self.tokens / self.seconds


def best_depth(
    reach: float, chain: Sequence[float], costs: Sequence[float], verify: Sequence[float], i: int, rate: float
) -> tuple[int, float]:
    """The depth j ≥ i that maximises Σ_{m=i+1..j} P_m − λ·(cost of drafting + T(j+1) − T(i+1)), and that
    maximum; (i, 0) if stopping is best.

    reach: P_i. chain: conditional acceptance of the tokens i+1, i+2, …; costs: seconds to draft each.
    verify: T(n) by n. rate: λ.
    """
    depth, best, tokens, seconds = i, 0.0, 0.0, -verify[i + 1]
    for j, (accept, cost) in enumerate(zip(chain, costs, strict=True), i + 1):
        reach *= accept
        tokens += reach
        seconds += cost
        gain = tokens - rate * (seconds + verify[j + 1])
        if gain > best:
            depth, best = j, gain
    return depth, best


def fastest(name: str, chain: Sequence[float], each: float, first: float, verify: Sequence[float]) -> Plan:
    """The depth ≥ 1 of the largest expected speed, at `each` second per drafted token and `first` more."""
    reach, tokens, seconds = 1.0, 1.0, first
    highest, best = 0.0, (1, 1.0, math.inf)
    for j, accept in enumerate(chain, 1):
        reach *= accept
        tokens += reach
        seconds += each
        total = seconds + verify[j + 1]
        if tokens > highest * total:
            highest, best = tokens / total, (j, tokens, total)
    return Plan(name, *best)


def stakes(chain: Sequence[float], depth: int, verify: Sequence[float]) -> tuple[float, float]:
    """The seconds that a round of free drafts is expected to save, and those that it is expected to lose: all
    that may become of it, weighed by how likely it is, apart by whether it saves time."""
    token = verify[1]
    saved = lost = 0.0
    reach, balance = 1.0, token - verify[depth + 1]
    for accept in [*chain[:depth], 0.0]:
        chance = reach * (1.0 - accept)  # that so many are accepted, and no more
        saved, lost = saved + chance * max(balance, 0.0), lost + chance * max(-balance, 0.0)
        reach, balance = reach * accept, balance + token
    return saved, lost
