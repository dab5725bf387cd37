"""Small files that edgespec keeps for itself."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.hub import state


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))
    return tmp_path


def test_what_cannot_be_kept_leaves_the_one_before_and_nothing_else(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.write("costs.json", {"a": 1})

    def full(*_: object) -> None:
        raise OSError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", full)
        state.write("costs.json", {"a": 2})
    assert state.read("costs.json") == {"a": 1}
    assert [file.name for file in (home / "state").iterdir()] == ["costs.json"]


def test_processes_that_write_at_once_do_not_share_a_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The longer one's end behind the shorter one's text would be no JSON."""
    written: set[Path] = set()
    write_text = Path.write_text

    def note(self: Path, *arguments: str) -> int:
        written.add(self)
        return write_text(self, *arguments)

    monkeypatch.setattr(Path, "write_text", note)
    for pid in (1, 2):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        state.write("costs.json", {"process": pid})
    assert len(written) == 2 and state.read("costs.json") == {"process": 2}
