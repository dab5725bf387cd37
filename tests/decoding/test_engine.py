"""The generation loop: where it stops, what it survives, and who may use it when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from threading import Event, Thread
from time import sleep
from typing import Any

import pytest
from pair import TARGET, VOCABULARY, load

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.control.policy import FixedDepth
from edgespec.decoding import engine as engine_module
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.stopping import Output
from edgespec.drafters.base import Drafter, DraftState, Node
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, ContextFull, UsageError

PROMPT = VOCABULARY.ids(b"s", b"t", b"a")
SAMPLED = SamplerSettings(temperature=1.0)
NO_END = SamplerSettings(logit_bias=dict.fromkeys(VOCABULARY.ends, float("-inf")))


class Oracle:
    """Drafts a given continuation, whatever the target thinks of it."""

    name = "oracle"

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)
        self.drafted: list[list[int]] = []

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self._place = len(context)
        self.drafted.append([])

    def extend(self) -> Node | None:
        if self._place >= len(self.text):
            return None
        self.drafted[-1].append(self.text[self._place])
        self._place += 1
        return Node(self.text[self._place - 1])

    def close(self) -> None:
        pass


Build = Callable[..., Engine]


@pytest.fixture
def build(target: LlamaCpp) -> Iterator[Build]:
    """Engines on the shared target, whose sequences are closed afterwards."""
    engines: list[Engine] = []

    def make(drafter: Drafter | None = None, depth: int = 4) -> Engine:
        engines.append(Engine(target, drafter, FixedDepth(depth)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()
        target.close(engine.sequence)


@pytest.fixture(scope="module")
def draft_model(model_files: Path) -> Iterator[DraftModel]:
    drafter = DraftModel(load(model_files / "draft.gguf"))
    yield drafter
    drafter.close()


def plain(build: Build, request: Request, prompt: Sequence[int] = PROMPT) -> Generation:
    return build(None).generate(prompt, request).run()


def request_ending_in_eos(build: Build) -> tuple[Request, list[int]]:
    """A seeded request whose answer the model ends after 6 to 20 tokens, and the answer's tokens."""
    for seed in range(200):
        request = Request(SAMPLED, max_tokens=40, seed=seed)
        answer = plain(build, request)
        if answer.finish_reason == "stop" and 6 <= len(answer.tokens) <= 20:
            return request, answer.tokens
    raise AssertionError("no seed ends early")


# --- where it stops ---


def test_no_text_follows_an_end_token_that_was_drafted_in_the_middle_of_a_block(build: Build) -> None:
    request, tokens = request_ending_in_eos(build)
    for end in VOCABULARY.ends:
        oracle = Oracle([*PROMPT, *tokens, end, *PROMPT, *PROMPT])
        engine = build(oracle, depth=12)
        answer = engine.generate(PROMPT, request).run()
        assert (answer.tokens, answer.finish_reason) == (tokens, "stop")
        assert len(engine.sequence) <= len(PROMPT) + len(tokens)
        assert not any(end in block[:-1] for block in oracle.drafted), "drafted behind an end token"


def test_text_ids_logprobs_and_cache_end_together_before_a_stop_string(build: Build) -> None:
    request = Request(NO_END, max_tokens=30)
    text = plain(build, request).text
    for start in range(2, 12):
        stop = text[start : start + 3]
        first = text.index(stop)
        stopped = Request(NO_END, max_tokens=30, stop=["zzz", stop], logprobs=0)
        truth = [*PROMPT, *plain(build, request).tokens]
        engine = build(Oracle(truth), depth=12)
        answer = engine.generate(PROMPT, stopped)
        released = list(answer)
        assert answer.text == text[:first] == "".join(t.text for t in released)
        assert (answer.finish_reason, answer.stopped_by) == ("stop", stop)
        assert answer.tokens == [t.id for t in released]
        assert all(t.logprob is not None for t in released)
        assert len(VOCABULARY.text(answer.tokens)) <= len(text[: first + 3].encode())
        assert engine.sequence.tokens == truth[: len(engine.sequence)]
        assert len(engine.sequence) <= len(PROMPT) + len(answer.tokens)


def test_a_stop_before_the_budget_in_the_same_round_wins(build: Build) -> None:
    request, tokens = request_ending_in_eos(build)
    end = [*PROMPT, *tokens, VOCABULARY.eos]
    for budget, reason in ((len(tokens), "length"), (len(tokens) + 1, "stop"), (len(tokens) + 2, "stop")):
        bounded = Request(SAMPLED, max_tokens=budget, seed=request.seed)
        answer = build(Oracle(end), depth=12).generate(PROMPT, bounded).run()
        assert (answer.tokens, answer.finish_reason) == (tokens, reason)


def test_the_budget_is_met_exactly_at_every_depth(build: Build, draft_model: DraftModel) -> None:
    for budget in (1, 2, 3, 7):
        for depth in (0, 1, 4, 12):
            answer = build(draft_model, depth).generate(PROMPT, Request(NO_END, max_tokens=budget)).run()
            assert len(answer.tokens) == budget == answer.stats.tokens
            assert answer.finish_reason == "length"


def test_no_draft_goes_beyond_the_budget(build: Build) -> None:
    oracle = Oracle([*PROMPT, *plain(build, Request(NO_END, max_tokens=30)).tokens])
    build(oracle, depth=12).generate(PROMPT, Request(NO_END, max_tokens=6)).run()
    assert [len(block) for block in oracle.drafted] == [0, 4]  # introduced, then 4 and the bonus token


def test_logprobs_of_accepted_corrected_and_bonus_tokens_are_the_targets(
    build: Build, draft_model: DraftModel
) -> None:
    request = Request(SAMPLED, max_tokens=40, seed=3, logprobs=3)
    seen: set[str] = set()
    for seed in range(6):
        request = Request(SAMPLED, max_tokens=40, seed=seed, logprobs=3)
        history = list(PROMPT)
        for token in build(draft_model, 3).generate(PROMPT, request):
            seen.add(token.origin)
            assert token.logprob == pytest.approx(TARGET.log_p(history)[token.id], abs=1e-3)
            history.append(token.id)
    assert seen == {"plain", "draft", "corrected", "bonus"}


def test_a_stream_never_carries_broken_characters(build: Build, draft_model: DraftModel) -> None:
    """The model's characters of several bytes come from tokens of one byte each."""
    lone = {VOCABULARY.id(bytes([b])): 4.0 for b in (0xE2, 0x82, 0xAC, 0xC3, 0xA9)}
    options = SamplerSettings(temperature=1.0, logit_bias=lone | dict.fromkeys(VOCABULARY.ends, -50.0))
    characters = ""
    for seed in range(5):
        request = Request(options, max_tokens=60, seed=seed)
        answer = build(draft_model, 6).generate(PROMPT, request)
        text = "".join(token.text for token in answer)
        assert text == VOCABULARY.text(answer.tokens).decode("utf-8", "replace")
        characters += text
    assert "⬬" in characters
    assert "é" in characters


# --- context ---


def test_the_context_is_used_to_the_last_token_and_then_said_to_be_full(
    model_files: Path, draft_model: DraftModel
) -> None:
    target = load(model_files / "target.gguf", n_ctx=40)
    answers = []
    for drafter, depth in ((None, 0), (draft_model, 5), (NGram(2, 1), 12)):
        engine = Engine(target, drafter, FixedDepth(depth))
        answers.append(engine.generate(PROMPT, Request(NO_END)).run())
        target.close(engine.sequence)
    target.close()
    for answer in answers:
        assert answer.finish_reason == "context"
        assert answer.tokens == answers[0].tokens
        assert len(PROMPT) + len(answer.tokens) == 41  # 40 were fed; the last one was only emitted


def test_a_prompt_as_long_as_the_context_gets_one_token_and_a_longer_one_is_refused(
    model_files: Path,
) -> None:
    target = load(model_files / "target.gguf", n_ctx=40)
    engine = Engine(target, None, FixedDepth(0))
    prompt = [*PROMPT, *([0] * 36)]
    answer = engine.generate(prompt, Request(NO_END)).run()
    assert (len(answer.tokens), answer.finish_reason) == (1, "context")
    with pytest.raises(ContextFull, match="41 tokens and the context holds 40"):
        engine.generate([*prompt, 0], Request(NO_END))
    target.close()


def test_a_draft_whose_context_fills_up_drafts_less_and_then_not_at_all(
    model_files: Path, build: Build
) -> None:
    drafter = DraftModel(load(model_files / "draft.gguf", n_ctx=16))
    depths: list[int] = []
    request = Request(NO_END, max_tokens=40, on_round=lambda r: depths.append(len(r.drafted)))
    engine = build(drafter)
    for _ in range(2):  # and once more from the start: nothing stays full
        depths.clear()
        answer = engine.generate(PROMPT, request).run()
        assert answer.tokens == plain(build, Request(NO_END, max_tokens=40)).tokens
        assert answer.stats.draft_failure is None
        assert depths[1] == 4
        assert depths[-10:] == [0] * 10
    long = [*PROMPT, *([0] * 30)]
    assert engine.generate(long, Request(NO_END, max_tokens=5)).run().stats.drafted == 0
    drafter.close()


def test_an_empty_prompt_is_refused(build: Build) -> None:
    with pytest.raises(UsageError, match="prompt is empty"):
        build().generate([], Request())


# --- drafters that fail ---


class Breaks:
    """Works `after` times and then raises."""

    name = "fragile"

    def __init__(self, drafter: Drafter, after: int, where: str = "extend") -> None:
        self.drafter = drafter
        self.left = after
        self.where = where

    def _count(self, where: str) -> None:
        if where == self.where:
            self.left -= 1
            if self.left < 0:
                raise BackendError("the draft broke")

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        self._count("begin")
        self.drafter.begin(context, state)

    def extend(self) -> Node | None:
        self._count("extend")
        return self.drafter.extend()

    def close(self) -> None:
        self.drafter.close()


@pytest.mark.parametrize("where", ["begin", "extend"])
@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_drafter_that_breaks_is_given_up_aloud_and_the_output_is_that_of_plain_decoding(
    build: Build, draft_model: DraftModel, caplog: pytest.LogCaptureFixture, where: str, after: int
) -> None:
    request = Request(NO_END, max_tokens=25)
    engine = build(Breaks(draft_model, after, where))
    with caplog.at_level(logging.WARNING):
        answer = engine.generate(PROMPT, request).run()
    assert answer.tokens == plain(build, request).tokens
    assert answer.stats.draft_failure == "the draft broke"
    assert [r.message for r in caplog.records] == ["drafting with fragile stopped: the draft broke"]
    assert "drafting stopped: the draft broke" in answer.stats.line()
    if where == "extend" and after == 2:
        assert answer.stats.drafted == 2, "what had been drafted is verified"


# --- cancelling, and who may generate when ---


class Paused:
    """A generation in another thread that stands still in its second round until released."""

    def __init__(self, engine: Engine, **options: Any) -> None:
        self.standing, self.released = Event(), Event()
        self.rounds = 0
        self.error: BaseException | None = None
        request = Request(NO_END, max_tokens=200, on_round=self._on_round, **options)
        self.thread = Thread(target=self._run, args=(engine, request))
        self.thread.start()
        assert self.standing.wait(20)

    def _on_round(self, finished: Round) -> None:
        self.rounds += 1
        if self.rounds == 2:
            self.standing.set()
            assert self.released.wait(20)

    def _run(self, engine: Engine, request: Request) -> None:
        try:
            self.generation = engine.generate(PROMPT, request)
            self.generation.run()
        except BaseException as error:
            self.error = error

    def finish(self) -> None:
        self.released.set()
        self.thread.join(20)
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


def test_cancelling_while_the_prompt_is_read_gives_an_empty_output(model_files: Path) -> None:
    target = load(model_files / "target.gguf", max_batch=8)
    engine = Engine(target, None, FixedDepth(0))
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
    assert again.stats.cached_tokens == max(done) + 8, "what was read before is not read again"
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
        start.wait(20)
        for _ in range(25):
            attempt(thread)

    threads = [Thread(target=use, args=(i,)) for i in range(len(prompts))]
    for thread in threads:
        thread.start()
    start.set()
    for thread in threads:
        thread.join(60)
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
        thread.join(20)
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
        over.wait(20)

    thread = Thread(target=fail)
    thread.start()
    assert failed.wait(20)
    try:
        answer = engine.generate(PROMPT, Request(NO_END, max_tokens=9)).run()
    finally:
        over.set()
        thread.join(20)
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


def test_closing_in_another_thread_ends_the_generation_and_then_refuses(
    model_files: Path, draft_model: DraftModel
) -> None:
    target = load(model_files / "target.gguf")
    engine = Engine(target, draft_model, FixedDepth(4))
    paused = Paused(engine)
    closer = Thread(target=engine.close)
    closer.start()
    closer.join(0.2)
    assert closer.is_alive(), "closing waits until the models are at rest"
    paused.finish()
    closer.join(20)
    target.close()  # what a runtime does next
    assert paused.error is None
    assert paused.generation.finish_reason == "cancelled"
    assert list(paused.generation) == []
    with pytest.raises(UsageError, match="closed"):
        engine.generate(PROMPT, Request())


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
