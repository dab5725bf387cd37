"""The draft model: a small language model proposes tokens, one forward pass each."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Backend, Logits, Segment, Step
from edgespec.backends.base import Sequence as Cache
from edgespec.backends.caches import Caches
from edgespec.backends.prefix import align, common_prefix
from edgespec.decoding.sampling import Distribution, Mask
from edgespec.drafters.base import GLANCE, DraftState, Hindsight, Node, Offer
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, ModelError, UsageError

UNCLEAR = 4
"""The first of them stand behind too little to count."""
USUAL_LAG = 16
"""A cache further behind than this is caught up in `begin`, as prompt processing."""


class DraftModel:
    """Drafts with a model behind a backend, which it owns. Each fork has a KV cache of its own.

    Its cache lags after rounds without it and after full acceptance (the last drafted token was never
    fed); the next pass feeds what is missing together with the newest token. Where it lagged by several
    tokens, that pass also tells what it would have thought of them (`hindsight`).

    Lookup may speculate for it as it does for the target (Spector & Re 2023, "Accelerating LLM Inference
    with Staged Speculative Decoding"): a pass also reads tokens that lookup guesses, and while those are
    what is then sampled, the next q is `ready`. Guesses change how many passes it takes and nothing else.
    """

    def __init__(self, backend: Backend, lookup: NGram | None = None, caches: Caches | None = None) -> None:
        """caches: the backend's; one, if not given. Raises ModelError for a model whose state cannot be
        rolled back."""
        if not backend.capabilities.rollback:
            raise ModelError(
                f"{backend.name} cannot be a draft model: {backend.capabilities.reason}. "
                "Choose another draft, or --draft ngram"
            )
        self.name = backend.name
        self.backend = backend
        self.steps: Sequence[Step] = ()
        self.hindsight: Sequence[Hindsight] = ()
        self.guesses = 0
        self._lookup = lookup
        self._guessed: list[int] = []
        """tokens read ahead"""
        self._rows: list[NDArray[np.float32]] = []
        """logits behind all that is drafted, then behind each of the guessed"""
        self.caches = Caches(backend) if caches is None else caches
        """the draft model's, shared with its forks"""
        self._cache: Cache | None = None
        self._known: int | None = None
        """tokens that the caches knew when it was first asked, while it has none of them"""
        self._q: Distribution | None = None
        self._confidence = 0.0

    def offer(self, context: Sequence[int]) -> Offer | None:
        if len(context) > self.backend.n_ctx:
            return None
        if self._cache is None:
            if self._known is None:
                self._known = self.caches.known(context)
            return Offer(lag=len(context) - self._known)
        return Offer(lag=len(context) - min(common_prefix(self._cache.tokens, context), len(context) - 1))

    def fork(self) -> DraftModel:
        other = copy(self)
        other._cache = other._known = None
        other._lookup = None if self._lookup is None else self._lookup.fork()
        return other

    def release(self) -> None:
        if self._cache is not None:
            self.caches.release(self._cache)
            self._cache = self._known = None
        # An answer that somebody keeps shall not keep these, nor an index of its text.
        self._guessed, self._rows, self._q = [], [], None
        if self._lookup is not None:
            self._lookup.release()

    def _take(self, context: Sequence[int]) -> None:
        """Have a cache."""
        if self._cache is None:
            self._cache = self.caches.take(context)

    @property
    def sequence(self) -> Cache:
        """Its cache, once it has begun."""
        assert self._cache is not None
        return self._cache

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self._start(context, state)
        if self._lookup is not None and self.guesses > 0:
            self._lookup.read(context)
        if self._has_room():
            self._take(context)
            align(self.backend, self.sequence, self._context, USUAL_LAG, lambda *_: state.checkpoint())

    def _start(self, context: Sequence[int], state: DraftState) -> None:
        self._state, self._context, self._round = state, list(context), len(context)
        self._guessed, self._rows, self._q = [], [], None
        self.steps, self.hindsight = (), ()

    def look(self, context: Sequence[int], state: DraftState) -> None:
        self._start(context, state)
        self._take(context)
        known = min(common_prefix(self.sequence.tokens, context), len(context) - 1)
        self.backend.rollback(self.sequence, known)
        start = max(known, len(context) - 1 - GLANCE)
        if known + len(context) - 1 - start > self.backend.n_ctx or start == len(context) - 1:
            return
        started = perf_counter()
        rows = self.backend.forward(
            [Segment(self.sequence, context[start:-1], rows=len(context) - 1 - start)]
        )
        self._judge(rows, start + 1, UNCLEAR if start > known else 0)
        if start > known:  # what it has read is not what stands there
            self.backend.rollback(self.sequence, known)
        self.steps = (Step(len(rows), known, perf_counter() - started),)

    def _judge(self, rows: Logits, first: int, skip: int = 0) -> None:
        """Note what the rows, which predict the tokens from place `first` on, think of them."""
        sampler, seen = self._state.sampler, []
        for place, row in enumerate(rows[skip:], first + skip):
            allowed = self._state.allowed(self._context[:place])
            q = self._distribution(row, place, allowed)
            if q is not None:
                sure = sampler.confidence(row, q, allowed)
                likely = self._state.rule.foreseen(q, self._context[place], place)
                seen.append(Hindsight(place, sure, likely))
        self.hindsight = seen

    def _has_room(self) -> bool:
        return len(self._context) <= self.backend.n_ctx

    @property
    def ready(self) -> bool:
        return self._q is not None or bool(self._rows)

    def peek(self) -> float | None:
        if self._q is None:
            if not self._has_room():  # the draft's own context is full: the target goes on alone
                return None
            self._q = self._next()
        return None if self._q is None else self._confidence

    def _next(self) -> Distribution | None:
        """q behind everything read and drafted so far; None if there is nothing to say."""
        started, known, ready = perf_counter(), len(self.sequence), bool(self._rows)
        if not ready:
            self._read()
        row = self._rows.pop(0)
        allowed = self._state.allowed(self._context)
        q = self._distribution(row, len(self._context), allowed)
        if q is not None:
            self._confidence = self._state.sampler.confidence(row, q, allowed)
        if not ready:
            self.steps = (*self.steps, Step(len(self.sequence) - known, known, perf_counter() - started))
        return q

    def _read(self) -> None:
        """A pass over what is missing of the context, and over guesses at what follows."""
        self._state.checkpoint()
        known = len(self.sequence)
        missing = self._context[known:]
        lagged = 2 < len(missing) <= self.backend.max_rows
        wanted = len(missing) if lagged else 1
        self._guessed = self._guess(self.backend.max_rows - wanted)
        tokens = [*missing, *self._guessed]
        rows = self.backend.forward([Segment(self.sequence, tokens, rows=wanted + len(self._guessed))])
        if lagged:
            self._judge(rows[: wanted - 1], known + 1)
        self._rows = list(rows[wanted - 1 :])

    def _guess(self, room: int) -> list[int]:
        limit = min(self.guesses, room, self.backend.n_ctx - len(self._context))
        if self._lookup is None or limit <= 0:
            return []
        return self._lookup.guess(self._context[self._round :], limit)

    def _distribution(
        self, row: NDArray[np.float32], place: int, allowed: Mask | None
    ) -> Distribution | None:
        """q of the token at a place; None if none that is allowed is in the (trimmed) head."""
        try:
            return self._state.sampler.distribution(row, self._context[:place], allowed)
        except UsageError:
            return None

    def extend(self) -> Node | None:
        if self.peek() is None or self._q is None:
            return None
        q, self._q = self._q, None
        token = self._state.rule.draw(q, len(self._context))
        if self._guessed and self._guessed.pop(0) != token:
            self._guessed, self._rows = [], []
            # What was sampled must be verified, or the output would be biased. A cache that cannot be cut is
            # empty, and what fails for good does so again before the next token is sampled.
            with suppress(BackendError):
                self.backend.rollback(self.sequence, len(self._context))
        self._context.append(token)
        return Node(token, q, self._confidence, self.name)

    def close(self) -> None:
        self.caches.close()
        self.backend.close()
