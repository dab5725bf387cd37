"""Engines on the closed-form pair."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from pair import load

from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.control.policy import FixedDepth
from edgespec.decoding.generation import Engine
from edgespec.drafters.base import Drafter
from edgespec.drafters.draft_model import DraftModel

from .engines import Build


@pytest.fixture
def build(target: LlamaCpp) -> Iterator[Build]:
    """Engines on the shared target, whose sequences are closed afterwards."""
    engines: list[Engine] = []

    def make(drafter: Drafter | None = None, depth: int = 4) -> Engine:
        engines.append(Engine(target, [] if drafter is None else [drafter], FixedDepth(depth)))
        return engines[-1]

    yield make
    for engine in engines:
        engine.close()


@pytest.fixture(scope="module")
def draft_model(model_files: Path) -> Iterator[DraftModel]:
    drafter = DraftModel(load(model_files / "draft.gguf"))
    yield drafter
    drafter.close()
