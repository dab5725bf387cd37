"""A draft that is always wrong, made from a good one."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import edgespec
from edgespec.hub.gguf_info import read_info

SCRIPT = Path(__file__).parents[2] / "scripts/hopeless.py"


def test_a_hopeless_draft_costs_as_much_fits_and_is_rejected(model_files: Path, tmp_path: Path) -> None:
    good, bad = model_files / "draft.gguf", tmp_path / "bad.gguf"
    subprocess.run([sys.executable, SCRIPT, good, bad], check=True, capture_output=True)
    assert replace(read_info(bad), files=()) == replace(read_info(good), files=())
    assert bad.read_bytes() != good.read_bytes()
    accepted, texts = [], []
    for draft in (good, bad):
        with edgespec.load(model_files / "target.gguf", draft=draft, depth=4) as runtime:
            answer = runtime.generate("yes, stay", max_tokens=60, logit_bias={22: float("-inf")})
            accepted.append(answer.stats.acceptance)
            texts.append(answer.text)
    assert accepted[1] < accepted[0] / 2
    assert texts[0] == texts[1]


def test_what_cannot_be_made_hopeless_is_refused_in_words(model_files: Path, tmp_path: Path) -> None:
    draft, text = tmp_path / "draft.gguf", tmp_path / "text.gguf"
    shutil.copy(model_files / "draft.gguf", draft)
    text.write_text("no model")
    for words in ((draft, draft), (text, tmp_path / "bad.gguf"), (draft, tmp_path)):
        ended = subprocess.run([sys.executable, SCRIPT, *words], capture_output=True, text=True)
        assert ended.returncode != 0
        assert "Error: " in ended.stderr
        assert "Traceback" not in ended.stderr
    assert draft.read_bytes() == (model_files / "draft.gguf").read_bytes()
