"""Events of a ticket → what OpenAI's clients read: one object, or a stream of chunks."""

from __future__ import annotations

import secrets
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from time import time
from typing import Any, Protocol

from edgespec.chat.tools import CallReader, Read
from edgespec.decoding.rounds import Stats
from edgespec.server.errors import ApiError
from edgespec.server.fields import Extras
from edgespec.server.turns import Ended, Event, Likely, Piece, Started, Ticket

_REASONS = {"stop": "stop", "length": "length", "context": "length"}
_LEAST = -9999.0
"""stands for log 0, which JSON cannot say"""
_RUNNING = ("tokens", "decode_tokens", "decode_seconds", "rounds", "drafted", "accepted", "draft_passes")
"""statistics that every chunk has"""


@dataclass
class Called:
    """A call, or a piece of one."""

    number: int
    name: str | None
    """None in pieces but the first"""
    arguments: str
    id: str = field(default_factory=lambda: f"call_{secrets.token_hex(12)}")


@dataclass
class Choice:
    """One answer, or a piece of it."""

    index: int
    content: str = ""
    reasoning: str = ""
    calls: list[Called] = field(default_factory=list)
    likely: list[Piece] = field(default_factory=list)
    """pieces with log-probabilities"""
    finish_reason: str | None = None

    def add(self, piece: Piece, read: Read) -> None:
        """read: what the piece's content came to."""
        self.reasoning += piece.said.reasoning
        if piece.likely is not None:
            self.likely.append(piece)
        self.take(read)

    def take(self, read: Read) -> None:
        self.content += read.content
        for part in read.calls:
            if self.calls and part.name is None:
                self.calls[-1].arguments += part.arguments
            else:
                self.calls.append(Called(*part))

    @property
    def empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.content or self.reasoning or self.calls or self.likely)


class Form(Protocol):
    """How an endpoint writes answers."""

    name: str
    """of the whole object"""
    chunk_name: str
    id_prefix: str

    def reader(self) -> CallReader | None:
        """What finds tool calls in an answer; None where there are none."""
        ...

    def whole(self, choice: Choice) -> dict[str, Any]:
        """A complete answer."""
        ...

    def first(self, index: int) -> dict[str, Any] | None:
        """What a stream says before an answer's first token."""
        ...

    def part(self, piece: Choice, before: int) -> dict[str, Any]:
        """What a stream says of a token; `before` characters have come before it."""
        ...


class ChatForm:
    """/v1/chat/completions."""

    name = "chat.completion"
    chunk_name = "chat.completion.chunk"
    id_prefix = "chatcmpl"

    def __init__(self, tools: Sequence[str], parallel_calls: bool) -> None:
        """tools: names of the functions that may be called. parallel_calls: several in one answer."""
        self._tools = tools
        self._limit = None if parallel_calls else 1

    def reader(self) -> CallReader | None:
        return CallReader(self._tools, self._limit) if self._tools else None

    def whole(self, choice: Choice) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": choice.content, "refusal": None}
        if choice.reasoning:
            message["reasoning_content"] = choice.reasoning.rstrip("\n")
        if choice.calls:
            message["content"] = choice.content or None
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": _function(call)} for call in choice.calls
            ]
        return {
            "index": choice.index,
            "message": message,
            "logprobs": _chat_logprobs(choice.likely),
            "finish_reason": choice.finish_reason,
        }

    def first(self, index: int) -> dict[str, Any] | None:
        return _delta(index, {"role": "assistant", "content": ""})

    def part(self, piece: Choice, before: int) -> dict[str, Any]:
        delta: dict[str, Any] = {"content": piece.content} if piece.content else {}
        if piece.reasoning:
            delta["reasoning_content"] = piece.reasoning
        if piece.calls:
            delta["tool_calls"] = list(map(_call_delta, piece.calls))
        return _delta(piece.index, delta) | {
            "logprobs": _chat_logprobs(piece.likely),
            "finish_reason": piece.finish_reason,
        }


class TextForm:
    """/v1/completions."""

    name = chunk_name = "text_completion"
    id_prefix = "cmpl"

    def reader(self) -> CallReader | None:
        return None

    def whole(self, choice: Choice) -> dict[str, Any]:
        return self.part(choice, 0)

    def first(self, index: int) -> dict[str, Any] | None:
        return None

    def part(self, piece: Choice, before: int) -> dict[str, Any]:
        return {
            "index": piece.index,
            "text": piece.content,
            "logprobs": _text_logprobs(piece.likely, before),
            "finish_reason": piece.finish_reason,
        }


class Answers:
    """A ticket's events, written in one form."""

    def __init__(self, ticket: Ticket, form: Form, model: str, choices: int) -> None:
        """choices: answers to each prompt; they come prompt by prompt."""
        self._ticket = ticket
        self._form = form
        self._choices = choices
        self._frame = {
            "id": f"{form.id_prefix}-{secrets.token_hex(12)}",
            "created": int(time()),
            "model": model,
        }
        self._prompt_tokens = self._cached_tokens = self._tokens = 0
        self._readers: dict[int, CallReader | None] = {}

    async def whole(self) -> dict[str, Any]:
        """Everything, once it is complete. Raises ApiError."""
        choices: dict[int, Choice] = {}
        async for event in self._ticket:
            if isinstance(event, Started):
                choices[event.index] = Choice(event.index)
            self._add(event, choices[event.index])
        written = [self._form.whole(choice) for choice in choices.values()]
        return {**self._frame, "object": self._form.name, "choices": written, "usage": self._usage()}

    async def chunks(self, with_usage: bool, extras: Extras | None) -> AsyncIterator[dict[str, Any] | None]:
        """The stream's objects; None: there is nothing to say yet, but there will be. Raises ApiError, in
        the midst of them where it must be."""
        frame = {**self._frame, "object": self._form.chunk_name}
        if with_usage:
            frame["usage"] = None
        lengths: dict[int, int] = {}
        async for event in self._ticket:
            written: dict[str, Any] | None
            extra: dict[str, Any] = {}
            choice = Choice(event.index)
            self._add(event, choice)
            if isinstance(event, Started):
                lengths[event.index] = 0
                written = self._form.first(event.index)
            else:
                if isinstance(event, Piece) and choice.empty:
                    continue  # text that is held back
                written = self._form.part(choice, lengths[event.index])
                lengths[event.index] += len(choice.content)
                extra = _extra(event, extras) if extras is not None else {}
            yield None if written is None else {**frame, "choices": [written], **extra}
        if with_usage:
            yield {**frame, "choices": [], "usage": self._usage()}

    def _add(self, event: Event, choice: Choice) -> None:
        """What an event adds to an answer, or to a piece of it."""
        if isinstance(event, Started):
            self._readers[event.index] = self._form.reader()
            return
        reader = self._readers[event.index]
        if isinstance(event, Piece):
            content = event.said.content
            choice.add(event, Read(content) if reader is None else reader.push(content))
            return
        choice.finish_reason = self._ended(event)
        if reader is not None:
            choice.take(reader.finish())
            if reader.count and choice.finish_reason == "stop":
                choice.finish_reason = "tool_calls"

    def _ended(self, event: Ended) -> str:
        if event.reason == "cancelled":  # not by this client, who would not be here
            raise ApiError(503, "the server ends", code="shutting_down", retry_after=10)
        stats = event.stats
        self._tokens += stats.tokens
        if event.index % self._choices == 0:
            self._prompt_tokens += stats.prompt_tokens
            self._cached_tokens += stats.cached_tokens
        return _REASONS[event.reason]

    def _usage(self) -> dict[str, Any]:
        return {
            "prompt_tokens": self._prompt_tokens,
            "completion_tokens": self._tokens,
            "total_tokens": self._prompt_tokens + self._tokens,
            "prompt_tokens_details": {"cached_tokens": self._cached_tokens},
        }


def _extra(event: Piece | Ended, wanted: Extras) -> dict[str, Any]:
    """What a chunk has beside OpenAI's fields."""
    extra: dict[str, Any] = {}
    if wanted.origins and isinstance(event, Piece) and event.origin:
        extra["origin"] = event.origin
    if wanted.stats and event.stats:
        extra["stats"] = event.stats.as_dict() if isinstance(event, Ended) else _running(event.stats)
    return {"edgespec": extra} if extra else {}


def _running(stats: Stats) -> dict[str, Any]:
    return {name: getattr(stats, name) for name in _RUNNING}


def _function(call: Called) -> dict[str, str]:
    return {"name": call.name or "", "arguments": call.arguments}


def _call_delta(call: Called) -> dict[str, Any]:
    if call.name is None:
        return {"index": call.number, "function": {"arguments": call.arguments}}
    return {"index": call.number, "id": call.id, "type": "function", "function": _function(call)}


def _delta(index: int, delta: dict[str, Any]) -> dict[str, Any]:
    return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}


def _chat_logprobs(pieces: Sequence[Piece]) -> dict[str, Any] | None:
    def entry(likely: Likely) -> dict[str, Any]:
        return {
            "token": likely.piece.decode("utf-8", "replace"),
            "logprob": max(likely.logprob, _LEAST),
            "bytes": list(likely.piece),
        }

    entries = [
        {**entry(piece.likely), "top_logprobs": [entry(other) for other in piece.alternatives]}
        for piece in pieces
        if piece.likely is not None
    ]
    return {"content": entries, "refusal": None} if entries else None


def _text_logprobs(pieces: Sequence[Piece], before: int) -> dict[str, Any] | None:
    if not pieces:
        return None
    offsets, tokens, logprobs, tops = [], [], [], []
    for piece in pieces:
        assert piece.likely is not None
        offsets.append(before)
        tokens.append(_key(piece.likely.piece))
        logprobs.append(max(piece.likely.logprob, _LEAST))
        tops.append({_key(other.piece): max(other.logprob, _LEAST) for other in piece.alternatives})
        before += len(piece.said.content)
    return {"tokens": tokens, "token_logprobs": logprobs, "top_logprobs": tops, "text_offset": offsets}


def _key(piece: bytes) -> str:
    """A token's text, or its bytes where they alone are no text."""
    try:
        return piece.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in piece)
