"""A llama.cpp backend, and a cache in one."""

from __future__ import annotations

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
