"""Conversations from Python; tests/cli/test_chat.py has what the command makes of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec


@pytest.fixture
def runtime(model_files: Path) -> Iterator[edgespec.Runtime]:
    with edgespec.load(model_files / "target.gguf", draft="ngram", threads=1, n_ctx=256) as loaded:
        yield loaded


def test_a_conversation_far_beyond_the_context_goes_on_with_its_last_turns(
    runtime: edgespec.Runtime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = [{"role": role, "content": "stay"} for _ in range(4000) for role in ("user", "assistant")]
    (tmp_path / "saved").write_text(json.dumps({"system": None, "messages": turns}))
    chat, tokenize, asked = runtime.chat(), runtime.tokenize, [0]
    chat.load(tmp_path / "saved")

    def counted(*arguments: Any) -> list[int]:
        asked[0] += 1
        return tokenize(*arguments)

    monkeypatch.setattr(runtime, "tokenize", counted)
    answer = chat.send("stay", max_tokens=2)
    assert asked[0] < 20, "not once for each turn that is left out"
    assert answer.stats.prompt_tokens <= 128
    assert turns[0] == chat.messages[0], "they stay in the conversation"
    one_more = chat.messages[chat.left_out - 2 : -1]
    assert one_more[0]["role"] == "user"
    assert len(tokenize(one_more)) > 128


@pytest.mark.parametrize("name", ["file/saved", "no/where/saved", "x" * 300])
def test_a_conversation_that_cannot_be_saved_there_is_a_mistake_of_the_caller(
    runtime: edgespec.Runtime, tmp_path: Path, name: str
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(edgespec.UsageError, match="cannot be written"):
        runtime.chat().save(tmp_path / name)


def test_a_conversation_is_saved_and_loaded_by_name(runtime: edgespec.Runtime, tmp_path: Path) -> None:
    first, second = runtime.chat(system="me"), runtime.chat()
    first.send("stay", max_tokens=3)
    first.save(str(tmp_path / "saved"))
    second.load(str(tmp_path / "saved"))
    assert (second.system, second.messages) == (first.system, first.messages)
    assert [file.name for file in tmp_path.iterdir()] == ["saved"]


@pytest.mark.parametrize("wanted", ["5", 1.5, 0])
def test_a_turn_with_an_impossible_budget_is_refused_and_not_remembered(
    runtime: edgespec.Runtime, wanted: Any
) -> None:
    chat = runtime.chat()
    with pytest.raises(edgespec.UsageError, match="max_tokens is"):
        chat.send("stay", max_tokens=wanted)
    assert chat.messages == []
