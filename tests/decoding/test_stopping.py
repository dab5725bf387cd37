"""Where the output ends, token by token, on hand-made tokens."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.decoding.stopping import Output, Token
from edgespec.decoding.text import IncrementalText
from edgespec.errors import UsageError

END = b"<end>"


class Pieces:
    """A tokenizer whose token i is the i-th piece; `END` ends."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self.pieces = pieces

    def piece(self, token: int) -> bytes:
        return b"" if self.pieces[token] == END else self.pieces[token]

    def is_end(self, token: int) -> bool:
        return self.pieces[token] == END


def take(
    pieces: Sequence[bytes | str], stop: Sequence[str] = (), max_tokens: int | None = None
) -> tuple[Output, list[list[str]]]:
    """Push the pieces as tokens 0, 1, … until the output ends; the texts released by each."""
    raw = [p.encode() if isinstance(p, str) else p for p in pieces]
    output = Output(Pieces(raw), stop, max_tokens)  # type: ignore[arg-type]
    released = []
    for i in range(len(raw)):
        released.append([t.text for t in output.push(Token(i, "", "plain"))])
        if output.finish_reason:
            break
    return output, released


def test_tokens_are_released_as_they_come_when_nothing_can_stop_them() -> None:
    output, released = take(["a", "b", "c"])
    assert released == [["a"], ["b"], ["c"]]
    assert (output.text, output.tokens, output.finish_reason) == ("abc", [0, 1, 2], None)


def test_an_end_token_ends_the_output_and_is_not_part_of_it() -> None:
    output, _ = take(["a", END, "b"])
    assert (output.text, output.tokens, output.finish_reason) == ("a", [0], "stop")
    assert output.stopped_by is None


def test_a_stop_string_is_found_across_tokens_and_left_out() -> None:
    output, released = take(["x", "ST", "O", "P", "y"], ["STOP"])
    assert released == [["x"], [], [], []]
    assert (output.text, output.tokens, output.stopped_by) == ("x", [0], "STOP")


def test_a_stop_string_inside_a_token_cuts_its_text() -> None:
    output, released = take(["a", "b;c"], [";"])
    assert released == [["a"], ["b"]]
    assert (output.text, output.tokens) == ("ab", [0, 1])


def test_a_token_that_only_begins_a_stop_string_is_released_once_it_does_not() -> None:
    _, released = take(["S", "T", "x", "y"], ["STOP"])
    assert released == [[], [], ["S", "T", "x"], ["y"]]
    _, released = take(["SS", "TOP"], ["STOP"])
    assert released == [[], ["S"]]


def test_of_stop_strings_that_a_token_completes_together_the_first_to_begin_wins() -> None:
    for stops in (["cd", "bcde"], ["bcde", "cd"]):
        output, _ = take(["a", "bcdef"], stops)
        assert (output.text, output.stopped_by) == ("a", "bcde")
    output, _ = take(["a", "bc", "d", "e"], ["cd", "bcde"])
    assert (output.text, output.stopped_by) == ("ab", "cd"), "token by token, the other was not yet there"


def test_overlapping_beginnings_are_all_watched() -> None:
    output, _ = take(list("aabaabx"), ["aabx"])
    assert (output.text, output.stopped_by) == ("aab", "aabx")
    output, _ = take(list("ababac"), ["abac"])
    assert output.text == "ab"


def test_an_end_releases_what_was_held_back() -> None:
    output, released = take(["S", "T", END], ["STOP"])
    assert released == [[], [], ["S", "T"]]
    assert (output.text, output.finish_reason, output.stopped_by) == ("ST", "stop", None)


def test_the_budget_counts_held_tokens_and_releases_them() -> None:
    output, released = take(["S", "T", "O"], ["STOP"], max_tokens=2)
    assert released == [[], ["S", "T"]]
    assert (output.text, output.finish_reason, output.remaining) == ("ST", "length", 0)


def test_the_last_token_of_the_budget_may_complete_a_stop() -> None:
    output, _ = take(["a", "X"], ["X"], max_tokens=2)
    assert (output.finish_reason, output.stopped_by, output.text) == ("stop", "X", "a")


def test_a_character_of_several_tokens_is_released_whole() -> None:
    output, released = take([b"a", b"\xe2", b"\x82", b"\xac", b"b"])
    assert released == [["a"], [], [], ["", "", "€"], ["b"]]
    assert output.tokens == [0, 1, 2, 3, 4]


def test_a_stop_string_of_characters_that_are_split_over_tokens_is_found() -> None:
    output, _ = take([b"a", b"\xe2\x82", b"\xac", b"b"], ["€b"])
    assert (output.text, output.tokens, output.stopped_by) == ("a", [0], "€b")


def test_a_character_that_stays_incomplete_ends_as_a_replacement() -> None:
    output, released = take([b"a", b"\xe2\x82", END])
    assert released[-1] == ["\ufffd"]
    assert output.text == "a\ufffd"
    output, released = take([b"\xe2", b"x"])
    assert (output.text, released) == ("\ufffdx", [[], ["", "\ufffdx"]])


def test_tokens_without_text_are_part_of_the_output() -> None:
    output, released = take(["a", b"", "b"])
    assert released == [["a"], [""], ["b"]]
    assert output.tokens == [0, 1, 2]


def test_finishing_early_keeps_what_was_generated() -> None:
    output, _ = take(["a", "S"], ["STOP"])
    assert [t.text for t in output.finish("cancelled")] == ["S"]
    assert (output.text, output.finish_reason) == ("aS", "cancelled")


def test_impossible_requests_are_refused() -> None:
    with pytest.raises(UsageError, match="stop string is empty"):
        take([], ["x", ""])
    with pytest.raises(UsageError, match="max_tokens is 0"):
        take([], max_tokens=0)


texts = st.lists(
    st.sampled_from([b"a", b"b", b"ab", b"ba", b"", b"\xc3", b"\xa9", b"\xe2", b"\x82"]), max_size=25
)


@settings(max_examples=400, derandomize=True, database=None)
@given(texts, st.lists(st.text("abé", min_size=1, max_size=4), max_size=3), st.none() | st.integers(1, 20))
def test_whatever_comes_text_tokens_and_stream_agree(
    pieces: list[bytes], stop: list[str], max_tokens: int | None
) -> None:
    output, released = take(pieces, stop, max_tokens)
    assert output.text == "".join(text for texts in released for text in texts)
    output.finish_reason or output.finish("cancelled")
    whole = b"".join(pieces).decode("utf-8", "replace")
    if output.stopped_by is None:
        taken = pieces[: len(output.tokens)]
        assert output.text == b"".join(taken).decode("utf-8", "replace")
        assert len(taken) == len(pieces) or output.finish_reason == "length"
    else:
        assert whole.startswith(output.text + output.stopped_by) or "\ufffd" in whole
        *before, last = pieces[: len(output.tokens)] or [b""]
        started = len(IncrementalText().push(b"".join(before)))
        assert started < len(output.text) or last == b"", "the last token lies wholly in the stop string"
    assert not any(s in output.text for s in stop if "\ufffd" not in output.text)
    assert output.tokens == list(range(len(output.tokens)))


@settings(max_examples=300, derandomize=True, database=None)
@given(st.binary(max_size=40), st.lists(st.integers(0, 40), max_size=6))
def test_pieces_of_bytes_become_the_text_that_all_bytes_become(data: bytes, cuts: list[int]) -> None:
    decoder = IncrementalText()
    text = ""
    places = sorted({0, len(data), *(c for c in cuts if c < len(data))})
    for i, start in enumerate(places):
        text += decoder.push(data[start : places[i + 1] if i + 1 < len(places) else len(data)])
    held = decoder.incomplete
    end = decoder.flush()
    assert text + end == data.decode("utf-8", "replace")
    assert bool(end) == held
