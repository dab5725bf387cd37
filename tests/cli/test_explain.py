from __future__ import annotations

from pathlib import Path

from .conftest import Edgespec


def test_rounds_are_shown_with_marks_in_a_pipe(edgespec: Edgespec, pair: list[object]) -> None:
    ended = edgespec("explain", *pair, "--depth", 4, "yes, stay", "--max-tokens", 30)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert lines[0].startswith("[+]accepted  [-]rejected  [>]what replaces it")
    assert "p/q" not in lines[0]
    assert lines[1].startswith("   1 [=]")  # the prompt's pass has no draft
    for mark in ("[+]", "[-]", "[>]", "[ ]"):
        assert any(mark in line for line in lines[2:])
    assert "plain decoding needs" in lines[-2]
    assert "tok/s" in lines[-1]
    assert "\x1b" not in ended.out


def test_with_a_temperature_p_and_q_are_shown(edgespec: Edgespec, pair: list[object]) -> None:
    out = edgespec("explain", *pair, "--depth", 4, "yes, stay", "--temperature", 1, "--seed", 1).out
    assert "(p/q): probability by target/drafter" in out.splitlines()[0]
    assert "[+]" in out
    assert out.count("/.") > 5


def test_json_holds_the_rounds_and_they_add_up(edgespec: Edgespec, pair: list[object]) -> None:
    found = edgespec("explain", *pair, "--depth", 4, "stay", "--json", "--temperature", 1, "--seed", 4).json
    yielded: list[int] = []
    for round in found["rounds"]:
        yielded += [d["id"] for d in round["drafted"] if d["verdict"] == "accepted"]
        yielded += [round["added"]["id"]] if round["added"] else []
        for d in round["drafted"]:
            assert 0 < d["q"] <= 1
            assert (d["p"] is None) == (d["verdict"] == "not judged")
    assert yielded[: len(found["tokens"])] == found["tokens"]
    assert len(yielded) - len(found["tokens"]) in (0, 1)  # the end token
    assert found["stats"]["accepted"] == sum(
        d["verdict"] == "accepted" for round in found["rounds"] for d in round["drafted"]
    )


def test_colour_when_asked_for_and_not_with_no_color(edgespec: Edgespec, pair: list[object]) -> None:
    words = ("explain", *pair, "--depth", 4, "stay", "--max-tokens", 8)
    assert "\x1b[32m" in edgespec(*words, FORCE_COLOR="1", TERM="xterm-256color").out
    assert "[+]accepted" in edgespec(*words, FORCE_COLOR="1", NO_COLOR="1").out


def test_sixty_four_tokens_unless_told_otherwise(edgespec: Edgespec, endless: Path) -> None:
    out = edgespec("explain", endless, "stay", "--draft", "ngram").out
    assert "64 tokens in" in out
