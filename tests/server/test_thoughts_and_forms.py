"""A reasoning model thinks freely, and then its answer has its form: SmolLM2, whom a chat template shows by
examples how to think, with the template opening the thoughts and without."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from real_models import need, need_module

import edgespec

from .conftest import Server, served, turns

jsonschema = need_module("jsonschema")

EXAMPLES = {
    "Is ice warm?": ("Ice is frozen water, so it is cold.", "no"),
    "Is the sun hot?": ("The sun is a star, and stars are hot.", "yes"),
    "Is a rose an animal?": ("A rose is a flower, so it is a plant.", "no"),
}
TURN = "<|im_start|>user\n%s<|im_end|>\n<|im_start|>assistant\n"
SHOWN = "".join(
    TURN % question + f"<think>\n{thought}\n</think>\n\n{answer}<|im_end|>\n"
    for question, (thought, answer) in EXAMPLES.items()
)
CALLS = '{% if tools %}{# <tool_call>{"name": "f", "arguments": {}} #}{% endif %}'
TEMPLATE = CALLS + SHOWN + TURN % "{{ messages[0].content }}"
QUESTION = "Is a cat an animal?"
FORM = {"type": "object", "properties": {"sure": {"type": "boolean"}}, "required": ["sure"]}
SCHEMA = {**FORM, "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "answer", "parameters": SCHEMA}}


@pytest.fixture(scope="module", params=["", "<think>\n"], ids=["by itself", "opened"])
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    name, template = need("smollm2-135m"), TEMPLATE + request.param

    def load() -> edgespec.Runtime:
        return edgespec.load(name, draft="ngram", depth=4, n_ctx=1024, chat_template=template)

    with served(load) as running:
        yield running


def answered(server: Server, **fields: Any) -> dict[str, Any]:
    [choice] = server.chat(QUESTION, temperature=0, max_tokens=60, **fields)["choices"]
    assert choice["finish_reason"] in ("stop", "tool_calls"), choice
    message: dict[str, Any] = choice["message"]
    return message


def test_thoughts_are_free_and_the_answer_has_its_form(server: Server) -> None:
    free = answered(server)
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}
    held = answered(server, response_format=form)
    jsonschema.validate(json.loads(held["content"]), SCHEMA)
    assert held["reasoning_content"] == free["reasoning_content"] != ""


def test_a_call_that_must_be_made_comes_behind_thoughts(server: Server) -> None:
    message = answered(server, tools=[TOOL], tool_choice="required", parallel_tool_calls=False)
    assert message["reasoning_content"]
    [call] = message["tool_calls"]
    jsonschema.validate(json.loads(call["function"]["arguments"]), SCHEMA)


def test_tools_that_are_not_called_change_nothing(server: Server) -> None:
    assert answered(server, tools=[TOOL]) == answered(server)


def test_in_python_and_with_regular_expressions_and_grammars(server: Server) -> None:
    runtime = server.turns._runtime
    assert runtime is not None
    for form in ({"regex": "(yes|no)!"}, {"grammar": 'start: ("yes" | "no") "!"'}):
        answer = runtime.generate(turns(QUESTION), **form, max_tokens=60)
        thoughts, _, said = answer.text.rpartition("</think>")
        assert thoughts.strip("<think>\n")
        assert said.strip("\n") in ("yes!", "no!")
        assert answer.finish_reason == "stop"


def test_a_text_to_be_continued_is_no_answer_and_has_the_form_at_once(server: Server) -> None:
    runtime = server.turns._runtime
    assert runtime is not None
    assert runtime.generate("Is it? ", regex="(yes|no)").text in ("yes", "no")
