"""Logits → p: the next-token distribution after the sampler chain.

The chain, in order: penalties and bias, temperature, top-k, top-p, min-p. Target and drafter go
through the same chain, so `p` and `q` are the paper's (Leviathan et al. 2023, §2.2: sampling
options only change the distributions, not the method).

Rows are up to 256k wide, so nothing here sorts or copies a whole row where a threshold will do:
the chain first finds the few candidates that can survive and works on those.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from edgespec.errors import BackendError, UsageError

RESOLUTION = 53 * math.log(2)
"""Nats under the mode beyond which a token is dropped: 2⁻⁵³ of the mode's probability is less than
the rounding of a float64 sum over the row, and less than a 53-bit uniform number can select."""


@dataclass(frozen=True)
class Distribution:
    """A next-token distribution over the tokens that survived the chain.

    ids: int64 [n], ascending; probs: float64 [n], summing to 1.
    """

    ids: NDArray[np.int64]
    probs: NDArray[np.float64]

    def prob(self, token: int) -> float:
        """The probability of `token`; 0 if it did not survive."""
        i = int(np.searchsorted(self.ids, token))
        return float(self.probs[i]) if i < self.ids.size and self.ids[i] == token else 0.0

    def sample(self, u: float) -> int:
        """The token at quantile `u` ∈ [0, 1)."""
        if self.ids.size == 1:
            return int(self.ids[0])
        cumulative = np.cumsum(self.probs)
        # The sum may fall short of 1 by rounding: scale u to what is there.
        i = int(np.searchsorted(cumulative, u * cumulative[-1], side="right"))
        return int(self.ids[min(i, self.ids.size - 1)])

    def residual(self, q: Distribution) -> Distribution:
        """norm(max(p − q, 0)): what to sample from after rejecting a token drafted from `q`."""
        probs = np.maximum(self.probs - q.at(self.ids), 0.0)
        total = float(probs.sum())
        if total <= 0.0:  # p ≤ q everywhere means p = q, and then nothing is rejected but by rounding
            return self
        return Distribution(self.ids, probs / total)

    def without(self, token: int) -> Distribution:
        """The residual against a point mass on `token`."""
        return self.residual(point_mass(token))

    def at(self, ids: NDArray[np.int64]) -> NDArray[np.float64]:
        """Probabilities of `ids`, 0 where absent."""
        if ids is self.ids:
            return self.probs
        i = np.searchsorted(self.ids, ids)
        i[i == self.ids.size] = 0
        return np.where(self.ids[i] == ids, self.probs[i], 0.0)


def point_mass(token: int) -> Distribution:
    """All probability on one token: greedy decoding, n-gram drafts."""
    return Distribution(np.array([token], dtype=np.int64), np.ones(1))


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
                raise UsageError(f"{name} is {getattr(self, name)}; it must be {allowed}")

        check(0 <= self.temperature < math.inf, "temperature", "0 (greedy) or a positive number")
        check(self.top_k >= 0, "top_k", "0 (off) or a positive whole number")
        check(0 < self.top_p <= 1, "top_p", "above 0 and at most 1 (1 = off)")
        check(0 <= self.min_p <= 1, "min_p", "between 0 (off) and 1")
        check(0 < self.repetition_penalty < math.inf, "repetition_penalty", "positive (1 = off)")
        check(math.isfinite(self.presence_penalty), "presence_penalty", "a finite number")
        check(math.isfinite(self.frequency_penalty), "frequency_penalty", "a finite number")
        check(self.penalty_window >= 0, "penalty_window", "0 or a positive whole number")
        for token, bias in self.logit_bias.items():
            if token < 0 or math.isnan(bias) or bias == math.inf:
                raise UsageError(
                    f"logit_bias {token}: {bias} is not usable; ids are ≥ 0 and biases numbers or -inf"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalises(self) -> bool:
        return self.penalty_window > 0 and (
            self.repetition_penalty != 1.0 or self.presence_penalty != 0.0 or self.frequency_penalty != 0.0
        )


class Sampler:
    """The chain as a function of a row of logits and the tokens before it; it keeps no state."""

    def __init__(self, settings: SamplerSettings, n_vocab: int) -> None:
        """`n_vocab`: ids at and above it (padding rows of a wider model) get no probability."""
        unknown = [t for t in settings.logit_bias if t >= n_vocab]
        if unknown:
            raise UsageError(f"logit_bias names token {unknown[0]}; this model's ids end at {n_vocab - 1}")
        self.settings = settings
        self.n_vocab = n_vocab

    def distribution(self, row: NDArray[np.float32], history: Sequence[int]) -> Distribution:
        """p of the token that follows `history`, from its row of logits, float32 [n_vocab].

        Raises BackendError if the logits are not finite where they must be.
        """
        s = self.settings
        row = self._penalised(row[: self.n_vocab], history)
        mode = int(row.argmax())  # NaN counts as the largest value, so this also finds NaN
        peak = float(row[mode])
        if not math.isfinite(peak):
            raise BackendError(
                "the model computed logits that are not numbers; the model file is damaged or "
                "unsupported (check it with: edgespec models inspect FILE)"
            )
        if s.greedy:
            return point_mass(mode)
        return _min_p(_top_p(_top_k(row, peak, s), s), s)

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


def _top_k(row: NDArray[np.float32], peak: float, s: SamplerSettings) -> Distribution:
    """Temperature, then the top-k filter, as a distribution over what is left."""
    if s.top_k == 0 or s.top_k >= row.size:
        # min-p commutes with nothing before it but may bound the candidates when top-p is off.
        reach = RESOLUTION if s.min_p == 0.0 or s.top_p < 1.0 else min(RESOLUTION, -math.log(s.min_p) + 1e-6)
        return _softmax(row, _above(row, peak - reach * s.temperature), peak, s.temperature)
    reach = 4.0 * max(1.0, s.temperature)
    ids = _above(row, peak - reach)
    while ids.size < s.top_k:  # widen until the k best are certainly inside
        reach *= 2.0
        ids = _above(row, peak - reach)
        if reach > 1e6:
            ids = np.flatnonzero(row > -np.inf)
            break
    if ids.size > s.top_k:
        best = np.argsort(-row[ids], kind="stable")[: s.top_k]  # stable: lowest id first among equals
        ids = np.sort(ids[best])
    return _softmax(row, ids, peak, s.temperature)


def _top_p(d: Distribution, s: SamplerSettings) -> Distribution:
    if s.top_p >= 1.0:
        return d
    # Tokens under this probability cannot be among the largest that make up top_p: were they all
    # dropped, the rest would still hold it. It keeps the sort short on wide rows.
    floor = (1.0 - s.top_p) / d.ids.size
    big = np.flatnonzero(d.probs >= floor)
    order = big[np.argsort(-d.probs[big], kind="stable")]
    count = int(np.searchsorted(np.cumsum(d.probs[order]), s.top_p)) + 1
    return _renormalised(d, np.sort(order[:count]))


def _min_p(d: Distribution, s: SamplerSettings) -> Distribution:
    if s.min_p == 0.0:
        return d
    return _renormalised(d, np.flatnonzero(d.probs >= s.min_p * d.probs.max()))


def _above(row: NDArray[np.float32], threshold: float) -> NDArray[np.int64]:
    mask = row >= np.float32(threshold)
    return _all_ids(row.size) if mask.all() else np.flatnonzero(mask)


@lru_cache(maxsize=4)
def _all_ids(n: int) -> NDArray[np.int64]:
    """One shared array, so that two unfiltered distributions are recognised as aligned."""
    return np.arange(n, dtype=np.int64)


def _softmax(row: NDArray[np.float32], ids: NDArray[np.int64], peak: float, t: float) -> Distribution:
    logits = row if ids.size == row.size else row[ids]
    probs = np.exp((logits.astype(np.float64) - peak) / t)
    return Distribution(ids, probs / probs.sum())


def _renormalised(d: Distribution, keep: NDArray[np.intp]) -> Distribution:
    if keep.size == d.ids.size:
        return d
    probs = d.probs[keep]
    return Distribution(d.ids[keep], probs / probs.sum())


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
