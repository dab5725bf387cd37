"""How many threads compute well here: the physical big cores this process may use."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

SYSTEM = Path("/sys/devices/system/cpu")
CGROUP_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def compute_threads(system: Path = SYSTEM, quota: Path = CGROUP_QUOTA) -> int:
    """One thread per physical core, little cores left out, within affinity and cgroup quota; ≥ 1.

    Hyper-threads share the units that decoding saturates, and one slow core holds up a whole pass.
    """
    allowed = _allowed()
    big = _fastest(allowed, system)
    siblings = {_read(system / f"cpu{cpu}/topology/thread_siblings_list", str, str(cpu)) for cpu in big}
    return max(1, min(len(siblings), _cgroup_limit(quota)))


def _allowed() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _fastest(cpus: list[int], system: Path) -> list[int]:
    """The cores with at least three quarters of the best one's capacity (Arm) or clock."""
    for measure in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speed = {cpu: _read(system / f"cpu{cpu}/{measure}", float, 0.0) for cpu in cpus}
        best = max(speed.values(), default=0.0)
        if best > 0:
            return [cpu for cpu in cpus if speed[cpu] >= 0.75 * best]
    return cpus


def _cgroup_limit(file: Path) -> int:
    quota, _, period = _read(file, str, "max").partition(" ")
    if quota == "max" or not period:
        return 1 << 30
    return max(1, math.ceil(int(quota) / int(period)))


def _read(file: Path, parse: Callable[[str], T], default: T) -> T:
    try:
        return parse(file.read_text().strip())
    except (OSError, ValueError):
        return default
