"""Reasoning models think aloud before they answer: `<think>…</think>` and then the answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgespec.backends.base import Tokenizer

BEGIN, END = "<think>", "</think>"


def knows_thoughts(template: str | None) -> bool:
    """Whether a chat template shows that its model thinks aloud."""
    return template is not None and BEGIN in template


def opens_thoughts(prompt: Sequence[int], tokenizer: Tokenizer) -> bool:
    """Whether a prompt ends with the tag, so that what follows are thoughts: some chat templates do that."""
    end = b"".join(map(tokenizer.piece, prompt[-8:]))
    return end.rstrip().endswith(BEGIN.encode())


class Said(NamedTuple):
    """A piece of an output, taken apart."""

    reasoning: str
    content: str


class Thinking:
    """Takes text piece by piece and tells thoughts from the answer.

    Only an output that begins with the tag (or whose prompt ended with it) has thoughts; a tag further
    on is text like any other. What may become a tag is held back until it is certain.
    """

    def __init__(self, begun: bool = False) -> None:
        """begun: the prompt ended with the tag, as some chat templates have it."""
        self._held = ""
        self._state = "opened" if begun else "start"

    def push(self, text: str) -> Said:
        """What is certain after `text` has come too."""
        self._held += text
        reasoning = content = ""
        if self._state == "start":
            seen = self._held.lstrip()
            if len(seen) < len(BEGIN) and BEGIN.startswith(seen):
                return Said("", "")
            self._state = "answer"
            if seen.startswith(BEGIN):
                self._state, self._held = "opened", seen[len(BEGIN) :]
        if self._state == "opened":
            self._skip_lines("thoughts")
        if self._state == "thoughts":
            thoughts, tag, rest = self._held.partition(END)
            keep = 0 if tag else _possible_tag(thoughts)
            reasoning, self._held = thoughts[: len(thoughts) - keep], thoughts[len(thoughts) - keep :]
            if tag:
                self._state, self._held = "closed", rest
        if self._state == "closed":
            self._skip_lines("answer")
        if self._state == "answer":
            content, self._held = self._held, ""
        return Said(reasoning, content)

    def _skip_lines(self, then: str) -> None:
        """Drop the empty lines behind a tag; go on to `then` once something else has come."""
        self._held = self._held.lstrip("\n")
        if self._held:
            self._state = then

    def finish(self) -> Said:
        """What was held back, now that the output has ended."""
        held, self._held = self._held, ""
        return Said(held, "") if self._state == "thoughts" else Said("", held)


def _possible_tag(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of the end tag."""
    return next((n for n in range(len(END) - 1, 0, -1) if text.endswith(END[:n])), 0)
