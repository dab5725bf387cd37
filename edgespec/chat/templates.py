"""Messages → prompt tokens, by the chat template that the model file carries.

Only the template's own markers become control tokens: a marker such as <|im_end|> inside a message
is text, and stays text. Exactly one BOS token begins the prompt, whoever adds it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any, NoReturn

from jinja2 import Template, TemplateError, meta, nodes
from jinja2.exceptions import SecurityError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from edgespec.backends.base import Backend, Tokenizer
from edgespec.errors import ModelError, UsageError

Message = Mapping[str, Any]
"""{"role": "system" | "user" | "assistant" | "tool", "content": text}, and whatever else a template knows"""

# Characters that Unicode guarantees never to assign: one that no message uses marks where a
# message's own marker was, through whatever the template does to the text.
_NONCHARACTERS = [chr(c) for c in range(0xFDD0, 0xFDF0)]


def chat_prompt(
    backend: Backend,
    messages: Sequence[Message],
    template: str | None = None,
    tools: Sequence[Mapping[str, Any]] = (),
) -> list[int]:
    """Token ids of a conversation, ending where the assistant's answer begins.

    `template`: Jinja source to use instead of the model's. `tools`: functions that the model may ask for, as
    OpenAI's API describes them. Raises UsageError for messages that are malformed or that the template
    refuses, ModelError when there is no usable template.
    """
    _check(messages)
    source = backend.chat_template if template is None else template
    if source is None:
        raise ModelError(
            f"{backend.name} carries no chat template; use --raw for plain completion, or give one "
            "with --chat-template FILE"
        )
    tokenizer = backend.tokenizer
    sentinel = _unused_character([*messages, *tools])
    markers = tokenizer.markers()
    text = _render(source, _defuse(messages, markers, sentinel), _defuse(tools, markers, sentinel), tokenizer)
    return _encode(text, sentinel, tokenizer)


def _check(messages: Sequence[Message]) -> None:
    if not messages:
        raise UsageError("the conversation is empty; give at least one message")
    for i, message in enumerate(messages):
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not role.isidentifier():
            raise UsageError(f'message {i} needs a "role" such as user, assistant or system; it is {role!r}')
        if not isinstance(content, str):
            raise UsageError(f'message {i} needs a "content" that is text; it is {content!r}')


def _unused_character(messages: Sequence[Message]) -> str:
    everything = "".join(_texts(messages))
    for character in _NONCHARACTERS:
        if character not in everything:
            return character
    raise UsageError("the messages contain every Unicode noncharacter; remove some")


def _texts(value: Any) -> Iterator[str]:
    """Every text in a message, in whatever field, however deep."""
    rest = [value]
    while rest:
        value = rest.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            rest += [*value.keys(), *value.values()]
        elif isinstance(value, Sequence):
            rest += value


def _defuse(messages: Sequence[Message], markers: Sequence[str], sentinel: str) -> Sequence[Message]:
    """Break the markers in message texts by a sentinel behind their first character."""
    longest_first = sorted(markers, key=len, reverse=True)
    pattern = re.compile(
        "|".join(map(re.escape, longest_first)) or r"(?!)"
    )  # without markers nothing matches

    def broken(match: re.Match[str]) -> str:
        return match[0][0] + sentinel + match[0][1:] + sentinel

    def defused(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(broken, value)
        if isinstance(value, Mapping):
            return {defused(key): defused(item) for key, item in value.items()}
        return [defused(item) for item in value] if isinstance(value, Sequence) else value

    return [defused(message) for message in messages]


def _encode(text: str, sentinel: str, tokenizer: Tokenizer) -> list[int]:
    if tokenizer.bos is not None:
        text = text.removeprefix(tokenizer.bos_text)  # encode() adds it
    if sentinel not in text:
        return tokenizer.encode(text, special=True)
    tokens = [] if tokenizer.bos is None else [tokenizer.bos]
    # "…<␣|im_end|>␣…" → the template's text, then the defused marker as plain text, and so on.
    for part in re.split(f"(.{sentinel}[^{sentinel}]*{sentinel})", text, flags=re.DOTALL):
        if part:
            tokens += tokenizer.encode(part.replace(sentinel, ""), special=sentinel not in part, bos=False)
    return tokens


def _render(source: str, messages: Sequence[Message], tools: Sequence[Message], tokenizer: Tokenizer) -> str:
    template = _compile(source)
    try:
        return template.render(
            messages=messages,
            **({"tools": tools} if tools else {}),
            bos_token=tokenizer.bos_text,
            eos_token=tokenizer.eos_text,
            add_generation_prompt=True,
        )
    except _RefusedError as error:
        raise UsageError(f"the model's chat template refuses these messages: {error}") from error
    except Exception as error:  # a template is a program of the model's author: anything can happen
        raise ModelError(f"the chat template fails: {error}; try another with --chat-template") from error


class _RefusedError(Exception):
    """The template called raise_exception."""


class _Sandbox(ImmutableSandboxedEnvironment):
    """Also refuses products that would fill the memory, such as "a" * 10 ** 10."""

    intercepted_binops = frozenset(["*", "**"])

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        texts = [len(side) for side in (left, right) if hasattr(side, "__len__")]
        numbers = [abs(side) for side in (left, right) if isinstance(side, int | float)]
        if (texts and max(texts) * max(numbers, default=1) > 1e6) or (
            operator == "**" and max(numbers) > 1e3
        ):
            raise SecurityError("it computes something of absurd size")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """{% generation %} … {% endgeneration %}, by which templates mark for training what the assistant says:
    written as it stands."""

    tags = {"generation"}  # noqa: RUF012 (as jinja2 declares it)

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        return nodes.Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)


def check_template(source: str) -> None:
    """Raise ModelError for what is no Jinja, and UsageError for what is no chat template: the name of a file
    with one, say, would be what the model reads instead of every conversation."""
    if not isinstance(source, str):
        raise UsageError(f"chat_template is {source!r}; it must be text: the template, and not its file")
    _compile(source)
    if not reads(source, "messages"):
        raise UsageError(
            "the chat template does not look at the messages, so the model would not see them; give the "
            "template itself, in Jinja"
        )


def reads(source: str, variable: str) -> bool:
    """Whether a template makes use of a variable that it is given."""
    try:
        return variable in meta.find_undeclared_variables(_environment().parse(source))
    except TemplateError:
        return False


def _environment() -> _Sandbox:
    return _Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols, _Generation])


@lru_cache(maxsize=8)
def _compile(source: str) -> Template:
    """As Hugging Face's templates expect it (transformers, apply_chat_template): sandboxed, trimmed
    blocks, break and continue, and these helpers."""
    environment = _environment()

    def raise_exception(message: str) -> NoReturn:
        raise _RefusedError(message)

    def to_json(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = to_json
    try:
        return environment.from_string(source)
    except TemplateError as error:
        raise ModelError(f"the chat template is not valid Jinja: {error}") from error
