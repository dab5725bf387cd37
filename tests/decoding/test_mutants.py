"""The usual mistakes of speculative decoding, made on purpose: the statistic that passes in
test_exact_distribution.py must refute each, from a fraction of the samples.

Each mutant patches one place, and generates like the real thing otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from pair import TARGET

from edgespec.control.policy import Choice
from edgespec.decoding import engine as engine_module
from edgespec.decoding import verify as verify_module
from edgespec.decoding.generation import Generation
from edgespec.decoding.joint import Steps
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import Distribution, Mask, Sampler, SamplerSettings
from edgespec.decoding.verify import Rejection, Rule
from edgespec.drafters.base import Node
from edgespec.drafters.draft_model import DraftModel

from .expected import chi_square, joint
from .policies import WhileQIsSure
from .sampling_run import Case, sample
from .test_exact_constrained import FREE

SAMPLES = 1_200
REFUTED = 1e-6

PLAIN = Case({"temperature": 1.0})
FILTERED = Case({"temperature": 0.6, "top_k": 6})
PENALISED = Case({"temperature": 1.0, "frequency_penalty": -2.0})
SEEDED = Case({"temperature": 1.0}, seeded=True)


def p_value(
    folder: Path, case: Case, rule: Callable[[np.random.Generator], Any] = Rejection, n: int = SAMPLES
) -> float:
    found = sample(folder, case, n, 7, rule)
    p = chi_square(found.counts, joint(TARGET, case.prompt, case.max_tokens, case.options))
    print(f"p = {p:.3g}")
    return p


@pytest.mark.parametrize("case", [PLAIN, FILTERED, PENALISED, SEEDED], ids=["plain", "k", "penalty", "seed"])
def test_the_cases_that_refute_mutants_pass_without_one(model_files: Path, case: Case) -> None:
    assert p_value(model_files, case) > 1e-3


class AcceptAlways(Rejection):
    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        return drafted.token


class CorrectionFromP(Rejection):
    """Samples from p instead of max(p − q, 0)."""

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        assert drafted.q is not None
        if self._rng.random() * drafted.q.prob(drafted.token) < p.prob(drafted.token):
            return drafted.token
        return self.draw(p, t)


class CorrectionFromDifference(CorrectionFromP):
    """Samples from |p − q|: the negative part is not cut off."""

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        assert drafted.q is not None
        token = super().judge(drafted, p, t)
        if token == drafted.token:
            return token
        weights = np.abs(p.probs - drafted.q.at(p.ids))
        return int(self._rng.choice(p.ids, p=weights / weights.sum()))


class ResidualNotNormalised(CorrectionFromP):
    """The quantile is looked up in sums that do not reach 1: what is beyond is the last token."""

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        assert drafted.q is not None
        token = super().judge(drafted, p, t)
        if token == drafted.token:
            return token
        sums = np.cumsum(np.maximum(p.probs - drafted.q.at(p.ids), 0.0))
        return int(p.ids[min(int(np.searchsorted(sums, self._rng.random())), p.ids.size - 1)])


class RatioUpsideDown(Rejection):
    """Accepts with min(1, q / p)."""

    def judge(self, drafted: Node, p: Distribution, t: int) -> int:
        assert drafted.q is not None
        if self._rng.random() * p.prob(drafted.token) < drafted.q.prob(drafted.token):
            return drafted.token
        return self.draw(p.residual(drafted.q), t)


@pytest.mark.parametrize(
    "rule", [AcceptAlways, CorrectionFromP, CorrectionFromDifference, ResidualNotNormalised, RatioUpsideDown]
)
def test_wrong_accept_rules_are_refuted(model_files: Path, rule: type[Rejection]) -> None:
    assert p_value(model_files, PLAIN, rule) < REFUTED


def test_dropping_drafted_tokens_of_low_q_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With p = (½, ½) and q = (0.9, 0.1) it would emit (0.55, 0.45)."""
    draft = Generation._draft

    def keep_the_sure_ones(self: Generation, choice: Choice, forced: Sequence[Node]) -> list[Node]:
        drafted = draft(self, choice, forced)
        while drafted and drafted[-1].q is not None and drafted[-1].q.prob(drafted[-1].token) < 0.3:
            drafted.pop()
        return drafted

    monkeypatch.setattr(Generation, "_draft", keep_the_sure_ones)
    assert p_value(model_files, PLAIN, n=3 * SAMPLES) < REFUTED


def test_a_confidence_that_knows_what_will_be_sampled_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A policy that stops for the value about to be drafted drops a sampled token, if politely."""
    peek = DraftModel.peek
    sampled: list[Node] = []

    def after_sampling(self: DraftModel) -> float | None:
        if peek(self) is None or self._q is None:
            return None
        q, self._q = self._q, None
        sampled.append(Node(self._state.rule.draw(q, len(self._context)), q))
        self._context.append(sampled[-1].token)
        return q.prob(sampled[-1].token)

    monkeypatch.setattr(DraftModel, "peek", after_sampling)
    monkeypatch.setattr(DraftModel, "extend", lambda self: sampled[-1])
    case = Case({"temperature": 1.0}, policy=WhileQIsSure)
    assert p_value(model_files, case, n=3 * SAMPLES) < REFUTED


def test_a_q_that_skipped_the_sampler_chain_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The draft is sampled through the chain, but judged by its distribution before the chain."""
    extend, next_q = DraftModel.extend, DraftModel._next
    rows: list[NDArray[np.float32]] = []

    def noting_rows(self: DraftModel) -> Distribution:
        chain = self._state.sampler.distribution

        def noting(
            row: NDArray[np.float32], history: Sequence[int], allowed: Mask | None = None
        ) -> Distribution:
            rows.append(row.copy())
            return chain(row, history, allowed)

        monkeypatch.setattr(self._state.sampler, "distribution", noting)
        q = next_q(self)
        monkeypatch.setattr(self._state.sampler, "distribution", chain)
        return q

    def with_raw_q(self: DraftModel) -> Node | None:
        node = extend(self)
        assert node is not None
        return Node(node.token, raw.distribution(rows[-1], ()))

    raw = Sampler(SamplerSettings(temperature=1.0), len(TARGET.vocabulary))
    monkeypatch.setattr(DraftModel, "_next", noting_rows)
    monkeypatch.setattr(DraftModel, "extend", with_raw_q)
    assert p_value(model_files, FILTERED) < REFUTED


def test_a_mask_behind_the_filters_is_refuted(model_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters then choose among tokens that may not follow, too."""
    chain = Sampler.distribution

    def masked_late(
        self: Sampler, row: NDArray[np.float32], history: Sequence[int], allowed: Mask | None = None
    ) -> Distribution:
        p = chain(self, row, history)
        if allowed is None or not (may := allowed[p.ids]).any():
            return chain(self, row, history, allowed)
        return Distribution(p.ids[may], p.weights[may], float(p.weights[may].sum()))

    case = Case({"temperature": 1.2, "top_k": 4}, regex=FREE.regex)
    exact = joint(TARGET, case.prompt, case.max_tokens, case.options, FREE.allowed)
    assert chi_square(sample(model_files, case, SAMPLES, 7).counts, exact) > 1e-3
    monkeypatch.setattr(Sampler, "distribution", masked_late)
    assert chi_square(sample(model_files, case, SAMPLES, 7).counts, exact) < REFUTED


def test_a_cache_that_keeps_rejected_drafts_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was rejected stays in the target's cache, and decoding goes on behind it."""
    keep = Generation._keep

    def keep_all(self: Generation, length: int) -> None:
        stale = self._sequence.tokens[length:]
        if self.finish_reason is None and stale:
            self._context[length:length] = stale
        else:
            keep(self, length)

    monkeypatch.setattr(Generation, "_keep", keep_all)
    assert p_value(model_files, PLAIN) < REFUTED


def test_a_cache_with_one_stale_cell_is_refuted(model_files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lengths are right, but the last accepted token's cell holds another token."""
    keep = Generation._keep

    def spoil(self: Generation, length: int) -> None:
        sequence, target = self._sequence, self._target
        rejected = sequence.tokens[length : length + 1]
        keep(self, length)
        if self.finish_reason is None and rejected:
            truth = sequence.tokens.copy()
            target.rollback(sequence, length - 1)
            target.forward([engine_module.Segment(sequence, rejected, rows=0)])
            sequence.tokens[:] = truth

    monkeypatch.setattr(Generation, "_keep", spoil)
    assert p_value(model_files, PLAIN) < REFUTED


def test_penalties_that_see_one_token_per_round_are_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    round_ = Generation._round

    class Forgetful(Sampler):
        forgotten: tuple[int, ...] = ()
        length = 0

        def distribution(
            self, row: NDArray[np.float32], history: Sequence[int], allowed: Mask | None = None
        ) -> Distribution:
            known = [t for i, t in enumerate(history[: self.length]) if i not in self.forgotten]
            return super().distribution(row, known, allowed)

    def forgetful_round(
        self: Generation, forced: list[Node], choice: Choice, choosing: float
    ) -> Steps[Round]:
        sampler = self._sampler
        assert isinstance(sampler, Forgetful)
        sampler.length = before = len(self._context)
        finished = yield from round_(self, forced, choice, choosing)
        sampler.forgotten += tuple(range(before, len(self._context) - 1))
        return finished

    monkeypatch.setattr(engine_module, "Sampler", Forgetful)
    monkeypatch.setattr(Generation, "_round", forgetful_round)
    assert p_value(model_files, PENALISED) < REFUTED


def test_a_bonus_token_from_the_wrong_row_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def verify(drafted: Sequence[Node], p_at: Callable[[int], Distribution], rule: Rule, t: int) -> list[int]:
        emitted: list[int] = []
        for i, node in enumerate(drafted):
            emitted.append(rule.judge(node, p_at(i), t + i))
            if emitted[-1] != node.token:
                return emitted
        k = len(drafted)
        return [*emitted, rule.draw(p_at(max(k - 1, 0)), t + k)]

    monkeypatch.setattr(engine_module, "verify", verify)
    assert p_value(model_files, PLAIN) < REFUTED


def test_a_verifier_that_is_one_row_late_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Draft i is judged by the distribution of the place behind it."""

    def late(drafted: Sequence[Node], p_at: Callable[[int], Distribution], rule: Rule, t: int) -> list[int]:
        return verify_module.verify(drafted, lambda i: p_at(min(i + 1, len(drafted))), rule, t)

    monkeypatch.setattr(engine_module, "verify", late)
    assert p_value(model_files, PLAIN) < REFUTED


def test_noise_that_is_the_same_at_every_position_is_refuted(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each token alone would still be distributed as p: only the joint distribution shows it."""
    gumbel = verify_module.gumbel
    monkeypatch.setattr(verify_module, "gumbel", lambda seed, t, ids: gumbel(seed, 0, ids))
    assert p_value(model_files, SEEDED) < REFUTED


def test_judging_with_the_random_number_that_drew_the_draft_is_refuted(
    model_files: Path,
) -> None:
    """Whether a token is accepted must be independent of how it was drawn."""

    class Shared(Rejection):
        u = 0.5

        def draw(self, p: Distribution, t: int) -> int:
            self.u = float(self._rng.random())
            return p.sample(self.u)

        def judge(self, drafted: Node, p: Distribution, t: int) -> int:
            assert drafted.q is not None
            if self.u * drafted.q.prob(drafted.token) < p.prob(drafted.token):
                return drafted.token
            return self.draw(p.residual(drafted.q), t)

    assert p_value(model_files, Case({"temperature": 1.0}, depth=1), Shared) < REFUTED
