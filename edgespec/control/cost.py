"""The cost of a forward pass: T(n, L) of a target, D(L) of a draft model, in seconds.

A curve over n, the tokens fed, on a context of L. It starts from measured points (or from a roofline,
Williams et al. 2009, where nothing was measured), and every real pass corrects it in two ways:

- a *scale* that all n share follows drift and throttling: the median of the last few deviations, so
  that single outliers do not move it, and a lasting change does after a handful of passes;
- a *shape* per n, which moves slowly: steps and cliffs are kept as they are, and nothing is assumed
  to be smooth or monotonic where it was measured.

What drafting is compared with, a single token, is an exception (`plainly`): while all rounds draft, none
shows what it takes.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Mapping
from typing import Any

WINDOW = 7
"""passes whose median deviation is the scale: up to three outliers leave no trace, a lasting change shows
after four passes"""
SHAPE_MEMORY = 20
"""passes of one size over which its own deviation from the scale is averaged"""
TRUSTED = 2
"""observations of a size that weigh as much as the interpolation between its neighbours"""
SURPRISE = 0.25
"""a single pass counts as at most this far (in log) from what its size should have cost"""
LEAN_MEMORY = 50
"""passes of a size that is known over which it is learned to which side their surprises lean"""
FADING = 1024
"""passes after which half of what was learned of a size that was in none of them is forgotten"""
LONGEST = 64
"""larger passes occur in reading a prompt, not in verifying: they cost so much a token"""
MOST = math.log(4.0)
"""a shape (in log) is not believed beyond, from one run to the next"""
BULK_MEMORY = 4
"""passes over which the seconds per token of larger ones are averaged"""
DEARER = 1.2
"""times what a single token last took: beyond that it is believed to take longer only when it is seen to"""
OUTLIER = 16.0
"""times its seconds per token: a larger pass that deviates by more, as while the process was stopped, counts
as this"""


class CostCurve:
    """What a pass of n tokens behind L costs one model here, learned from the passes themselves."""

    def __init__(self, points: Mapping[int, float], per_context: float = 0.0, known: Any = None) -> None:
        """points: measured seconds by n, at least one; other sizes are interpolated, and extrapolated
        along the last segment (no cheaper than flat). per_context: relative cost of each token of
        context, the bytes of its keys and values ÷ the bytes of the weights. known: what `as_dict` gave in
        another run, of no use where the points were measured anew."""
        self._points = {str(n): seconds for n, seconds in points.items()}
        self._base = [0.0, *(_interpolated(points, n) for n in range(1, LONGEST + 1))]
        self._slope = (self._base[LONGEST] - self._base[LONGEST // 2]) / (LONGEST - LONGEST // 2)
        self.per_token: float | None = None
        """seconds a token of larger passes, at scale 1, once there were any"""
        self._per_context = per_context
        self._shape = [0.0] * (LONGEST + 1)
        self._seen = [0] * (LONGEST + 1)
        self._lean = [0.0] * (LONGEST + 1)
        """the surprise that is usual of a size: passes take longer now and then, and never much shorter"""
        self._recent: deque[float] = deque(maxlen=WINDOW)
        self._met: set[int] = set()
        """sizes of the passes since something was forgotten"""
        self._passes = 0
        """how many those are"""
        self._sizes: deque[int] = deque(maxlen=WINDOW)
        """of the recent passes"""
        self._log_scale = 0.0
        self._recall(known)
        self._started_from = self._shape.copy()
        self._shaped = [base * math.exp(shape) for base, shape in zip(self._base, self._shape, strict=True)]
        """base and shape together"""
        self._single = self._shaped[1]
        """seconds of the last pass of one token, without its context"""

    @property
    def scale(self) -> float:
        """By how much everything is now slower than in the points it started from."""
        return math.exp(self._log_scale)

    def seconds(self, n: int, length: int = 0) -> float:
        """What n tokens behind `length` are expected to cost now."""
        return self._at_scale_one(n, length) * math.exp(self._log_scale)

    def plainly(self, n: int, length: int = 0) -> float:
        """As `seconds`, of a pass without drafts, which drafting is compared with. A slower clock makes
        passes of several tokens dearer and may leave single ones, which wait for the memory, as they are:
        that those became much dearer, too, is not concluded where they were not seen."""
        seconds = self.seconds(n, length)
        return seconds if n > 1 else min(seconds, DEARER * self._single * (1.0 + self._per_context * length))

    def table(self, longest: int, length: int = 0) -> list[float]:
        """`seconds` for every n up to `longest`, at most LONGEST; entry 0 is 0."""
        factor = math.exp(self._log_scale) * (1.0 + self._per_context * length)
        return [seconds * factor for seconds in self._shaped[: longest + 1]]

    def observe(self, n: int, length: int, seconds: float) -> None:
        """Learn from a pass."""
        if n < 1 or seconds <= 0.0:
            return
        if n > LONGEST:
            each = seconds / n / (self.scale * (1.0 + self._per_context * length))
            before = each if self.per_token is None else self.per_token
            each = min(max(each, before / OUTLIER), before * OUTLIER)
            self.per_token = before * (each / before) ** (1.0 / BULK_MEMORY)
            return
        if n == 1:
            self._single = seconds / (1.0 + self._per_context * length)
        deviation = math.log(seconds / self._at_scale_one(n, length))
        self._recent.append(deviation)
        self._sizes.append(n)
        self._log_scale = _middle(self._recent)
        surprise = max(-SURPRISE, min(SURPRISE, deviation - self._log_scale))
        self._seen[n] += 1
        if self._seen[n] > SHAPE_MEMORY:  # what surprised before was its shape
            self._lean[n] += (surprise - self._lean[n]) / LEAN_MEMORY
        # To where all surprises lean is the noise, which a median does not see, and no size's own. Else it
        # would add up for as long as the process lives, and what is not seen meanwhile look ever cheaper.
        own = surprise - _middle([self._lean[size] for size in self._sizes])
        self._shape[n] += own / min(self._seen[n] + TRUSTED, SHAPE_MEMORY)
        self._shaped[n] = self._base[n] * math.exp(self._shape[n])
        self._met.add(n)
        self._passes += 1
        if self._passes == FADING:
            self._fade()

    def _fade(self) -> None:
        """A size that looks too dear to be tried, as since the clock was slow for a while, is not seen again,
        and would look so for ever."""
        for n in {*range(1, LONGEST + 1)} - self._met:
            self._shape[n] /= 2.0
            self._started_from[n] /= 2.0
            self._seen[n] = min(self._seen[n], SHAPE_MEMORY) // 2
            self._shaped[n] = self._base[n] * math.exp(self._shape[n])
        self._met, self._passes = set(), 0

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping: the shape, half as this run found it and half as it was before, so that a
        run on a busy machine does not spoil it, and less of what was not met since something was forgotten,
        as passes went by; and how fast prompts are read. Not the scale, which is the machine's of the day."""
        faded = 0.5 ** (self._passes / FADING)
        known = enumerate(zip(self._shape, self._started_from, strict=True))
        shape = [round((a + b) / 2.0 * (1.0 if n in self._met else faded), 6) for n, (a, b) in known]
        return {"points": self._points, "shape": shape, "per_token": self.per_token}

    def _recall(self, known: Any) -> None:
        """Take over what another run learned, if it has the form of what this one keeps."""
        try:
            if known["points"] != self._points or len(known["shape"]) != LONGEST + 1:
                return
            shape = [float(deviation) for deviation in known["shape"]]
            per_token = None if known["per_token"] is None else float(known["per_token"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if all(map(math.isfinite, shape)):
            self._shape = [max(-MOST, min(MOST, deviation)) for deviation in shape]
        if per_token is not None and 0.0 < per_token < math.inf:
            self.per_token = per_token

    def _at_scale_one(self, n: int, length: int) -> float:
        if n <= LONGEST:
            shaped = self._shaped[n]
        elif self.per_token is not None:
            shaped = self.per_token * n
        else:
            shaped = self._base[LONGEST] + self._slope * (n - LONGEST)
        return shaped * (1.0 + self._per_context * length)


def _middle(recent: Collection[float]) -> float:
    """The median of the last passes, or next to it. The points count as one more, at 0: the first outlier
    alone moves nothing."""
    known = recent if len(recent) > 2 else (*recent, 0.0, 0.0)
    return sorted(known)[len(known) // 2]


def _interpolated(points: Mapping[int, float], n: int) -> float:
    known = sorted(points)
    if n <= known[0]:
        return points[known[0]]
    if n >= known[-1]:
        if len(known) == 1:
            return points[known[0]]
        low, high = known[-2], known[-1]
        slope = (points[high] - points[low]) / (high - low)
        return points[high] + max(slope, 0.0) * (n - high)
    low = max(k for k in known if k <= n)
    if low == n:
        return points[n]
    high = min(k for k in known if k > n)
    return points[low] + (points[high] - points[low]) * (n - low) / (high - low)


def roofline(
    bytes_read: float, bandwidth: float, operations: float = 0.0, peak: float = math.inf
) -> dict[int, float]:
    """Points for a model nobody has measured: a pass reads all weights once and computes n tokens,
    whichever takes longer. bytes_read per pass, bandwidth in bytes/s, operations per token, peak in
    operations/s."""
    memory = bytes_read / bandwidth
    return {n: max(memory, n * operations / peak) for n in (1, 2, 4, 8, 16, 32)}
