"""Prompt lookup: the text so far, searched for what followed the last few tokens before.

Saxena 2023, "Prompt Lookup Decoding". Free to draft; pays where the output repeats its input
(edits, summaries, code).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgespec.backends.base import Step
from edgespec.drafters.base import DraftState, Hindsight, Node, Offer

LONGEST_MATCH = 32
"""how far back a match is measured: a longer one is not surer"""


class NGram:
    """Proposes the continuation of the most recent earlier occurrence of the last n tokens.

    The longest n from `longest` down to `shortest` that occurred before wins. Example, shortest=2:
    context `a b c d … a b` proposes `c`, then `d`, … and when the copy reaches the end of the text it
    goes on through what it just proposed, so that `a b a b` is continued for ever. An index from
    n-gram to the place behind it grows with the text: a round costs the same at any context length.
    """

    name = "ngram"
    steps: Sequence[Step] = ()
    hindsight: Sequence[Hindsight] = ()
    guesses = 0
    ready = True

    def __init__(self, longest: int = 4, shortest: int = 2) -> None:
        self._sizes = range(longest, shortest - 1, -1)
        self._forget()

    def fork(self) -> NGram:
        return NGram(self._sizes[0], self._sizes[-1])

    def release(self) -> None:
        self._forget()

    def _forget(self) -> None:
        self._text: list[int] = []
        self._behind: dict[tuple[int, ...], int] = {}
        self._next: int | None = None
        self._match = 0

    def offer(self, context: Sequence[int]) -> Offer | None:
        self.read(context)
        if self._next is None:
            return None
        sure = CONFIDENCES[self._match : self._match + LONGEST_MATCH]
        return Offer(token=self._text[self._next], confidences=sure)

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self.read(context)
        self._source = self._text.copy()

    def guess(self, behind: Sequence[int], limit: int) -> list[int]:
        """Up to `limit` tokens that may follow the text last read and the tokens drafted `behind` it."""
        place = self._find([*self._text[-self._sizes[0] :], *behind])
        return [] if place is None else [*self._text[place : place + limit], *behind][:limit]

    def look(self, context: Sequence[int], state: DraftState) -> None:
        pass  # `offer` says all there is to know

    def read(self, context: Sequence[int]) -> None:
        """Index what is new of the text, and look up where it goes on."""
        if self._text != context[: len(self._text)]:
            self._forget()
        known, text = len(self._text), self._text
        text += context[known:]
        # The n-grams that end before a token are followed by it: only what has a successor is indexed.
        behind, longest = self._behind, self._sizes[0]
        for place in range(known, len(text)):
            last = tuple(text[max(0, place - longest) : place])
            for n in self._sizes:
                if place >= n:
                    behind[last[-n:]] = place
        self._next = self._find(self._text)
        self._match = 0 if self._next is None else self._length_of_match(self._next)

    def _find(self, text: Sequence[int]) -> int | None:
        """Where what followed the last tokens of `text` before stands."""
        for n in self._sizes:
            if len(text) >= n and (place := self._behind.get(tuple(text[-n:]))) is not None:
                return place
        return None

    def _length_of_match(self, place: int) -> int:
        """How many tokens before `place` equal the last ones of the text."""
        text, n, most = self._text, 0, min(place, LONGEST_MATCH)
        if text[place - most : place] == text[-most:]:
            return most
        while n < most and text[place - 1 - n] == text[-1 - n]:
            n += 1
        return n

    def peek(self) -> float | None:
        return None if self._next is None else confidence(self._match)

    def extend(self) -> Node | None:
        if self._next is None:
            return None
        token, sure = self._source[self._next], confidence(self._match)
        self._next += 1
        self._match += 1
        self._source.append(token)
        return Node(token, None, sure, self.name)

    def close(self) -> None:
        self._forget()


def confidence(match: int) -> float:
    """How sure a continuation is behind a match of so many tokens: a scale of doublings from 0 for one to
    1 for LONGEST_MATCH, which acceptance calibrates."""
    return min(1.0, math.log2(match) / math.log2(LONGEST_MATCH)) if match > 1 else 0.0


CONFIDENCES = tuple(confidence(match) for match in range(2 * LONGEST_MATCH + 1))
