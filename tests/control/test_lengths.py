"""Lengths of answers: what is expected of them, and when to pay for what is earned back later."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from edgespec.control.lengths import MEMORY, STAGES, Lengths

FAR = 100_000


def first(lengths: Lengths, needed: float, prompt: int = 2000) -> int | None:
    """Tokens after which it is paid for."""
    return next((made for made in range(1000) if lengths.earns_back(prompt, made, needed, FAR)), None)


@pytest.mark.parametrize("made", [0, 50, 500])
def test_where_nothing_is_known_about_as_many_tokens_follow_as_there_are(made: int) -> None:
    assert Lengths().expected(2000, made, FAR) == pytest.approx(made + 8, rel=0.01)


def test_what_is_expected_is_what_was_seen() -> None:
    lengths, rng = Lengths(), np.random.default_rng(0)
    for tokens in (found := rng.integers(100, 400, 300)):
        lengths.add(2000, int(tokens), ended=True)
    assert lengths.expected(2000, 0, FAR) == pytest.approx(found.mean(), rel=0.15)
    assert lengths.expected(2000, 0, 50) == pytest.approx(50, rel=0.05)


def test_where_half_outlast_every_stage_but_for_rounding_all_stages_count() -> None:
    """S then falls like 1 / t, whose integral is a logarithm."""
    outlasted = math.nextafter(0.875, 0.0)
    lengths = Lengths({"3": [[outlasted, 1.5]] * STAGES})
    assert lengths.expected(2000, 0, 1000) == pytest.approx(8 * math.log(1008 / 8))


def test_who_knows_nothing_pays_within_twice_the_time_it_takes_to_earn_it_back() -> None:
    for needed in (20, 60, 200):
        found = first(Lengths(), needed)
        assert found is not None
        assert needed <= found + 8 <= 2 * needed


def test_long_answers_are_paid_for_at_once_and_short_ones_never() -> None:
    long, short = Lengths(), Lengths()
    for tokens in range(20, 60, 4):
        long.add(2000, 300, ended=True)
        short.add(2000, tokens, ended=True)
    assert first(long, 50) == 0
    assert (first(short, 50) or FAR) > 60


def test_an_answer_that_was_cut_off_says_only_that_it_would_have_gone_on() -> None:
    cut, ended = Lengths(), Lengths()
    for _ in range(10):
        cut.add(2000, 130, ended=False)
        ended.add(2000, 130, ended=True)
    assert cut.expected(2000, 0, 100) == pytest.approx(ended.expected(2000, 0, 100), rel=0.1)
    assert cut.expected(2000, 125, FAR) > 2 * ended.expected(2000, 125, FAR)


def test_a_budget_bounds_what_can_be_earned_back() -> None:
    lengths = Lengths()
    for _ in range(10):
        lengths.add(2000, 300, ended=True)
    assert lengths.earns_back(2000, 0, 50, 200)
    assert not lengths.earns_back(2000, 0, 50, 50)


def test_answers_to_long_and_to_short_prompts_are_told_apart() -> None:
    lengths = Lengths()
    for _ in range(10):
        lengths.add(30, 300, ended=True)
    assert first(lengths, 50, prompt=30) == 0
    assert first(lengths, 50, prompt=2000) == first(Lengths(), 50)


def test_lengths_that_change_are_followed() -> None:
    lengths = Lengths()
    for tokens in [300] * 100 + [20] * int(MEMORY):
        lengths.add(2000, tokens, ended=True)
    assert lengths.expected(2000, 0, FAR) < 150


def test_an_answer_counts_though_the_expectation_was_asked_for_before_it_ended() -> None:
    asked, fresh = Lengths(), Lengths()
    for tokens in (300, 20, 9000):
        asked.expected(2000, 5, FAR)
        for lengths in (asked, fresh):
            lengths.add(2000, tokens, ended=True)
    assert asked.expected(2000, 5, FAR) == fresh.expected(2000, 5, FAR)


def test_what_was_learned_survives_a_run_and_nonsense_does_not() -> None:
    lengths = Lengths()
    lengths.add(2000, 300, ended=True)
    assert Lengths(lengths.as_dict()).as_dict() == lengths.as_dict()
    bad: list[Any] = [3, {"x": 1}, {"5": [[1.0]]}, {"5": [[2.0, 1.0]] * 10}, {"5": "stages"}]
    for nonsense in bad:
        assert Lengths(nonsense).as_dict() == {}
