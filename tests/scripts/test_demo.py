"""What the demo says of plain and speculative answers."""

from __future__ import annotations

import runpy
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DEMO = runpy.run_path(str(Path(__file__).parents[2] / "scripts/demo.py"))


def answering(tokens: list[int], *speeds: float) -> Any:
    """Runs, as fast as these in turn."""

    def answer(speed: float) -> SimpleNamespace:
        stats = SimpleNamespace(tokens_per_second=speed, line=lambda: f"{speed} tok/s")
        return SimpleNamespace(tokens=tokens, text="text", stats=stats)

    answers = map(answer, cycle(speeds))
    return SimpleNamespace(generate=lambda messages, max_tokens: next(answers))


@pytest.mark.parametrize(
    ("plain", "fast", "said"),
    [
        (([1, 2], 10.0), ([1, 2], 15.0), "1.50 x plain decoding (median of 3), the same text"),
        (
            ([1, 2], 10.0),
            ([1, 3], 15.0),
            "1.50 x plain decoding (median of 3), not the same text as plain: docs/exactness.md",
        ),
        (([1], 0.0), ([1], 0.0), "not measurable on so short an answer, the same text"),
    ],
)
def test_what_is_said(
    capsys: pytest.CaptureFixture[str], plain: tuple[Any, Any], fast: tuple[Any, Any], said: str
) -> None:
    DEMO["compare"]("title", "prompt", answering(*plain), answering(*fast))
    assert said in capsys.readouterr().out


def test_a_run_that_was_held_up_decides_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    DEMO["compare"]("title", "prompt", answering([1], 10.0, 11.0, 10.0), answering([1], 2.0, 22.0, 21.0))
    said = capsys.readouterr().out
    assert "2.00 x plain decoding" in said
    assert "11.0 tok/s" in said and "22.0 tok/s" in said
