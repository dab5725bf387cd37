"""Record traces: run a target plainly, then ask a draft model about every place of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Segment
from edgespec.backends.base import Sequence as Cache
from edgespec.backends.prefix import align
from edgespec.bench.traces import Guess, Trace

DEPTH = 12
"""proposals recorded behind a mistake, itself included"""


def record(
    id: str, category: str, prompt: Sequence[int], text: Sequence[int], draft: Backend, cache: Cache
) -> Trace:
    """`text` is the target's greedy answer to `prompt`, in tokens; `cache` is one of the draft's, and is
    changed."""
    model = [_guess(row) for row in _teacher_forced(draft, cache, prompt, text)]
    astray: list[list[Guess]] = [[] for _ in text]
    for t in reversed(range(len(text))):  # backwards: the cache only ever gets shorter
        if model[t].token != text[t]:
            draft.rollback(cache, len(prompt) + t)
            astray[t] = _follow(draft, cache, model[t].token)
    return Trace(id, category, prompt, text, model, astray)


def _teacher_forced(
    draft: Backend, cache: Cache, prompt: Sequence[int], text: Sequence[int]
) -> Iterator[NDArray[np.float32]]:
    """The row that predicts each token of `text`. In the end all of `text` but its last token is cached."""
    align(draft, cache, prompt, 1, lambda *_: None)
    fed = [prompt[-1], *text[:-1]]
    size = min(draft.max_rows, draft.max_batch)
    for start in range(0, len(fed), size):
        part = fed[start : start + size]
        yield from draft.forward([Segment(cache, part, rows=len(part))])


def _follow(draft: Backend, cache: Cache, token: int) -> list[Guess]:
    path: list[Guess] = []
    while len(path) < DEPTH - 1 and not draft.tokenizer.is_end(token) and len(cache) < draft.n_ctx:
        path.append(_guess(draft.forward([Segment(cache, [token])])[0]))
        token = path[-1].token
    return path


def _guess(row: NDArray[np.float32]) -> Guess:
    mode = int(row.argmax())
    log_q = row.astype(np.float64) - float(row[mode])
    log_q -= np.log(np.exp(log_q).sum())
    q = np.exp(log_q)
    log_q[q == 0.0] = 0.0  # of a trimmed head they are infinite
    return Guess(mode, float(q[mode]), float(-(q * log_q).sum()))
