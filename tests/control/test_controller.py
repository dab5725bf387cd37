"""The rule: what it compares, what it is told to risk, and what it may look at."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from edgespec.backends.base import Step
from edgespec.control import priors
from edgespec.control.acceptance import Acceptance, Judged, Prior
from edgespec.control.arms import Arm
from edgespec.control.controller import PLAIN_STALE, Controller
from edgespec.control.cost import DEARER, CostCurve
from edgespec.control.ledger import SHARE, Ledger
from edgespec.control.outlook import POOR_ODDS, TOO_DEAR
from edgespec.control.plans import best_depth, stakes
from edgespec.control.purse import ADVANCE, PAPER_RISK, RISK, Purse
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import point_mass
from edgespec.decoding.stopping import Token
from edgespec.drafters.base import Drafter, Hindsight, Node, Offer

FLAT = {1: 1.0, 2: 1.0, 4: 1.1, 8: 1.3, 16: 1.8}
STATE: Any = None


class Fake(Drafter):
    """Offers what it is told to."""

    def __init__(self, name: str, offer: Offer | None = None) -> None:
        self.name = name
        self.offered = offer or Offer()

    def offer(self, context: Sequence[int]) -> Offer | None:
        return self.offered


MODEL, LOOKUP = Fake("model"), Fake("ngram", Offer(token=7, confidences=[0.6 + i / 100 for i in range(32)]))


def controller(
    costs: dict[int, float] | None = None,
    draft: float = 0.1,
    accept: float = 0.8,
    ledger: Ledger | None = None,
) -> Controller:
    prior = Prior([accept] * 13, typical=accept)
    arms = {
        "model": Arm(Acceptance(prior), CostCurve({1: draft, 2: draft})),
        "ngram": Arm(Acceptance(prior)),
    }
    return Controller(CostCurve(costs or FLAT), arms, ledger)


def finished(drafted: int, accepted: int, drafter: str | None = "model", seconds: float = 1.0) -> Round:
    nodes = [Node(5, None, 0.8, drafter or "") for _ in range(drafted)]
    emitted = [Token(5, "", "draft")] * (accepted + 1)
    return Round(
        nodes,
        emitted,
        Step(drafted + 1, 100, seconds),
        0.0,
        seconds,
        [point_mass(5)] * (accepted + 1),
        drafter,
        likelihoods=[float(i < accepted) for i in range(min(drafted, accepted + 1))],
        place=100,
    )


# --- the depth ---


def test_every_depth_is_compared_and_not_the_next_alone() -> None:
    """T(4) < T(3), as measured for llama.cpp Q4_0: one more does not pay, three more do."""
    verify = [0.0, 26.0, 45.0, 60.0, 49.0, 62.0]
    chain, costs = [0.9] * 4, [1.0] * 4
    assert best_depth(1.0, chain[:1], costs[:1], verify, 0, 1 / 18) == (0, 0.0)
    assert best_depth(1.0, chain, costs, verify, 0, 1 / 18)[0] == 3


def test_the_gain_is_the_expected_tokens_less_their_time() -> None:
    depth, gain = best_depth(0.9, [0.5, 0.5], [2.0, 2.0], [0.0, 9.0, 10.0, 11.0, 40.0], 1, 0.1)
    assert depth == 2
    assert gain == pytest.approx(0.9 * 0.5 - 0.1 * (2.0 + 11.0 - 10.0))


def test_stopping_is_best_where_nothing_more_is_worth_its_time() -> None:
    assert best_depth(0.1, [0.5] * 3, [1.0] * 3, [0.0, 1.0, 2.0, 3.0, 4.0], 0, 1.0) == (0, 0.0)


# --- the drafter ---


def test_the_fastest_drafter_is_chosen_and_nobody_where_none_pays() -> None:
    context = list(range(100))
    assert (
        controller(accept=0.9).choose([MODEL, LOOKUP], context, 20).drafter is LOOKUP
    )  # as likely, and free
    assert controller(accept=0.9).choose([MODEL], context, 20).drafter is MODEL
    assert controller(accept=0.05, draft=0.5).choose([MODEL], context, 20).drafter is None
    assert controller(costs={1: 1.0, 2: 3.0}).choose([MODEL, LOOKUP], context, 20).drafter is None


def test_it_says_why_it_is_off() -> None:
    off = controller(accept=0.05, draft=0.5)
    off.choose([MODEL], list(range(100)), 20)
    assert off.verdict is not None
    assert "model promises" in off.verdict
    assert "plain decoding 1.0" in off.verdict
    on = controller(accept=0.9)
    on.choose([MODEL], list(range(100)), 20)
    assert on.verdict is None
    assert on.explain().startswith("model, depth ")


def test_a_round_in_which_nobody_was_asked_is_not_explained_by_the_one_before() -> None:
    """The last of a budget: there is room for one token."""
    policy = controller(accept=0.9)
    policy.observe(finished(0, 0, None))
    assert "the first token comes with the prompt" in policy.explain()
    policy.choose([MODEL], list(range(100)), 20)
    policy.observe(finished(4, 4))
    assert policy.explain().startswith("model, depth ")
    policy.observe(finished(0, 0, None))
    assert policy.explain().startswith("plain: nothing can be drafted")
    assert "before: model, depth " in policy.explain()


def test_catching_up_with_much_must_be_earned_back_by_what_is_expected_to_follow() -> None:
    def chosen(lag: int, budget: int | None, answers: int = 3) -> Drafter | None:
        policy = controller(accept=0.9)
        policy.arms["model"].cost = CostCurve({1: 0.1, 2: 0.15, 64: 3.0})
        for _ in range(answers):
            policy.lengths.add(500, 400, ended=True)
        policy.start(budget)
        policy.observe(Round([], [Token(5, "", "plain")], Step(500, 0, 200.0), 0.0, 200.0, place=500))
        return policy.choose([Fake("model", Offer(lag=lag))], list(range(501)), 20).drafter

    assert chosen(1, 8, answers=0) is not None
    assert chosen(400, None) is not None
    assert chosen(400, 500) is not None
    assert chosen(400, 8) is None
    assert chosen(400, None, answers=0) is None  # yet


def test_it_stops_where_the_next_q_shows_no_confidence() -> None:
    policy = controller(accept=0.9, costs={1: 1.0, 2: 1.1, 8: 2.0})
    sure = policy.arms["model"].acceptance
    for _ in range(60):
        sure.observe([Judged(0.99, 1.0), Judged(0.99, 1.0), Judged(0.3, 0.0)])
    policy.start(None)
    for _ in range(40):
        policy.observe(finished(0, 0, None))
    policy.choose([MODEL], list(range(100)), 20)
    drafted = [Node(1, None, 0.99, "model")]
    assert policy.keeps(drafted, 0.99)
    assert not policy.keeps(drafted, 0.3)


# --- the purse ---


def test_a_round_never_risks_more_than_the_purse_holds() -> None:
    dear = {1: 1.0, 2: 1.15, 3: 2.4, 24: 6.0}
    policy = controller(costs=dear, accept=0.99)
    policy.choose([MODEL], list(range(100)), 20)
    assert policy.decision.depth == 1  # it may lose 0.3 seconds
    for _ in range(20):
        policy.observe(finished(1, 1, "model", policy.target.seconds(2)))
    policy.choose([MODEL], list(range(100)), 20)
    assert policy.decision.depth > 8  # and what was gained


@pytest.mark.parametrize(("says", "let"), [(5, True), (7, False)], ids=["right", "wrong"])
def test_lookup_is_let_when_it_has_won_on_paper_what_it_may_lose(says: int, let: bool) -> None:
    lookup = Fake("ngram", Offer(token=says, confidences=[0.9] * 32))
    policy = controller(costs={1: 1.0, 2: 1.4}, accept=0.99)
    policy.start(None)
    assert policy.choose([lookup], list(range(100)), 20).drafter is None  # though it promises to pay
    assert policy.verdict is not None and policy.verdict.endswith(TOO_DEAR)
    for _ in range(12):  # RISK alone allows 0.25 s
        policy.choose([lookup], list(range(100)), 20)
        policy.observe(finished(0, 0, None))
    assert (policy.choose([lookup], list(range(100)), 20).drafter is lookup) == let


def test_until_drafting_has_gained_it_a_lost_token_weighs_as_much_as_three_gained_ones() -> None:
    """Two tokens take 1.4 s: at an acceptance of 0.6 that is 6% faster than one by one, and a bet of 0.36
    against 0.16."""
    lookup = Fake("ngram", Offer(confidences=[0.9]))
    policy = controller(costs={1: 1.0, 2: 1.4}, accept=0.6)
    for _ in range(100):
        policy.observe(finished(0, 0, None))
    assert policy.choose([lookup], list(range(100)), 20).drafter is None
    assert policy.verdict is not None and policy.verdict.endswith(POOR_ODDS)
    policy.observe(finished(1, 1, "model", 1.4))
    assert policy.choose([lookup], list(range(100)), 20).drafter is lookup


def test_what_lookup_wins_on_paper_is_nothing_that_a_draft_model_may_lose() -> None:
    purse = Purse()
    purse.made = 10
    before = purse.holds(1.0), purse.holds(1.0, known=True)
    purse.on_paper(100.0)
    assert purse.holds(1.0) == before[0]
    assert purse.holds(1.0, known=True) > before[1]


def test_a_generation_loses_no_more_than_the_purse_says_however_it_misleads() -> None:
    """Whatever may be lost is lost, and everything that is not drafted would have been right."""
    purse, lost = Purse(), 0.0
    for made in range(1, 1000):
        purse.made = made
        for known in (True, False):
            bet = max(0.0, purse.holds(1.0, known))
            purse.gained -= bet
            lost += bet
        purse.on_paper(1.0)
        assert lost <= (RISK + PAPER_RISK) * made + RISK * ADVANCE


def test_the_stakes_of_a_round_are_what_it_may_save_and_what_it_may_lose() -> None:
    """Of two drafts, in a pass that takes as long as 1.5 tokens, none is accepted, one or both."""
    saved, lost = stakes([0.9, 0.5], 2, [0.0, 1.0, 1.2, 1.5])
    assert saved == pytest.approx(0.9 * 0.5 * 0.5 + 0.9 * 0.5 * 1.5)
    assert lost == pytest.approx(0.1 * 0.5)


def test_drafting_is_compared_with_plain_decoding_as_it_was_last_seen() -> None:
    """All rounds draft, and passes of several tokens take more than twice as long all at once. Were single
    ones taken to do so, too, a loss would look like a gain, and no round would show that it is none."""
    policy, context = controller(accept=0.6), list(range(100))
    assert policy.choose([MODEL], context, 20).drafter is MODEL
    for _ in range(8):
        policy.observe(finished(4, 1, "model", 3.0))
    assert policy.choose([MODEL], context, 20).drafter is None
    assert policy.decision.plain == pytest.approx(1.0 / DEARER)


# --- learning ---


def test_lookup_that_is_not_used_is_judged_all_the_same() -> None:
    policy = controller(costs={1: 1.0, 2: 3.0})
    for _ in range(40):
        policy.choose([LOOKUP], list(range(100)), 20)
        policy.observe(finished(0, 0, None))  # it would have proposed 7, and the target said 5
    assert policy.arms["ngram"].acceptance.level < 0.2


def test_a_round_in_which_nobody_is_asked_says_nothing_of_what_lookup_foresaw_before() -> None:
    policy = controller(costs={1: 1.0, 2: 3.0})
    policy.choose([LOOKUP], list(range(100)), 1)
    for _ in range(2):
        policy.observe(finished(0, 0, None))
    assert policy.arms["ngram"].acceptance.observations == 1


def test_what_is_forced_may_leave_no_room_for_what_lookup_foresees() -> None:
    policy = controller()
    assert policy.choose([LOOKUP], list(range(100)), 0, forced=3).drafter is None
    policy.observe(replace(finished(3, 3, None), forced=3))
    assert policy.arms["ngram"].acceptance.observations == 1  # it is judged all the same


def test_the_end_of_a_prompt_says_how_fast_prompts_are_read_and_nothing_of_verifying() -> None:
    """Where the cache knows the rest, as in a chat, it is no longer than a draft."""
    policy = controller()
    for n in (9, 500):
        for _ in range(9):
            policy.observe(replace(finished(0, 0, None), verify=Step(n, 100, 0.01 * n), seconds=0.01 * n))
    assert policy.target.seconds(9) == controller().target.seconds(9)
    assert policy.target.seconds(1) == 1.0
    assert policy.target.seconds(500) == pytest.approx(5.0)


def test_hindsight_counts_with_the_probability_of_acceptance() -> None:
    policy = controller()
    before = policy.arms["model"].acceptance.observations
    policy.choose([MODEL], list(range(100)), 20)
    policy.observe(finished(0, 0, None))
    seen = [Hindsight(100, 0.9, 1.0), Hindsight(40, 0.9, 1.0)]  # of the second nothing is known any more
    done = finished(0, 0, "model")
    policy.observe(
        Round(done.drafted, done.emitted, done.verify, 0.0, 1.0, done.p, "model", (), seen, (), 101)
    )
    assert policy.arms["model"].acceptance.observations == before + 1


# --- probing ---


def test_looking_around_stays_within_its_share_of_the_time() -> None:
    policy = controller(accept=0.05, draft=0.5)
    looks, spent = 0, 0.0
    for _ in range(2000):
        choice = policy.choose([MODEL], list(range(100)), 20)
        if choice.look:
            looks += 1
            spent += 0.5
            policy.observe(finished(0, 0, "model", 1.5))
        else:
            assert choice.drafter is None
            policy.observe(finished(0, 0, None))
    assert looks >= 10
    assert spent <= SHARE * 2000 + 0.5


def test_a_look_during_which_the_process_was_stopped_does_not_silence_the_drafter() -> None:
    policy, looks = controller(accept=0.05, draft=0.5, ledger=Ledger(1000.0)), 0
    for _ in range(200):
        look = policy.choose([MODEL], list(range(100)), 20).look
        looks += look
        policy.observe(finished(0, 0, "model", 3600.0) if look else finished(0, 0, None))
    assert looks >= 3
    assert policy.ledger.lost < SHARE * policy.ledger.seconds


@pytest.mark.parametrize("forked", [False, True])
def test_plain_decoding_is_looked_at_again_though_no_answer_is_long(forked: bool) -> None:
    policy, looks = controller(accept=0.9, ledger=Ledger(1000.0)), 0
    for _ in range(60):
        answer = policy.fork() if forked else policy
        answer.start(None)
        answer.observe(replace(finished(0, 0, None), verify=Step(500, 0, 20.0)))  # the prompt
        for _ in range(9):
            chosen = answer.choose([MODEL], list(range(100)), 20).drafter is not None
            looks += not chosen
            answer.observe(finished(2, 2, "model", 1.3) if chosen else finished(0, 0, None))
    assert looks == 600 // (PLAIN_STALE + 2)


def test_a_ledger_pays_what_was_saved_up_and_no_more() -> None:
    ledger = Ledger()
    assert not ledger.can_pay(0.1)
    ledger.add(100.0, 0.0)
    assert ledger.can_pay(SHARE * 100.0)
    ledger.add(1.0, SHARE * 100.0)
    assert not ledger.can_pay(0.1)


# --- between runs ---


def test_what_a_run_learned_is_there_in_the_next() -> None:
    policy = controller()
    for _ in range(100):
        policy.arms["model"].acceptance.observe([Judged(0.9, 0.0)])
    policy.ledger.add(50.0, 0.2)
    kept = priors.keep(policy)
    again = priors.recall(kept, "model", Prior([0.8] * 13, typical=0.8))
    assert again.level < 0.2
    assert priors.recall_ledger(kept) == Ledger(50.0, 0.2)


@pytest.mark.parametrize(
    "kept",
    [
        {},
        {"acceptance": 3, "ledger": "x"},
        {"acceptance": {"model": []}, "ledger": [1]},
        {"ledger": [float("inf"), 0.0]},
    ],
)
def test_nonsense_between_runs_is_no_error(kept: dict[str, Any]) -> None:
    assert priors.recall(kept, "model", priors.MODEL).level > 0.5
    assert priors.recall_ledger(kept) == Ledger()


def test_a_busy_machine_does_not_empty_the_purse() -> None:
    policy = controller(accept=0.95)
    policy.choose([MODEL], list(range(100)), 20)
    assert policy.decision.depth > 0
    for _ in range(3):  # plain rounds, and drafted ones, that took ten times as long as usual
        policy.observe(finished(0, 0, None, 10.0))
        policy.observe(finished(4, 4, "model", 10.0))
    policy.choose([MODEL], list(range(100)), 20)
    assert policy.decision.depth > 0
