"""The generation loop: where it stops, and what it survives."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from pair import TARGET, VOCABULARY, load

from edgespec.control.policy import FixedDepth
from edgespec.decoding import engine as engine_module
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.drafters.base import Drafter, DraftState, Node
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, ContextFull, UsageError

from .engines import NO_END, PROMPT, Build, plain

SAMPLED = SamplerSettings(temperature=1.0)


class Oracle(Drafter):
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


def request_ending_in_eos(build: Build) -> tuple[Request, list[int]]:
    """A seeded request whose answer the model ends after 6 to 20 tokens, and the answer's tokens."""
    for seed in range(200):
        request = Request(SAMPLED, max_tokens=40, seed=seed)
        answer = plain(build, request)
        if answer.finish_reason == "stop" and 6 <= len(answer.tokens) <= 20:
            return request, answer.tokens
    raise AssertionError("no seed ends early")


class Told(FixedDepth):
    """Notes what it is told of the budget, of reading and of the end."""

    def __init__(self, k: int) -> None:
        super().__init__(k)
        self.reading: list[tuple[str, int]] = []
        self.ended: list[bool] = []
        self.budgets: list[int | None] = []

    def start(self, budget: int | None) -> None:
        self.budgets.append(budget)

    def read(self, drafter: str, tokens: int, seconds: float) -> None:
        assert seconds > 0.0
        self.reading.append((drafter, tokens))

    def finish(self, ended: bool) -> None:
        self.ended.append(ended)


# --- what a policy is told ---


def test_a_policy_is_told_what_a_drafter_read_before_its_first_draft(
    build: Build, draft_model: DraftModel
) -> None:
    policy, prompt = Told(2), PROMPT * 20
    build(draft_model).generate(prompt, Request(NO_END, max_tokens=8), policy).run()
    assert policy.reading == [(draft_model.name, len(prompt) + 1)]  # and the first token


def test_a_policy_is_told_whether_an_answer_ended_or_was_cut_off(build: Build) -> None:
    request, answer = request_ending_in_eos(build)
    engine, policy = build(None), Told(0)
    engine.generate(PROMPT, request, policy).run()
    engine.generate(PROMPT, replace(request, max_tokens=len(answer) - 2), policy).run()
    assert policy.ended == [True, False]


def test_a_policy_is_told_that_a_cancelled_answer_was_cut_off_if_it_had_begun(build: Build) -> None:
    """Long answers are cancelled more often than short ones: if they did not count, all would seem short."""
    engine, policy = build(None), Told(0)
    for begun in (True, False):
        answer = engine.generate(PROMPT, Request(NO_END), policy)
        if begun:
            next(answer)
        answer.cancel()
        assert answer.run().finish_reason == "cancelled"
        assert policy.ended == [False]


def test_a_policy_is_told_of_no_more_tokens_than_the_context_holds(model_files: Path) -> None:
    target, policy = load(model_files / "target.gguf", n_ctx=40), Told(0)
    engine = Engine(target, (), policy)
    answer = engine.generate(PROMPT, Request(NO_END)).run()
    for max_tokens in (7, 1000):
        engine.generate(PROMPT, Request(NO_END, max_tokens=max_tokens)).run()
    engine.close()
    target.close()
    assert policy.budgets == [len(answer.tokens), 7, len(answer.tokens)]
    assert policy.ended == [False] * 3


# --- where it stops ---


def test_no_text_follows_an_end_token_that_was_drafted_in_the_middle_of_a_block(build: Build) -> None:
    request, tokens = request_ending_in_eos(build)
    for end in VOCABULARY.ends:
        oracle = Oracle([*PROMPT, *tokens, end, *PROMPT, *PROMPT])
        engine = build(oracle, depth=12)
        answer = engine.generate(PROMPT, request).run()
        assert (answer.tokens, answer.finish_reason) == (tokens, "stop")
        assert len(engine.caches.sequences[0]) <= len(PROMPT) + len(tokens)
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
        assert engine.caches.sequences[0].tokens == truth[: len(engine.caches.sequences[0])]
        assert len(engine.caches.sequences[0]) <= len(PROMPT) + len(answer.tokens)


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
        engine = Engine(target, [] if drafter is None else [drafter], FixedDepth(depth))
        answers.append(engine.generate(PROMPT, Request(NO_END)).run())
        engine.close()
    target.close()
    for answer in answers:
        assert answer.finish_reason == "context"
        assert answer.tokens == answers[0].tokens
        assert len(PROMPT) + len(answer.tokens) == 41  # 40 were fed; the last one was only emitted


def test_a_prompt_as_long_as_the_context_gets_one_token_and_a_longer_one_is_refused(
    model_files: Path,
) -> None:
    target = load(model_files / "target.gguf", n_ctx=40)
    engine = Engine(target, (), FixedDepth(0))
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


def test_the_time_in_which_the_policy_learns_is_part_of_decoding(
    build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else speculation would be compared with plain decoding without what learning costs it."""
    now = [0.0]

    class Slow(FixedDepth):
        def observe(self, finished: Round) -> None:
            now[0] += 1.0

    monkeypatch.setattr(engine_module, "perf_counter", lambda: now[0])
    engine = build(NGram())
    engine.policy = Slow(2)
    stats = engine.generate(PROMPT, Request(NO_END, max_tokens=12)).run().stats
    assert stats.overhead_seconds == pytest.approx(stats.rounds, abs=0.5)
    assert stats.prompt_seconds == pytest.approx(1.0, abs=0.5)


# --- drafters that fail ---


class Breaks(Drafter):
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
