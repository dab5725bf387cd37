"""The sampler chain against a plain implementation with full sorts (expected.py), and its pieces."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from edgespec.decoding.sampling import (
    Distribution,
    Sampler,
    SamplerSettings,
    log_softmax_at,
    most_probable,
    point_mass,
)
from edgespec.decoding.verify import Coupled, Rejection, gumbel, verify
from edgespec.drafters.base import Node
from edgespec.errors import BackendError, UsageError

from .expected import filtered, penalised

WIDE = 152_064


def chain(row: NDArray[np.float32], history: list[int] | None = None, **options: Any) -> Distribution:
    return Sampler(SamplerSettings(**options), row.size).distribution(row, history or [])


def full(d: Distribution, n: int) -> NDArray[np.float64]:
    out = np.zeros(n)
    out[d.ids] = d.probs
    return out


def small(*probs: float) -> Distribution:
    """A distribution over ids 0, 1, … as the chain gives it."""
    with np.errstate(divide="ignore"):
        return chain(np.log(np.array(probs, np.float32)), temperature=1.0)


def wide_row(seed: int, spread: float = 3.0) -> NDArray[np.float32]:
    rng = np.random.default_rng(seed)
    return rng.normal(0, spread, WIDE).astype(np.float32)


OPTIONS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.3},
    {"temperature": 5.0},
    {"temperature": 1.0, "top_k": 1},
    {"temperature": 1.0, "top_k": 40},
    {"temperature": 2.0, "top_k": 5000},
    {"temperature": 1.0, "top_k": WIDE - 1},
    {"temperature": 1.0, "top_k": 2 * WIDE},
    {"temperature": 0.8, "top_p": 0.9},
    {"temperature": 3.0, "top_p": 0.999},
    {"temperature": 1.0, "top_p": 1e-6},
    {"temperature": 1.0, "min_p": 0.05},
    {"temperature": 4.0, "min_p": 1e-4},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.0, "top_k": 300, "top_p": 0.7, "min_p": 0.1},
    {"temperature": 1.0, "repetition_penalty": 1.5, "presence_penalty": 0.5, "frequency_penalty": 0.25},
    {"temperature": 1.0, "repetition_penalty": 0.5, "penalty_window": 3},
    {"temperature": 1.0, "top_k": 20, "logit_bias": {7: 12.0, 9: -math.inf, 11: -3.0}},
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("spread", [3.0, 0.01])
def test_wide_rows_get_the_distribution_that_full_sorts_give(options: dict[str, Any], spread: float) -> None:
    row = wide_row(1, spread)
    history = [5, 9, 9, 77, 5, 9, 151_000]
    expected = filtered(penalised(row.astype(np.float64), history, options), options)
    found = full(chain(row, history, **options), WIDE)
    # A token on the edge of a filter may fall to either side by rounding: at most one of many.
    changed = np.flatnonzero((found > 0) != (expected > 0))
    changed = changed[expected[changed] > 1e-15]
    assert changed.size <= max(1, np.count_nonzero(expected) // 20_000)
    np.testing.assert_allclose(np.delete(found, changed), np.delete(expected, changed), rtol=2e-5, atol=1e-12)
    assert found.sum() == pytest.approx(1, abs=1e-6)


def test_the_history_does_not_change_the_row() -> None:
    row = wide_row(2)
    before = row.copy()
    chain(row, [1, 2, 3], temperature=1.0, repetition_penalty=2.0, logit_bias={4: 1.0})
    np.testing.assert_array_equal(row, before)


def test_among_equal_logits_top_k_keeps_the_lowest_ids() -> None:
    row = np.array([1, 3, 2, 3, 3, 2], np.float32)
    assert chain(row, temperature=1.0, top_k=2).ids.tolist() == [1, 3]
    assert chain(row, temperature=1.0, top_k=4).ids.tolist() == [1, 2, 3, 4]
    flat = np.zeros(WIDE, np.float32)
    assert chain(flat, temperature=1.0, top_k=5).ids.tolist() == [0, 1, 2, 3, 4]


def test_greedy_takes_the_lowest_id_of_the_largest() -> None:
    assert chain(np.array([0, 2, 2, 1], np.float32)).ids.tolist() == [1]


def test_top_p_keeps_the_token_that_reaches_it_and_none_behind() -> None:
    row = np.log2(np.array([4, 2, 1, 1], np.float32)) * np.float32(math.log(2))
    kept = {p: chain(row, temperature=1.0, top_p=p).ids.tolist() for p in (0.1, 0.49, 0.51, 0.74, 0.76, 0.9)}
    assert kept == {0.1: [0], 0.49: [0], 0.51: [0, 1], 0.74: [0, 1], 0.76: [0, 1, 2], 0.9: [0, 1, 2, 3]}
    uniform = np.zeros(4, np.float32)  # exact in binary: a half is reached by two of four
    assert chain(uniform, temperature=1.0, top_p=0.5).ids.tolist() == [0, 1]


def test_min_p_keeps_tokens_at_its_fraction_of_the_mode() -> None:
    row = np.log(np.array([8, 4, 3.9, 1], np.float32))
    assert chain(row, temperature=1.0, min_p=0.49).ids.tolist() == [0, 1]
    assert chain(np.zeros(3, np.float32), temperature=1.0, min_p=1.0).ids.tolist() == [0, 1, 2]


def test_filters_apply_in_the_order_of_the_chain() -> None:
    """Top-p counts what top-k left; min-p counts what both left."""
    row = np.log(np.array([40, 30, 20, 10], np.float32))
    assert chain(row, temperature=1.0, top_k=2, top_p=0.56).ids.tolist() == [0]  # 40 of 70
    assert chain(row, temperature=1.0, top_p=0.56).ids.tolist() == [0, 1]  # 40 of 100


def test_penalties_come_before_bias() -> None:
    row = np.array([1.0, 0.0], np.float32)
    d = chain(row, [1], temperature=1.0, repetition_penalty=2.0, logit_bias={1: -1.0})
    assert d.prob(1) == pytest.approx(1 / (1 + math.exp(2)))  # 0 × 2 − 1, not (0 − 1) × 2


def test_penalties_look_back_as_far_as_their_window() -> None:
    row = np.zeros(3, np.float32)
    for window, hit in ((1, {2}), (2, {1, 2}), (3, {0, 1, 2}), (0, set())):
        d = chain(row, [0, 1, 2], temperature=1.0, presence_penalty=30.0, penalty_window=window)
        low = {i for i in range(3) if d.prob(i) < 1e-6}
        assert low == (hit if len(hit) < 3 else set())


def test_padding_rows_get_no_probability() -> None:
    row = np.array([0, 1, 9, 9], np.float32)
    assert Sampler(SamplerSettings(), 2).distribution(row, []).ids.tolist() == [1]
    assert Sampler(SamplerSettings(temperature=1.0), 2).distribution(row, [3]).ids.tolist() == [0, 1]


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_logits_that_are_not_numbers_raise(bad: float, temperature: float) -> None:
    row = np.zeros(100, np.float32)
    row[50] = bad
    with pytest.raises(BackendError, match="not numbers"):
        chain(row, temperature=temperature)
    with pytest.raises(BackendError, match="not numbers"):
        chain(np.full(5, -np.inf, np.float32), temperature=temperature)


@pytest.mark.parametrize("temperature", [1e-3, 1e3])
def test_extreme_temperatures_stay_distributions(temperature: float) -> None:
    row = wide_row(3)
    row[3] = -np.inf
    d = chain(row, temperature=temperature)
    assert np.isfinite(d.probs).all()
    assert d.probs.sum() == pytest.approx(1, abs=1e-6)
    assert d.prob(3) == 0
    if temperature < 0.01:
        assert d.prob(int(row.argmax())) > 0.5
    if temperature > 100:
        assert d.probs.max() < 1.1 / WIDE


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -1.0}, "temperature is -1.0"),
        ({"temperature": math.nan}, "temperature is nan"),
        ({"temperature": math.inf}, "temperature is inf"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0.0}, "top_p is 0.0"),
        ({"top_p": 1.5}, "top_p is 1.5"),
        ({"min_p": -0.1}, "min_p is -0.1"),
        ({"repetition_penalty": 0.0}, "repetition_penalty is 0.0"),
        ({"presence_penalty": math.inf}, "presence_penalty is inf"),
        ({"frequency_penalty": math.nan}, "frequency_penalty is nan"),
        ({"penalty_window": -1}, "penalty_window is -1"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias -1"),
        ({"logit_bias": {1: math.inf}}, "logit_bias 1"),
        ({"logit_bias": {1: math.nan}}, "logit_bias 1"),
    ],
)
def test_settings_out_of_range_are_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        SamplerSettings(**options)


def test_a_bias_on_a_token_that_does_not_exist_is_refused() -> None:
    with pytest.raises(UsageError, match="token 25; this model's ids end at 24"):
        Sampler(SamplerSettings(logit_bias={25: 1.0}), 25)


# --- Distribution ---


def test_sampling_by_quantile_covers_each_token_by_its_probability() -> None:
    d = small(0.1, 0.0, 0.6, 0.3)
    u = (np.arange(10_000) + 0.5) / 10_000
    counts = np.bincount([d.sample(x) for x in u], minlength=4)
    assert np.abs(counts - [1000, 0, 6000, 3000]).max() <= 1


@pytest.mark.parametrize("n", [3, 511, 512, 513, 1024, 1025, 5000, WIDE])
def test_wide_distributions_are_sampled_by_their_probabilities(n: int) -> None:
    rng = np.random.default_rng(n)
    d = chain(rng.normal(0, 4, n).astype(np.float32), temperature=1.0)
    upper = np.cumsum(d.probs)
    for u in [*rng.random(300), 0.0, 1 - 2**-53]:
        token = d.sample(u)
        assert d.prob(token) > 0
        assert upper[token] - d.prob(token) - 1e-6 <= u <= upper[token] + 1e-6


def test_the_ends_of_the_unit_interval_never_select_an_impossible_token() -> None:
    row = np.zeros(3000, np.float32)
    row[:1000] = row[2000:] = -np.inf
    for d in (chain(row, temperature=1.0), chain(row[:1500], temperature=1.0)):
        assert 1000 <= d.sample(0.0) < 2000
        assert 1000 <= d.sample(1 - 2**-53) < 2000


def test_probabilities_by_id_are_zero_where_a_token_did_not_survive() -> None:
    d = chain(np.array([5, 1, 5, 0], np.float32), temperature=1.0, top_k=2)
    np.testing.assert_allclose(d.at(np.arange(4)), [0.5, 0, 0.5, 0])
    assert [d.prob(i) for i in range(5)] == pytest.approx([0.5, 0, 0.5, 0, 0])


def test_the_residual_is_what_p_has_more_than_q_renormalised() -> None:
    p, q = small(0.5, 0.3, 0.2), small(0.2, 0.7, 0.1)
    np.testing.assert_allclose(full(p.residual(q), 3), [0.75, 0, 0.25], rtol=1e-5)
    np.testing.assert_allclose(full(p.residual(point_mass(0)), 3), [0, 0.6, 0.4], rtol=1e-5)
    narrow = chain(np.array([0, 9, 9], np.float32), temperature=1.0, top_k=2)
    np.testing.assert_allclose(full(narrow.residual(q), 3), [0, 0, 1], atol=1e-6)


def test_the_residual_against_the_same_distribution_is_that_distribution() -> None:
    p = small(0.5, 0.3, 0.2)
    np.testing.assert_allclose(full(p.residual(small(0.5, 0.3, 0.2)), 3), [0.5, 0.3, 0.2], rtol=1e-5)


# --- the accept rules ---


def test_the_worked_example_of_the_paper_is_accepted_as_often_as_the_overlap() -> None:
    """p = (.5, .5), q = (.9, .1): accepted with Σ min(p, q) = 0.6, and the output is p."""
    p, q = small(0.5, 0.5), small(0.9, 0.1)
    rule = Rejection(np.random.default_rng(0))
    drawn = [rule.draw(q, 0) for _ in range(20_000)]
    emitted = [rule.judge(Node(x, q), p, 0) for x in drawn]
    accepted = sum(a == b for a, b in zip(drawn, emitted, strict=True))
    assert stats.binomtest(accepted, 20_000, 0.6).pvalue > 1e-4
    assert stats.binomtest(sum(emitted), 20_000, 0.5).pvalue > 1e-4


def test_a_rejected_draft_is_never_emitted_again_as_its_correction() -> None:
    p, q = small(0.2, 0.8), small(0.9, 0.1)
    rule = Rejection(np.random.default_rng(1))
    results = {rule.judge(Node(0), p, 0) for _ in range(200)}
    assert results == {0, 1}
    impossible = chain(np.array([-np.inf, 0, 0], np.float32), temperature=1.0)
    assert 0 not in {rule.judge(Node(0, small(1, 0, 0)), impossible, 0) for _ in range(200)}
    assert q.prob(0) > p.prob(0)


def test_verification_stops_at_the_first_rejection_and_looks_no_further() -> None:
    looked: list[int] = []

    def p_at(i: int) -> Distribution:
        looked.append(i)
        return point_mass(10 + i)

    greedy = Rejection(np.random.default_rng(0))
    assert verify([Node(10), Node(99), Node(12)], p_at, greedy, 5) == [10, 11]
    assert looked == [0, 1]
    assert verify([Node(10), Node(11)], p_at, greedy, 5) == [10, 11, 12]
    assert verify([], p_at, greedy, 5) == [10]


# --- Gumbel noise ---


def test_gumbel_noise_has_the_gumbel_distribution_over_ids() -> None:
    noise = gumbel(7, 3, np.arange(200_000))
    assert stats.kstest(noise, "gumbel_r").pvalue > 1e-4
    assert noise.mean() == pytest.approx(np.euler_gamma, abs=0.02)
    assert noise.var() == pytest.approx(math.pi**2 / 6, rel=0.03)


def test_gumbel_noise_has_the_gumbel_distribution_over_positions_and_over_seeds() -> None:
    one = np.array([17])
    for noise in (
        np.array([gumbel(1, t, one)[0] for t in range(20_000)]),
        np.array([gumbel(seed, 5, one)[0] for seed in range(20_000)]),
    ):
        assert stats.kstest(noise, "gumbel_r").pvalue > 1e-4


def test_gumbel_noise_is_independent_between_neighbours() -> None:
    ids = np.arange(20_000)
    base = gumbel(1, 1, ids)
    for other in (gumbel(1, 2, ids), gumbel(2, 1, ids), gumbel(1, 1, ids + 1), gumbel(2**63, 1, ids)):
        assert abs(stats.spearmanr(base, other).statistic) < 4 / math.sqrt(ids.size)


def test_a_tokens_noise_does_not_depend_on_the_other_candidates() -> None:
    some = np.array([3, 1000, 151_999])
    np.testing.assert_array_equal(gumbel(5, 9, np.arange(WIDE))[some], gumbel(5, 9, some))


def test_gumbel_noise_is_finite_for_the_extreme_random_bits(monkeypatch: pytest.MonkeyPatch) -> None:
    from edgespec.decoding import verify as module

    for bits in (0, 2**64 - 1):
        monkeypatch.setattr(module, "_mix", lambda x, bits=bits: np.full(x.shape, bits, np.uint64))
        assert np.isfinite(gumbel(1, 1, np.arange(3))).all()


def test_coupled_draws_of_p_and_of_a_similar_q_mostly_agree() -> None:
    p, q = small(0.5, 0.3, 0.2), small(0.45, 0.35, 0.2)
    agree = sum(Coupled(seed).draw(p, 3) == Coupled(seed).draw(q, 3) for seed in range(4000))
    assert agree > 0.9 * 4000


@pytest.mark.parametrize("options", [{}, {"top_p": 0.9}], ids=["whole vocabulary", "filtered"])
def test_seeded_draws_from_a_wide_distribution_are_distributed_by_it(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(8)
    row = rng.normal(0, 2, 2600).astype(np.float32)
    d = chain(row, temperature=1.0, **options)
    counts = np.bincount([Coupled(seed).draw(d, 11) for seed in range(20_000)], minlength=row.size)
    expected = 20_000 * full(d, row.size)
    assert counts[expected == 0].sum() == 0
    order = np.argsort(-expected)  # cells of about equal expectation, likely tokens alone
    groups = np.unique((np.cumsum(expected[order]) / 25).astype(int), return_inverse=True)[1]
    found, wanted = np.bincount(groups, counts[order]), np.bincount(groups, expected[order])
    big = wanted > 10
    statistic = ((found - wanted)[big] ** 2 / wanted[big]).sum()
    assert big.sum() > 300
    assert stats.chi2.sf(statistic, big.sum() - 1) > 1e-4


def test_seeded_draws_at_neighbouring_positions_are_independent_on_wide_rows() -> None:
    d = chain(np.random.default_rng(9).normal(0, 2, 2600).astype(np.float32), temperature=1.0)
    half = np.cumsum(d.probs) < 0.5
    pairs = [(half[Coupled(s).draw(d, 4)], half[Coupled(s).draw(d, 5)]) for s in range(5_000)]
    table = np.histogram2d(*np.array(pairs, float).T, bins=2)[0]
    assert stats.chi2_contingency(table).pvalue > 1e-4


# --- log-probabilities ---


def test_log_probabilities_are_those_of_a_float64_softmax() -> None:
    row = wide_row(4)
    exact = row.astype(np.float64) - np.logaddexp.reduce(row.astype(np.float64))
    ids = [0, 17, WIDE - 1]
    assert log_softmax_at(row, ids) == pytest.approx(exact[ids].tolist(), abs=1e-5)


def test_the_most_probable_come_largest_first_and_lowest_id_first_among_equals() -> None:
    row = np.array([1, 5, 5, 0, 7], np.float32)
    assert most_probable(row, 3) == [4, 1, 2]
    assert most_probable(row, 2) == [4, 1]
    assert most_probable(row, 0) == []
    assert most_probable(row, 9) == [4, 1, 2, 0, 3]
