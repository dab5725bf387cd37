"""Whatever a model says, every call that is read from it has arguments of its schema: random walks through
the grammar, on SmolLM2's tokens, that like to write what calls are made of."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from real_models import need, need_module

from edgespec.backends.base import Tokenizer
from edgespec.backends.vocabulary_model import VocabularyModel
from edgespec.chat.call_grammar import can_hold, may_call, must_call
from edgespec.chat.tools import CallReader
from edgespec.errors import UsageError
from edgespec.grammar.constraint import Constraint, grammar
from edgespec.grammar.matcher import Grammars
from edgespec.grammar.thoughts import after_thoughts
from edgespec.hub.resolve import resolve

jsonschema = need_module("jsonschema")

SCHEMAS = {
    "add": {
        "type": "object",
        "properties": {"a": {"type": "integer", "minimum": 1, "maximum": 9}, "b": {"enum": ["x", "y"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "add_all": {"type": "object", "properties": {}, "additionalProperties": False},
}
LIKED = ["<tool_call>", "\n", '{"name": "add", "arguments":', '{ "name":"add_all" ,\n"parameters" : ']
LIKED += ["```json\n", ' {"type": "function", "name": "add", "arguments": {', "</tool_call>", "}", "1", '"x"']
LIKED += ["<tool_call>{{", "Hm. ", " {}", "<tool", "```", '{"a": 1, "b": "x"}}']


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    model = VocabularyModel(resolve(need("smollm2-135m")).path)
    yield model.tokenizer
    model.close()


@pytest.fixture(scope="module")
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer)


def held(thinks: bool = False) -> Constraint:
    return replace(grammar(may_call(SCHEMAS, thinks)), free=True)


def walk(grammars: Grammars, tokenizer: Tokenizer, seed: int) -> str:
    """An answer to its end."""
    choose, path = random.Random(seed), list[int]()
    matcher = grammars.matcher(held(), 0)
    while True:
        for token in tokenizer.encode(choose.choice(LIKED), bos=False):
            if not matcher.allowed(path)[token]:
                break
            path.append(token)
        allowed = matcher.allowed(path).nonzero()[0]
        may_end = any(map(tokenizer.is_end, allowed))
        if may_end and len(path) > 100:
            return b"".join(map(tokenizer.piece, path)).decode()
        if not may_end:  # within a call
            path.append(int(choose.choice(allowed)))
        assert len(path) < 1000


def test_every_call_that_is_read_has_arguments_of_its_schema(
    grammars: Grammars, tokenizer: Tokenizer
) -> None:
    calls = tagged = 0
    for seed in range(40):
        text = walk(grammars, tokenizer, seed)
        reader = CallReader(list(SCHEMAS))
        parts = [*reader.push(text).calls, *reader.finish().calls]
        for number in range(reader.count):
            name, *_ = [part.name for part in parts if part.number == number]
            arguments = "".join(part.arguments for part in parts if part.number == number)
            assert name is not None
            jsonschema.validate(json.loads(arguments), SCHEMAS[name])
        calls += reader.count
        tagged += text.count("<tool_call>")
    assert 10 < tagged < calls  # the others have no tag


@pytest.mark.parametrize(
    ("begun", "said", "ends"),
    [
        (False, "Hello", True),
        (False, "I could <tool_cal", True),
        (False, "I could <tool_call>", False),
        (False, '{"name": "bob", "arguments": 3', True),
        (False, '{"name": "add_all", "arguments": ', False),
        (False, "<think>Should I <tool_call>", True),
        (False, "<think>Should I?</think>\n\n<tool_call>", False),
        (False, "<think>Should I?</think>\n\n<tool_call>\n{", False),
        (True, "Should I <tool_call>", True),
        (True, "Should I?</think>\n\n<tool_call>", False),
        (True, "Should I?</think>\n\nNo.", True),
    ],
)
def test_only_a_call_that_was_opened_must_go_on(
    grammars: Grammars, tokenizer: Tokenizer, begun: bool, said: str, ends: bool
) -> None:
    matcher = grammars.matcher(after_thoughts(held(thinks=True), begun), 0)
    path = tokenizer.encode(said, bos=False)
    assert matcher.allows(path)
    may_end = any(map(tokenizer.is_end, matcher.allowed(path).nonzero()[0]))
    assert may_end == ends


def test_arguments_are_an_object_whatever_else_a_schema_allows() -> None:
    either: dict[str, Any] = {"type": ["object", "null"], "properties": {}}
    assert can_hold(either)
    assert '"type": "object"' in must_call("tags", {"f": either}, several=False)
    none: list[dict[str, Any]] = [{"type": "array"}, {"type": ["string", "null"]}]
    for schema in none:
        assert not can_hold(schema)
        with pytest.raises(UsageError, match="arguments are an object, and their schema wants"):
            must_call("tags", {"f": schema}, several=False)
    assert not can_hold({"enum": [1, "a"]})
    assert not can_hold({"x-guidance": {"lenient": True}, "properties": {"a": {"not": {}}}})
