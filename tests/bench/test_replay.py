"""Policies on traces: what replay computes, and that ours follows what happens, without losing to plain."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path

import pytest

from edgespec.bench.foresight import clairvoyant
from edgespec.bench.policies import Bandit, ConfidenceThreshold, EntropyBound, Goodput, PlusTwoMinusOne
from edgespec.bench.replay import CURVES, MODEL, Costs, ours, play
from edgespec.bench.traces import Trace, load, save
from edgespec.control import priors
from edgespec.control.controller import Controller
from edgespec.control.policy import FixedDepth, Policy
from edgespec.control.purse import ADVANCE, RISK
from edgespec.errors import UsageError

from .synthetic import trace

FLAT = CURVES["flat kernel"]
STEEP = CURVES["llama.cpp, Q4_K_M"]


# --- the simulation ---


def test_plain_decoding_takes_a_single_step_per_token() -> None:
    played = play(trace(50, lambda t: 0.8), FixedDepth(0), FLAT)
    assert played.tokens == 49
    assert played.seconds == pytest.approx(49 * 0.021)


def test_a_perfect_draft_takes_a_verify_and_k_drafts_per_k_plus_one_tokens() -> None:
    costs = Costs({1: 1.0, 4: 1.5}, {1: 0.1, 2: 0.15})
    played = play(trace(1 + 4 * 5, lambda t: 1.0), FixedDepth(3), costs)
    # After full acceptance the draft model reads two tokens in its first pass.
    assert played.seconds == pytest.approx(5 * (1.5 + 3 * 0.1) + 4 * 0.05)


def test_a_hopeless_draft_costs_its_drafts_and_the_dearer_verify() -> None:
    costs = Costs({1: 1.0, 4: 1.5}, {1: 0.1})
    played = play(trace(11, lambda t: 0.0), FixedDepth(3), costs)
    assert played.seconds == pytest.approx(8 * (1.5 + 0.3) + (1.5 - 1 / 6 + 0.2) + 1.0, rel=0.05)


def test_passes_smaller_than_any_known_cost_as_much_as_the_smallest() -> None:
    costs = Costs({2: 1.0, 4: 2.0}, {1: 0.1, 3: 0.3})
    assert [costs.target(n) for n in (1, 2, 3, 6)] == [1.0, 1.0, 1.5, 3.0]
    assert [costs.model(n) for n in (0, 1, 2)] == pytest.approx([0.1, 0.1, 0.2])


POLICIES: dict[str, Callable[[], Policy]] = {
    "plain": lambda: FixedDepth(0),
    "fixed": lambda: FixedDepth(5),
    "+2/-1": PlusTwoMinusOne,
    "confidence": ConfidenceThreshold,
    "entropy": EntropyBound,
    "goodput": lambda: Goodput(FLAT),
    "bandit": lambda: Bandit(200.0),
    "ours": lambda: ours(FLAT),
}


@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_every_policy_yields_the_same_tokens_and_the_same_time_twice(policy: Callable[[], Policy]) -> None:
    text = trace(120, lambda t: 0.7, seed=3)
    once, twice = play(text, policy(), FLAT, keep=True), play(text, policy(), FLAT)
    assert once.tokens == twice.tokens == 119
    assert once.seconds == twice.seconds
    assert [t.id for r in once.rounds for t in r.emitted] == list(text.text[1:])


@pytest.mark.parametrize("costs", CURVES.values(), ids=CURVES.keys())
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_nobody_beats_who_knows_the_text(costs: Costs, rate: float) -> None:
    text = trace(120, lambda t: rate, seed=4)
    best = clairvoyant(text, costs).speed
    for policy in POLICIES.values():
        assert play(text, policy(), costs).speed <= best * (1 + 1e-9)


@pytest.mark.parametrize(("entropy", "deepest"), [(0.0, 12), (5.0, 1)])
def test_the_entropy_bound_goes_by_the_entropy_that_was_recorded(entropy: float, deepest: int) -> None:
    text = trace(120, lambda t: 0.9)
    model = [guess._replace(entropy=entropy) for guess in text.model]
    played = play(replace(text, model=model), EntropyBound(), FLAT, keep=True)
    assert max(len(r.drafted) for r in played.rounds) == deepest


def test_traces_survive_being_written_down(tmp_path: Path) -> None:
    text = trace(40, lambda t: 0.6, seed=5)
    save([text], tmp_path / "t.jsonl.gz")
    (found,) = load(tmp_path / "t.jsonl.gz")
    for policy in POLICIES.values():
        assert play(found, policy(), FLAT).tokens == 39
    assert play(found, FixedDepth(4), FLAT).seconds == pytest.approx(play(text, FixedDepth(4), FLAT).seconds)


@pytest.mark.parametrize(
    "damage",
    [
        b"",
        b"no gzip",
        gzip.compress(b"")[:10] + b"\xff" * 30,
        gzip.compress(b"nonsense"),
        gzip.compress(b'{"astray": 3, "model": [[1, 0.5, 0.5]]}'),
        gzip.compress(b"[" * 100_000),
        gzip.compress(b""),
    ],
)
def test_what_holds_no_traces_is_refused(tmp_path: Path, damage: bytes) -> None:
    (tmp_path / "t.jsonl.gz").write_bytes(damage)
    with pytest.raises(UsageError, match="holds no recorded traces"):
        load(tmp_path / "t.jsonl.gz")


# --- ours follows what happens ---


def depths(policy: Controller, text: Trace, costs: Costs | Callable[[float], Costs]) -> list[tuple[int, int]]:
    """(place, tokens drafted) of every round."""
    played = play(text, policy, costs, keep=True)
    return [(r.place - len(text.prompt), len(r.drafted)) for r in played.rounds]


def first_round(rounds: list[tuple[int, int]], behind: int, off: bool, lasting: int = 8) -> int:
    """Rounds after place `behind` until `lasting` of the next ten draft nothing (`off`), or something."""
    later = [depth for place, depth in rounds if place >= behind]
    for i in range(len(later) - 10):
        if sum((d == 0) == off for d in later[i : i + 10]) >= lasting:
            return i
    return len(later)


@pytest.mark.parametrize("telling", [0.0, 0.5])
def test_it_stops_within_twenty_five_rounds_when_acceptance_breaks_down(telling: float) -> None:
    text = trace(1500, lambda t: 0.9 if t < 500 else 0.1, telling=telling)
    rounds = depths(ours(FLAT), text, FLAT)
    assert first_round(rounds, 100, off=False) == 0
    assert first_round(rounds, 500, off=True) <= 25


@pytest.mark.parametrize("telling", [0.0, 0.5])
def test_it_takes_drafting_up_again_when_acceptance_comes_back(telling: float) -> None:
    text = trace(3000, lambda t: 0.1 if 500 <= t < 1000 else 0.9, telling=telling)
    rounds = depths(ours(FLAT), text, FLAT)
    assert first_round(rounds, 1000, off=False) <= 150


CHEAP = Costs({1: 0.020, 2: 0.022, 5: 0.030, 9: 0.045}, {1: 0.016})
"""a draft of 16 ms does not pay for steps of 20 ms at an acceptance of 0.8, and does for 40 ms"""


def dearer(costs: Costs, target: float = 1.0, draft: float = 1.0) -> Costs:
    """The same with passes that take so much longer."""
    return Costs(
        {n: target * s for n, s in costs.verify.items()}, {n: draft * s for n, s in costs.draft.items()}
    )


def changing(before: Costs, after: Costs, at: float) -> tuple[list[tuple[int, int]], int]:
    """Rounds of a text whose costs change at second `at`, and the place where that was."""
    played = play(
        trace(2000, lambda t: 0.8), ours(before), lambda now: before if now < at else after, keep=True
    )
    now = accumulate(r.seconds for r in played.rounds)
    place = next(r.place for r, ended in zip(played.rounds, now, strict=True) if ended > at)
    return [(r.place, len(r.drafted)) for r in played.rounds], place


def test_a_target_that_slows_down_to_half_makes_drafting_pay_within_five_rounds() -> None:
    rounds, place = changing(CHEAP, dearer(CHEAP, target=2.0), 12.0)
    assert first_round(rounds, place - 100, off=True) == 0
    assert first_round(rounds, place, off=False) <= 5


def test_a_target_that_recovers_makes_drafting_stop_within_five_rounds() -> None:
    rounds, place = changing(dearer(CHEAP, target=2.0), CHEAP, 12.0)
    assert first_round(rounds, place - 100, off=False) == 0
    assert first_round(rounds, place, off=True) <= 5


def test_a_draft_that_slows_down_stops_within_five_rounds() -> None:
    rounds, place = changing(FLAT, dearer(FLAT, draft=5.0), 6.0)
    assert first_round(rounds, place - 100, off=False) == 0
    assert first_round(rounds, place, off=True) <= 5


def test_throttling_of_everything_changes_nothing_but_the_clock() -> None:
    text = trace(1000, lambda t: 0.85)
    twice = dearer(FLAT, 2.0, 2.0)
    steady = depths(ours(FLAT), text, FLAT)
    throttled = depths(ours(FLAT), text, lambda now: FLAT if now < 4.0 else twice)
    drafted = [sum(depth for _, depth in rounds) / len(rounds) for rounds in (steady, throttled)]
    assert drafted[1] == pytest.approx(drafted[0], rel=0.1)


@pytest.mark.parametrize("costs", CURVES.values(), ids=CURVES.keys())
def test_a_hopeless_draft_costs_less_than_a_hundredth_over_a_session(costs: Costs) -> None:
    """Ten texts of 200 tokens with a draft that is never right; the first one teaches it."""
    policy = ours(costs)
    played = [play(trace(200, lambda t: 0.01, seed=seed), policy, costs) for seed in range(10)]
    speed = sum(p.tokens for p in played) / sum(p.seconds for p in played)
    assert speed * costs.target(1) >= 0.99
    assert min(p.speed for p in played) * costs.target(1) >= 0.97


@pytest.mark.parametrize("telling", [0.0, 0.5])
@pytest.mark.parametrize("costs", CURVES.values(), ids=CURVES.keys())
def test_a_hopeless_draft_is_let_twice_and_never_in_the_next_run(costs: Costs, telling: float) -> None:
    """A new pair whose draft is never right; then again with what the first run kept."""
    plain, first = costs.target(1), ours(costs)
    played = play(trace(300, lambda t: 0.0, telling=telling), first, costs, keep=True)
    assert sum(len(r.drafted) > 0 for r in played.rounds) <= 2
    assert played.seconds <= (played.tokens + RISK * (played.tokens + ADVANCE)) * plain

    kept, again = priors.keep(first), ours(costs)
    again.arms[MODEL].acceptance = priors.recall(kept, MODEL, priors.MODEL)
    again.ledger = priors.recall_ledger(kept)
    seconds = played.seconds
    played = play(trace(300, lambda t: 0.0, seed=1, telling=telling), again, costs, keep=True)
    assert not any(r.drafted for r in played.rounds)
    assert seconds + played.seconds <= 1.01 * (2 * played.tokens) * plain
