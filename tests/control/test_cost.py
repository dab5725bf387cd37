"""The cost curve: what it keeps of the points, and how fast it follows what passes really cost."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from edgespec.control.cost import DEARER, FADING, CostCurve, roofline

Q4_0 = {1: 0.026, 2: 0.045, 3: 0.060, 4: 0.049, 6: 0.080, 8: 0.084}


def test_measured_sizes_keep_their_steps_and_cliffs() -> None:
    curve = CostCurve(Q4_0)
    assert [curve.seconds(n) for n in Q4_0] == pytest.approx(list(Q4_0.values()))
    assert curve.seconds(4) < curve.seconds(3)
    assert curve.seconds(5) == pytest.approx((0.049 + 0.080) / 2)
    assert curve.table(8) == pytest.approx([0.0, *(curve.seconds(n) for n in range(1, 9))])


def test_sizes_beyond_the_points_follow_the_last_slope_but_never_fall() -> None:
    assert CostCurve({1: 1.0, 4: 4.0}).seconds(10) == pytest.approx(10.0)
    assert CostCurve({1: 1.0, 4: 4.0}).seconds(1000) == pytest.approx(1000.0)
    assert CostCurve({1: 2.0, 4: 1.0}).seconds(10) == pytest.approx(1.0)
    assert CostCurve({1: 2.0}).seconds(10) == pytest.approx(2.0)


def test_three_outliers_in_a_row_leave_no_trace() -> None:
    curve = CostCurve(Q4_0)
    for _ in range(10):
        curve.observe(1, 0, 0.026)
    before = curve.seconds(1)
    for _ in range(3):
        curve.observe(1, 0, 0.26)
    assert curve.seconds(2) == pytest.approx(0.045)
    assert curve.seconds(1) < before * 1.06


@pytest.mark.parametrize(("seen", "unseen"), [((1,), 4), ((4, 5, 6), 1)])
def test_what_is_not_seen_for_long_looks_no_cheaper_for_the_hiccups_of_what_is(
    seen: tuple[int, ...], unseen: int
) -> None:
    """Every tenth pass takes longer, and none shorter: noise that leans to one side."""
    curve = CostCurve(Q4_0)
    costs = {n: curve.seconds(n) for n in (*seen, unseen)}
    for i in range(10_000):
        n = seen[i % len(seen)]
        curve.observe(n, 0, costs[n] * (1.3 if i % 10 == 9 else 1.0))
    for n, seconds in costs.items():
        assert curve.seconds(n) == pytest.approx(seconds, rel=0.2)


def test_throttling_by_half_is_followed_within_four_passes_at_every_size() -> None:
    curve = CostCurve(Q4_0)
    for _ in range(20):
        curve.observe(4, 0, 0.049)
    for _ in range(4):
        curve.observe(4, 0, 0.098)
    assert curve.scale == pytest.approx(2.0, rel=0.05)
    assert curve.seconds(1) == pytest.approx(0.052, rel=0.05)


def test_single_tokens_are_not_taken_to_be_much_dearer_than_they_were_last_seen() -> None:
    """A slower clock makes passes of several tokens dearer and may leave those of one as they are."""
    curve = CostCurve({1: 1.0, 4: 1.1})
    for _ in range(8):
        curve.observe(4, 0, 3.3)
    assert curve.seconds(1) > 2.5
    assert curve.plainly(1) == pytest.approx(DEARER)
    assert curve.plainly(4) == curve.seconds(4)
    curve.observe(1, 0, 3.0)
    assert curve.plainly(1) == curve.seconds(1)


def test_a_stop_while_a_prompt_is_read_does_not_make_reading_look_several_times_as_dear() -> None:
    """A draft model would not be let read again, and so never be seen to be faster."""
    curve = CostCurve(Q4_0)
    for _ in range(4):
        curve.observe(512, 0, 1.0)
    curve.observe(512, 0, 3600.0)
    assert curve.seconds(512) < 2.1
    for _ in range(8):
        curve.observe(512, 0, 1.0)
    assert curve.seconds(512) == pytest.approx(1.0, rel=0.1)


def test_a_cliff_between_the_measured_sizes_is_learned_where_it_is() -> None:
    curve = CostCurve(Q4_0)
    rng = np.random.default_rng(0)
    for _ in range(60):
        for n, seconds in {1: 0.026, 4: 0.049, 5: 0.095, 8: 0.084}.items():
            curve.observe(n, 0, seconds * float(rng.lognormal(0.0, 0.03)))
    assert curve.seconds(5) == pytest.approx(0.095, rel=0.08)
    assert curve.seconds(4) == pytest.approx(0.049, rel=0.08)
    assert curve.seconds(1) == pytest.approx(0.026, rel=0.08)


def test_context_costs_what_its_keys_and_values_add() -> None:
    curve = CostCurve({1: 1.0}, per_context=1e-3)
    assert curve.seconds(1, 1000) == pytest.approx(2.0)
    for length in range(0, 2000, 50):
        curve.observe(1, length, 1.0 + length * 1e-3)
    assert curve.seconds(1, 0) == pytest.approx(1.0)


# --- between runs ---


def run_of(known: Any, cost: dict[int, float], passes: int = 60, scale: float = 1.0) -> CostCurve:
    """A curve after a run in which passes cost this."""
    curve, rng = CostCurve(Q4_0, known=known), np.random.default_rng(passes)
    for _ in range(passes):
        for n, seconds in cost.items():
            curve.observe(n, 0, scale * seconds * float(rng.lognormal(0.0, 0.03)))
    return curve


CLIFF = Q4_0 | {5: 0.095}
"""where nothing was measured"""


def kept(curve: CostCurve) -> Any:
    return json.loads(json.dumps(curve.as_dict()))


def test_a_cliff_is_there_in_the_third_run_before_it_is_met() -> None:
    curve = CostCurve(Q4_0)
    for _ in range(3):
        curve = run_of(kept(curve), CLIFF)
    assert CostCurve(Q4_0, known=kept(curve)).seconds(5) == pytest.approx(0.095, rel=0.08)
    assert CostCurve(Q4_0, known=kept(curve)).seconds(4) == pytest.approx(0.049, rel=0.08)


def test_that_a_run_was_slow_is_not_kept() -> None:
    again = CostCurve(Q4_0, known=kept(run_of(None, Q4_0, scale=3.0)))
    assert [again.seconds(n) for n in Q4_0] == pytest.approx(list(Q4_0.values()), rel=0.08)


def test_a_run_on_a_busy_machine_spoils_the_next_by_half_and_the_one_after_hardly() -> None:
    """In it passes of four tokens, whenever there were some, took three times as long."""
    good = run_of(None, Q4_0)
    bad = run_of(kept(good), Q4_0 | {4: 3 * 0.049})
    spoiled = CostCurve(Q4_0, known=kept(bad))
    assert spoiled.seconds(4) < 0.049 * 3**0.55
    assert run_of(kept(bad), Q4_0, passes=12).seconds(4) == pytest.approx(0.049, rel=0.15)


def test_a_size_that_looks_too_dear_to_be_tried_does_not_look_so_for_ever() -> None:
    """As since the clock was slow for a while: no pass shows that it is fast again."""
    curve = run_of(None, CLIFF)
    assert curve.seconds(5) > 0.085
    for _ in range(4 * FADING):
        curve.observe(1, 0, 0.026)
    assert curve.seconds(5) == pytest.approx((0.049 + 0.080) / 2, rel=0.1)


def test_what_no_run_meets_fades_from_run_to_run() -> None:
    known = kept(run_of(None, CLIFF))
    for _ in range(20):
        known = kept(run_of(known, {1: 0.026}, passes=FADING // 5))
    assert CostCurve(Q4_0, known=known).seconds(5) == pytest.approx((0.049 + 0.080) / 2, rel=0.08)


@pytest.mark.parametrize("passes", [0, 1, 3, FADING // 4, 3 * FADING // 2])
def test_runs_however_short_or_long_forget_half_in_a_thousand_passes(passes: int) -> None:
    known = kept(run_of(None, CLIFF))
    before = known["shape"][5]
    for _ in range(40):
        known = kept(run_of(known, {1: 0.026}, passes=passes))
    assert known["shape"][5] == pytest.approx(before * 0.5 ** (40 * passes / FADING), rel=0.01, abs=1e-5)


def test_how_fast_prompts_are_read_is_kept() -> None:
    curve = CostCurve(Q4_0)
    curve.observe(512, 0, 1.0)
    assert CostCurve(Q4_0, known=kept(curve)).seconds(1024) == pytest.approx(2.0)


def test_points_measured_anew_make_what_was_learned_void() -> None:
    learned = kept(run_of(None, CLIFF))
    assert CostCurve({1: 0.02, 8: 0.03}, known=learned).seconds(5) == CostCurve({1: 0.02, 8: 0.03}).seconds(5)


@pytest.mark.parametrize(
    "change",
    [
        {"shape": [1.0]},
        {"shape": ["x"] * 65},
        {"shape": [float("nan")] * 65},
        {"shape": [10**400] * 65},
        {"shape": 3},
        {"per_token": "x"},
    ],
)
def test_nonsense_is_no_error(change: dict[str, Any]) -> None:
    for known in (None, 3, {}, kept(CostCurve(Q4_0)) | change):
        assert CostCurve(Q4_0, known=known).seconds(4) == pytest.approx(0.049)


def test_a_roofline_is_flat_until_arithmetic_takes_longer_than_memory() -> None:
    curve = CostCurve(roofline(1e9, 40e9, operations=3e9, peak=500e9))
    assert curve.seconds(1) == curve.seconds(4) == 0.025
    assert curve.seconds(16) == pytest.approx(0.096)
