"""Is speculative greedy text the plain text? And where it is not, is that a near-tie?

Stock kernels compute a token alone and in a batch differently. A divergence counts as a near-tie
only where the margin between the target's two best tokens lies below the 99th percentile of how much
such margins move, on this backend, between the two batch shapes; anything else is a bug.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Segment
from edgespec.backends.base import Sequence as Cache
from edgespec.decoding.generation import Generation


@dataclass(frozen=True)
class Margins:
    """The gap, in logits, between the two best tokens at each position of a teacher-forced text."""

    best: NDArray[np.int64]
    second: NDArray[np.int64]
    alone: NDArray[np.float32]
    """each token fed alone, as plain decoding does"""
    batched: NDArray[np.float32]
    """the gap between the same two tokens with several fed in one pass, as verification does"""

    @property
    def moved(self) -> NDArray[np.float32]:
        """How much batching changes the gap."""
        change: NDArray[np.float32] = np.abs(self.alone - self.batched)
        return change


def measure_margins(
    backend: Backend, cache: Cache, prompt: Sequence[int], text: Sequence[int], n: int
) -> Margins:
    """Feed `text` behind `prompt` one token a pass and `n` tokens a pass; compare the margins."""
    if len(text) < 2:
        raise ValueError("a margin needs a text of two tokens or more")
    together = _teacher_forced(backend, cache, prompt, text, n)
    alone = _teacher_forced(backend, cache, prompt, text, 1)
    rows = np.arange(len(text))
    best = alone.argmax(axis=1)
    best_logits = alone[rows, best]
    alone[rows, best] = -np.inf
    second = alone.argmax(axis=1)
    return Margins(
        best,
        second,
        best_logits - alone[rows, second],
        together[rows, best] - together[rows, second],
    )


def _teacher_forced(
    backend: Backend, cache: Cache, prompt: Sequence[int], text: Sequence[int], n: int
) -> NDArray[np.float32]:
    """Logits that predict each token of `text`, float32 [len(text), n_vocab]."""
    backend.rollback(cache, 0)
    for start in range(0, len(prompt) - 1, backend.max_batch):
        chunk = prompt[start : min(start + backend.max_batch, len(prompt) - 1)]
        backend.forward([Segment(cache, chunk, rows=0)])
    fed = [prompt[-1], *text[:-1]]
    rows = [
        backend.forward([Segment(cache, fed[i : i + n], rows=len(fed[i : i + n]))]).copy()
        for i in range(0, len(fed), n)
    ]
    return np.concatenate(rows)


@dataclass
class Equality:
    """What was compared, and every place where the texts differ."""

    threshold: float
    """a smaller margin (in logits) makes a near-tie"""
    prompts: int = 0
    tokens: int = 0
    near_ties: list[float] = field(default_factory=list)
    """margins of the divergences that batching explains"""
    bugs: list[str] = field(default_factory=list)
    """divergences that it does not explain"""


def compare(
    prompt: Sequence[int],
    plain: Generation,
    margins: Margins,
    speculate: Callable[[list[int], int], Generation],
    into: Equality,
) -> None:
    """Speculate behind `prompt` and compare with `plain`, going on along the plain text after a
    near-tie. `speculate(prompt, max_tokens)` generates greedily. Raises ValueError when margins and
    text are not of one length."""
    if margins.alone.size != len(plain.tokens):
        raise ValueError(f"{margins.alone.size} margins for a text of {len(plain.tokens)} tokens")
    into.prompts += 1
    into.tokens += len(plain.tokens)
    ended = plain.finish_reason == "stop"
    start = 0
    while start < len(plain.tokens):
        expected = plain.tokens[start:]
        text = speculate([*prompt, *plain.tokens[:start]], len(expected) + ended).tokens
        same = next((i for i, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), len(text))
        place = start + same
        if place == len(plain.tokens) and len(text) == len(expected):
            return
        if place >= len(plain.tokens):
            into.bugs.append(f"token {place}: plain decoding ends here and speculation goes on")
            return
        margin = float(margins.alone[place])
        # Either may be ahead: plain decoding too depends on how its prompt was cut into passes.
        top_two = {int(margins.best[place]), int(margins.second[place])}
        if same < len(text) and {text[same], expected[same]} == top_two and margin < into.threshold:
            into.near_ties.append(margin)
        else:
            into.bugs.append(f"token {place}: margin {margin:.3f}, threshold {into.threshold:.3f}")
        start = place + 1
