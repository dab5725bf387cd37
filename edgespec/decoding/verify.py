"""The accept rule: what makes speculative decoding lossless.

A drafted token x was sampled from q; the target's distribution at that place is p. Two rules emit
a token that is distributed exactly as p, whatever q was:

- `Rejection` (Leviathan et al. 2023, Alg. 1; Chen et al. 2023, Alg. 2): accept x with probability
  min(1, p(x)/q(x)), else sample from norm(max(p − q, 0)). Used when there is no seed.
- `Coupled`: with a seed, the token at position t is argmax(log p + g_t) with Gumbel noise g_t that
  depends on (seed, t) alone; the drafter drafts with the same noise, and x is accepted when the two
  agree. The text then depends on the seed alone, not on drafter, depth or timing (as far as the
  backend computes the same logits for a token alone and among others).

Greedy decoding is the limit case of both: p is a point mass, x is accepted if it is p's token.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.decoding.sampling import BLOCK, Distribution, point_mass
from edgespec.drafters.base import Node

NARROW = 4096
"""candidates up to which the overlap of two distributions is cheap"""


class Rule(Protocol):
    """How tokens are drawn and drafted tokens judged. `t` is the token's position in the context."""

    def draw(self, p: Distribution, t: int) -> int:
        """A token distributed as p: a drafted token, a bonus token, a plain step."""
        ...

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        """The token to emit where `drafted` was proposed: itself if accepted, else the correction
        (which is never equal to it)."""
        ...

    def likelihood(self, drafted: Node, p: Distribution, emitted: int) -> float:
        """How likely a token drafted from this q was to be accepted; the outcome where that is unknown."""
        ...

    def foreseen(self, q: Distribution, token: int, t: int) -> float:
        """How likely a drafter with this q would have drafted `token` at `t`."""
        ...


class Rejection:
    """Rejection sampling with residual; randomness from `rng`."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def draw(self, p: Distribution, t: int) -> int:
        return p.sample(self._rng.random()) if p.ids.size > 1 else int(p.ids[0])

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        x = drafted.token
        q = drafted.q if drafted.q is not None else point_mass(x)
        if self._rng.random() * q.prob(x) < p.prob(x):
            return x
        return self.draw(p.residual(q), t)

    def likelihood(self, drafted: Node, p: Distribution, emitted: int) -> float:
        if drafted.q is None:
            return p.prob(drafted.token)
        if p.ids.size + drafted.q.ids.size <= NARROW:
            return p.overlap(drafted.q)
        # x ~ q: the mean of this is the overlap, too
        return min(1.0, p.prob(drafted.token) / drafted.q.prob(drafted.token))

    def foreseen(self, q: Distribution, token: int, t: int) -> float:
        return q.prob(token)


class Coupled:
    """Gumbel coupling; randomness from the seed and the position."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def draw(self, p: Distribution, t: int) -> int:
        if p.ids.size == 1:
            return int(p.ids[0])
        first, last = 0, p.ids.size
        if p.covers_vocabulary and last > 2 * BLOCK:
            # The largest of log p + g falls into a block with the block's probability, and within it
            # is the largest of independent noise: draw the block, then the token, both by coupling.
            sums = p.block_sums()
            block = self._largest(sums, -1 - np.arange(sums.size), t)
            first, last = block * BLOCK, min(last, (block + 1) * BLOCK)
        return int(p.ids[first + self._largest(p.weights[first:last], p.ids[first:last], t)])

    def _largest(self, weights: NDArray[np.floating[Any]], ids: NDArray[np.int64], t: int) -> int:
        with np.errstate(divide="ignore"):  # log 0 = −∞ never wins
            return int(np.argmax(np.log(weights) + gumbel(self._seed, t, ids)))

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        return self.draw(p, t)

    def likelihood(self, drafted: Node, p: Distribution, emitted: int) -> float:
        return float(drafted.token == emitted)

    def foreseen(self, q: Distribution, token: int, t: int) -> float:
        return float(self.draw(q, t) == token)


def verify(drafted: Sequence[Node], p_at: Callable[[int], Distribution], rule: Rule, t: int) -> list[int]:
    """Judge a chain of drafted tokens in order; the accepted ones and one more.

    `p_at(i)` is p after the first i drafted tokens (computed on demand: rows behind a rejection are
    never looked at); `t` is the position of the first drafted token. The last token returned is the
    correction of the first rejected token or, after a full acceptance, the bonus token.
    """
    emitted: list[int] = []
    for i, node in enumerate(drafted):
        emitted.append(rule.judge(node, p_at(i), t + i))
        if emitted[-1] != node.token:
            return emitted
    k = len(drafted)
    return [*emitted, rule.draw(p_at(k), t + k)]


def gumbel(seed: int, t: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise for the tokens `ids` at position `t`, float64 [n].

    A counter-based generator (the SplitMix64 finaliser, Steele et al. 2014), so that a token's noise
    does not depend on which other tokens are candidates.
    """
    state = _mix(_mix(np.array([seed % 2**64], np.uint64)) ^ np.uint64(t))
    bits = _mix(state ^ _mix(ids.astype(np.uint64)))
    # 52 bits and a half: u is never 0 nor, by rounding, 1, whose noise would be infinite.
    u = ((bits >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    noise: NDArray[np.float64] = -np.log(-np.log(u))
    return noise


def _mix(x: NDArray[np.uint64]) -> NDArray[np.uint64]:
    x = x + np.uint64(0x9E3779B97F4A7C15)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: NDArray[np.uint64] = x ^ (x >> np.uint64(31))
    return mixed
