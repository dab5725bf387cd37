"""A llama.cpp backend, and a cache in one; conversions for ONNX Runtime."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import load

from edgespec.backends.base import Sequence as Cache
from edgespec.backends.llama_cpp import LlamaCpp


@pytest.fixture
def cache(target: LlamaCpp) -> Iterator[Cache]:
    sequence = target.open()
    yield sequence
    target.close(sequence)


@pytest.fixture
def own(model_files: Path) -> Iterator[LlamaCpp]:
    """A backend of this test's own, with two sequences of 64 tokens."""
    backend = load(model_files / "target.gguf", n_ctx=64, sequences=2)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def folder(converted: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A conversion with hidden states."""
    from edgespec.convert.convert import convert

    home = tmp_path_factory.mktemp("hidden")
    shutil.copy(converted / "target.gguf", home / "target.gguf")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(home / "home"))
        return convert(home / "target.gguf", hidden=(0,)).folder


@pytest.fixture(scope="module")
def portable(folder: Path) -> Path:
    """A conversion for ONNX Runtime's own operators."""
    from edgespec.convert.convert import convert

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(folder.parent / "home"))
        return convert(folder.parent / "target.gguf", portable=True).folder
