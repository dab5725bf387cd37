"""Regret on recorded traces under two measured cost curves: eleven greedy answers of the 1.5B coder and six
sampled at temperature 0.7, with what its 0.5B draft would have proposed, and fourteen greedy ones of SmolLM2
135M, which has prompt lookup alone."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path
from statistics import geometric_mean, mean

import pytest

from edgespec.bench.foresight import KNOWLEDGE, clairvoyant, fearless
from edgespec.bench.policies import Bandit, ConfidenceThreshold, EntropyBound, Goodput, PlusTwoMinusOne
from edgespec.bench.regret import OURS, THRESHOLDS, costs_of, judge
from edgespec.bench.replay import CURVES, MODEL, Costs, ours, play
from edgespec.bench.traces import load
from edgespec.control.policy import FixedDepth, Policy
from edgespec.control.purse import ADVANCE, RISK

FOLDER = Path(__file__).parents[1] / "data" / "traces"
RECORDED = {name: load(FOLDER / f"{name}.jsonl.gz") for name in ("coder", "coder-t07", "smollm2-lookup")}
TRACES = RECORDED["coder"]

each = pytest.mark.parametrize(("curve", "name"), [(curve, name) for curve in CURVES for name in RECORDED])


def costs_for(curve: str, name: str) -> Costs:
    """Drafting is free where lookup drafts alone."""
    costs = CURVES[curve]
    return costs if RECORDED[name][0].model else replace(costs, draft={1: 0.0})


def session(policy: Policy, curve: str, name: str = "coder") -> list[float]:
    """Speed-up over plain on each trace, one behind the other under one policy that goes on learning."""
    costs = costs_for(curve, name)
    return [play(trace, policy, costs).speed * costs.target(1) for trace in RECORDED[name]]


@cache
def fixed(curve: str, name: str) -> list[list[float]]:
    """Of each fixed depth."""
    return [session(FixedDepth(k), curve, name) for k in range(13)]


@cache
def controlled(curve: str, name: str = "coder") -> list[float]:
    return session(ours(costs_for(curve, name)), curve, name)


@each
def test_ours_reaches_the_best_fixed_depth_of_each_text_known_in_hindsight(curve: str, name: str) -> None:
    hindsight = [max(speeds) for speeds in zip(*fixed(curve, name), strict=True)]
    share = mean(a / b for a, b in zip(controlled(curve, name), hindsight, strict=True))
    print(f"{name}, {curve}: {share:.1%} of the best fixed depth in hindsight")
    assert share >= (0.97 if name == "smollm2-lookup" else 1.0)


@each
def test_ours_is_above_every_other_online_policy(curve: str, name: str) -> None:
    costs = costs_for(curve, name)
    others: dict[str, Policy] = {f"confidence {t}": ConfidenceThreshold(t) for t in THRESHOLDS}
    others |= {"+2/-1": PlusTwoMinusOne(), "entropy bound": EntropyBound()}
    others |= {"goodput": Goodput(costs), "bandit": Bandit(4.0 / costs.target(1))}
    found = geometric_mean(controlled(curve, name))
    for policy_name, policy in others.items():
        assert geometric_mean(session(policy, curve, name)) < found, policy_name


@each
def test_ours_comes_up_to_the_single_depth_that_hindsight_finds_best(curve: str, name: str) -> None:
    """With a draft model it is faster, as it has lookup, too."""
    found, best = geometric_mean(controlled(curve, name)), max(map(geometric_mean, fixed(curve, name)))
    assert found >= (0.99 if name == "smollm2-lookup" else 1.0) * best


@each
def test_ours_is_slower_than_plain_on_no_trace_by_more_than_it_may_bet(curve: str, name: str) -> None:
    for speed, trace in zip(controlled(curve, name), RECORDED[name], strict=True):
        assert 1.0 / speed <= 1.0 + RISK * (len(trace.text) + ADVANCE) / len(trace.text) + 0.005


@pytest.mark.parametrize("curve", CURVES)
def test_new_to_the_pair_it_is_hardly_worse(curve: str) -> None:
    costs = CURVES[curve]
    fresh = [play(trace, ours(costs), costs).speed * costs.target(1) for trace in TRACES]
    assert geometric_mean(fresh) >= 0.93 * geometric_mean(controlled(curve))


@pytest.mark.parametrize("curve", CURVES)
def test_what_is_missing_to_the_clairvoyant_optimum_is_foresight_of_single_tokens(curve: str) -> None:
    """Decoders that know more and more of each text. To know its acceptance, by how sure a drafter is and
    by place, gains little on ours, which learns it: what is missing is to know how far each drafter will be
    right in a round that has not begun. To know the rounds behind it is worth nearly nothing."""
    costs = CURVES[curve]
    best = geometric_mean(clairvoyant(trace, costs).speed * costs.target(1) for trace in TRACES)
    careless = fearless(costs)
    shares = {
        "nothing: ours": geometric_mean(controlled(curve)) / best,
        "how long the answer gets; it need not be careful": geometric_mean(session(careless, curve)) / best,
    }
    for known, decode in KNOWLEDGE.items():
        speeds = (decode(trace, costs).speed * costs.target(1) for trace in TRACES)
        shares[known] = geometric_mean(speeds) / best
    print(f"of the optimum, with costs of {curve}, reaches who knows")
    for known, share in shares.items():
        print(f"| {known} | {share:.0%} |")
    ours_, careless_, rates, told, peeking, single_rounds, everything = shares.values()
    assert everything == pytest.approx(1.0)
    assert ours_ >= 0.68
    assert told - max(ours_, careless_) <= 0.04  # what is still to be learned of the text
    assert rates <= told  # averages alone are worth less than to follow the text
    assert single_rounds - told >= 0.15  # which draft fails, and when
    assert single_rounds >= 0.95
    assert told - 0.01 <= peeking <= single_rounds


@pytest.mark.parametrize("curve", CURVES)
def test_guesses_of_lookup_make_the_draft_model_no_slower(curve: str) -> None:
    costs = CURVES[curve]

    def fresh(guesses: bool) -> float:
        policies = [ours(costs) for _ in TRACES]
        for policy in policies:
            policy.arms[MODEL].lookup = policy.arms[MODEL].lookup if guesses else None
        played = [play(t, policy, costs) for t, policy in zip(TRACES, policies, strict=True)]
        return geometric_mean(p.speed for p in played)

    print(f"{curve}: {fresh(True) / fresh(False):.3f} times as fast with guesses")
    assert fresh(True) >= fresh(False)


def test_all_policies_are_judged_by_the_best_fixed_depth_in_hindsight() -> None:
    verdicts = {v.policy: v for v in judge(TRACES[:3], CURVES["flat kernel"])}
    assert verdicts["plain decoding"].speedup == pytest.approx(1.0)
    assert verdicts["best depth per prompt, in hindsight"].share == pytest.approx(1.0)
    assert max(verdicts.values(), key=lambda v: v.speedup).policy == "clairvoyant"
    assert verdicts[OURS].share > verdicts["plain decoding"].share
    (tuned,) = (v.speedup for name, v in verdicts.items() if name.startswith("best single confidence"))
    assert tuned >= verdicts["confidence ≥ 0.4"].speedup


def test_answers_of_a_single_token_do_not_count_among_the_policies_traces() -> None:
    first, costs = TRACES[0], CURVES["flat kernel"]
    text, model, astray = first.text, first.model, first.astray
    short = [replace(first, text=text[:n], model=model[:n], astray=astray[:n]) for n in (0, 1)]
    assert judge([*short, first], costs) == judge([first], costs)


def test_a_replay_takes_its_costs_from_what_the_controller_has_learned() -> None:
    costs = CURVES["flat kernel"]
    controller = ours(costs)
    for _ in range(20):
        controller.target.observe(1, 256, 2 * costs.target(1))
    learned = costs_of(controller, MODEL)
    assert learned.target(4) == pytest.approx(2 * costs.target(4), rel=0.1)
    assert learned.model(1) == pytest.approx(costs.model(1))
