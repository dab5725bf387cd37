"""response_format through the real `openai` client, against SmolLM2."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from real_models import need, need_module

import edgespec

from .conftest import served
from .test_openai_client import client_of, openai

jsonschema = need_module("jsonschema")

QUESTION: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "Describe a cat as JSON."}],
    "temperature": 0,
    "max_tokens": 60,
}
CAT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "colour": {"enum": ["black", "white", "ginger"]},
        "lives": {"type": "integer", "minimum": 1, "maximum": 9},
    },
    "required": ["name", "colour", "lives"],
    "additionalProperties": False,
}
FORM = {"type": "json_schema", "json_schema": {"name": "cat", "schema": CAT, "strict": True}}


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    name = need("smollm2-135m")
    with served(lambda: edgespec.load(name, draft="ngram", depth=4)) as server:
        yield client_of(server)


def test_an_answer_has_the_form_of_the_schema(client: Any) -> None:
    choice = client.chat.completions.create(**QUESTION, response_format=FORM).choices[0]
    assert choice.finish_reason == "stop"
    jsonschema.validate(json.loads(choice.message.content), CAT)


def test_a_stream_of_it_says_the_same(client: Any) -> None:
    whole = client.chat.completions.create(**QUESTION, response_format=FORM).choices[0].message.content
    with client.chat.completions.create(**QUESTION, response_format=FORM, stream=True) as stream:
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_any_object_can_be_asked_for(client: Any) -> None:
    asked = QUESTION | {"max_tokens": 40, "temperature": 1, "seed": 5}
    choice = client.chat.completions.create(**asked, response_format={"type": "json_object"}).choices[0]
    assert choice.message.content.startswith("{")
    if choice.finish_reason == "stop":
        assert isinstance(json.loads(choice.message.content), dict)


def test_an_answer_that_is_cut_off_says_so(client: Any) -> None:
    choice = client.chat.completions.create(**QUESTION | {"max_tokens": 5}, response_format=FORM).choices[0]
    assert choice.finish_reason == "length"
    with pytest.raises(ValueError):
        json.loads(choice.message.content)


def test_the_client_reads_an_answer_into_a_model_and_sends_it_back(client: Any) -> None:
    pydantic = need_module("pydantic")
    form = pydantic.create_model("Form", word=(str, pydantic.Field(max_length=8)), sure=(bool, ...))
    answer = client.beta.chat.completions.parse(**QUESTION, response_format=form)
    message = answer.choices[0].message
    assert isinstance(message.parsed, form)
    more = [*QUESTION["messages"], message, {"role": "user", "content": "Another, please."}]
    assert client.beta.chat.completions.parse(**QUESTION | {"messages": more}, response_format=form).choices


def test_a_schema_that_cannot_be_enforced_is_refused(client: Any) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"not": {}}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**QUESTION, response_format=form)
    assert refused.value.param == "response_format.json_schema.schema"
    assert "not" in refused.value.message
