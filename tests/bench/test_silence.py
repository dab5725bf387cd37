"""No drafter is silenced for a whole text: not by what earlier texts taught, nor by what this one lost."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edgespec.bench.replay import CURVES, LOOKUP, MODEL, Costs, ours, play
from edgespec.bench.traces import Trace
from edgespec.control.acceptance import EDGES, Judged
from edgespec.control.controller import STALE, Controller
from edgespec.control.ledger import SHARE, Ledger
from edgespec.control.purse import ADVANCE, RISK

from .synthetic import trace

EVERY = pytest.mark.parametrize("costs", CURVES.values(), ids=CURVES.keys())


def hopeless_so_far(costs: Costs) -> Controller:
    """A controller that saw every drafter fail at every confidence, more often than its tables remember."""
    policy = ours(costs)
    for arm in policy.arms.values():
        for confidence in (0.0, *EDGES):
            for _ in range(400):
                arm.acceptance.observe([Judged(confidence, 0.0)])
    return policy


def trusting(costs: Costs) -> Controller:
    """A controller that never saw lookup fail."""
    policy = ours(costs)
    for _ in range(400):
        policy.arms[LOOKUP].acceptance.observe([Judged(confidence, 1.0) for confidence in EDGES])
    return policy


def misleading(copied: int, wrong: int) -> Trace:
    """A text that for `wrong` tokens goes on otherwise than the prompt did behind the same two tokens, and
    copies it from then on; the draft model is always wrong."""
    prompt = list(range(1000, 1400))
    text = [token for i in range(wrong // 3) for token in (prompt[7 * i], prompt[7 * i + 1], 10 + i)]
    model = trace(len(text) + copied, lambda t: 0.0, telling=0.0)
    return replace(model, prompt=prompt, text=[*text, *prompt[-copied:]])


def first_draft(policy: Controller, text: Trace, costs: Costs, behind: int, drafter: str) -> int:
    """Rounds behind place `behind` until the drafter is right."""
    rounds = [r for r in play(text, policy, costs, keep=True).rounds if r.place >= len(text.prompt) + behind]
    return next(i for i, r in enumerate(rounds) if r.drafter == drafter and r.accepted)


@EVERY
def test_lookup_that_was_hopeless_in_all_texts_before_is_found_within_twenty_rounds_of_a_copy(
    costs: Costs,
) -> None:
    assert first_draft(hopeless_so_far(costs), misleading(200, 0), costs, 0, LOOKUP) <= 20


@EVERY
@pytest.mark.parametrize("wrong", [3, 30])
def test_lookup_that_lost_all_that_may_be_lost_is_found_within_twenty_rounds_of_a_copy(
    costs: Costs, wrong: int
) -> None:
    """RISK alone would take 48 rounds to pay for another bet on the steeper curve."""
    assert first_draft(trusting(costs), misleading(200, wrong), costs, wrong, LOOKUP) <= 20


@EVERY
def test_a_text_that_misleads_lookup_to_its_end_costs_hardly_more_than_may_be_lost(costs: Costs) -> None:
    text = misleading(0, 150)
    played = play(text, trusting(costs), costs)
    assert played.seconds <= costs.target(1) * (played.tokens * (1 + RISK) + RISK * ADVANCE + 1)


def test_a_draft_model_that_was_hopeless_is_found_as_soon_as_a_look_is_due() -> None:
    costs = CURVES["flat kernel"]
    policy = hopeless_so_far(costs)
    policy.ledger = Ledger(100.0, 0.0)
    assert first_draft(policy, trace(400, lambda t: 0.95), costs, 0, MODEL) <= STALE + 48


def test_a_draft_model_that_was_hopeless_is_found_within_the_share_though_all_of_it_was_spent() -> None:
    """A look takes about as long as a token, of which SHARE must be saved up: 130 rounds."""
    costs = CURVES["flat kernel"]
    policy = hopeless_so_far(costs)
    policy.ledger = Ledger(100.0, SHARE * 100.0)
    text = trace(400, lambda t: 0.95)
    assert first_draft(policy, text, costs, 0, MODEL) <= 130
    assert policy.ledger.lost <= SHARE * policy.ledger.seconds


def test_looks_do_not_use_up_what_a_text_may_lose() -> None:
    """Savings of a long session pay for no more looks in one text than the purse does."""
    costs = CURVES["flat kernel"]
    policy = hopeless_so_far(costs)
    policy.ledger = Ledger(1e6, 0.0)
    played = play(trace(128, lambda t: 0.01), policy, costs)
    assert played.speed * costs.target(1) >= 0.98
