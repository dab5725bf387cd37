"""The draft model: a small language model proposes tokens, one forward pass each."""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.backends.base import Backend, Segment
from edgespec.backends.prefix import align
from edgespec.drafters.base import DraftState, Node
from edgespec.errors import ModelError

USUAL_LAG = 16
"""A cache further behind than this is caught up in `begin`, as prompt processing."""


class DraftModel:
    """Drafts with a model behind a backend, which it owns.

    Its cache lags after plain rounds and after full acceptance (the last drafted token was never
    fed); the next `extend` feeds what is missing together with the newest token, in one pass.
    """

    def __init__(self, backend: Backend) -> None:
        """Raises ModelError for a model whose state cannot be rolled back."""
        if not backend.capabilities.rollback:
            raise ModelError(
                f"{backend.name} cannot be a draft model: {backend.capabilities.reason}. "
                "Choose another draft, or --draft ngram"
            )
        self.name = backend.name
        self.backend = backend
        self._sequence = backend.open()

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self._state = state
        self._context = list(context)
        if self._has_room():
            align(self.backend, self._sequence, self._context, USUAL_LAG, lambda *_: state.checkpoint())

    def _has_room(self) -> bool:
        return len(self._context) <= self.backend.n_ctx

    def extend(self) -> Node | None:
        if not self._has_room():  # the draft's own context is full: the target goes on alone
            return None
        missing = self._context[len(self._sequence) :]
        row = self.backend.forward([Segment(self._sequence, missing)])[0]
        q = self._state.sampler.distribution(row, self._context)
        token = self._state.rule.draw(q, len(self._context))
        self._context.append(token)
        return Node(token, q)

    def close(self) -> None:
        self.backend.close()
