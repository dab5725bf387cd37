"""Ctrl-C while models compute, at the very moment one chooses."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

import edgespec
from edgespec.decoding.rounds import Round
from edgespec.options import GenerateOptions
from edgespec.terminal.answer import follow
from edgespec.terminal.chat import Conversation
from edgespec.terminal.notes import PromptProgress


def press_twice(_: Round) -> None:
    for _ in range(2):
        os.kill(os.getpid(), signal.SIGINT)


def test_in_a_chat_even_twice_it_only_stops_the_answer(
    endless: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with edgespec.load(endless, draft="ngram", threads=1) as runtime:
        options: GenerateOptions = {"max_tokens": 50, "temperature": 0.0, "seed": None}
        conversation = Conversation(runtime, None, {**options, "on_round": press_twice}, report=False)
        conversation.take("stay")
        out, err = capsys.readouterr()
        assert out.strip()
        assert err == "edgespec: stopped\n"
        conversation.take("/retry")
        assert capsys.readouterr().out == out
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_a_pipe_whose_next_line_would_come_at_once_it_ends_the_chat(endless: Path) -> None:
    class Piped:
        typed = False

        def __init__(self) -> None:
            self.entries = ["stay", "never said"]

        def read(self) -> str | None:
            return self.entries.pop(0) if self.entries else None

    with edgespec.load(endless, draft="ngram", threads=1) as runtime:
        options: GenerateOptions = {"max_tokens": 50, "temperature": 0.0, "seed": None}
        conversation = Conversation(runtime, None, {**options, "on_round": press_twice}, report=False)
        source = Piped()
        with pytest.raises(KeyboardInterrupt):
            conversation.converse(source)
        assert source.entries == ["never said"]


def test_elsewhere_the_second_one_is_not_waited_for(endless: Path) -> None:
    with edgespec.load(endless, draft="ngram", threads=1) as runtime:
        answer = runtime.stream("stay", max_tokens=50, on_round=press_twice)
        with pytest.raises(KeyboardInterrupt):
            follow(answer, PromptProgress())
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_in_the_background_where_it_is_ignored_it_stays_so(endless: Path) -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with edgespec.load(endless, draft="ngram", threads=1) as runtime:
            answer = runtime.stream("stay", max_tokens=20, on_round=press_twice)
            follow(answer, PromptProgress())
        assert answer.finish_reason == "length"
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
