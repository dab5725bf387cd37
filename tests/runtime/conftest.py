"""Runtimes on closed-form models, and callbacks that hold their thread."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from closed_form import CHAT_TEMPLATE, NGram, write_gguf
from closed_form.ngram import NEVER
from waiting import PATIENCE

import edgespec


class Gate:
    """An `on_round` callback that holds the models' thread in the second round."""

    def __init__(self) -> None:
        self.reached, self.open = Event(), Event()
        self.rounds = 0

    def __call__(self, finished: edgespec.Round) -> None:
        self.rounds += 1
        if self.rounds == 2:
            self.reached.set()
            assert self.open.wait(PATIENCE)


@pytest.fixture(scope="session")
def endless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends its text."""
    file = tmp_path_factory.mktemp("endless") / "endless.gguf"
    return write_gguf(NGram.random(0, end=NEVER), file, chat_template=CHAT_TEMPLATE, context_length=1 << 12)


@pytest.fixture
def endless(endless_file: Path) -> Iterator[edgespec.Runtime]:
    with edgespec.load(endless_file, draft="ngram", depth=3, threads=1, n_ctx=2048) as loaded:
        yield loaded
