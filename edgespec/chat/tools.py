"""Functions that a model may ask its user's program to call: how templates ask for calls, and how calls are
read while they are being written.

Two ways of writing calls are known, and a template's own text shows which one its model was trained on:

- Hermes' and Qwen's: <tool_call>{"name": …, "arguments": {…}}</tool_call>, several in a row;
- Llama 3's: the whole answer is {"name": …, "parameters": {…}}.

Small models of the first kind may forget the tags (Qwen2.5-Coder does), so an answer that begins with
such an object, perhaps fenced as code, is a call too, if it names one of the functions offered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Literal, NamedTuple, TypeAlias

from edgespec.chat.templates import reads

TAG, END = "<tool_call>", "</tool_call>"

CallForm: TypeAlias = Literal["tags", "bare"]


def call_form(template: str) -> CallForm | None:
    """How calls are written for this chat template; None where it takes no tools, or has another way."""
    text = template.replace('\\"', '"')
    if '"name":' not in text or not reads(template, "tools"):
        return None
    if TAG in text and '"arguments":' in text:
        return "tags"
    return "bare" if '"parameters":' in text else None


class CallPart(NamedTuple):
    """A piece of a call."""

    number: int
    """the call's, from 0"""
    name: str | None
    """the function's, with the call's first piece"""
    arguments: str
    """a piece of the arguments: JSON, as the model writes it"""


class Read(NamedTuple):
    """What a piece of an answer came to."""

    content: str
    calls: Sequence[CallPart] = ()


@dataclass(frozen=True)
class _Opening:
    """How a call may begin, up to the brace of its arguments; white space left out."""

    text: str
    name: str
    closing: str
    """what should follow the arguments"""


class CallReader:
    """Takes an answer piece by piece and tells calls from what is said.

    Text that may be the beginning of a call is held back until that is certain. What turns out to be none,
    because it is no JSON of the right form or names no function that was offered, is content as it stands.
    Once arguments have begun, everything up to their last brace (or the closing tag) is theirs, valid or
    not. White space around calls is dropped.
    """

    def __init__(self, names: Sequence[str], limit: int | None = None) -> None:
        """names: of the functions offered. limit: calls after which the rest of the answer is dropped."""
        doubled = ("{{", "}}" + END)  # as the template of Qwen2.5-Coder 1.5B has it, by mistake
        self._tagged = _openings(names, ("{", "}" + END), doubled)
        self._bare = _openings(names, ("{", "}"), ("```json{", "}```"), ("```{", "}```"))
        self._limit = limit
        self._state: Literal["start", "text", "tag", "arguments", "closing", "full"] = "start"
        self._held = ""
        self._before = ""
        """the tag and the white space before it, while it is uncertain what follows"""
        self._closing = ""
        """what should follow, behind a call's arguments"""
        self._depth = 0
        self._quoted = self._escaped = False
        self._content = ""
        self._parts: list[CallPart] = []
        self.count = 0
        """calls so far"""

    def push(self, text: str) -> Read:
        """What is certain after `text` has come too."""
        self._held += text
        steps = {
            "start": self._start,
            "text": self._text,
            "tag": self._tag,
            "arguments": self._arguments,
            "closing": self._close,
            "full": self._drop,
        }
        while steps[self._state]():
            pass
        return self._read()

    def finish(self) -> Read:
        """What was held back, now that the answer has ended."""
        if self._state == "arguments":
            self._argue(len(self._held))
        elif self._state in ("start", "text", "tag") and (not self.count or self._held.strip()):
            self._content += self._before + self._held
        return self._read()

    def _read(self) -> Read:
        read = Read(self._content, self._parts)
        self._content, self._parts = "", []
        return read

    # Each of these looks at the held text in one state, and says whether there is more to be seen in it.

    def _start(self) -> bool:
        """Nothing but white space, since the answer's or the last call's end."""
        text = self._held.lstrip()
        if not text or (len(text) < len(TAG) and TAG.startswith(text)):
            return False
        if self.count:
            self._held = text
        if text.startswith(TAG):
            self._state = "text"
            return True
        return self._open(self._bare, text)

    def _text(self) -> bool:
        before, tag, rest = self._held.partition(TAG)
        said = before[: len(before) - (0 if tag else _beginning_of_tag(before))].rstrip()
        self._content += said
        if tag:
            self._before = before[len(said) :] + tag
            self._held, self._state = rest, "tag"
            return True
        self._held = before[len(said) :]
        return False

    def _tag(self) -> bool:
        return self._open(self._tagged, self._held)

    def _open(self, openings: Sequence[_Opening], text: str) -> bool:
        """Begin a call if `text` begins like one."""
        seen = 0
        for i, character in enumerate(text):
            if character.isspace():
                continue
            openings = [one for one in openings if one.text[seen] == character]
            seen += 1
            if not openings:
                self._content += self._before
                self._before, self._state = "", "text"
                return True
            if seen == len(openings[0].text):  # none begins another
                self._parts.append(CallPart(self.count, openings[0].name, ""))
                self.count += 1
                self._closing = openings[0].closing
                self._before, self._held, self._state = "", text[i:], "arguments"
                return True
        return False

    def _arguments(self) -> bool:
        for i, character in enumerate(self._held):
            if self._escaped:
                self._escaped = False
            elif self._quoted:
                self._escaped = character == "\\"
                self._quoted = character != '"'
            elif character == '"':
                self._quoted = True
            elif character == "{":
                self._depth += 1
            elif character == "}":
                self._depth -= 1
                if self._depth == 0:
                    self._argue(i + 1)
                    self._state = "closing"
                    return True
            elif character == "<" and END in self._closing:
                rest = self._held[i:]
                if rest.startswith(END) or END.startswith(rest):
                    self._argue(i)
                    if rest.startswith(END):
                        self._depth, self._state = 0, "closing"
                    return self._state == "closing"
        self._argue(len(self._held))
        return False

    def _argue(self, length: int) -> None:
        """So much of the held text belongs to the arguments."""
        if length:
            self._parts.append(CallPart(self.count - 1, None, self._held[:length]))
            self._held = self._held[length:]

    def _close(self) -> bool:
        """Skip what follows a call's arguments, as far as it is there."""
        self._held = self._held.lstrip()
        if self._closing and not self._held:
            return False
        if self._closing.startswith("}"):
            self._closing = self._closing[1:]
            self._held = self._held.removeprefix("}")
            return True
        if len(self._held) < len(self._closing) and self._closing.startswith(self._held):
            return False
        self._held = self._held.removeprefix(self._closing)
        self._state = "full" if self.count == self._limit else "start"
        return True

    def _drop(self) -> bool:
        self._held = ""
        return False


def _openings(names: Sequence[str], *around: tuple[str, str]) -> list[_Opening]:
    """around: what a call begins and ends with."""
    kinds, keys = ("", '"type":"function",'), ("arguments", "parameters")
    return [
        _Opening(f'{begin}{kind}"name":"{name}","{key}":{{', name, closing)
        for (begin, closing), kind, name, key in product(around, kinds, names, keys)
    ]


def _beginning_of_tag(text: str) -> int:
    """How many characters at the end of `text` may be the beginning of a tag."""
    return next((n for n in range(len(TAG) - 1, 0, -1) if text.endswith(TAG[:n])), 0)
