"""Prompt lookup: the text so far, searched for what followed the last few tokens before.

Saxena 2023, "Prompt Lookup Decoding". Free to draft; pays where the output repeats its input
(edits, summaries, code).
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.drafters.base import DraftState, Node


class NGram:
    """Proposes the continuation of the most recent earlier occurrence of the last n tokens.

    The longest n from `longest` down to `shortest` that occurred before wins. Example, shortest=2:
    context `a b c d … a b` proposes `c`, then `d`, … and when the copy reaches the end of the text it
    goes on through what it just proposed, so that `a b a b` is continued for ever. An index from
    n-gram to the place behind it grows with the text: a round costs the same at any context length.
    """

    name = "ngram"

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._forget()

    def _forget(self) -> None:
        self._text: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        if self._text != context[: len(self._text)]:
            self._forget()
        for token in context[len(self._text) :]:
            # The n-grams that end here are followed by `token`: only what has a successor is indexed.
            for n in self._sizes:
                if len(self._text) >= n:
                    self._behind[tuple(self._text[-n:])] = len(self._text)
            self._text.append(token)
        self._source = self._text.copy()
        self._next = self._lookup()

    def _lookup(self) -> int | None:
        for n in self._sizes:
            if len(self._text) >= n and (place := self._behind.get(tuple(self._text[-n:]))) is not None:
                return place
        return None

    def extend(self) -> Node | None:
        if self._next is None:
            return None
        token = self._source[self._next]
        self._next += 1
        self._source.append(token)
        return Node(token)

    def close(self) -> None:
        self._forget()
