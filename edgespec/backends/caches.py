"""Which KV cache a context goes on from: several stay, and what they hold is computed once.

A conversation's next turn finds its own cache again, and a new conversation starts from a copy of whatever
begins like it, such as a common system prompt.
"""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from time import time

from edgespec.backends.base import Backend, Copy, Sequence
from edgespec.backends.cache_folder import Folder
from edgespec.backends.prefix import common_prefix, usable
from edgespec.errors import BackendError

LITTLE = 32
"""tokens that are as well processed again as copied"""


class Kept:
    """Copies of caches, within a budget of bytes that the models of a pair share. What was not used for
    longest goes first."""

    def __init__(self, budget: int = 0, folder: Folder | None = None) -> None:
        """folder: where what is held when the models are closed is saved, and found again."""
        self.budget = budget
        self.folder = folder
        self.nbytes = 0
        self.evicted = 0
        """copies so far that had to go"""
        self._copies: dict[Copy, Backend] = {}

    def __len__(self) -> int:
        return len(self._copies)

    def of(self, backend: Backend) -> list[Copy]:
        """A backend's, the one that was used last at the end."""
        return [copy for copy, maker in self._copies.items() if maker is backend]

    def add(self, backend: Backend, copy: Copy) -> None:
        """Keep a copy, if the budget can hold it."""
        if copy.nbytes > self.budget:
            return
        self._copies[copy] = backend
        self.nbytes += copy.nbytes
        while self.nbytes > self.budget:
            self.drop(next(iter(self._copies)))
            self.evicted += 1

    def drop(self, copy: Copy) -> None:
        """Free it."""
        if self._copies.pop(copy, None) is not None:
            self.nbytes -= copy.nbytes

    def used(self, copy: Copy) -> None:
        """It was gone on from."""
        self._copies[copy] = self._copies.pop(copy)


class Caches:
    """The sequences of one backend: as many as may be in use at once, opened when first needed. What they
    hold stays in them after use, and in `Kept` when they are needed for something else.

    Not thread-safe, like the backend.
    """

    def __init__(self, backend: Backend, slots: int = 1, kept: Kept | None = None) -> None:
        self.backend = backend
        self.slots = slots
        self.kept = Kept() if kept is None else kept
        self._idle: list[Sequence] = []
        """the one that was used last at the end"""
        self._busy: list[Sequence] = []
        self._shelf = None if self.kept.folder is None else self.kept.folder.shelf(backend)

    @property
    def sequences(self) -> list[Sequence]:
        """All that are open."""
        return [*self._idle, *self._busy]

    def known(self, context: SequenceOf[int]) -> int:
        """How many of the context's tokens need not be computed."""
        return max((self._usable(cache, context) for cache in self._held), default=0)

    def take(self, context: SequenceOf[int]) -> Sequence:
        """A sequence for the caller alone, until it is released. It begins like `context` as far as is
        known; whatever follows that is the caller's to drop. Raises BackendError if all are in use."""
        self._bring_back(context)
        source = max(self._held, key=lambda cache: self._usable(cache, context), default=None)
        length = 0 if source is None else self._usable(source, context)
        sequence = next((s for s in reversed(self._idle) if self._goes_on(s, context, length)), None)
        if sequence is None and source is not None and length > LITTLE:
            sequence = self._branch(source, length)
        elif sequence is None:
            sequence = self._room()
        self._idle.remove(sequence)
        self._busy.append(sequence)
        return sequence

    def release(self, sequence: Sequence) -> None:
        """It is not used any more; what it holds stays. Once all are closed, as when a runtime is dropped
        within an answer, there is nothing to do."""
        if sequence in self._busy:
            self._busy.remove(sequence)
            self._idle.append(sequence)

    def close(self) -> None:
        """Close the sequences, and free what was kept of them, after saving all that where there is a folder
        for it. Safe to call twice."""
        self._save()
        for sequence in self.sequences:
            self.backend.close(sequence)
        for copy in self.kept.of(self.backend):
            self.kept.drop(copy)
        self._idle, self._busy = [], []

    @property
    def _held(self) -> list[Sequence | Copy]:
        return [*self.sequences, *self.kept.of(self.backend)]

    def _bring_back(self, context: SequenceOf[int]) -> None:
        """Read a saved cache, if it knows more of the context than what is in memory does."""
        saved = [] if self._shelf is None else self._shelf.saved
        best = max(saved, key=lambda one: usable(self.backend, one.tokens, context), default=None)
        if self._shelf is None or best is None:
            return
        if usable(self.backend, best.tokens, context) > self.known(context) + LITTLE:
            self._shelf.restore(best, self._room())

    def _save(self) -> None:
        if self._shelf is None or not self._idle:
            return
        spare = self._idle[0]  # it is saved first; then copies can be pasted there to be saved
        copies = self.kept.of(self.backend)
        held: list[tuple[int, Sequence | Copy]] = [*enumerate(self._idle, len(copies)), *enumerate(copies)]
        now = time()
        for place, cache in held:
            used = now - (len(held) - place) / 1000  # in this order, as far as is known
            known = [one.tokens for one in self._shelf.there()]
            if len(cache.tokens) > LITTLE and not any(_covers(tokens, cache.tokens) for tokens in known):
                if isinstance(cache, Copy):
                    self._shelf.save(spare, cache, used)
                else:
                    self._shelf.save(cache, None, used)

    def _usable(self, cache: Sequence | Copy, context: SequenceOf[int]) -> int:
        return usable(self.backend, cache.tokens, context)

    def _goes_on(self, idle: Sequence, context: SequenceOf[int], best: int) -> bool:
        """Whether nothing is better than to use a sequence as it is, and little in it is lost by that."""
        length = self._usable(idle, context)
        return best - length <= LITTLE and len(idle) - length <= LITTLE

    def _branch(self, source: Sequence | Copy, length: int) -> Sequence:
        """What goes on from the middle of another cache leaves that alone."""
        if isinstance(source, Copy):
            if len(source.tokens) - length <= LITTLE:  # the sequence will hold it all, and more
                self.kept.drop(source)
            else:
                self.kept.used(source)
        sequence = self._room(source)
        if sequence is not source:
            copy = source if isinstance(source, Copy) else self.backend.copy(source)
            self.backend.paste(sequence, copy, length)
        return sequence

    def _room(self, source: Sequence | Copy | None = None) -> Sequence:
        """A sequence to be filled from `source`: a new one, or the idle one that was not used for longest,
        of whose content a copy is kept; the source itself if there is no other."""
        if len(self.sequences) < self.slots:
            self._idle.append(self.backend.open())
            return self._idle[-1]
        if not self._idle:
            raise BackendError(f"all {self.slots} caches of {self.backend.name} are in use")
        sequence = min(self._idle, key=lambda s: s is source)
        held = [cache for cache in self._held if cache is not sequence]
        if self.kept.budget and not any(_covers(cache.tokens, sequence.tokens) for cache in held):
            self.kept.add(self.backend, self.backend.copy(sequence))
        return sequence


def _covers(tokens: SequenceOf[int], others: SequenceOf[int]) -> bool:
    return len(others) - common_prefix(tokens, others) <= LITTLE
