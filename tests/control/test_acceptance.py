"""The acceptance model: calibrated, censoring-aware, and as quick as the text changes."""

from __future__ import annotations

import json

import numpy as np
import pytest

from edgespec.control.acceptance import BINS, EDGES, Acceptance, Judged, Prior

FLAT = Prior([0.7] * BINS, typical=0.7)


def rounds(model: Acceptance, rates: list[float], n: int, depth: int = 6, seed: int = 0) -> None:
    """n rounds in which a token at place i is accepted with probability rates[i]."""
    rng = np.random.default_rng(seed)
    for _ in range(n):
        judged = []
        for i in range(depth):
            hit = float(rng.random() < rates[min(i, len(rates) - 1)])
            judged.append(Judged(0.8, hit))
            if not hit:
                break
        model.observe(judged)


def test_what_was_never_seen_is_what_it_started_from() -> None:
    model = Acceptance(Prior([i / BINS for i in range(BINS)], typical=0.6))
    model.start()
    assert model.now(0.05) == pytest.approx(0.0, abs=0.01)
    assert model.now(0.97) == pytest.approx(10 / BINS)
    assert model.now(1.0) == pytest.approx((BINS - 1) / BINS)
    assert model.ahead(3) == pytest.approx([0.6] * 3)


def test_conditional_acceptance_is_unbiased_although_nothing_behind_a_rejection_is_judged() -> None:
    model = Acceptance(FLAT)
    rounds(model, [0.5, 0.8, 0.9], 1500)
    model.start()
    assert model.ahead(4) == pytest.approx([0.5, 0.8, 0.9, 0.9], abs=0.07)


def test_acceptance_is_calibrated_by_confidence() -> None:
    model = Acceptance(FLAT)
    rng = np.random.default_rng(1)
    for _ in range(4000):
        confidence = float(rng.uniform(0.1, 1.0))
        model.observe([Judged(confidence, float(rng.random() < confidence**2))])
    model.start()
    for confidence in (0.25, 0.45, 0.65, 0.85):
        assert model.now(confidence) == pytest.approx(confidence**2, abs=0.1)


def test_the_next_token_is_judged_by_the_one_before_it() -> None:
    model = Acceptance(FLAT)
    rng = np.random.default_rng(2)
    for _ in range(2000):
        sure = bool(rng.random() < 0.5)
        model.observe(
            [Judged(0.99 if sure else 0.3, 1.0), Judged(0.6, float(rng.random() < 0.3 + 0.6 * sure))]
        )
    model.start()
    assert model.ahead(1, [0.99])[0] > 0.85
    assert model.ahead(1, [0.3])[0] < 0.4


def test_a_text_that_turns_bad_is_followed_within_thirty_judged_tokens() -> None:
    model = Acceptance(FLAT)
    rounds(model, [0.9], 200)
    for _ in range(30):
        model.observe([Judged(0.8, 0.0)])
    assert model.level < 0.4
    assert model.now(0.8) < 0.4


def test_another_text_starts_from_what_texts_are_like_and_not_from_the_last_one() -> None:
    model = Acceptance(FLAT)
    rounds(model, [0.9], 300)
    for _ in range(30):
        model.observe([Judged(0.8, 0.0)])
    model.start()
    assert model.level > 0.7


def test_probabilities_teach_like_outcomes_with_that_mean() -> None:
    model = Acceptance(FLAT)
    for _ in range(500):
        model.observe([Judged(0.5, 0.25)])
    model.start()
    assert model.level == pytest.approx(0.25, abs=0.03)


def test_what_was_learned_survives_a_run_and_nonsense_does_not() -> None:
    model = Acceptance(FLAT)
    rounds(model, [0.4], 300)
    model.start()
    again = Acceptance(FLAT, json.loads(json.dumps(model.as_dict())))
    assert again.level == pytest.approx(model.level)
    assert again.now(0.8) == pytest.approx(model.now(0.8))
    for nonsense in ({}, {"now": 3}, {"now": [[1, 2]], "place": [], "next": [], "observations": 1}):
        assert Acceptance(FLAT, nonsense).level == pytest.approx(0.7)


def test_every_confidence_has_a_place() -> None:
    model = Acceptance(FLAT)
    for confidence in (0.0, *EDGES, 1.0):
        model.observe([Judged(confidence, 1.0)])
        assert 0.0 < model.now(confidence) < 1.0


@pytest.mark.parametrize("damage", [-8.0, float("nan"), float("inf"), 10**400])
def test_counts_that_cannot_be_are_no_counts(damage: float) -> None:
    damaged = Acceptance(FLAT).as_dict()
    damaged["place"][0] = [damage, damage]
    assert Acceptance(FLAT, damaged).level == pytest.approx(0.7)
