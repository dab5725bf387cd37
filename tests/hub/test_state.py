"""What edgespec keeps for itself only saves time: nothing that happens to it is an error."""

from __future__ import annotations

from pathlib import Path
from threading import Thread

import pytest

from edgespec.hub import state, store

FILE = "kept.json"


def folder() -> Path:
    return store.home().parent / "state"


@pytest.mark.parametrize("damage", [b"", b"{ nonsense", b"[1]", b"\xff", b"[" * 100_000])
def test_a_damaged_file_is_none(damage: bytes) -> None:
    state.write(FILE, {"a": 1})
    assert state.read(FILE) == {"a": 1}
    (folder() / FILE).write_bytes(damage)
    assert state.read(FILE) == {}
    state.write(FILE, {"a": 2})
    assert state.read(FILE) == {"a": 2}


def test_two_who_write_at_once_leave_what_one_of_them_wrote(monkeypatch: pytest.MonkeyPatch) -> None:
    short, long = {"short": 1}, {"long": list(range(100))}

    def interrupted(path: Path, text: str, encoding: str) -> int:
        with path.open("w", encoding=encoding) as file:
            if "short" in text:
                other = Thread(target=state.write, args=(FILE, long))
                other.start()
                other.join()
            return file.write(text)

    monkeypatch.setattr(Path, "write_text", interrupted)
    state.write(FILE, short)
    assert state.read(FILE) in (short, long)
    assert [file.name for file in folder().iterdir()] == [FILE]


def test_what_cannot_be_written_leaves_the_file_before_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    state.write(FILE, {"a": 1})

    def full(path: Path, text: str, encoding: str) -> int:
        path.touch()
        raise OSError("no space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    state.write(FILE, {"a": 2})
    assert state.read(FILE) == {"a": 1}
    assert [file.name for file in folder().iterdir()] == [FILE]


def test_nothing_is_kept_where_there_is_no_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", "~nobody-here/x")
    state.write(FILE, {"a": 1})
    assert state.read(FILE) == {}


def test_nothing_is_kept_where_the_working_folder_that_the_home_is_named_from_is_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (gone := tmp_path / "gone").mkdir()
    monkeypatch.setenv("EDGESPEC_HOME", "home")
    monkeypatch.chdir(gone)
    gone.rmdir()
    state.write(FILE, {"a": 1})
    assert state.read(FILE) == {}
