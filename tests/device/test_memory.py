"""Memory as the process may use it: the machine's, or its control group's."""

from __future__ import annotations

from pathlib import Path

from edgespec.device.memory import UNKNOWN, available_memory, total_memory

GIB = 1 << 30


def machine(folder: Path, total: int = 8, available: int = 6) -> Path:
    file = folder / "meminfo"
    file.write_text(f"MemTotal:  {total << 20} kB\nMemFree: 1 kB\nMemAvailable:  {available << 20} kB\n")
    return file


def test_without_a_limit_it_is_the_machines(tmp_path: Path) -> None:
    meminfo = machine(tmp_path)
    (tmp_path / "memory.max").write_text("max\n")
    assert total_memory(meminfo, tmp_path) == 8 * GIB
    assert available_memory(meminfo, tmp_path) == 6 * GIB


def test_a_control_groups_limit_counts_less_what_it_holds_but_for_cached_files(tmp_path: Path) -> None:
    meminfo = machine(tmp_path)
    (tmp_path / "memory.max").write_text(str(4 * GIB))
    (tmp_path / "memory.current").write_text(str(3 * GIB))
    (tmp_path / "memory.stat").write_text(f"anon 5\ninactive_file {1 * GIB}\n")
    assert total_memory(meminfo, tmp_path) == 4 * GIB
    assert available_memory(meminfo, tmp_path) == 2 * GIB


def test_the_first_version_of_control_groups_is_understood(tmp_path: Path) -> None:
    meminfo, folder = machine(tmp_path), tmp_path / "memory"
    folder.mkdir()
    (folder / "memory.limit_in_bytes").write_text(str(2 * GIB))
    (folder / "memory.usage_in_bytes").write_text(str(1 * GIB))
    assert total_memory(meminfo, tmp_path) == 2 * GIB
    assert available_memory(meminfo, tmp_path) == 1 * GIB


def test_a_system_that_says_nothing_is_taken_to_be_small(tmp_path: Path) -> None:
    assert total_memory(tmp_path / "none", tmp_path) == UNKNOWN
