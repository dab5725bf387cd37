"""The real `openai` client, against SmolLM2 and a closed-form model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from real_models import need, need_module

import edgespec

from .conftest import Server, served, turns

openai = need_module("openai")


def client_of(server: Server, key: str = "none") -> Any:
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[Server]:
    name = need("smollm2-135m")
    with served(lambda: edgespec.load(name, draft="ngram", depth=4), api_key="sesame") as server:
        yield server


@pytest.fixture(scope="module")
def client(smollm2: Server) -> Any:
    return client_of(smollm2, "sesame")


QUESTION: dict[str, Any] = {
    "model": "tiny",
    "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Name a colour."}],
    "temperature": 0,
    "max_completion_tokens": 16,
}


def test_a_chat(client: Any) -> None:
    answer = client.chat.completions.create(**QUESTION)
    assert answer.choices[0].message.content
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens


def test_a_stream_says_the_same(client: Any) -> None:
    whole = client.chat.completions.create(**QUESTION).choices[0].message.content
    with client.chat.completions.create(
        **QUESTION, stream=True, stream_options={"include_usage": True}
    ) as stream:
        chunks = list(stream)
    assert "".join(c.choices[0].delta.content or "" for c in chunks if c.choices) == whole
    assert chunks[-1].usage.completion_tokens > 0


def test_a_conversation_reuses_what_was_read(client: Any) -> None:
    first = client.chat.completions.create(**QUESTION)
    messages = [*QUESTION["messages"], first.choices[0].message, {"role": "user", "content": "Another?"}]
    second = client.chat.completions.create(**QUESTION | {"messages": messages})
    assert second.usage.prompt_tokens_details.cached_tokens >= first.usage.prompt_tokens


def test_log_probabilities(client: Any) -> None:
    answer = client.chat.completions.create(**QUESTION, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content
    assert b"".join(bytes(t.bytes) for t in content).decode() == answer.choices[0].message.content
    for token in content:
        assert token.token == token.top_logprobs[0].token  # greedy
        assert token.logprob == token.top_logprobs[0].logprob <= 0
        assert len(token.top_logprobs) == 3


def test_a_text_completion_with_extensions(client: Any) -> None:
    asked: dict[str, Any] = {"model": "tiny", "prompt": "Red, green,", "max_tokens": 8, "seed": 3, "n": 2}
    extra = {"top_k": 20, "min_p": 0.05, "repetition_penalty": 1.1}
    once, again = (client.completions.create(**asked, extra_body=extra) for _ in range(2))
    assert [c.text for c in once.choices] == [c.text for c in again.choices]
    assert len({c.text for c in once.choices}) == 2


def test_a_stop_string(client: Any) -> None:
    text = client.chat.completions.create(**QUESTION).choices[0].message.content
    stop = text.split()[2]
    choice = client.chat.completions.create(**QUESTION, stop=[stop]).choices[0]
    assert choice.message.content == text[: text.index(stop)]
    assert choice.finish_reason == "stop"


def test_the_models(client: Any) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"


def test_an_empty_prompt_of_a_model_without_a_first_token(client: Any) -> None:
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model="tiny", prompt="")
    assert refused.value.param == "prompt"


def test_errors_arrive_as_the_clients_own(client: Any, smollm2: Server) -> None:
    with pytest.raises(openai.AuthenticationError):
        client_of(smollm2, "wrong").models.list()
    with pytest.raises(openai.NotFoundError) as unknown:
        client.chat.completions.create(**QUESTION | {"model": "gpt-9"})
    assert unknown.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(**QUESTION | {"temperature": -1})
    assert wrong.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as unsupported:
        client.chat.completions.create(**QUESTION, store=True)
    assert (unsupported.value.param, unsupported.value.code) == ("store", "unsupported")
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(**QUESTION | {"messages": turns("word " * 10_000)})
    assert long.value.code == "context_length_exceeded"


def test_a_failure_in_midstream_arrives_as_the_clients_own(
    tiny: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise edgespec.BackendError("the pass failed")

    monkeypatch.setattr(tiny.gate, "round", fail)
    asked = client_of(tiny).completions.create(model="tiny", prompt="stay", stream=True)
    with pytest.raises(openai.APIError, match="the pass failed"):
        list(asked)
