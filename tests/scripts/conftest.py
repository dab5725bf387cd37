"""Stand-ins for programs that take minutes, the network, or a board."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

Stub = Callable[[str, str], Path]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With a space in its name."""
    folder = tmp_path / "a folder"
    folder.mkdir()
    return folder


@pytest.fixture
def stub(folder: Path) -> Stub:
    """Put a shell script before everything else on the PATH of `bash`."""

    def write(name: str, body: str) -> Path:
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)
        return path

    return write
