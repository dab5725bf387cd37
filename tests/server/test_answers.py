"""What comes over HTTP is what the library says, in OpenAI's shape."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.server import app, exchange

from .conftest import Server, loader, served, turns

GREEDY = {"temperature": 0, "max_tokens": 30}


def events(server: Server, path: str, body: dict[str, Any]) -> list[Any]:
    """A stream's objects."""
    with server.http.stream("POST", path, json={**body, "stream": True}) as response:
        assert response.status_code == 200
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def test_a_completion_is_what_the_library_generates(tiny: Server, library: edgespec.Runtime) -> None:
    expected = library.generate("stay stay", temperature=0, max_tokens=30)
    found = tiny.complete("stay stay", **GREEDY)
    assert found["object"] == "text_completion"
    assert found["choices"][0]["text"] == expected.text
    assert found["choices"][0]["finish_reason"] == expected.finish_reason
    assert found["usage"]["completion_tokens"] == len(expected.tokens)
    assert found["usage"]["prompt_tokens"] == expected.stats.prompt_tokens


def test_a_chat_answer_is_what_the_library_generates(tiny: Server, library: edgespec.Runtime) -> None:
    expected = library.generate(turns("stay"), temperature=0, max_tokens=30)
    found = tiny.chat("stay", **GREEDY)
    message = found["choices"][0]["message"]
    assert (message["role"], message["content"]) == ("assistant", expected.text)
    assert found["model"] == "tiny"


def test_the_parts_of_a_stream_make_up_the_whole(tiny: Server) -> None:
    fields = {"seed": 5, "max_tokens": 30, "n": 2, "stop": ["st"]}
    whole = tiny.chat("stay", **fields)
    parts = events(tiny, "/v1/chat/completions", {"messages": turns("stay"), **fields})
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert mine[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(p["delta"].get("content", "") for p in mine) == choice["message"]["content"]
        assert [p["finish_reason"] for p in mine if p["finish_reason"]] == [choice["finish_reason"]]
    whole = tiny.complete("stay", logprobs=2, **fields)
    parts = events(tiny, "/v1/completions", {"prompt": "stay", "logprobs": 2, **fields})
    for choice in whole["choices"]:
        mine = [p["choices"][0] for p in parts if p["choices"][0]["index"] == choice["index"]]
        assert "".join(p["text"] for p in mine) == choice["text"]
        for name, whole_list in choice["logprobs"].items():
            assert [x for p in mine if p["logprobs"] for x in p["logprobs"][name]] == whole_list


def test_an_event_is_one_line_to_every_client() -> None:
    said = {"text": "one\u2028two\x85three\x1cé"}
    line, empty = exchange._event(said).splitlines()
    assert json.loads(line.removeprefix("data: ")) == said and empty == ""


def test_a_stream_tells_its_usage_when_asked(tiny: Server) -> None:
    body = {"messages": turns("stay"), **GREEDY}
    *parts, last = events(tiny, "/v1/chat/completions", {**body, "stream_options": {"include_usage": True}})
    assert all(part["usage"] is None for part in parts)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == tiny.chat("stay", **GREEDY)["usage"]["completion_tokens"]
    assert all("usage" not in part for part in events(tiny, "/v1/chat/completions", body))


def test_a_stream_tells_where_its_tokens_came_from_when_asked(
    tiny: Server, library: edgespec.Runtime
) -> None:
    expected = list(library.stream(turns("stay"), temperature=0, max_tokens=30))
    body = {"messages": turns("stay"), **GREEDY}
    parts = events(tiny, "/v1/chat/completions", {**body, "edgespec": {"origins": True}})
    found = [part["edgespec"]["origin"] for part in parts if "edgespec" in part]
    assert found == [token.origin for token in expected if token.text]
    assert len({"draft", "corrected"} & set(found)) == 2
    assert all("edgespec" not in part for part in events(tiny, "/v1/chat/completions", body))


def test_a_stream_tells_its_statistics_when_asked(tiny: Server) -> None:
    body = {"messages": turns("stay"), **GREEDY, "edgespec": {"stats": True}}
    parts = events(tiny, "/v1/chat/completions", body)
    found = [part["edgespec"]["stats"] for part in parts if "edgespec" in part]
    for name in ("tokens", "rounds", "drafted", "accepted", "draft_passes", "decode_seconds"):
        counts = [stats[name] for stats in found]
        assert counts == sorted(counts) and counts[-1] > 0
    about = tiny.http.get("/v1/edgespec/stats").json()
    assert found[-1] == about["last_answer"]
    assert about["target_bytes"] > 0 and about["draft_bytes"] > 0


def test_the_server_says_what_slows_its_board_down(tiny: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def now() -> object:
        return tiny.http.get("/v1/edgespec/stats").json()["slowed_down"]

    monkeypatch.setattr(app, "read_slowdown", lambda: ())
    assert now() == []
    monkeypatch.setattr(app, "read_slowdown", lambda: ("throttled",))
    assert now() == ["throttled"]


def test_a_stop_string_ends_the_answer_before_it(endless: Server) -> None:
    text = endless.complete("stay", **GREEDY)["choices"][0]["text"]
    stop = text[8:10]
    found = endless.complete("stay", stop=stop, **GREEDY)["choices"][0]
    assert found["text"] == text[: text.index(stop)]
    assert found["finish_reason"] == "stop"


def test_log_probabilities_are_the_librarys(tiny: Server, library: edgespec.Runtime) -> None:
    expected = list(library.stream(turns("stay"), temperature=0, max_tokens=12, logprobs=3))
    found = tiny.chat("stay", temperature=0, max_tokens=12, logprobs=True, top_logprobs=3)
    entries = found["choices"][0]["logprobs"]["content"]
    piece = library.target.tokenizer.piece
    assert [bytes(e["bytes"]) for e in entries] == [piece(t.id) for t in expected]
    assert [e["logprob"] for e in entries] == pytest.approx([t.logprob for t in expected], abs=1e-3)
    assert [[bytes(o["bytes"]) for o in e["top_logprobs"]] for e in entries] == [
        [piece(id) for id, _ in t.top_logprobs] for t in expected
    ]


def test_choices_are_those_of_following_seeds(tiny: Server, library: edgespec.Runtime) -> None:
    found = tiny.complete("stay", n=3, seed=7, max_tokens=20)
    texts = [library.generate("stay", seed=7 + i, temperature=1, max_tokens=20).text for i in range(3)]
    assert [c["text"] for c in found["choices"]] == texts
    assert [c["index"] for c in found["choices"]] == [0, 1, 2]


def test_several_prompts_are_answered_in_order_and_each_is_counted_once(tiny: Server) -> None:
    alone = [tiny.complete(prompt, **GREEDY) for prompt in ("stay", "my user")]
    found = tiny.complete(["stay", "my user"], n=2, **GREEDY)
    texts = [one["choices"][0]["text"] for one in alone for _ in range(2)]
    assert [c["text"] for c in found["choices"]] == texts
    assert found["usage"]["prompt_tokens"] == sum(one["usage"]["prompt_tokens"] for one in alone)


def test_a_prompt_may_be_token_ids(tiny: Server, library: edgespec.Runtime) -> None:
    ids = library.tokenize("stay")
    assert tiny.complete(ids, **GREEDY)["choices"] == tiny.complete("stay", **GREEDY)["choices"]
    assert len(tiny.complete([ids, ids], **GREEDY)["choices"]) == 2


def test_a_bias_of_minus_100_bans_a_token(tiny: Server, library: edgespec.Runtime) -> None:
    text = tiny.complete("stay", **GREEDY)["choices"][0]["text"]
    first = library.generate("stay", temperature=0, max_tokens=1).tokens[0]
    other = tiny.complete("stay", logit_bias={str(first): -100}, **GREEDY)["choices"][0]["text"]
    assert other != text
    assert not other.startswith(library.target.tokenizer.piece(first).decode())


def test_a_full_context_ends_the_answer_for_its_length(endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=64)) as server:
        found = server.complete("stay", temperature=0, max_tokens=10_000)
    assert found["choices"][0]["finish_reason"] == "length"
    assert 64 <= found["usage"]["total_tokens"] <= 65


def test_text_parts_and_the_developer_role_are_understood(tiny: Server) -> None:
    plain = [{"role": "system", "content": "stay"}, {"role": "user", "content": "my user"}]
    mark: dict[str, Any] = {"prompt_cache_breakpoint": {"mode": "explicit"}}
    parts = [{"type": "text", "text": "my ", **mark}, {"type": "text", "text": "user"}]
    other = [{"role": "developer", "content": "stay"}, {"role": "user", "content": parts}]
    answers = [
        tiny.post("/v1/chat/completions", {"messages": messages, **GREEDY}).json()["choices"]
        for messages in (plain, other)
    ]
    assert answers[0] == answers[1]


def test_fields_that_ask_for_nothing_are_taken(tiny: Server) -> None:
    harmless = {
        "model": "tiny", "tools": [], "tool_choice": "none", "response_format": {"type": "text"},
        "store": False, "user": "me", "metadata": {"a": "b"}, "top_p": None, "stop": None,
        "reasoning_effort": None, "parallel_tool_calls": True, "moderation": None,
        "prompt_cache_options": {"mode": "implicit"}, "prompt_cache_retention": "24h",
    }  # fmt: skip
    assert tiny.chat("stay", **GREEDY, **harmless)["choices"] == tiny.chat("stay", **GREEDY)["choices"]


def test_an_answer_can_be_sent_back_as_it_came(tiny: Server) -> None:
    message = tiny.chat("stay", **GREEDY)["choices"][0]["message"]
    body = {"messages": [*turns("stay"), message, *turns("stay")], **GREEDY}
    assert tiny.post("/v1/chat/completions", body).status_code == 200


def test_an_answer_can_be_sent_back_with_what_clients_add_to_it(tiny: Server) -> None:
    answer = tiny.chat("stay", **GREEDY)["choices"][0]["message"]
    message = {**answer, "parsed": {"a": [1]}, "tool_calls": None}
    body = {"messages": [*turns("stay"), message, *turns("stay")], **GREEDY}
    assert tiny.post("/v1/chat/completions", body).status_code == 200


def test_the_next_turn_of_a_long_conversation_processes_only_what_is_new(endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=4096)) as server:
        first = server.chat("stay " * 600, **GREEDY)
        answer = first["choices"][0]["message"]["content"]
        second = server.chat("stay " * 600, answer, "stay", **GREEDY)["usage"]
    read = first["usage"]["prompt_tokens"] - first["usage"]["prompt_tokens_details"]["cached_tokens"]
    assert read > 2000
    assert second["prompt_tokens"] - second["prompt_tokens_details"]["cached_tokens"] < 0.15 * read


def test_what_was_done_is_counted(tiny: Server) -> None:
    def numbers() -> dict[str, float]:
        lines = tiny.http.get("/metrics").text.splitlines()
        return {line.rpartition(" ")[0]: float(line.rpartition(" ")[2]) for line in lines if line[0] != "#"}

    before, stats = numbers(), tiny.http.get("/v1/edgespec/stats").json()
    usage = tiny.complete("stay", **GREEDY)["usage"]
    after, later = numbers(), tiny.http.get("/v1/edgespec/stats").json()
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    assert grown["edgespec_generated_tokens_total"] == usage["completion_tokens"]
    assert grown['edgespec_requests_total{path="/v1/completions",status="200"}'] == 1
    assert grown["edgespec_drafted_tokens_total"] > 0
    assert (after["edgespec_model_loaded"], after["edgespec_answering"]) == (1, 0)
    assert later["totals"]["tokens"] - stats["totals"]["tokens"] == usage["completion_tokens"]
    assert later["last_answer"]["tokens"] == usage["completion_tokens"]
    assert (later["model"], later["depth"], later["draft"]) == ("tiny", 3, "draft")


def test_the_model_is_listed(tiny: Server) -> None:
    listed = tiny.http.get("/v1/models").json()["data"]
    assert [model["id"] for model in listed] == ["tiny"]
    assert tiny.http.get("/v1/models/tiny").json() == listed[0]


def test_clients_are_not_told_where_the_model_is(tiny: Server, model_files: Path) -> None:
    for path in ("/v1/models", "/v1/edgespec/stats", "/metrics"):
        assert str(model_files) not in tiny.http.get(path).text


def test_every_path_is_described(tiny: Server) -> None:
    described = tiny.http.get("/openapi.json").json()
    for path, methods in described["paths"].items():
        for method in methods:
            status = tiny.http.request(method, path.replace("{model}", "tiny")).status_code
            assert str(status) in methods[method]["responses"], (path, status)
    chat = described["components"]["schemas"]["ChatRequest"]
    assert chat["required"] == ["messages"]
    assert chat["properties"]["functions"]["enum"] == [[], None]
