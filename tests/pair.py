"""The closed-form target and draft that most tests run, and how they are loaded.

The draft resembles the target (about half of what it proposes is accepted), so that acceptance and
rejection are both frequent.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from closed_form import NGram

TARGET = NGram.random(0)
DRAFT = NGram.random(1, near=TARGET, mix=0.8)
HOPELESS = NGram.random(2, near=TARGET, mix=0.0)
VOCABULARY = TARGET.vocabulary
KEPT = tuple(VOCABULARY.id(piece) for piece in (b"a", b"i", b"n", b"s", b"t", b"y", b" ", b"er", b"\xe2"))
"""ids of the trimmed draft's head: less than a half, and not even all markers"""


def load(path: Path, **options: Any) -> Any:
    """A `LlamaCpp` backend, or an `Onnx` one for a folder; one thread, since models this small lose time
    with more."""
    from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions

    options = {"n_ctx": 512, "threads": 1, "sequences": 8} | options
    if path.is_dir():
        from edgespec.backends.onnx import Onnx, OnnxOptions

        return Onnx(path, OnnxOptions(**options))
    return LlamaCpp(path, LlamaCppOptions(**options))


def model_path(folder: Path, name: str, runtime: str) -> Path:
    """Where the fixture `model_files` (for "llama.cpp"), `converted` (for "onnx") or `trimmed` (for
    "trimmed") puts a model."""
    endings = {"llama.cpp": "gguf", "onnx": "onnx-edgespec", "trimmed": "onnx-trimmed"}
    return folder / f"{name}.{endings[runtime]}"
