"""Several generations on one engine take turns, and none notices the others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from threading import Event, Thread

import pytest
from pair import VOCABULARY, load
from waiting import PATIENCE

from edgespec.backends.caches import Caches
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.drafters.draft_model import DraftModel
from edgespec.errors import UsageError

from .engines import NO_END, PROMPT, Build, plain

OTHER = VOCABULARY.ids(b"m", b"y", b" ", b"u", b"s", b"er")


@pytest.fixture
def engine(target: LlamaCpp, model_files: Path) -> Iterator[Engine]:
    """For two at a time."""
    draft = load(model_files / "draft.gguf")
    drafter = DraftModel(draft, caches=Caches(draft, 2))
    engine = Engine(target, [drafter], FixedDepth(4), parallel=2)
    yield engine
    engine.close()
    drafter.close()


def test_answers_that_take_turns_are_what_each_is_alone(engine: Engine, build: Build) -> None:
    request = Request(NO_END, max_tokens=40)
    first, second = engine.generate(PROMPT, request), engine.generate(OTHER, request)
    found = [(a.id, b.id) for a, b in zip(first, second, strict=True)]
    assert [a for a, _ in found] == plain(build, request).tokens
    assert [b for _, b in found] == plain(build, request, OTHER).tokens
    assert first.stats.accepted and second.stats.accepted


def test_one_more_ends_the_first_of_the_same_thread_and_no_other(engine: Engine, build: Build) -> None:
    request = Request(NO_END, max_tokens=20)
    first, second = engine.generate(PROMPT, request), engine.generate(OTHER, request)
    next(first), next(second)
    third = engine.generate(PROMPT, request)
    assert (first.finish_reason, list(first), second.finish_reason) == ("cancelled", [], None)
    assert third.run().tokens == plain(build, request).tokens
    assert second.run().tokens == plain(build, request, OTHER).tokens


def test_one_more_is_refused_while_all_are_other_threads_and_closing_ends_those(engine: Engine) -> None:
    begun, closed = [Event(), Event()], Event()
    ends: list[str | None] = []

    def read(i: int) -> None:
        answer = engine.generate([PROMPT, OTHER][i], Request(NO_END))
        next(answer)
        begun[i].set()
        assert closed.wait(PATIENCE)
        list(answer)
        ends.append(answer.finish_reason)

    threads = [Thread(target=read, args=(i,)) for i in range(2)]
    for thread in threads:
        thread.start()
    assert all(event.wait(PATIENCE) for event in begun)
    with pytest.raises(UsageError, match="2 generations are under way"):
        engine.generate(PROMPT, Request())
    engine.close()
    closed.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert ends == ["cancelled", "cancelled"]
    assert engine.caches.sequences == []
