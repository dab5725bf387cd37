"""A difference from plain decoding is a near-tie only where batching explains it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from closed_form import NGram
from pair import TARGET

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.bench.equality import Equality, Margins, compare, measure_margins

PROMPT = [7]
PLAIN = [10, 11, 12, 13]
SECOND = [20, 21, 22, 23]
ALONE = [0.5, 0.05, 3.0, 0.02]


def compared(speculative: dict[int, list[int]], finish_reason: str = "length") -> Equality:
    """Compare with a speculation that answers `speculative[tokens already there]`."""
    margins = Margins(
        np.array(PLAIN), np.array(SECOND), np.array(ALONE, np.float32), np.array(ALONE, np.float32)
    )
    result = Equality(threshold=0.1)

    def speculate(prompt: list[int], max_tokens: int) -> Any:
        return SimpleNamespace(tokens=speculative[len(prompt) - 1][:max_tokens])

    plain: Any = SimpleNamespace(tokens=PLAIN, finish_reason=finish_reason)
    compare(PROMPT, plain, margins, speculate, result)
    return result


def test_the_same_text_is_no_difference() -> None:
    result = compared({0: PLAIN})
    assert (result.prompts, result.tokens, result.near_ties, result.bugs) == (1, 4, [], [])


def test_the_second_best_at_a_small_margin_is_a_near_tie_and_comparing_goes_on_behind_it() -> None:
    result = compared({0: [10, 21, 9, 9], 2: [12, 23]})
    assert result.near_ties == pytest.approx([0.05, 0.02])
    assert result.bugs == []


def test_either_of_the_two_best_may_be_the_one_that_plain_decoding_took() -> None:
    margins = Margins(
        np.array([10, 21]),
        np.array([20, 11]),
        np.array([3, 0.05], np.float32),
        np.array([3, 0.05], np.float32),
    )
    result = Equality(threshold=0.1)
    plain: Any = SimpleNamespace(tokens=[10, 11], finish_reason="length")
    compare(PROMPT, plain, margins, lambda p, n: SimpleNamespace(tokens=[10, 21][:n]), result)  # type: ignore[arg-type,return-value]
    assert result.near_ties == pytest.approx([0.05])
    assert result.bugs == []


@pytest.mark.parametrize(
    "speculative",
    [
        {0: [20, 11, 12, 13], 1: PLAIN[1:]},  # the second best, but far from a tie
        {0: [10, 99, 12, 13], 2: PLAIN[2:]},  # a small margin, but another token
        {0: [10], 2: PLAIN[2:]},  # it ended early
    ],
)
def test_any_other_difference_is_a_bug(speculative: dict[int, list[int]]) -> None:
    result = compared(speculative)
    assert result.near_ties == []
    assert len(result.bugs) == 1


def test_going_on_where_plain_decoding_ended_is_a_bug() -> None:
    assert compared({0: PLAIN}, finish_reason="stop").bugs == []
    assert len(compared({0: [*PLAIN, 14]}, finish_reason="stop").bugs) == 1


def test_margins_are_those_of_the_closed_form(target: LlamaCpp) -> None:
    ngram: NGram = TARGET
    prompt, text = [ngram.vocabulary.bos, 3, 5], [1, 8, 2, 2, 9, 0, 4]
    cache = target.open()
    try:
        margins = measure_margins(target, cache, prompt, text, 3)
    finally:
        target.close(cache)
    for i in range(len(text)):
        log_p = ngram.log_p([*prompt, *text[:i]])
        second, best = np.argsort(log_p)[-2:]
        assert (margins.best[i], margins.second[i]) == (best, second)
        assert margins.alone[i] == pytest.approx(log_p[best] - log_p[second], abs=1e-4)
    assert margins.moved.max() < 1e-4
