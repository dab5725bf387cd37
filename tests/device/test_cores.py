"""The cores that compute: those that are fast, as far as control groups give them time."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from edgespec.device.cores import _as_the_system_calls_it, compute_threads, machine, read_cores


def put(file: Path, text: object) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def quota(root: Path) -> int | None:
    return read_cores(root, root / "proc", root / "cgroup").quota


@pytest.mark.parametrize("said", ["max 100000", "max", ""])
def test_without_a_quota_all_cores_have_time(tmp_path: Path, said: str) -> None:
    put(tmp_path / "cgroup/cpu.max", said)
    put(tmp_path / "cgroup/cpu/cpu.cfs_quota_us", -1)  # version 1 says so
    put(tmp_path / "cgroup/cpu/cpu.cfs_period_us", 100_000)
    assert quota(tmp_path) is None


def test_the_quota_of_a_container_counts_begun_cores_whole(tmp_path: Path) -> None:
    put(tmp_path / "cgroup/cpu.max", "250000 100000")
    assert quota(tmp_path) == 3
    put(tmp_path / "cgroup/cpu.max", "20000 100000")
    assert compute_threads(tmp_path, tmp_path / "proc", tmp_path / "cgroup") == 1


@pytest.mark.parametrize("version", [1, 2])
def test_the_quota_of_a_service_and_those_above_it_count(tmp_path: Path, version: int) -> None:
    def limit(group: str, cores: int) -> None:
        if version == 2:
            put(tmp_path / "cgroup" / group / "cpu.max", f"{cores * 100_000} 100000")
        else:
            put(tmp_path / "cgroup/cpu" / group / "cpu.cfs_quota_us", cores * 100_000)
            put(tmp_path / "cgroup/cpu" / group / "cpu.cfs_period_us", 100_000)

    line = "0::/system.slice/chat.service" if version == 2 else "4:cpu,cpuacct:/system.slice/chat.service"
    put(tmp_path / "proc/self/cgroup", f"7:pids:/\n{line}")
    limit("system.slice/chat.service", 3)
    assert quota(tmp_path) == 3
    limit("system.slice", 2)
    assert quota(tmp_path) == 2


@pytest.mark.parametrize("measure", ["cpu_capacity", "cpufreq/cpuinfo_max_freq"])
def test_little_cores_are_left_out(tmp_path: Path, measure: str) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    for cpu in allowed:
        put(tmp_path / f"cpu{cpu}" / measure, 1024 if cpu == allowed[0] else 430)
    found = read_cores(tmp_path, tmp_path / "proc", tmp_path / "cgroup")
    assert (found.physical, found.big) == (len(allowed), 1)
    assert compute_threads(tmp_path, tmp_path / "proc", tmp_path / "cgroup") == 1


def test_hyper_threads_are_one_core(tmp_path: Path) -> None:
    for cpu in os.sched_getaffinity(0):
        put(tmp_path / f"cpu{cpu}/topology/thread_siblings_list", "0-63")
    assert compute_threads(tmp_path, tmp_path / "proc", tmp_path / "cgroup") == 1


def test_a_mac_is_told_from_another_with_as_many_cores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Or what was measured on one would be believed on the next, which gets the user's files."""
    program = tmp_path / "bin/sysctl"
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    found = []
    for name in ("Apple M1", "Apple M4"):
        put(program, f"#!/bin/sh\necho '{name}'")
        program.chmod(0o755)
        _as_the_system_calls_it.cache_clear()
        found.append(machine(tmp_path / "no cpuinfo"))
    _as_the_system_calls_it.cache_clear()
    assert "Apple M1" in found[0] and "Apple M4" in found[1]
