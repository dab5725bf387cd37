"""Tools through the real `openai` client: SmolLM2, whom a chat template shows by examples how to call."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from real_models import need, need_module

import edgespec
from edgespec.server.tool_fields import ToolCall

from .conftest import Server, served, turns

openai = need_module("openai")
jsonschema = need_module("jsonschema")

CALL = '<tool_call>\n{"name": "add", "arguments": {"a": %d, "b": %d}}\n</tool_call>'
EXAMPLES = {
    "Add 1 and 2.": CALL % (1, 2),
    "Add 5 and 3.": CALL % (5, 3),
    "Say hello.": "Hello!",
    "Add 7 and 2.": CALL % (7, 2),
}
SHOWN = "".join(
    f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"
    for question, answer in EXAMPLES.items()
)
TEMPLATE = (
    "{% if tools %}{% for t in tools %}{{ t.function.name }}\n{% endfor %}" + SHOWN + "{% endif %}"
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>\n{{ c.function | tojson }}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}<|im_start|>assistant\n"
)
NUMBER = {"type": "integer"}
SCHEMA = {"type": "object", "properties": {"a": NUMBER, "b": NUMBER}, "required": ["a", "b"]}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "add", "description": "Add two numbers.", "parameters": SCHEMA}}
]


STRICT = [{"type": "function", "function": {**TOOLS[0]["function"], "strict": True}}]
UNENFORCEABLE = [{"type": "function", "function": {"name": "f", "parameters": {"not": {"type": "null"}}}}]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    name = need("smollm2-135m")

    def load() -> edgespec.Runtime:
        return edgespec.load(name, draft="ngram", depth=4, n_ctx=1024, chat_template=TEMPLATE)

    with served(load) as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Server) -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def asking(*texts: str, **fields: Any) -> dict[str, Any]:
    tools = {"tools": TOOLS, "temperature": 0, "max_completion_tokens": 80}
    return {"model": "tiny", "messages": turns(*texts), **tools, **fields}


def called(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or []]


def test_a_scripted_session(client: Any) -> None:
    """Ask, let the model call, tell it the result, and go on."""
    assert [model.id for model in client.models.list()] == ["tiny"]
    asked = asking("Add 6 and 1.")
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert called(choice.message) == [("add", {"a": 6, "b": 1})]
    [call] = choice.message.tool_calls
    result = {"role": "tool", "tool_call_id": call.id, "content": "7"}
    messages = [*asked["messages"], choice.message, result]
    again = client.chat.completions.create(**asked | {"messages": messages, "tool_choice": "none"})
    assert again.choices[0].finish_reason in ("stop", "length")
    assert again.choices[0].message.tool_calls is None
    assert again.choices[0].message.content
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked | {"tools": [*TOOLS, *TOOLS]})
    assert refused.value.param == "tools"


@pytest.mark.parametrize("question", ["Add 6 and 1.", "Say hello."])
def test_a_stream_writes_calls_piece_by_piece(client: Any, question: str) -> None:
    asked = asking(question)
    whole = client.chat.completions.create(**asked).choices[0]
    calls: list[Any] = []
    content, reasons = "", []
    pieces = 0
    for chunk in client.chat.completions.create(**asked, stream=True):
        [choice] = chunk.choices
        content += choice.delta.content or ""
        reasons += [choice.finish_reason] if choice.finish_reason else []
        for part in choice.delta.tool_calls or []:
            pieces += 1
            if part.id:
                assert (part.index, part.type) == (len(calls), "function")
                calls.append([part.function.name, part.function.arguments])
            else:
                calls[part.index][1] += part.function.arguments
    assert reasons == [whole.finish_reason]
    assert content == (whole.message.content or "")
    written = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or []]
    assert calls == written
    assert len(written) == question.count("Add")
    assert not written or pieces > 3 * len(written)


def test_with_the_clients_own_reading_of_streams(client: Any) -> None:
    asked = asking("Add 6 and 1.")
    with client.beta.chat.completions.stream(**asked) as stream:
        message = stream.get_final_completion().choices[0].message
    assert called(message) == [("add", {"a": 6, "b": 1})]
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "7"}
    messages = [*asked["messages"], message, result]  # with the fields that the client has added
    assert client.chat.completions.create(**asked | {"messages": messages, "tool_choice": "none"}).choices


def test_without_parallel_calls_the_answer_ends_behind_the_first(client: Any) -> None:
    on_and_on = {"0": -100, "2": -100}  # the ends of a text and of a turn
    endless = client.chat.completions.create(**asking("Add 6 and 1.", logit_bias=on_and_on))
    assert endless.choices[0].finish_reason == "length"
    asked = asking("Add 6 and 1.", logit_bias=on_and_on, parallel_tool_calls=False)
    choice = client.chat.completions.create(**asked).choices[0]
    assert called(choice.message) == [("add", {"a": 6, "b": 1})]
    assert choice.message.content is None
    assert choice.finish_reason == "tool_calls"


WEATHER = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "days": {"$ref": "#/$defs/days"}},
    "required": ["city", "days"],
    "additionalProperties": False,
    "$defs": {"days": {"type": "integer", "minimum": 1, "maximum": 9}},
}
BOTH = [*STRICT, {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER}}]


@pytest.mark.parametrize("temperature", [0, 1.5])
@pytest.mark.parametrize("forced", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_a_call_that_must_be_made_is_made_and_right(client: Any, forced: Any, temperature: float) -> None:
    asked = asking("Say hello.", tools=BOTH, tool_choice=forced, temperature=temperature, seed=2)
    choice = client.chat.completions.create(**asked | {"parallel_tool_calls": False}).choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    [(name, arguments)] = called(choice.message)
    if forced != "required":
        assert name == "get_weather"
    if name == "get_weather":
        assert arguments.keys() == {"city", "days"}
        assert arguments["city"] in ("Paris", "Rome")
        assert 1 <= arguments["days"] <= 9
    else:
        assert {"a", "b"} <= arguments.keys()


def test_a_call_that_the_budget_cuts_off_says_so(client: Any) -> None:
    choice = client.chat.completions.create(**asking("Add 6 and 1.", max_completion_tokens=16)).choices[0]
    assert choice.finish_reason == "length"


@pytest.mark.parametrize(("temperature", "seed"), [(0, 0), (0.7, 1)])
def test_a_call_that_is_opened_is_one_of_what_was_offered(client: Any, temperature: float, seed: int) -> None:
    """The examples that the model sees call add, which is not there."""
    asked = asking("Add 6 and 1.", tools=BOTH[1:], temperature=temperature, seed=seed)
    choice = client.chat.completions.create(**asked).choices[0]
    assert choice.finish_reason == "tool_calls"
    for name, arguments in called(choice.message):
        assert name == "get_weather"
        jsonschema.validate(arguments, WEATHER)


def test_where_no_call_is_opened_tools_change_nothing(client: Any, server: Server) -> None:
    asked = asking("Say hello.", seed=4, temperature=1)
    said = client.chat.completions.create(**asked).choices[0].message
    assert said.tool_calls is None
    runtime = server.turns._runtime
    assert runtime is not None
    prompt = runtime.tokenize(turns("Say hello."), TOOLS)
    plain = server.complete(prompt, seed=4, temperature=1, max_tokens=80)
    assert said.content == plain["choices"][0]["text"]


def test_a_schema_that_cannot_be_enforced_stands_for_any_object(client: Any) -> None:
    """Unless a call must be made, or the function is strict: see the refusals."""
    tools = [{"type": "function", "function": {"name": "add", "parameters": {"not": {"type": "null"}}}}]
    [(name, arguments)] = called(
        client.chat.completions.create(**asking("Add 6 and 1.", tools=tools)).choices[0].message
    )
    assert name == "add"
    assert isinstance(arguments, dict)


def test_log_probabilities_cover_calls(client: Any) -> None:
    answer = client.chat.completions.create(**asking("Add 6 and 1.", logprobs=True, top_logprobs=2))
    tokens = answer.choices[0].logprobs.content
    assert len(tokens) == answer.usage.completion_tokens
    assert '"arguments": {"a": 6, "b": 1}' in "".join(token.token for token in tokens)


def test_several_choices_a_bias_and_usage_in_a_stream(client: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "messages": turns("Say hello."), "max_completion_tokens": 12}
    found = client.chat.completions.create(**asked, n=3, seed=1, temperature=1)
    assert [choice.index for choice in found.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in found.choices}) > 1
    greedy = client.chat.completions.create(**asked, temperature=0, logprobs=True)
    first = greedy.choices[0].logprobs.content[0]
    ids = {f"{id}": -100 for id in range(49152) if id % 48 == 0}  # of a thousand tokens
    biased = client.chat.completions.create(**asked, temperature=0, logit_bias=ids)
    assert biased.choices[0].message.content
    assert first.logprob <= 0
    chunks = list(
        client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})
    )
    assert chunks[-1].choices == []
    assert 0 < chunks[-1].usage.completion_tokens <= 12


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tool_choice": "required", "tools": []}, "tool_choice"),
        ({"tool_choice": {"type": "function", "function": {"name": "rm"}}}, "tool_choice"),
        ({"tool_choice": "required", "response_format": {"type": "json_object"}}, "response_format"),
        ({"tool_choice": "required", "tools": UNENFORCEABLE}, "tools"),
        (
            {"tools": [{**UNENFORCEABLE[0], "function": {**UNENFORCEABLE[0]["function"], "strict": True}}]},
            "tools",
        ),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools.0.function.name"),
        ({"tools": [{"type": "custom", "custom": {"name": "add"}}]}, "tools.0.type"),
        ({"tools": TOOLS * 200}, "tools"),
        ({"functions": [TOOLS[0]["function"]]}, "functions"),
        ({"messages": [{"role": "user"}]}, "messages.0.content"),
        ({"messages": [{"role": "tool", "tool_call_id": "1"}]}, "messages.0.content"),
    ],
)
def test_what_cannot_be_done_is_refused(client: Any, fields: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asking("Add 6 and 1.") | fields)
    assert refused.value.param == param


@pytest.mark.parametrize(
    "fields",
    [
        {"tools": TOOLS},
        {"messages": [*turns("stay"), {"role": "tool", "tool_call_id": "1", "content": "stay"}]},
    ],
)
def test_a_template_without_tools_is_named_as_the_reason(tiny: Server, fields: dict[str, Any]) -> None:
    refused = tiny.post("/v1/chat/completions", {"messages": turns("stay"), **fields})
    assert refused.status_code == 400
    error = refused.json()["error"]
    assert error["param"] in ("tools", "messages")
    assert "chat template of target" in error["message"]


def test_arguments_that_are_nested_too_deeply_for_templates_stay_text() -> None:
    deep = "[" * 600 + "]" * 600
    call = {"id": "1", "type": "function", "function": {"name": "add", "arguments": deep}}
    assert ToolCall.model_validate(call).for_template()["function"]["arguments"] == deep


def test_what_a_client_adds_to_a_call_is_not_told_to_the_model() -> None:
    function = {"name": "add", "arguments": '{"a": 1}'}
    call = {"id": "1", "type": "function", "function": function}
    more = {**call, "index": 0, "function": {**function, "parsed_arguments": {"a": 1}}}
    assert ToolCall.model_validate(more).for_template() == ToolCall.model_validate(call).for_template()


def test_the_coder_calls_without_tags() -> None:
    need("qwen2.5-coder-0.5b")
    with served(lambda: edgespec.load("qwen2.5-coder-0.5b", draft="ngram", depth=4, n_ctx=1024)) as server:
        client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)
        asked = asking("What is 3 plus 4? Use the tool.")
        choice = client.chat.completions.create(**asked).choices[0]
        assert called(choice.message) == [("add", {"a": 3, "b": 4})]
        result = {"role": "tool", "tool_call_id": choice.message.tool_calls[0].id, "content": "7"}
        messages = [*asked["messages"], choice.message, result]
        said = client.chat.completions.create(**asked | {"messages": messages, "tool_choice": "none"})
        assert said.choices[0].message.content
