"""Reading the prompt into the draft model costs once: it must be earned back before the answer ends."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from edgespec.bench.replay import CURVES, Costs, ours, play
from edgespec.bench.traces import Trace
from edgespec.control.lengths import Lengths
from edgespec.control.policy import FixedDepth

from .synthetic import trace

BUDGET = 1024


class ReadsAtOnce(Lengths):
    def earns_back(self, prompt: int, made: int, needed: float, ahead: int) -> bool:
        return True


def texts(lengths: Sequence[int]) -> list[Trace]:
    """Answers behind prompts of 2,000 tokens that the draft model guesses well."""
    return [trace(n, lambda t: 0.85, seed=seed, prompt=2000) for seed, n in enumerate(lengths)]


def seconds(found: Sequence[Trace], costs: Costs, lengths: Lengths) -> list[float]:
    """End to end, one answer behind the other under one controller that goes on learning."""
    policy = ours(costs)
    policy.lengths = lengths
    played = [play(text, policy, costs, budget=BUDGET) for text in found]
    return [p.prompt_seconds + p.reading_seconds + p.seconds for p in played]


def plainly(found: Sequence[Trace], costs: Costs) -> list[float]:
    played = [play(text, FixedDepth(0), costs) for text in found]
    return [p.prompt_seconds + p.seconds for p in played]


SHORT = texts([int(n) for n in np.random.default_rng(0).integers(4, 61, 30)])


@pytest.mark.parametrize("costs", CURVES.values(), ids=CURVES.keys())
def test_short_answers_to_long_prompts_are_never_slower_than_plain_end_to_end(costs: Costs) -> None:
    for ours_took, plain_took in zip(seconds(SHORT, costs, Lengths()), plainly(SHORT, costs), strict=True):
        assert plain_took / ours_took >= 0.99


def test_to_read_at_once_is_what_loses_on_them() -> None:
    costs = CURVES["flat kernel"]
    at_once = zip(plainly(SHORT, costs), seconds(SHORT, costs, ReadsAtOnce()), strict=True)
    assert min(plain / took for plain, took in at_once) < 0.9


def test_long_answers_keep_what_reading_at_once_gains() -> None:
    """From the first answer on, of whose length nothing is known; later ones are read for at once."""
    costs, long = CURVES["flat kernel"], texts([300] * 20)
    plain = sum(plainly(long, costs))
    found, at_once = (plain - sum(seconds(long, costs, lengths)) for lengths in (Lengths(), ReadsAtOnce()))
    assert found >= 0.97 * at_once > 0.0


def test_an_answer_that_turns_out_long_is_read_for_all_the_same() -> None:
    costs = CURVES["flat kernel"]
    policy = ours(costs)
    for text in SHORT:
        play(text, policy, costs, budget=BUDGET)
    (long,) = texts([1000])
    assert play(long, policy, costs, budget=BUDGET).speed > 1.5 / costs.target(1)
