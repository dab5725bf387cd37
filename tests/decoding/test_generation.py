"""Generations: cancelled, abandoned and interrupted, and who may generate when."""

from __future__ import annotations

import gc
import sys
from collections import deque
from collections.abc import Callable
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
from pair import load
from waiting import PATIENCE, called

import edgespec
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.control.policy import FixedDepth
from edgespec.decoding import engine as engine_module
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.rounds import Round
from edgespec.decoding.stopping import Output, Token
from edgespec.drafters.draft_model import DraftModel
from edgespec.errors import BackendError, UsageError

from .engines import NO_END, PROMPT, Build, plain


class Paused:
    """A generation in another thread that stands still in its second round until released."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.standing, self.released = Event(), Event()
        self.rounds = 0
        self.error: BaseException | None = None
        request = Request(NO_END, max_tokens=200, on_round=self._on_round, **options)
        self.thread = Thread(target=self._run, args=(engine, request))
        self.thread.start()
        assert self.standing.wait(PATIENCE)

    def _on_round(self, finished: Round) -> None:
        self.rounds += 1
        if self.rounds == 2:
            self.standing.set()
            assert self.released.wait(PATIENCE)

    def _run(self, engine: Engine, request: Request) -> None:
        try:
            self.generation = engine.generate(PROMPT, request)
            self.generation.run()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.released.set()
        self.thread.join(PATIENCE)
        assert not self.thread.is_alive()


def test_cancelling_from_another_thread_stops_before_the_next_round(
    build: Build, draft_model: DraftModel
) -> None:
    for drafter in (None, draft_model):
        engine = build(drafter)
        paused = Paused(engine)
        paused.generation.cancel()
        paused.finish()
        assert paused.error is None
        assert paused.rounds == 2
        assert paused.generation.finish_reason == "cancelled"
        assert (
            paused.generation.tokens
            == plain(build, Request(NO_END, max_tokens=200)).tokens[: len(paused.generation.tokens)]
        )
        after = engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run()
        assert after.tokens == plain(build, Request(NO_END, max_tokens=20)).tokens


def test_cancelling_while_a_draft_is_made_stops_before_its_next_pass(
    build: Build, draft_model: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build(draft_model)
    answer = engine.generate(PROMPT, Request(NO_END, max_tokens=50))
    read = [next(answer).id]  # in the first round nobody drafts
    forward, passes = draft_model.backend.forward, 0

    def cancelling(segments: Any) -> Any:
        nonlocal passes
        passes += 1
        answer.cancel()
        return forward(segments)

    monkeypatch.setattr(draft_model.backend, "forward", cancelling)
    read += [token.id for token in answer]
    assert (answer.finish_reason, passes) == ("cancelled", 1)
    assert read == answer.tokens
    monkeypatch.undo()
    expected = plain(build, Request(NO_END, max_tokens=20)).tokens
    assert engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run().tokens == expected


def test_cancelling_while_the_prompt_is_read_gives_an_empty_output(model_files: Path) -> None:
    target = load(model_files / "target.gguf", max_batch=8)
    engine = Engine(target, (), FixedDepth(0))
    done: list[int] = []

    def on_prompt(read: int, total: int) -> None:
        done.append(read)
        if read >= 16:
            answer.cancel()

    long = [*PROMPT, *([1, 2, 3] * 20)]
    answer = engine.generate(long, Request(NO_END, max_tokens=5, on_prompt=on_prompt))
    answer.run()
    assert (answer.text, answer.tokens, answer.finish_reason) == ("", [], "cancelled")
    assert max(done) < len(long) - 1
    again = engine.generate(long, Request(NO_END, max_tokens=5)).run()
    assert again.stats.cached_tokens == max(done), "what was read before is not read again"
    assert len(again.tokens) == 5
    target.close()


def test_a_second_thread_is_refused_while_one_generates(build: Build) -> None:
    engine = build()
    paused = Paused(engine)
    with pytest.raises(UsageError, match="another thread is generating"):
        engine.generate(PROMPT, Request(NO_END, max_tokens=5))
    paused.finish()
    assert len(paused.generation.tokens) == 200
    assert paused.error is None
    assert len(engine.generate(PROMPT, Request(NO_END, max_tokens=5)).run().tokens) == 5


def test_threads_that_start_at_the_same_time_never_share_the_cache(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever is refused says so; whoever is not gets the right output."""
    engine = build()
    request = Request(NO_END, max_tokens=8)
    prompts = [[*PROMPT, token] for token in range(4)]
    expected = [plain(build, request, prompt).tokens for prompt in prompts]

    def slow_start(*args: Any) -> Output:
        sleep(0.001)  # others run meanwhile
        return Output(*args)

    monkeypatch.setattr(engine_module, "Output", slow_start)
    right: list[bool] = []
    refused: list[UsageError] = []
    start = Event()

    def attempt(thread: int) -> None:
        try:
            answer = engine.generate(prompts[thread], request)
            for _ in answer:
                sleep(0.001)
        except UsageError as error:
            refused.append(error)
        else:
            right.append(answer.tokens == expected[thread])

    def use(thread: int) -> None:
        start.wait(PATIENCE)
        for _ in range(25):
            attempt(thread)

    threads = [Thread(target=use, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    start.set()
    for thread in threads:
        thread.join(PATIENCE)
    assert len(right) + len(refused) == 100
    assert right
    assert all(right)


def test_another_threads_cancelled_generation_that_nobody_reads_on_does_not_block(build: Build) -> None:
    engine = build()
    generation = engine.generate(PROMPT, Request(NO_END, max_tokens=50))
    next(generation)
    result: list[object] = []

    def use(cancel: bool) -> None:
        if cancel:
            generation.cancel()
        try:
            result.append(engine.generate(PROMPT, Request(NO_END, max_tokens=5)).run().finish_reason)
        except UsageError as error:
            result.append(str(error))

    for cancel in (False, True):
        thread = Thread(target=use, args=(cancel,))
        thread.start()
        thread.join(PATIENCE)
    assert "cancel it" in str(result[0])
    assert result[1] == "length"
    assert generation.finish_reason == "cancelled"
    assert list(generation) == []


def test_another_threads_failed_generation_does_not_block(build: Build) -> None:
    engine = build()
    failed, over = Event(), Event()

    def fail() -> None:
        def on_round(finished: Round) -> None:
            raise RuntimeError("the caller's own mistake")

        with pytest.raises(RuntimeError, match="own mistake"):
            engine.generate(PROMPT, Request(NO_END, on_round=on_round)).run()
        failed.set()
        over.wait(PATIENCE)

    thread = Thread(target=fail)
    thread.start()
    assert failed.wait(PATIENCE)
    try:
        answer = engine.generate(PROMPT, Request(NO_END, max_tokens=9)).run()
    finally:
        over.set()
        thread.join(PATIENCE)
    assert answer.tokens == plain(build, Request(NO_END, max_tokens=9)).tokens


def test_an_abandoned_stream_gives_way_to_a_correct_new_one(build: Build, draft_model: DraftModel) -> None:
    engine = build(draft_model)
    expected = plain(build, Request(NO_END, max_tokens=20)).tokens
    for taken in range(1, 8):
        abandoned = engine.generate(PROMPT, Request(NO_END, max_tokens=20))
        for _ in range(taken):
            next(abandoned)
        other = engine.generate([*PROMPT, 3], Request(NO_END, max_tokens=4)).run()
        assert len(other.tokens) == 4
        assert abandoned.finish_reason == "cancelled"
        assert abandoned.tokens == expected[: len(abandoned.tokens)]
        assert list(abandoned) == [], "an abandoned generation is over"
        assert engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run().tokens == expected


def test_a_finished_stream_that_is_read_on_does_not_touch_its_successors_cache(
    build: Build, draft_model: DraftModel
) -> None:
    engine = build(draft_model)
    first = engine.generate(PROMPT, Request(NO_END, max_tokens=3))
    while first.finish_reason is None:
        next(first)
    second = engine.generate(PROMPT, Request(NO_END, max_tokens=30))
    tokens = [next(second).id for _ in range(12)]
    list(first)
    tokens += [token.id for token in second]
    assert tokens == plain(build, Request(NO_END, max_tokens=30)).tokens


def test_a_failed_round_whose_cache_cannot_be_cut_leaves_the_drafter_free_for_the_next_answer(
    build: Build, draft_model: DraftModel, target: LlamaCpp
) -> None:
    def fail(*_: object) -> None:
        raise BackendError("out of memory")

    engine = build(draft_model)
    answer = engine.generate(PROMPT, Request(NO_END, max_tokens=20))
    next(answer)
    next(answer)  # of a round that drafts
    with pytest.MonkeyPatch.context() as patch, pytest.raises(BackendError):
        patch.setattr(engine_module, "verify", fail)
        patch.setattr(target, "rollback", fail)
        answer.run()
    again = engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run()
    assert again.stats.drafted and again.stats.draft_failure is None


def test_a_callback_may_not_use_the_runtime_it_is_called_from(build: Build) -> None:
    engine = build()
    old = engine.generate(PROMPT, Request(NO_END, max_tokens=5))
    next(old)
    attempts: list[Callable[[], object]] = [
        lambda: engine.generate(PROMPT, Request()),
        lambda: next(answer),
        lambda: next(old),
        engine.close,
    ]
    refusals: list[str] = []

    def on_round(finished: Round) -> None:
        if attempts:
            with pytest.raises(UsageError) as caught:
                attempts.pop(0)()
            refusals.append(str(caught.value))

    answer = engine.generate(PROMPT, Request(NO_END, max_tokens=10, on_round=on_round))
    assert len(answer.run().tokens) == 10
    assert len(refusals) == 4
    assert all("callback" in refusal for refusal in refusals)


def test_a_signal_handler_that_comes_within_a_pass_is_refused_and_waits_for_nobody(
    build: Build, target: LlamaCpp, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine, decode = build(), target._c.llama_decode
    refusals: list[str] = []

    def interrupted(*args: Any) -> Any:
        for attempt in (engine.close, lambda: engine.generate(PROMPT, Request())):
            with pytest.raises(UsageError) as caught:
                attempt()
            refusals.append(str(caught.value))
        answer.cancel()
        return decode(*args)

    answer = engine.generate(PROMPT, Request(NO_END, max_tokens=10))
    monkeypatch.setattr(target._c, "llama_decode", interrupted)
    reading = Thread(target=answer.run, daemon=True)
    reading.start()
    reading.join(PATIENCE)
    assert answer.finish_reason == "cancelled"
    assert refusals and all("signal handler" in refusal for refusal in refusals)


def test_a_signal_handler_that_comes_while_an_answer_starts_is_refused_too(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = build()
    make_room = engine._make_room

    def interrupted() -> None:
        with pytest.raises(UsageError, match="signal handler"):
            engine.close()
        make_room()

    monkeypatch.setattr(engine, "_make_room", interrupted)
    assert engine.generate(PROMPT, Request(NO_END, max_tokens=3)).run().finish_reason == "length"


def test_a_signal_handler_that_comes_while_an_answer_is_cancelled_may_cancel_it_too(build: Build) -> None:
    answer = build().generate(PROMPT, Request(NO_END, max_tokens=10))

    def cancel() -> None:
        sys.setprofile(lambda *_: answer.cancel())  # at every call that is made meanwhile
        answer.cancel()
        sys.setprofile(None)

    thread = Thread(target=cancel, daemon=True)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()
    assert answer.run().finish_reason == "cancelled"


def test_closing_in_another_thread_ends_the_generation_and_then_refuses(
    model_files: Path, draft_model: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = called(monkeypatch, edgespec.Generation, "cancel")
    target = load(model_files / "target.gguf")
    engine = Engine(target, [draft_model], FixedDepth(4))
    paused = Paused(engine)
    closer = Thread(target=engine.close)
    closer.start()
    assert told.wait(PATIENCE)
    closer.join(0.1)
    assert closer.is_alive(), "closing waits until the models are at rest"
    paused.finish()
    closer.join(PATIENCE)
    target.close()  # what a runtime does next
    assert paused.error is None
    assert paused.generation.finish_reason == "cancelled"
    assert list(paused.generation) == []
    with pytest.raises(UsageError, match="closed"):
        engine.generate(PROMPT, Request())


def test_models_are_freed_though_what_was_learned_cannot_be_kept(model_files: Path) -> None:
    def fail() -> None:
        raise OSError("the disk is gone")

    target = load(model_files / "target.gguf")
    runtime = edgespec.Runtime("pair", target, (), FixedDepth(0), 0, save=fail)
    with pytest.raises(OSError, match="the disk is gone"):
        runtime.close()
    with pytest.raises(BackendError, match="is closed"):
        target.open()


def test_a_reader_whose_generation_ends_between_its_look_and_its_grasp_reads_on(
    build: Build, draft_model: DraftModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another thread may close the runtime at any moment."""

    class Ended(deque[Token]):
        def __len__(self) -> int:  # what was there is gone when it is taken
            length = super().__len__()
            if length:
                generation.cancel()
                generation.abandon()
            return length

        def popleft(self) -> Token:
            len(self)
            return super().popleft()

    generation = build(draft_model).generate(PROMPT, Request(NO_END, max_tokens=50))
    monkeypatch.setattr(generation, "_ready", Ended())
    assert list(generation) == []
    assert generation.finish_reason == "cancelled"


@pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("draft", ["ngram", "draft.gguf"])
def test_a_runtime_that_is_dropped_within_an_answer_goes_quietly(model_files: Path, draft: str) -> None:
    named: str | Path = draft if draft == "ngram" else model_files / draft
    runtime = edgespec.load(model_files / "target.gguf", draft=named, depth=3, threads=1, n_ctx=128)
    text = runtime.generate(PROMPT, logit_bias=NO_END.logit_bias, max_tokens=40).text
    answer = runtime.stream(PROMPT, logit_bias=NO_END.logit_bias, stop=text[1:] + "#")
    for _ in range(6):
        answer.step()  # which holds text back, as it may be the beginning of a stop string
    assert answer.finish_reason is None and len(answer.tokens) < 6
    del runtime, answer
    gc.collect()


def test_an_interrupt_in_the_middle_of_a_pass_leaves_a_usable_engine(
    build: Build, draft_model: DraftModel, target: LlamaCpp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C arrives after llama.cpp has computed and before it is written down."""
    engine = build(draft_model)
    expected = plain(build, Request(NO_END, max_tokens=20)).tokens
    for nth in range(1, 7):
        decode, calls = target._c.llama_decode, [0]

        def interrupted(*args: Any, decode: Any = decode, calls: list[int] = calls, nth: int = nth) -> Any:
            status = decode(*args)
            calls[0] += 1
            if calls[0] == nth:
                raise KeyboardInterrupt
            return status

        monkeypatch.setattr(target._c, "llama_decode", interrupted)
        with pytest.raises(KeyboardInterrupt):
            engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run()
        monkeypatch.setattr(target._c, "llama_decode", decode)
        assert engine.generate(PROMPT, Request(NO_END, max_tokens=20)).run().tokens == expected
