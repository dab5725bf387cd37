"""Prompt lookup: worked examples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from edgespec.drafters.ngram import LONGEST_MATCH, NGram, confidence

STATE: Any = None  # a point mass needs no sampler


def drafted(drafter: NGram, context: str, n: int = 4) -> str:
    """The text proposed behind `context`; letters are tokens."""
    drafter.begin([ord(c) for c in context], STATE)
    text = ""
    while len(text) < n and (node := drafter.extend()) is not None:
        assert node.q is None
        text += chr(node.token)
    return text


@pytest.mark.parametrize(
    ("context", "expected"),
    [
        ("abcdefxab", "cdef"),  # the last two tokens occurred before: what followed them
        ("abcdefxb", ""),  # one token alone is no evidence
        ("abcd", ""),
        ("a", ""),
        ("", ""),
        ("abXabYab", "YabY"),  # the most recent occurrence, on through what was proposed
        ("1abX2abY1ab", "X2ab"),  # a longer match wins over a more recent one
        ("abab", "abab"),
        ("aaaa", "aaaa"),
        ("abcab", "cabc"),
    ],
)
def test_worked_examples(context: str, expected: str) -> None:
    assert drafted(NGram(longest=4, shortest=2), context) == expected


def test_the_sizes_bound_what_counts_as_a_match() -> None:
    assert drafted(NGram(longest=1, shortest=1), "abXaYa") == "YaYa"
    assert drafted(NGram(longest=3, shortest=3), "abXab") == ""
    assert drafted(NGram(longest=3, shortest=3), "1abX2ab1ab") == "X2ab"


@pytest.mark.parametrize("length", [2, 5, 31, 32, 33, 40])
def test_an_offer_is_as_sure_as_the_match_is_long(length: int) -> None:
    copied = list(range(100, 100 + length))
    for context in ([*copied, 7, 1, *copied], [9, *copied, 7, 1, *copied]):
        offer = NGram().offer(context)
        assert offer is not None
        assert offer.token == 7
        assert offer.confidences[0] == confidence(min(length, LONGEST_MATCH))


def test_the_index_grows_with_the_text_and_forgets_another_one() -> None:
    drafter = NGram()
    assert drafted(drafter, "abcde") == ""
    assert drafted(drafter, "abcdeab") == "cdea"
    assert drafted(drafter, "abcdeabX") == ""  # what was proposed and rejected is not part of the text
    assert drafted(drafter, "abcdeabXab", 1) == "X"
    assert drafted(drafter, "qqzab") == ""  # another conversation
    assert drafted(drafter, "qqzabqq") == "zabq"
    assert drafted(drafter, "qq") == ""  # a shorter one
    drafter.close()
    assert drafted(drafter, "abab", 2) == "ab"


def test_growing_and_starting_anew_give_the_same_proposals() -> None:
    rng = np.random.default_rng(0)
    text = "".join(rng.choice(list("abc"), 120))
    growing = NGram(3, 1)
    for length in range(1, len(text)):
        assert drafted(growing, text[:length], 6) == drafted(NGram(3, 1), text[:length], 6)
