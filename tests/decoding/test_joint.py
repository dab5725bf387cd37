"""Generations that share passes of the target: none notices the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pair import VOCABULARY, load, model_path

from edgespec.backends.base import Backend, Segment
from edgespec.backends.caches import Caches
from edgespec.control import priors
from edgespec.control.acceptance import Acceptance
from edgespec.control.controller import Arm, Controller
from edgespec.control.cost import CostCurve
from edgespec.control.policy import FixedDepth, Others
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine, Generation
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.stopping import Token
from edgespec.drafters.base import Drafter, DraftState, Offer
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram
from edgespec.errors import BackendError, UsageError
from edgespec.grammar.constraint import regex

from .engines import NO_END, PROMPT
from .policies import Controlled

OTHER = VOCABULARY.ids(b"m", b"y", b" ", b"u", b"s", b"er")
LONG = [*OTHER, *(PROMPT * 100)]
"""read in three pieces"""
SAMPLED = SamplerSettings(temperature=1.1, top_k=12, logit_bias=NO_END.logit_bias)
FORM = regex("(my |user|sister|[aeiou])*x")

ASKED: list[tuple[Sequence[int], Request]] = [
    (PROMPT, Request(NO_END, max_tokens=60)),
    (OTHER, Request(SAMPLED, max_tokens=40, seed=7)),
    (LONG, Request(NO_END, max_tokens=30)),
    (PROMPT, Request(SamplerSettings(temperature=0.9), max_tokens=25, seed=3, constraint=FORM)),
    (LONG[:-1], Request(SAMPLED, max_tokens=50, seed=8)),
    (OTHER, Request(NO_END, max_tokens=9)),
]


class Watched:
    """What passes of a target held, and, if asked to, passes that fail."""

    def __init__(self, target: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
        self.passes: list[list[Segment]] = []
        self.refuses: Callable[[Segment], bool] = lambda segment: False
        self.interrupts = False
        self._forward = target.forward
        monkeypatch.setattr(target, "forward", self)

    def __call__(self, segments: Sequence[Segment]) -> Any:
        self.passes.append(list(segments))
        if self.interrupts:
            self.interrupts = False
            raise KeyboardInterrupt
        if any(self.refuses(segment) for segment in segments):
            raise BackendError("the pass failed")
        return self._forward(segments)

    @property
    def widest(self) -> int:
        return max(map(len, self.passes))


@pytest.fixture(scope="module", params=["llama.cpp", "onnx"])
def models(request: pytest.FixtureRequest) -> Iterator[tuple[Backend, Backend]]:
    """Target and draft."""
    runtime: str = request.param
    folder = request.getfixturevalue("model_files" if runtime == "llama.cpp" else "converted")
    found = [load(model_path(folder, name, runtime), n_ctx=512) for name in ("target", "draft")]
    yield found[0], found[1]
    for model in found:
        model.close()


Build = Callable[..., Engine]


@pytest.fixture
def joint(models: tuple[Backend, Backend]) -> Iterator[Build]:
    """Engines for several at once."""
    target, draft = models
    made: list[Engine] = []

    def make(parallel: int, policy: Any = None, *more: Drafter) -> Engine:
        drafters: list[Drafter] = [DraftModel(draft, caches=Caches(draft, parallel)), *more]
        policy = Controlled(drafters) if policy is Controlled else policy or FixedDepth(4)
        made.append(Engine(target, drafters, policy, parallel))
        return made[-1]

    yield make
    for engine in made:
        engine.close()
        for drafter in engine.drafters:
            if isinstance(drafter, DraftModel):
                drafter.caches.close()


def together(engine: Engine, generations: Sequence[Generation]) -> list[Exception]:
    """Step them to their ends; what they raised."""
    raised: list[Exception] = []
    while left := [one for one in generations if not one.over]:
        raised += [outcome for outcome in engine.step(left) if isinstance(outcome, Exception)]
    return raised


@pytest.fixture
def alone(joint: Build) -> Callable[[Sequence[int], Request], list[int]]:
    """Plain decoding."""
    engine = joint(1, FixedDepth(0))
    return lambda prompt, request: engine.generate(prompt, request).run().tokens


@pytest.mark.parametrize("policy", [FixedDepth(4), Controlled])
def test_answers_that_share_passes_are_what_each_is_alone(
    models: tuple[Backend, Backend],
    joint: Build,
    alone: Callable[[Sequence[int], Request], list[int]],
    policy: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = [alone(prompt, request) for prompt, request in ASKED]
    engine = joint(len(ASKED), policy, NGram(longest=3, shortest=1))
    watched = Watched(engine.target, monkeypatch)
    answers = [engine.generate(prompt, request) for prompt, request in ASKED]
    assert together(engine, answers) == []
    assert [answer.tokens for answer in answers] == expected
    assert sum(answer.stats.accepted for answer in answers) > 10
    assert watched.widest == (len(ASKED) if models[0].capabilities.batch else 1)


def test_one_that_begins_while_others_are_under_way_joins_them(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]]
) -> None:
    engine = joint(2)
    first = engine.generate(*ASKED[0])
    for _ in range(4):
        engine.step([first])
    second = engine.generate(*ASKED[1])
    assert together(engine, [first, second]) == []
    assert [first.tokens, second.tokens] == [alone(*ASKED[0]), alone(*ASKED[1])]


def test_what_does_not_fit_into_one_pass_takes_several(
    model_files: Path,
    alone: Callable[[Sequence[int], Request], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = load(model_files / "target.gguf", max_rows=8, max_batch=140)
    draft = load(model_files / "draft.gguf")
    engine = Engine(target, [DraftModel(draft, caches=Caches(draft, 6))], FixedDepth(4), 6)
    watched = Watched(target, monkeypatch)
    answers = [engine.generate(prompt, request) for prompt, request in ASKED]
    assert together(engine, answers) == []
    assert [answer.tokens for answer in answers] == [alone(prompt, request) for prompt, request in ASKED]
    assert watched.widest > 1
    assert max(sum(s.rows for s in segments) for segments in watched.passes) <= 8
    assert max(sum(len(s.tokens) for s in segments) for segments in watched.passes) <= 140
    engine.close()
    draft.close()
    target.close()


def test_a_failing_pass_fails_only_the_answer_at_fault(
    joint: Build,
    alone: Callable[[Sequence[int], Request], list[int]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    expected = [alone(*ASKED[i]) for i in (0, 1)]
    engine = joint(3)
    watched = Watched(engine.target, monkeypatch)
    answers = [engine.generate(prompt, request) for prompt, request in ASKED[:3]]
    while len(answers[2].tokens) < 5:
        engine.step(answers)
    watched.refuses = lambda segment: segment.sequence is answers[2]._sequence
    failed, *others = reversed(engine.step(answers))
    assert str(failed) == "the pass failed" and answers[2].over
    assert not any(isinstance(outcome, Exception) for outcome in others)
    if engine.target.capabilities.batch:
        assert "a pass of 3 answers failed, so each has one alone: the pass failed" in caplog.text
    watched.refuses = lambda segment: False
    assert together(engine, answers[:2]) == []
    assert [answer.tokens for answer in answers[:2]] == expected
    assert engine.generate(*ASKED[0]).run().tokens == expected[0]


class Cancelling(Drafter):
    """Cancels an answer when it is to draft behind OTHER."""

    name = "cancelling"

    def __init__(self) -> None:
        self.victim: Generation | None = None

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        if self.victim is not None and context[: len(OTHER)] == OTHER:
            self.victim.cancel()

    def offer(self, context: Sequence[int]) -> Offer | None:
        return Offer()

    def peek(self) -> float | None:
        return None


def test_one_that_is_cancelled_while_another_drafts_has_no_part_in_the_pass(
    models: tuple[Backend, Backend],
    alone: Callable[[Sequence[int], Request], list[int]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    drafter = Cancelling()
    engine = Engine(models[0], [drafter], FixedDepth(1), 2)
    watched = Watched(engine.target, monkeypatch)
    answers = [engine.generate(*ASKED[i]) for i in (0, 1)]
    for _ in range(6):
        engine.step(answers)
    drafter.victim = answers[0]
    watched.passes.clear()
    engine.step(answers)
    fed = [segment.sequence for segments in watched.passes for segment in segments]
    if engine.target.capabilities.batch:
        assert fed == [answers[1]._sequence]
        assert answers[0].finish_reason == "cancelled"
    assert together(engine, answers) == []
    assert answers[0].finish_reason == "cancelled"
    assert answers[1].tokens == alone(*ASKED[1])
    engine.close()


def test_an_interrupt_in_a_shared_pass_loses_nothing(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = [alone(*ASKED[i]) for i in (0, 1)]
    engine = joint(2)
    watched = Watched(engine.target, monkeypatch)
    answers = [engine.generate(*ASKED[i]) for i in (0, 1)]
    for _ in range(3):
        engine.step(answers)
        watched.interrupts = True
        with pytest.raises(KeyboardInterrupt):
            engine.step(answers)
    assert together(engine, answers) == []
    assert [answer.tokens for answer in answers] == expected


def test_an_interrupt_while_one_uses_a_shared_pass_feeds_others_nothing_twice(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(token: Token) -> None:
        raise KeyboardInterrupt

    behind = []

    def note(segment: Segment) -> bool:
        behind.append(len(segment.sequence))
        return False

    engine = joint(2)
    watched = Watched(engine.target, monkeypatch)
    watched.refuses = note
    broken = engine.generate(PROMPT, Request(NO_END, max_tokens=60, on_token=interrupt))
    other = engine.generate(*ASKED[1])
    with pytest.raises(KeyboardInterrupt):
        engine.step([broken, other])
    assert broken.over
    engine.step([other])
    assert set(behind) == {0}  # both asked for all of their prompts
    assert together(engine, [other]) == []
    assert other.tokens == alone(*ASKED[1])


def test_one_that_gave_way_after_an_interrupt_leaves_the_caches_alone(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = joint(1)
    watched = Watched(engine.target, monkeypatch)
    old = engine.generate(*ASKED[0])
    watched.interrupts = True
    with pytest.raises(KeyboardInterrupt):
        old.run()
    new = engine.generate(*ASKED[1])
    engine.step([new])
    assert list(old) == []
    assert new.run().tokens == alone(*ASKED[1])


def test_where_a_failing_pass_loses_a_cache_the_answer_fails_instead_of_going_on_without_it(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = joint(2)
    answers = [engine.generate(*ASKED[i]) for i in (0, 1)]
    for _ in range(3):
        engine.step(answers)
    forward = engine.target.forward

    def lose(segments: Sequence[Segment]) -> Any:
        monkeypatch.setattr(engine.target, "forward", forward)
        engine.target.rollback(segments[0].sequence, 0)
        raise BackendError("it could not roll back; its cache was reset")

    monkeypatch.setattr(engine.target, "forward", lose)
    raised = together(engine, answers)
    assert len(raised) == 1 and isinstance(raised[0], BackendError)
    assert answers[1].tokens == alone(*ASKED[1])


def test_only_answers_of_the_engine_are_stepped_each_once_and_nothing_is_lost(
    joint: Build, alone: Callable[[Sequence[int], Request], list[int]]
) -> None:
    engine = joint(2)
    answer, foreign = engine.generate(*ASKED[0]), joint(1).generate(*ASKED[1])
    for wrong in ([answer, answer], [answer, foreign], [answer, 42], answer):
        with pytest.raises(UsageError):
            engine.step(wrong)  # type: ignore[arg-type]
    assert engine.step(one for one in [answer]) != []  # type: ignore[arg-type]
    assert together(engine, [answer]) == []
    assert answer.tokens == alone(*ASKED[0])


def test_a_shared_pass_is_measured_once_with_all_that_was_in_it(joint: Build) -> None:
    engine = joint(3)
    rounds: list[Round] = []
    answers = [
        engine.generate(prompt, Request(NO_END, max_tokens=20, on_round=rounds.append))
        for prompt in (PROMPT, OTHER, OTHER[:-1])
    ]
    assert together(engine, answers) == []
    if not engine.target.capabilities.batch:
        pytest.skip("passes are not shared")
    while rounds:
        shared = [rounds.pop(0) for _ in range(1 + rounds[0].others.generations)]
        assert [one.first for one in shared] == [True] + [False] * (len(shared) - 1)
        assert len({id(one.verify) for one in shared}) == 1
        own = [shared[0].verify.n - one.others.tokens for one in shared]
        assert sum(own) == shared[0].verify.n
        assert all(n > len(one.drafted) for n, one in zip(own, shared, strict=True))


@pytest.mark.parametrize("slope", [0.02, 0.2])
def test_the_controller_drafts_less_the_more_others_have_in_the_pass(slope: float) -> None:
    drafter = NGram(longest=3, shortest=1)
    controller = Controller(
        CostCurve({n: 1.0 + slope * max(0, n - 4) for n in (1, 4, 8, 16, 32, 64)}),
        {drafter.name: Arm(Acceptance(priors.LOOKUP))},
    )
    depths = []
    for others in (0, 1, 2, 4, 8, 16):
        controller.choose([drafter], PROMPT * 20, 24, others=Others(others, others))
        depths.append(controller.decision.depth)
    assert depths[0] > 0
    assert depths == sorted(depths, reverse=True)
    assert depths[-1] < depths[0]
