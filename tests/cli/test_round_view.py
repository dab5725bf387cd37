"""What explain makes of a round, on rounds made up for the purpose."""

from __future__ import annotations

import io

import numpy as np
import pytest
from pair import VOCABULARY
from rich.console import Console

from edgespec.backends.base import Step
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import Distribution, point_mass
from edgespec.decoding.stopping import Token
from edgespec.drafters.base import Node
from edgespec.terminal.painting import Painter
from edgespec.terminal.round_view import RoundView, view, visible_token

ID_A, ID_I, ID_M = (VOCABULARY.id(piece) for piece in (b"a", b"i", b"m"))
END = VOCABULARY.marker("<|im_end|>")
P = Distribution(np.array([ID_A, ID_I, ID_M]), np.array([0.5, 0.3, 0.2]), 1.0)
Q = Distribution(np.array([ID_A, ID_M]), np.array([0.9, 0.1]), 1.0)


def a_round(drafted: list[Node], emitted: list[Token], p: Distribution = P) -> Round:
    return Round(drafted, emitted, Step(4, 9, 0.2), 0.1, 0.35, [p] * len(emitted))


def rejected_in_the_middle() -> Round:
    return a_round(
        [Node(ID_A, Q), Node(ID_M, Q), Node(ID_I, Q)],
        [Token(ID_A, "a", "draft"), Token(ID_I, "i", "corrected")],
    )


def painted(*rounds: RoundView, colour: bool, answered: int = 99) -> str:
    out = io.StringIO()
    painter = Painter(
        Console(file=out, force_terminal=colour, width=100, color_system="standard" if colour else None)
    )
    for seen in rounds:
        painter.round(seen)
    painter.summary(rounds, answered)
    return out.getvalue()


def test_a_rejection_leaves_what_was_drafted_behind_it_unjudged(target: LlamaCpp) -> None:
    seen = view(rejected_in_the_middle(), target.tokenizer, greedy=False)
    assert [(d.text, d.verdict) for d in seen.drafted] == [
        ("a", "accepted"),
        ("m", "rejected"),
        ("i", "not judged"),
    ]
    assert [(d.p, d.q) for d in seen.drafted] == [(0.5, 0.9), (0.2, 0.1), (None, 0.0)]
    assert seen.added and (seen.added.text, seen.added.origin, seen.added.p) == ("i", "corrected", 0.3)
    assert (seen.accepted, seen.tokens, seen.verify_seconds) == (1, 2, 0.2)


def test_a_full_acceptance_has_a_bonus_and_a_point_mass_draft_has_q_of_1(target: LlamaCpp) -> None:
    seen = view(
        a_round([Node(ID_A)], [Token(ID_A, "a", "draft"), Token(ID_M, "m", "bonus")]), target.tokenizer, False
    )
    assert seen.drafted[0].q == 1.0
    assert seen.added and seen.added.origin == "bonus"
    assert (seen.accepted, seen.tokens) == (1, 2)


def test_nothing_is_added_behind_an_accepted_end(target: LlamaCpp) -> None:
    seen = view(
        a_round([Node(END, Q)], [Token(END, "", "draft"), Token(ID_M, "m", "bonus")]), target.tokenizer, True
    )
    assert seen.added is None
    assert seen.drafted[0].text == "<|im_end|>"
    assert seen.tokens == 1
    assert "[*]" not in painted(seen, colour=False)


def test_greedy_rounds_have_no_probabilities(target: LlamaCpp) -> None:
    greedy = a_round([Node(ID_A, point_mass(ID_A))], [Token(ID_M, "m", "corrected")], point_mass(ID_M))
    seen = view(greedy, target.tokenizer, True)
    assert (seen.drafted[0].p, seen.drafted[0].q) == (None, None)
    assert seen.added and seen.added.p is None


def test_white_space_and_lone_bytes_can_be_seen(target: LlamaCpp) -> None:
    assert visible_token(VOCABULARY.id(b" a"), target.tokenizer) == "·a"
    assert visible_token(VOCABULARY.id(b"\n"), target.tokenizer) == "⏎"
    assert visible_token(VOCABULARY.id(b"\xe2"), target.tokenizer) == "\\xe2"


def test_marks_where_there_is_no_colour(target: LlamaCpp) -> None:
    text = painted(view(rejected_in_the_middle(), target.tokenizer, False), colour=False)
    assert text.splitlines()[0] == "   1 [+]a(.50/.90) [-]m(.20/.10) [>]i(.30) [ ]i(-/.00)"
    assert "\x1b" not in text
    assert "   1 ######################################## 1" in text
    assert "2 tokens in 1 passes of the target, 2.00 a pass; plain decoding needs 2 passes" in text


@pytest.mark.parametrize(
    "look",
    ["\x1b[32ma\x1b[0m", "\x1b[9;31mm\x1b[0m", "→\x1b[33mi\x1b[0m", "\x1b[2;9mi\x1b[0m"],
    ids=["accepted green", "rejected red and struck", "replaced yellow", "behind it dim"],
)
def test_colours(target: LlamaCpp, look: str) -> None:
    text = painted(view(rejected_in_the_middle(), target.tokenizer, True), colour=True)
    assert look in text
    assert "[+]" not in text


def test_a_bonus_is_cyan(target: LlamaCpp) -> None:
    bonus = a_round([Node(ID_A, Q)], [Token(ID_A, "a", "draft"), Token(ID_M, "m", "bonus")])
    assert "\x1b[36mm\x1b[0m" in painted(view(bonus, target.tokenizer, True), colour=True)


def test_the_tokens_that_ended_the_answer_are_counted_and_told(target: LlamaCpp) -> None:
    """The report of an answer is without them."""
    plain = view(a_round([], [Token(ID_A, "a", "plain")]), target.tokenizer, True)
    end = view(a_round([], [Token(END, "", "plain")]), target.tokenizer, True)
    said = painted(plain, end, colour=False, answered=1)
    assert "2 tokens, with what ended the answer, in 2 passes of the target" in said


def test_the_histogram_counts_rounds_with_drafts_only(target: LlamaCpp) -> None:
    plain = view(a_round([], [Token(ID_A, "a", "plain")]), target.tokenizer, True)
    drafted = view(rejected_in_the_middle(), target.tokenizer, True)
    lines = painted(plain, drafted, drafted, colour=False).splitlines()
    assert [line.split()[-1] for line in lines[5:9]] == ["0", "2", "0", "0"]
    assert "often" not in painted(plain, colour=False)
