"""When a generation ends, and what then counts as its output; checked token by token, in order.

A round may emit many tokens; each is looked at as if it had come alone: end token first, then stop
strings, then whether the grammar is complete, then the budget. Text that may turn out to be the start of
a stop string is held back, with its tokens, so that nothing behind a stop ever leaves: text, ids and
log-probabilities are cut together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from edgespec.backends.base import Tokenizer
from edgespec.decoding.text import IncrementalText
from edgespec.errors import UsageError

Origin = Literal["draft", "bonus", "corrected", "plain"]
"""drafted and accepted; sampled behind a full acceptance; sampled in place of a rejected token;
sampled in a round without drafts"""

FinishReason = Literal["stop", "length", "context", "cancelled"]
"""end token, stop string or the end of the grammar; token budget; context full; cancelled by the caller"""


@dataclass(frozen=True)
class Token:
    """One token of the output."""

    id: int
    text: str
    """the characters it completes; empty within a multi-token character"""
    origin: Origin
    logprob: float | None = None
    """of the target's raw distribution (before the sampler chain), in nats, when asked for"""
    top_logprobs: tuple[tuple[int, float], ...] = ()
    """the most probable (id, log-probability), when asked for"""


class Output:
    """Takes tokens in order and releases those that are certain to be part of the output.

    A token whose text reaches into a stop string is kept, with the text before the stop, if it has
    any; `text` is then shorter than what `tokens` decode to.
    """

    def __init__(self, tokenizer: Tokenizer, stop: Sequence[str], max_tokens: int | None) -> None:
        if any(not s for s in stop):
            raise UsageError("a stop string is empty; remove it")
        if max_tokens is not None and max_tokens < 1:
            raise UsageError(f"max_tokens is {max_tokens}; it must be at least 1")
        self._tokenizer = tokenizer
        self._stop = stop
        self._budget = max_tokens
        self._decoder = IncrementalText()
        self._held: list[Token] = []
        self.tokens: list[int] = []
        self.text = ""
        self.finish_reason: FinishReason | None = None
        self.stopped_by: str | None = None
        """the stop string that was met"""

    @property
    def remaining(self) -> int | None:
        """Tokens the budget still allows; None without a budget."""
        return None if self._budget is None else self._budget - len(self.tokens) - len(self._held)

    def push(self, token: Token, complete: bool = False) -> list[Token]:
        """Take the next token; returns those released by it. Sets `finish_reason` if it is the last.
        complete: nothing but an end token may follow it."""
        if self._tokenizer.is_end(token.id):
            return self.finish("stop")
        self._held.append(replace(token, text=self._decoder.push(self._tokenizer.piece(token.id))))
        text = "".join(t.text for t in self._held)
        if (match := self._first_stop(text)) is not None:
            start, self.stopped_by = match
            self.finish_reason = "stop"
            return self._release_before(start)
        if complete:
            return self.finish("stop")
        if self.remaining == 0:
            return self.finish("length")
        if self._decoder.incomplete:
            return []
        return self._release_whole(len(text) - self._possible_stop(text))

    def finish(self, reason: FinishReason) -> list[Token]:
        """End here: what was held back is output after all."""
        self.finish_reason = reason
        if self._held:
            last = self._held[-1]
            self._held[-1] = replace(last, text=last.text + self._decoder.flush())
        text = "".join(t.text for t in self._held)
        return self._release_whole(len(text))

    def _first_stop(self, text: str) -> tuple[int, str] | None:
        found = [(i, s) for s in self._stop if (i := text.find(s)) >= 0]
        return min(found, default=None)

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of `text` that may be the beginning of a stop string."""
        longest = max((len(s) - 1 for s in self._stop), default=0)
        for n in range(min(longest, len(text)), 0, -1):
            if any(s.startswith(text[-n:]) for s in self._stop):
                return n
        return 0

    def _release_whole(self, end: int) -> list[Token]:
        """Release the held tokens whose text ends at or before character `end`. A token without text
        may hold the first bytes of the character behind it, and goes with that."""
        position, count = 0, 0
        for i, token in enumerate(self._held):
            position += len(token.text)
            if position > end:
                break
            if token.text:
                count = i + 1
        else:
            count = len(self._held)
        return self._emit(self._held[:count], self._held[count:])

    def _release_before(self, start: int) -> list[Token]:
        """Release what lies before character `start`, cutting the token that crosses it; drop the rest."""
        released: list[Token] = []
        position = 0
        for token in self._held:
            if position >= start:
                break
            released.append(replace(token, text=token.text[: start - position]))
            position += len(token.text)
        return self._emit(released, [])

    def _emit(self, released: list[Token], held: list[Token]) -> list[Token]:
        self._held = held
        self.tokens += [t.id for t in released]
        self.text += "".join(t.text for t in released)
        return released
