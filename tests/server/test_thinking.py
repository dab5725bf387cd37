"""Thoughts and answers are told apart, wherever the text is cut into pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from real_models import need

import edgespec
from edgespec.chat.thinking import Thinking

from .conftest import served, turns


def said(pieces: list[str], begun: bool = False) -> tuple[str, str]:
    """Everything a stream of pieces comes to."""
    thinking = Thinking(begun)
    parts = [*map(thinking.push, pieces), thinking.finish()]
    return "".join(p.reasoning for p in parts), "".join(p.content for p in parts)


@pytest.mark.parametrize(
    ("text", "begun", "reasoning", "content"),
    [
        ("<think>\nhm\n</think>\n\nyes", False, "hm\n", "yes"),
        ("\n<think>hm</think>yes", False, "hm", "yes"),
        ("hm\n</think>\n\nyes", True, "hm\n", "yes"),
        ("hm </thin", True, "hm </thin", ""),
        ("<think>hm", False, "hm", ""),
        ("<think>", False, "", ""),
        ("<thi", False, "", "<thi"),
        (" yes", False, "", " yes"),
        ("yes <think>no</think>", False, "", "yes <think>no</think>"),
        ("<think></think>\nyes </think>\n\nno", False, "", "yes </think>\n\nno"),
        ("", False, "", ""),
    ],
)
@given(data=st.data())
def test_thoughts_and_answer(
    text: str, begun: bool, reasoning: str, content: str, data: st.DataObject
) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert said(pieces, begun) == (reasoning, content)


def test_an_answer_whose_prompt_began_the_thoughts_is_one() -> None:
    template = "{% for m in messages %}{{ m.content }}\n{% endfor %}<think>"
    name = need("smollm2-135m")
    with served(lambda: edgespec.load(name, draft="none", chat_template=template)) as server:
        message = server.chat("What is two plus two?", temperature=0, max_tokens=12)["choices"][0]["message"]
        assert message["content"] == ""
        assert message["reasoning_content"]
        body = {
            "messages": turns("What is two plus two?"),
            "temperature": 0,
            "max_tokens": 12,
            "stream": True,
        }
        with server.http.stream("POST", "/v1/chat/completions", json=body) as response:
            lines = [line[6:] for line in response.iter_lines() if line.startswith("data: {")]
        deltas = [json.loads(line)["choices"][0]["delta"] for line in lines]
        thoughts = "".join(delta.get("reasoning_content", "") for delta in deltas)
        assert thoughts.rstrip("\n") == message["reasoning_content"]
        assert not any(delta.get("content") for delta in deltas)
        plain = server.complete("What is two plus two?\n<think>", temperature=0, max_tokens=12)
        assert plain["choices"][0]["text"].strip("\n") == message["reasoning_content"].strip("\n")
