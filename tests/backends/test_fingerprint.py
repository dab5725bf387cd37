"""What tells model files apart: a change anywhere in them, also in another part of a split model."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from edgespec.backends.fingerprint import fingerprint, identity

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(bytes(4 * MIB))
    return path


def change(path: Path, place: int, count: int) -> None:
    """Overwrite bytes, without a trace in the file's time of change."""
    before = path.stat().st_mtime_ns
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"x" * count)
    os.utime(path, ns=(before, before))


@pytest.mark.parametrize("place", [0, MIB + 100, 2 * MIB, 4 * MIB - 20_000])
def test_a_tensor_that_changed_anywhere_in_a_file_makes_it_another_model(file: Path, place: int) -> None:
    before = identity(file), fingerprint(file)
    change(file, place, 20_000)
    assert identity(file) != before[0] and fingerprint(file) != before[1]


def test_a_change_between_the_samples_is_told_by_the_time(file: Path) -> None:
    before = identity(file), fingerprint(file)
    change(file, 2 * MIB + 4096, 10)
    assert (identity(file), fingerprint(file)) == before
    os.utime(file, (1, 1))
    assert identity(file) == before[0] and fingerprint(file) != before[1]


def test_a_copy_is_the_same_model(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.gguf"
    shutil.copyfile(file, copy)
    assert identity(copy) == identity(file)


def test_all_parts_of_a_split_model_count(tmp_path: Path) -> None:
    """The first often holds the metadata only, which models made of one another share."""
    parts = [tmp_path / f"model-0000{i}-of-00002.gguf" for i in (1, 2)]
    for part in parts:
        part.write_bytes(bytes(100))
    before = identity(parts[0]), fingerprint(parts[0])
    change(parts[1], 50, 1)
    assert identity(parts[0]) != before[0] and fingerprint(parts[0]) != before[1]


def test_an_onnx_model_is_told_by_the_files_of_its_folder(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    before = identity(tmp_path)
    assert fingerprint(tmp_path) == before
    (tmp_path / "model.onnx").write_bytes(b"a graph")
    assert identity(tmp_path) != before


def test_what_is_hidden_in_a_folder_is_no_part_of_its_model(tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(b"graph")
    before = identity(tmp_path)
    (tmp_path / ".DS_Store").write_bytes(b"how the window looked")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_bytes(b"ref")
    assert identity(tmp_path) == fingerprint(tmp_path) == before
