"""A store of models for each test, and a model in it."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where models are kept, empty."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "models"


@pytest.fixture
def model(model_files: Path, store: Path) -> Path:
    """A GGUF model in the store, with another beside it that can draft for it."""
    folder = store / "owner" / "repo"
    folder.mkdir(parents=True)
    for name in ("target", "draft"):
        shutil.copy(model_files / f"{name}.gguf", folder)
    return folder / "target.gguf"
