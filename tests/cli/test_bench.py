"""`edgespec bench` on the closed-form pair."""

from __future__ import annotations

import json
from pathlib import Path

from .conftest import Edgespec


def test_a_suite_is_compared_reported_and_resumed(
    edgespec: Edgespec, pair: list[object], tmp_path: Path
) -> None:
    suite, kept, html = tmp_path / "suite.jsonl", tmp_path / "kept.jsonl", tmp_path / "page.html"
    lines = [{"id": i, "category": "abc"[i % 2], "prompt": "yes, stay"} for i in range(3)]
    suite.write_text("".join(json.dumps(line) + "\n" for line in lines))
    words = (
        "bench",
        *pair,
        "--suite",
        suite,
        "--max-tokens",
        30,
        "--resume",
        kept,
        "--logit-bias",
        "22=-inf",
    )
    found = edgespec(*words, "--json", "--html", html, "--threads", 1).json
    assert {"geomean_speedup", "worst_speedup", "categories", "interval"} <= found.keys()
    assert set(found["categories"]) == {"a", "b"}
    assert len(found["results"]) == 3
    assert html.read_text().startswith("<!doctype html>")
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:2]))
    again = edgespec(*words, "--threads", 1)
    assert again.code == 0
    assert "3 of 3" in again.err
    assert "1 of 3" not in again.err
    assert "decode only, against plain decoding" in again.out


def test_a_suite_that_is_not_there_is_refused_before_anything_is_loaded(
    edgespec: Edgespec, tmp_path: Path
) -> None:
    ended = edgespec("bench", tmp_path / "no.gguf", "--suite", tmp_path / "none.jsonl")
    assert ended.code == 2
    assert "there is no file" in ended.err
