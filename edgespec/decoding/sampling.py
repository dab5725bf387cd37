"""Logits → p: the next-token distribution after the sampler chain.

The chain, in order: grammar mask, penalties and bias, temperature, top-k, top-p, min-p. The mask comes
first, so that filters choose among what is allowed. Target and drafter go through the same chain, so
`p` and `q` are the paper's (Leviathan et al. 2023, §2.2: sampling options only change the distributions,
not the method).

Rows are up to 256k wide, so nothing here sorts or copies a whole row where a threshold will do:
the chain first finds the few candidates that can survive and works on those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError, UsageError

Mask: TypeAlias = NDArray[np.bool_]
"""bool [n_vocab]: the tokens that may come next"""

BLOCK = 512
"""Wide distributions are summed and sampled by blocks of this many tokens."""


@dataclass(frozen=True)
class Distribution:
    """A next-token distribution over the tokens that survived the chain.

    ids: int64 [n], ascending; weights: float [n], not normalised; total: their sum.
    """

    ids: NDArray[np.int64]
    weights: NDArray[np.floating[Any]]
    total: float

    def prob(self, token: int) -> float:
        """The probability of `token`; 0 if it did not survive."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.weights[i]) / self.total if i < self.ids.size and self.ids[i] == token else 0.0

    @property
    def probs(self) -> NDArray[np.float64]:
        """Probabilities of `ids`, float64 [n]."""
        return self.weights.astype(np.float64) / self.total

    def at(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of `ids`, 0 where absent."""
        if ids is self.ids:
            return self.probs
        i = np.searchsorted(self.ids, ids)
        i[i == self.ids.size] = 0
        return np.where(self.ids[i] == ids, self.probs[i], 0.0)

    @property
    def covers_vocabulary(self) -> bool:
        """Whether every id up to the last is there, so that blocks of two such distributions match."""
        return int(self.ids[-1]) == self.ids.size - 1

    def block_sums(self) -> NDArray[np.floating[Any]]:
        """Weights summed by blocks of BLOCK tokens."""
        return _block_sums(self.weights)

    def sample(self, u: float) -> int:
        """The token at quantile `u` ∈ [0, 1)."""
        first, last = 0, self.weights.size
        if last > 2 * BLOCK:
            block, u = _pick(self.block_sums(), u)
            first, last = block * BLOCK, min(last, (block + 1) * BLOCK)
        i, _ = _pick(self.weights[first:last], u)
        return int(self.ids[first + i])

    def overlap(self, q: Distribution) -> float:
        """Σ min(p, q): the probability that a token drafted from `q` is accepted."""
        return min(1.0, float(np.minimum(self.probs, q.at(self.ids)).sum()))

    def residual(self, q: Distribution) -> Distribution:
        """norm(max(p − q, 0)): what to sample from after rejecting a token drafted from `q`."""
        weights = np.maximum(self.probs - q.at(self.ids), 0.0)
        total = float(weights.sum())
        # p ≤ q everywhere means p = q, and then nothing is rejected but by rounding.
        return Distribution(self.ids, weights, total) if total > 0.0 else self


def _block_sums(weights: NDArray[np.floating[Any]]) -> NDArray[np.floating[Any]]:
    sums: NDArray[np.floating[Any]] = np.add.reduceat(weights, np.arange(0, weights.size, BLOCK))
    return sums


def _pick(weights: NDArray[np.floating[Any]], u: float) -> tuple[int, float]:
    """The index at quantile `u` of `weights`, and the quantile of `u` within that index's share."""
    cumulative = np.cumsum(weights, dtype=np.float64)
    goal = u * float(cumulative[-1])
    i = int(np.searchsorted(cumulative, goal, side="right"))
    i = min(i, int(np.searchsorted(cumulative, cumulative[-1])))  # u near 1 must not pass the last weight
    below = float(cumulative[i - 1]) if i else 0.0
    return i, min(max((goal - below) / float(weights[i]), 0.0), 1.0 - 2**-53)


def point_mass(token: int) -> Distribution:
    """All probability on one token: greedy decoding, n-gram drafts."""
    return Distribution(np.array([token], dtype=np.int64), _ONE, 1.0)


_ONE = np.ones(1)


@dataclass(frozen=True)
class SamplerSettings:
    """What the user asks of sampling. Defaults are greedy decoding without penalties."""

    temperature: float = 0.0
    """0 is greedy: the most probable token, lowest id first among equals"""
    top_k: int = 0
    """keep the k most probable tokens; 0 keeps all"""
    top_p: float = 1.0
    """keep the smallest set of most probable tokens that holds this much probability"""
    min_p: float = 0.0
    """keep tokens with at least this fraction of the mode's probability"""
    repetition_penalty: float = 1.0
    """divide positive logits of seen tokens by this, multiply negative ones (Keskar et al. 2019)"""
    presence_penalty: float = 0.0
    """subtract from the logits of seen tokens"""
    frequency_penalty: float = 0.0
    """subtract, times the number of occurrences"""
    penalty_window: int = 64
    """how many of the last tokens, prompt included, the penalties look at"""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """added to the logits of these token ids"""

    def __post_init__(self) -> None:
        def check(ok: bool, name: str, allowed: str) -> None:
            if not ok:
                raise UsageError(f"{name} is {getattr(self, name)!r}; it must be {allowed}")

        for f in fields(self):
            value, kinds = getattr(self, f.name), (int,) if f.name in _WHOLE else (int, float)
            if f.name == "logit_bias":
                pairs = value.items() if isinstance(value, Mapping) else [(None, None)]
                check(all(_is(t, int) and _is(b, int, float) for t, b in pairs), f.name, "{id: bias}")
            else:
                check(_is(value, *kinds), f.name, "a whole number" if f.name in _WHOLE else "a number")
        check(
            self.temperature == 0 or 1e-3 <= self.temperature <= 1e3,
            "temperature",
            "0 (greedy) or between 0.001 and 1000",
        )
        check(self.top_k >= 0, "top_k", "0 (off) or a positive whole number")
        check(0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (1 = off)")
        check(0 <= self.min_p <= 1, "min_p", "between 0 (off) and 1")
        check(0.01 <= self.repetition_penalty <= 100, "repetition_penalty", "between 0.01 and 100 (1 = off)")
        check(abs(self.presence_penalty) <= 1e4, "presence_penalty", "between -10000 and 10000")
        check(abs(self.frequency_penalty) <= 1e4, "frequency_penalty", "between -10000 and 10000")
        check(self.penalty_window >= 0, "penalty_window", "0 or a positive whole number")
        for token, bias in self.logit_bias.items():
            if token < 0 or not (abs(bias) <= 1e4 or bias == -math.inf):
                raise UsageError(
                    f"logit_bias {token}: {bias} is not usable; ids are ≥ 0, biases between -10000 and "
                    "10000, or -inf to ban a token"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        return self.penalty_window > 0 and (
            self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )


_WHOLE = ("top_k", "penalty_window")


def _is(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


class Sampler:
    """The chain as a function of a row of logits and the tokens before it; it keeps no state."""

    def __init__(self, settings: SamplerSettings, n_vocab: int) -> None:
        """`n_vocab`: ids at and above it (padding rows of a wider model) get no probability."""
        unknown = [t for t in settings.logit_bias if t >= n_vocab]
        if unknown:
            raise UsageError(f"logit_bias names token {unknown[0]}; this model's ids end at {n_vocab - 1}")
        self.settings = settings
        self.n_vocab = n_vocab

    def distribution(
        self, row: NDArray[np.float32], history: Sequence[int], allowed: Mask | None = None
    ) -> Distribution:
        """p of the token that follows `history`, from its row of logits, float32 [n_vocab].

        allowed: bool [at least as wide as the row]; None: every token is. Raises BackendError if the logits
        are not finite where they must be, UsageError if no token is left.
        """
        s = self.settings
        row = self._penalised(_masked(row[: self.n_vocab], allowed), history)
        mode = int(row.argmax())  # NaN counts as the largest value, so this also finds NaN
        peak = float(row[mode])
        if peak == -math.inf and allowed is not None:
            raise UsageError(
                "no token that the grammar allows has any probability; is logit_bias in its way?"
            )
        if peak == -math.inf and s.logit_bias:
            raise UsageError("logit_bias bans every token; leave some to choose from")
        if not math.isfinite(peak):
            raise BackendError(
                "the model computed logits that are not numbers; the model file is damaged or "
                "unsupported (check it with: edgespec models inspect FILE)"
            )
        if s.greedy:
            return point_mass(mode)
        if 0 < s.top_k < row.size:
            candidates = _top_candidates(row, s.top_k)
        elif s.top_p == 1.0 and s.min_p > 0.0:  # nothing before min-p: whom it will drop need no exponential
            candidates = np.flatnonzero(row >= peak + s.temperature * math.log(s.min_p) - 1e-3)
        else:
            candidates = _all_ids(row.size)
        return _min_p(_top_p(_softmax(row, candidates, peak, s.temperature), s.top_p), s.min_p)

    def confidence(self, row: NDArray[np.float32], q: Distribution, allowed: Mask | None = None) -> float:
        """q's maximum, which says how sure a draft is before anything is sampled from it. Of the raw
        distribution of the tokens allowed where q is greedy: there every maximum is 1."""
        if not self.settings.greedy:
            return float(q.weights.max()) / q.total
        row = _masked(row[: self.n_vocab], allowed)
        peak = row.max()
        near = row[row > peak - np.float32(10.0)]  # what is further below is not worth its exponential
        return 1.0 / float(np.exp(near - peak).sum())

    def _penalised(self, row: NDArray[np.float32], history: Sequence[int]) -> NDArray[np.float32]:
        s = self.settings
        if not s.penalises and not s.logit_bias:
            return row
        row = row.copy()  # the backend's buffer keeps the raw logits for log-probabilities
        if s.penalises:
            seen, counts = np.unique(np.asarray(history[-s.penalty_window :], np.int64), return_counts=True)
            seen, counts = seen[seen < row.size], counts[seen < row.size]
            logits = row[seen]
            logits = np.where(logits > 0, logits / s.repetition_penalty, logits * s.repetition_penalty)
            row[seen] = logits - s.presence_penalty - s.frequency_penalty * counts
        for token, bias in s.logit_bias.items():
            if token < row.size:  # a draft model's row may be narrower
                row[token] += bias
        return row


def _masked(row: NDArray[np.float32], allowed: Mask | None) -> NDArray[np.float32]:
    return row if allowed is None else np.where(allowed[: row.size], row, np.float32(-np.inf))


def _softmax(row: NDArray[np.float32], ids: NDArray[np.int64], peak: float, t: float) -> Distribution:
    """Temperature `t` and exponentials, relative to the largest logit `peak`. Single precision, as
    the logits are; sums are over blocks, then double."""
    if ids.size < row.size:
        row = row[ids]
    weights = row - np.float32(peak)
    weights *= np.float32(1.0 / t)
    np.exp(weights, out=weights)
    return Distribution(ids, weights, float(_block_sums(weights).sum(dtype=np.float64)))


def _top_candidates(row: NDArray[np.float32], k: int) -> NDArray[np.int64]:
    """The ids of the `k` largest logits, ascending; lowest id first among equals."""
    stride = 64
    sample = row[::stride]
    rank = 4 + 2 * k // stride
    ids = np.empty(0, np.int64)
    while ids.size < k:  # the sample's rank-th largest leaves about stride × rank candidates
        if rank >= sample.size:
            ids = np.arange(row.size)
            break
        threshold = np.partition(sample, sample.size - rank)[sample.size - rank]
        ids = np.flatnonzero(row >= threshold)
        rank *= 4
    best = np.argsort(-row[ids], kind="stable")[:k]
    return np.sort(ids[best])


def _top_p(d: Distribution, top_p: float) -> Distribution:
    """Keep the smallest set of most probable tokens that holds `top_p`."""
    if top_p >= 1.0:
        return d
    peak, needed = float(d.weights.max()), top_p * d.total
    # Search among the tokens near the mode first; a floor under which no token can be among those
    # needed (were all such tokens dropped, the rest would still hold top_p) ends the search.
    floor = (1.0 - top_p) * d.total / d.ids.size
    for threshold in (peak * 1e-3, peak * 1e-5, floor):
        near = np.flatnonzero(d.weights >= max(threshold, floor))
        order = near[np.argsort(-d.weights[near], kind="stable")]
        cumulative = np.cumsum(d.weights[order], dtype=np.float64)
        if cumulative[-1] >= needed:
            break
    return _restricted(d, np.sort(order[: int(np.searchsorted(cumulative, needed)) + 1]))


def _min_p(d: Distribution, min_p: float) -> Distribution:
    """Keep tokens with at least `min_p` of the mode's probability."""
    if min_p == 0.0:
        return d
    return _restricted(d, np.flatnonzero(d.weights >= min_p * d.weights.max()))


def _restricted(d: Distribution, keep: NDArray[np.intp]) -> Distribution:
    weights = d.weights[keep].astype(np.float64)
    return Distribution(d.ids[keep], weights, float(weights.sum()))


@lru_cache(maxsize=4)
def _all_ids(n: int) -> NDArray[np.int64]:
    """One shared array, so that two unfiltered distributions are recognised as aligned."""
    return np.arange(n, dtype=np.int64)


def log_softmax_at(row: NDArray[np.float32], tokens: Sequence[int]) -> list[float]:
    """Log-probabilities (nats) of `tokens` in the raw distribution, before the sampler chain."""
    peak = float(row.max())
    log_total = peak + math.log(float(np.exp(row - np.float32(peak)).sum(dtype=np.float64)))
    return [float(row[t]) - log_total for t in tokens]


def most_probable(row: NDArray[np.float32], n: int) -> list[int]:
    """Ids of the `n` largest logits, largest first, lowest id first among equals."""
    if n <= 0:
        return []
    threshold = np.partition(row, row.size - n)[row.size - n] if n < row.size else -np.inf
    ids = np.flatnonzero(row >= threshold)
    return [int(i) for i in ids[np.argsort(-row[ids], kind="stable")][:n]]
