"""Memory as the process may use it: the machine's, or what is left of a limit."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgespec.device.memory import (
    UNKNOWN,
    Available,
    available_memory,
    find_available,
    peak_memory,
    total_memory,
)

GIB = 1 << 30


@pytest.fixture
def proc(tmp_path: Path) -> Path:
    """Of a machine with 8 GiB, 6 of them available."""
    put(tmp_path / "proc/meminfo", f"MemTotal:  {8 << 20} kB\nMemFree: 1 kB\nMemAvailable:  {6 << 20} kB\n")
    return tmp_path / "proc"


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def put(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_without_a_limit_it_is_the_machines(proc: Path, groups: Path) -> None:
    put(groups / "memory.max", "max")
    put(groups / "memory/memory.limit_in_bytes", 9223372036854771712)  # version 1 says so
    assert total_memory(proc, groups) == 8 * GIB
    assert find_available(proc, groups) == Available(6 * GIB, "the machine")


def test_a_control_groups_limit_counts_less_what_it_holds_but_for_cached_files(
    proc: Path, groups: Path
) -> None:
    put(groups / "memory.max", 4 * GIB)
    put(groups / "memory.current", 3 * GIB)
    put(groups / "memory.stat", f"anon 5\ninactive_file {GIB // 2}\nactive_file {GIB // 2}")
    assert total_memory(proc, groups) == 4 * GIB
    assert find_available(proc, groups) == Available(2 * GIB, "the control group")


def test_the_first_version_of_control_groups_is_understood(proc: Path, groups: Path) -> None:
    put(groups / "memory/memory.limit_in_bytes", 2 * GIB)
    put(groups / "memory/memory.usage_in_bytes", 1 * GIB)
    assert total_memory(proc, groups) == 2 * GIB
    assert available_memory(proc, groups) == 1 * GIB


@pytest.mark.parametrize(
    ("line", "folder", "limit"),
    [
        ("0::/system.slice/chat.service", "", "memory.max"),
        ("4:cpu,memory:/system.slice/chat.service", "memory", "memory.limit_in_bytes"),
    ],
)
def test_the_group_of_a_service_and_those_above_it_count(
    proc: Path, groups: Path, line: str, folder: str, limit: str
) -> None:
    put(proc / "self/cgroup", f"7:pids:/\n{line}")
    put(groups / folder / "system.slice/chat.service" / limit, 3 * GIB)
    assert total_memory(proc, groups) == 3 * GIB
    put(groups / folder / "system.slice" / limit, 2 * GIB)
    assert total_memory(proc, groups) == 2 * GIB


def test_a_limit_of_the_address_space_counts() -> None:
    source = (
        "import resource; from edgespec.device.memory import find_available\n"
        f"resource.setrlimit(resource.RLIMIT_AS, ({GIB}, {GIB})); print(find_available())"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    found = eval(done.stdout, {"Available": Available})
    assert found.source == "ulimit -v"
    assert 0 < found.bytes < GIB


def test_a_system_that_says_nothing_is_taken_to_be_small(tmp_path: Path) -> None:
    assert total_memory(tmp_path, tmp_path) == UNKNOWN
    found = find_available(tmp_path, tmp_path)
    assert found.bytes == UNKNOWN and "does not say" in found.source


@pytest.mark.parametrize(("system", "unit"), [("linux", 1024), ("darwin", 1)])
def test_the_peak_is_in_bytes_whatever_the_system_counts_in(
    system: str, unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrusage", lambda _: SimpleNamespace(ru_maxrss=5000))
    monkeypatch.setattr(sys, "platform", system)
    assert peak_memory() == 5000 * unit


def test_windows_has_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "resource", None)
    assert peak_memory() is None


# In the form it prints; not recorded on a Mac of ours.
VM_STAT = """Mach Virtual Memory Statistics: (page size of 16384 bytes)
Pages free:                               10000.
Pages active:                            250000.
Pages inactive:                          240000.
Pages speculative:                         1000.
Pages wired down:                        140000.
Pages purgeable:                           3000.
"Translation faults":                 401339203.
File-backed pages:                       150000.
Anonymous pages:                         341000."""


def test_a_mac_is_asked_for_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, said in (("sysctl", 16 * GIB), ("vm_stat", VM_STAT)):
        put(tmp_path / "bin" / name, f"#!/bin/sh\ncat <<'END'\n{said}\nEND")
        (tmp_path / "bin" / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    assert total_memory(tmp_path, tmp_path) == 16 * GIB
    assert find_available(tmp_path, tmp_path) == Available(163_000 * 16384, "the machine")
