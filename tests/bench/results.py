"""Made-up results of a benchmark."""

from __future__ import annotations

from typing import Any

from edgespec.bench.passes import Pass
from edgespec.bench.run import Compared, Way
from edgespec.bench.timed import Run


def runs(*seconds: float) -> list[Run]:
    """Answers of 101 tokens that took so long to decode, three tenths of it in the draft."""
    return [Run(101, 100, s, 0.3 * s, 0.6 * s, 25, 80, 75, int(2e9)) for s in seconds]


def compared(id: str = "a", category: str = "code", **seconds: list[float]) -> Compared:
    """By default twice as fast as plain."""
    times: dict[Any, list[float]] = {"plain": [10.0], "speculative": [5.0], **seconds}
    ways: dict[Way, list[Run]] = {way: runs(*found) for way, found in times.items()}
    passes = [Pass("m", n, 256, 0.1, 20) for n in (1, 5)]
    return Compared(id, category, ways, dict.fromkeys(ways, 2.0), 1.0, True, [(4, 3), (0, 0)], passes)
