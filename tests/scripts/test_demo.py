"""What the demo says of two answers."""

from __future__ import annotations

import runpy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

DEMO = runpy.run_path(str(Path(__file__).parents[2] / "scripts/demo.py"))


def answering(tokens: list[int], speed: float) -> Any:
    stats = SimpleNamespace(tokens_per_second=speed, line=lambda: "stats")
    answer = SimpleNamespace(tokens=tokens, text="text", stats=stats)
    return SimpleNamespace(generate=lambda messages, max_tokens: answer)


@pytest.mark.parametrize(
    ("plain", "fast", "said"),
    [
        (([1, 2], 10.0), ([1, 2], 15.0), "1.50 x plain decoding, the same text"),
        (
            ([1, 2], 10.0),
            ([1, 3], 15.0),
            "1.50 x plain decoding, not the same text as plain: docs/exactness.md",
        ),
        (([1], 0.0), ([1], 0.0), "not measurable on so short an answer, the same text"),
    ],
)
def test_what_is_said(
    capsys: pytest.CaptureFixture[str], plain: tuple[Any, Any], fast: tuple[Any, Any], said: str
) -> None:
    DEMO["compare"]("title", "prompt", answering(*plain), answering(*fast))
    assert said in capsys.readouterr().out
