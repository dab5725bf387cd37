"""Benchmarks: what a suite is, what is summed up, and how a run goes on where one ended."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from edgespec.bench.page import page
from edgespec.bench.run import Compared, as_lines, from_lines, interval, read_suite, summary
from edgespec.errors import UsageError

ONE = Compared("a", "code", 128, 10.0, 20.0, 9.0, 16.0, 3.0, 0.8, 0.2, 0.7, True, {0: 1, 4: 30})


def test_a_suite_is_lines_with_turns_or_a_prompt(tmp_path: Path) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text('{"id": "x", "category": "code", "turns": ["one", "two"]}\n\n{"prompt": "three"}\n')
    first, second = read_suite(file)
    assert (first.id, first.category, first.text) == ("x", "code", "one")
    assert (second.id, second.category, second.text) == ("3", "all", "three")


@pytest.mark.parametrize(
    ("text", "message"), [("{}", "line 1"), ("nonsense", "line 1"), ("\n", "no prompts")]
)
def test_what_is_no_suite_is_refused(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "suite.jsonl"
    file.write_text(text)
    with pytest.raises(UsageError, match=message):
        read_suite(file)


def test_the_mean_is_geometric_and_the_worst_prompt_is_named() -> None:
    found = summary([ONE, replace(ONE, id="b", category="chat", speculative=5.0, same_tokens=False)])
    assert found["geomean_speedup"] == pytest.approx(1.0)
    assert (found["worst_speedup"], found["worst_prompt"]) == (0.5, "b")
    assert found["same_tokens"] == 0.5
    assert found["categories"]["code"]["geomean_speedup"] == pytest.approx(2.0)
    low, high = found["interval"]
    assert low <= 1.0 <= high


def test_the_interval_narrows_with_the_prompts_and_is_always_the_same() -> None:
    few, many = interval([1.0, 2.0] * 3), interval([1.0, 2.0] * 100)
    assert many[1] - many[0] < few[1] - few[0]
    assert interval([1.0, 2.0] * 3) == few


def test_answers_too_short_to_be_timed_are_said_to_be() -> None:
    with pytest.raises(UsageError, match="max-tokens"):
        summary([replace(ONE, plain=0.0)])


def test_results_survive_an_interruption_in_the_middle_of_a_line() -> None:
    text = as_lines([ONE, replace(ONE, id="b")])
    assert from_lines(text) == [ONE, replace(ONE, id="b")]
    assert from_lines(text[:-20]) == [ONE]


def test_the_page_needs_nothing_else_and_escapes_names() -> None:
    results = [replace(ONE, id="<script>"), ONE]
    text = page("pair & draft", results, summary(results))
    assert "<script>" not in text
    assert "http" not in text
    assert "pair &amp; draft" in text
    assert text.count("<svg") == 2
