"""Rows of a trimmed draft, -inf for most tokens: what is not in the head has no probability, and what is
emitted has the target's distribution all the same. Rows are wide, so draws take two steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from edgespec.decoding.sampling import BLOCK, Distribution, Sampler, SamplerSettings
from edgespec.decoding.verify import Coupled, Rejection, Rule, verify
from edgespec.drafters.base import Node

WIDTH = 9 * BLOCK + 100
KEPT = np.r_[0:400, 3 * BLOCK : 4 * BLOCK, WIDTH - 5 : WIDTH]
"""whole blocks are missing, the first and the last are there in part"""
ROUNDS = 20_000


def rows() -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """A target's row, most of it unlikely, and the trimmed draft's."""
    rng = np.random.default_rng(5)
    target = rng.normal(0, 1, WIDTH).astype(np.float32)
    target[rng.choice(KEPT, 12, replace=False)] += 9
    target[[1000, 2000, 4500]] += 9.5  # not in the head
    draft = np.full(WIDTH, -np.inf, np.float32)
    draft[KEPT] = target[KEPT] + rng.normal(0, 0.7, len(KEPT)).astype(np.float32)
    return target, draft


def chain(row: NDArray[np.float32], **options: Any) -> Distribution:
    return Sampler(SamplerSettings(**{"temperature": 1.0} | options), WIDTH).distribution(row, [1, 3, 3])


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"temperature": 0.3},
        {"top_k": 40},
        {"top_k": 2000},
        {"top_p": 0.9},
        {"top_p": 0.999999},
        {"min_p": 0.01},
        {"min_p": 1.0},
        {"top_k": 1500, "top_p": 0.99, "min_p": 1e-6},
        {"repetition_penalty": 1.5, "presence_penalty": -2.0, "frequency_penalty": 0.5},
        {"logit_bias": {1000: 50.0, 2000: float("-inf"), 7: 3.0}},
        {"temperature": 0.0},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("error")
def test_the_chain_is_that_of_the_kept_tokens_alone(options: dict[str, Any]) -> None:
    _, draft = rows()
    q = chain(draft, **options)
    place = {int(token): i for i, token in enumerate(KEPT)}
    bias = {place[t]: b for t, b in options.get("logit_bias", {}).items() if t in place}
    alone = Sampler(
        SamplerSettings(**{"temperature": 1.0} | options | {"logit_bias": bias}), len(KEPT)
    ).distribution(draft[KEPT], [place[1], place[3], place[3]])
    found, wanted = np.zeros(WIDTH), np.zeros(WIDTH)
    found[q.ids], wanted[KEPT[alone.ids]] = q.probs, alone.probs
    np.testing.assert_allclose(found, wanted, atol=1e-7)
    assert q.prob(1000) == 0.0
    for u in (0.0, 0.1, 0.5, 0.99, 1 - 2**-53):
        assert q.sample(u) in place


def emitted(rule_of: Callable[[int], Rule]) -> tuple[NDArray[np.int64], int]:
    """First tokens of many rounds with one draft each; how many of the drafts were accepted."""
    target, draft = rows()
    p, q = chain(target), chain(draft)
    found, accepted = np.zeros(WIDTH, np.int64), 0
    for i in range(ROUNDS):
        rule = rule_of(i)
        drafted = rule.draw(q, 9)
        assert q.prob(drafted) > 0
        first, *_ = verify([Node(drafted, q)], lambda _: p, rule, 9)
        found[first] += 1
        accepted += first == drafted
    return found, accepted


@pytest.mark.parametrize("seeded", [False, True], ids=["rejection", "coupled"])
@pytest.mark.filterwarnings("error")
def test_what_is_emitted_has_the_targets_distribution(seeded: bool) -> None:
    stream = Rejection(np.random.default_rng(3))
    found, accepted = emitted(Coupled if seeded else lambda _: stream)
    assert ROUNDS / 5 < accepted < ROUNDS * 4 / 5
    expected = np.zeros(WIDTH)
    p = chain(rows()[0])
    expected[p.ids] = p.probs / p.probs.sum() * ROUNDS
    often = expected >= 10
    observed = [*found[often], found[~often].sum()]
    wanted = [*expected[often], expected[~often].sum()]
    assert often.sum() > 10
    assert stats.chisquare(observed, wanted).pvalue > 1e-4
