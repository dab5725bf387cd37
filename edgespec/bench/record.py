"""Record traces: run a target plainly, then ask a draft model about every place of the text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Segment
from edgespec.backends.base import Sequence as Cache
from edgespec.backends.prefix import align
from edgespec.bench.traces import Guess, Trace
from edgespec.decoding.sampling import Sampler, SamplerSettings
from edgespec.decoding.verify import Coupled

DEPTH = 12
"""proposals recorded behind a mistake, itself included"""
GREEDY = SamplerSettings()


def record(
    id: str,
    category: str,
    prompt: Sequence[int],
    text: Sequence[int],
    draft: Backend,
    cache: Cache,
    sampling: SamplerSettings = GREEDY,
    seed: int = 0,
) -> Trace:
    """`text` is the target's answer to `prompt`, in tokens, greedy or sampled under a seed: then the draft's
    proposals are what it would have sampled under the same. `cache` is one of the draft's, and is changed."""
    asked = _Asked(draft, cache, sampling, seed)
    model = list(asked.about(prompt, text))
    astray: list[list[Guess]] = [[] for _ in text]
    for t in reversed(range(len(text))):  # backwards: the cache only ever gets shorter
        if model[t].token != text[t]:
            draft.rollback(cache, len(prompt) + t)
            astray[t] = asked.on(model[t].token)
    return Trace(id, category, prompt, text, model, astray)


class _Asked:
    """A draft model that is asked what it would propose."""

    def __init__(self, draft: Backend, cache: Cache, sampling: SamplerSettings, seed: int) -> None:
        self._draft, self._cache = draft, cache
        self._sampler = Sampler(sampling, min(draft.n_vocab, draft.tokenizer.n_vocab))
        self._rule = Coupled(seed)

    def about(self, prompt: Sequence[int], text: Sequence[int]) -> Iterator[Guess]:
        """Its proposal for each token of `text`. In the end all of `text` but its last token is cached."""
        draft, cache = self._draft, self._cache
        align(draft, cache, prompt, 1, lambda *_: None)
        fed = [prompt[-1], *text[:-1]]
        size = min(draft.max_rows, draft.max_batch)
        for start in range(0, len(fed), size):
            part = fed[start : start + size]
            rows = draft.forward([Segment(cache, part, rows=len(part))])
            for place, row in enumerate(rows, len(prompt) + start):
                yield self._guess(row, [*prompt, *text][:place])

    def on(self, token: int) -> list[Guess]:
        """What it proposes behind a token that it proposed."""
        draft, cache, path = self._draft, self._cache, list[Guess]()
        while len(path) < DEPTH - 1 and not draft.tokenizer.is_end(token) and len(cache) < draft.n_ctx:
            row = draft.forward([Segment(cache, [token])])[0]
            path.append(self._guess(row, cache.tokens))
            token = path[-1].token
        return path

    def _guess(self, row: NDArray[np.float32], context: Sequence[int]) -> Guess:
        q = self._sampler.distribution(row, context)
        log_q = row.astype(np.float64) - float(row.max())
        log_q -= np.log(np.exp(log_q).sum())
        raw = np.exp(log_q)
        log_q[raw == 0.0] = 0.0  # of a trimmed head they are infinite
        token, sure = self._rule.draw(q, len(context)), self._sampler.confidence(row, q)
        return Guess(token, sure, float(-(raw * log_q).sum()))
