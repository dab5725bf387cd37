"""What is refused, and in which words: the status, and the field that is wrong."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from .conftest import Server, loader, served, turns

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def refusal(response: httpx.Response, status: int) -> dict[str, Any]:
    """The error, in OpenAI's shape."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", "1"),
        ("temperature", -1),
        ("temperature", 1e-9),
        ("top_p", 0),
        ("top_p", 2),
        ("top_k", -1),
        ("top_k", 1.5),
        ("min_p", 2),
        ("presence_penalty", 3),
        ("frequency_penalty", "x"),
        ("repetition_penalty", 0),
        ("seed", 1.5),
        ("seed", 2**80),
        ("stop", [""]),
        ("stop", 5),
        ("stop", ["a"] * 17),
        ("n", 0),
        ("n", 1000),
        ("n", True),
        ("max_tokens", 0),
        ("max_completion_tokens", -3),
        ("logprobs", 3),
        ("top_logprobs", 2),
        ("logit_bias", {"x": 1}),
        ("logit_bias", {"01": 1}),
        ("logit_bias", {" 1": 1}),
        ("logit_bias", {"+1": 1}),
        ("logit_bias", {"1.0": 1}),
        ("logit_bias", {"1\n": 1}),
        ("logit_bias", {"1_0": 1}),
        ("logit_bias", {"\u0661": 1}),
        ("logit_bias", {"1": 1000}),
        ("logit_bias", {"100000": 1}),
        ("stream_options", {"include_usage": True}),
        ("edgespec", {"origins": True}),
        ("stream", "yes"),
        ("messages", []),
        ("messages", "stay"),
        ("messages", [{"role": "user"}]),
        ("messages", [{"role": "robot", "content": "stay"}]),
        ("messages", [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]),
        ("messages", [{"role": "assistant", "content": "", "tool_calls": [{"id": "1"}]}]),
        ("response_format", {"type": "yaml"}),
        ("response_format", {"type": "json_schema"}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a b"}}),
        ("response_format", {"type": "json_schema", "json_schema": {"name": "a", "strict": "yes"}}),
        ("tools", [{"type": "function"}]),
        ("tool_choice", "required"),
        ("reasoning_effort", "low"),
        ("modalities", ["audio"]),
        ("store", True),
        ("moderation", {"model": "omni-moderation-latest"}),
        ("temprature", 1),
    ],
)
def test_a_wrong_field_is_named(tiny: Server, field: str, value: Any) -> None:
    error = refusal(tiny.post(CHAT, {"messages": turns("stay"), field: value}), 400)
    assert error["param"].split(".")[0] == field
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("prompt", []),
        ("prompt", 5),
        ("prompt", [1, "a"]),
        ("prompt", [100000]),
        ("prompt", ["a"] * 200),
        ("logprobs", True),
        ("logprobs", 21),
        ("echo", True),
        ("suffix", "x"),
        ("best_of", 2),
        ("messages", turns("stay")),
    ],
)
def test_a_wrong_field_of_a_text_completion_is_named(tiny: Server, field: str, value: Any) -> None:
    error = refusal(tiny.post(TEXT, {"prompt": "stay", field: value}), 400)
    assert error["param"].split(".")[0] == field


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [1] * 500_000},
        {"messages": [{"role": "user", "content": [5] * 500_000}]},
        {"messages": turns("stay"), "logit_bias": {f"k{i}": 1 for i in range(100_000)}},
        {"messages": [turns("stay")[0] | {f"k{i}": 1 for i in range(100_000)}]},
        {f"k{i}": 1 for i in range(100_000)},
        {"messages": turns("stay"), "k" * 1_000_000: 1},
    ],
)
def test_of_many_wrong_values_one_is_named(tiny: Server, body: dict[str, Any]) -> None:
    error = refusal(tiny.post(CHAT, body), 400)
    assert len(error["message"]) < 500


@pytest.mark.parametrize(
    ("schema", "place"),
    [
        ({"type": "objekt"}, "at the top: Invalid type"),
        ({"properties": {"a": {"items": {"uniqueItems": True}}}}, "at #/properties/a/items: Unimplemented"),
        ({"anyOf": [{"type": "null"}, {"$ref": "#/$defs/b"}]}, "at #/anyOf/1: Pointer"),
        ({"type": "string", "pattern": "a(?=b)"}, "look-ahead"),
        ({"type": "string", "pattern": "^a{1000000}$"}, "repeats something 1000000 times"),
        ({"$ref": "#"}, "at the top: no text has this form"),
    ],
)
def test_a_schema_that_cannot_be_enforced_is_refused_at_its_place(
    tiny: Server, schema: dict[str, Any], place: str
) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "form", "schema": schema, "strict": False}}
    error = refusal(tiny.post(CHAT, {"messages": turns("stay"), "response_format": form}), 400)
    assert error["param"] == "response_format.json_schema.schema"
    assert place in error["message"]


def test_an_array_of_a_wrong_length_is_refused_in_plain_words(tiny: Server) -> None:
    none = refusal(tiny.post(CHAT, {"messages": []}), 400)
    assert none["message"] == "messages: Input should not be empty"
    many = refusal(tiny.post(CHAT, {"messages": turns("stay"), "stop": ["a"] * 17}), 400)
    assert "should have at most 16 items, not 17" in many["message"]


def test_a_form_beside_tools_is_refused(tiny: Server) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    asked = {"messages": turns("stay"), "response_format": {"type": "json_object"}, "tools": tools}
    assert refusal(tiny.post(CHAT, asked), 400)["param"] == "response_format"


def test_a_form_that_the_models_tokens_cannot_spell_is_refused(tiny: Server) -> None:
    asked = {"messages": turns("stay"), "response_format": {"type": "json_object"}}
    assert "cannot be spelled" in refusal(tiny.post(CHAT, asked), 400)["message"]


@pytest.mark.parametrize(
    ("body", "named"),
    [
        ('{"prompt": "stay", "temperature": 0, "prompt": "tim"}', "prompt"),
        ('{"prompt": "stay", "logit_bias": {"1": 1, "2": 1, "1": 2}}', "1"),
    ],
)
def test_a_key_that_stands_twice_is_refused(tiny: Server, body: str, named: str) -> None:
    json_body = {"Content-Type": "application/json"}
    error = refusal(tiny.http.post(TEXT, content=body, headers=json_body), 400)
    assert (error["param"], error["code"]) == (named, "invalid_json")


def test_a_byte_order_mark_is_named_as_what_is_wrong(tiny: Server) -> None:
    body, json_body = '{"prompt": "stay"}'.encode("utf-8-sig"), {"Content-Type": "application/json"}
    error = refusal(tiny.http.post(TEXT, content=body, headers=json_body), 400)
    assert "byte order mark" in error["message"]


def test_a_missing_field_is_named(tiny: Server) -> None:
    assert refusal(tiny.post(CHAT, {}), 400)["param"] == "messages"
    assert refusal(tiny.post(TEXT, {}), 400)["param"] == "prompt"


def test_two_budgets_that_differ_are_refused(tiny: Server) -> None:
    body = {"messages": turns("stay"), "max_tokens": 3, "max_completion_tokens": 4}
    assert refusal(tiny.post(CHAT, body), 400)["param"] == "max_completion_tokens"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"stay",
        b"[]",
        b"null",
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"messages": [{"role": "user", "content": "\\ud800"}]}',
        b'{"messages": NaN}',
        b'{"user": ' + b"1" * 4301 + b"}",
    ],
)
def test_what_is_no_json_object_is_refused(tiny: Server, body: bytes) -> None:
    headers = {"Content-Type": "application/json"}
    refusal(tiny.http.post(CHAT, content=body, headers=headers), 400)


def test_another_type_than_json_is_refused(tiny: Server) -> None:
    body = json.dumps({"messages": turns("stay")})
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        refusal(tiny.http.post(CHAT, content=body, headers={"Content-Type": kind}), 415)


def test_an_unknown_model_is_refused(tiny: Server) -> None:
    error = refusal(tiny.post(CHAT, {"model": "gpt-9", "messages": turns("stay")}), 404)
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert "tiny" in error["message"]
    refusal(tiny.http.get("/v1/models/gpt-9"), 404)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("words", [300, 200_000])
def test_a_prompt_beyond_the_context_is_refused(tiny: Server, words: int, stream: bool) -> None:
    body = {"messages": turns("stay " * words), "stream": stream}
    error = refusal(tiny.post(CHAT, body), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "messages")
    error = refusal(tiny.post(TEXT, {"prompt": "stay " * words, "stream": stream}), 400)
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


def test_unknown_paths_and_methods_are_refused(tiny: Server) -> None:
    refusal(tiny.http.get("/v1/embeddings"), 404)
    refused = tiny.http.get(CHAT)
    assert f"GET {CHAT}: it takes POST only" in refusal(refused, 405)["message"]
    assert refused.headers["allow"] == "POST"
    assert "it takes GET or HEAD only" in refusal(tiny.post("/v1/models", {}), 405)["message"]


@pytest.fixture(scope="module")
def locked(model_files: Path) -> Iterator[Server]:
    """With a key, for one page, and for small bodies."""
    load = loader(model_files / "target.gguf", n_ctx=64)
    with served(load, api_key="sesame", origins=["https://app.example"], max_body=1000) as server:
        yield server


@pytest.mark.parametrize(
    "header",
    ["", "sesame", "Bearer", "Bearer wrong", "Basic sesame", "Bearer sesame2", b"Bearer \xe9"],
)
def test_a_wrong_key_is_refused(locked: Server, header: str | bytes) -> None:
    for path in ("/v1/models", "/metrics", "/v1/edgespec/stats", "/openapi.json", "/nowhere"):
        response = httpx.get(locked.url + path, headers={"Authorization": header}, trust_env=False)
        assert refusal(response, 401)["code"] == "invalid_api_key"
        assert response.headers["www-authenticate"] == "Bearer"


def test_the_key_opens_and_health_needs_none(locked: Server) -> None:
    assert locked.http.get("/v1/models").status_code == 200
    assert httpx.get(locked.url + "/health", trust_env=False).status_code == 200


def test_an_oversized_body_is_refused(locked: Server) -> None:
    assert refusal(locked.post(TEXT, {"prompt": "a" * 1000}), 413)["code"] == "body_too_large"

    def without_length() -> Iterator[bytes]:
        for _ in range(100):
            yield b"a" * 100

    headers = {"Content-Type": "application/json"}
    refusal(locked.http.post(TEXT, content=without_length(), headers=headers), 413)


def test_only_the_pages_asked_for_may_use_the_server(locked: Server, tiny: Server) -> None:
    def preflight(server: Server, origin: str) -> httpx.Response:
        named = "content-type, x-stainless-os"  # as OpenAI's own client asks
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": named}
        return httpx.options(server.url + CHAT, headers={"Origin": origin, **ask}, trust_env=False)

    allowed = preflight(locked, "https://app.example")
    assert allowed.status_code == 200
    assert "x-stainless-os" in allowed.headers["access-control-allow-headers"]
    assert allowed.headers["access-control-allow-origin"] == "https://app.example"
    assert "access-control-allow-origin" not in preflight(locked, "https://evil.example").headers
    assert "access-control-allow-origin" not in preflight(tiny, "https://app.example").headers


def test_without_a_key_a_foreign_name_is_refused(model_files: Path) -> None:
    hosts = frozenset({"localhost", "127.0.0.1"})
    with served(loader(model_files / "target.gguf", n_ctx=64), hosts=hosts) as server:
        assert server.http.get("/v1/models", headers={"Host": "localhost:80"}).status_code == 200
        refused = server.http.get("/v1/models", headers={"Host": "evil.example"})
        assert refusal(refused, 403)["code"] == "foreign_host"


def test_chat_without_a_template_is_refused(model_files: Path) -> None:
    with served(loader(model_files / "hopeless.gguf", n_ctx=64)) as server:
        error = refusal(server.post(CHAT, {"messages": turns("stay")}), 400)
        assert error["param"] == "messages"
        assert "/v1/completions" in error["message"]
        assert server.complete("stay", max_tokens=3)["choices"]


def test_too_many_prompts_are_counted(tiny: Server) -> None:
    for prompts in (["stay"] * 129, [[1, 2]] * 129):
        error = refusal(tiny.post(TEXT, {"prompt": prompts}), 400)
        assert error["message"] == "prompt: it holds 129 prompts; 128 are answered at once"
