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
