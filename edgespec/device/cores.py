"""How many threads compute well here: the physical big cores this process may use."""

from __future__ import annotations

import math
import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeVar

from edgespec.device.asking import ask, text_of
from edgespec.device.groups import CGROUP, PROC, groups_of

T = TypeVar("T")

SYSTEM = Path("/sys/devices/system/cpu")
CPUINFO = Path("/proc/cpuinfo")
UNLIMITED = 1 << 30


def compute_threads(system: Path = SYSTEM, proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """One thread per physical core, little cores left out, within affinity and cgroup quotas; ≥ 1.

    Hyper-threads share the units that decoding saturates, and one slow core holds up a whole pass.
    """
    allowed = _allowed()
    return max(1, min(_physical(_fastest(allowed, system), system), _quota(proc, cgroup)))


@dataclass(frozen=True)
class Cores:
    """The processor as this process may use it."""

    name: str
    logical: int
    """hardware threads of the machine"""
    allowed: int
    """of these, those this process may run on"""
    physical: int
    """cores among the allowed"""
    big: int
    """of these, the fast ones; the others are left out"""
    quota: int | None
    """cores' worth of time that control groups allow"""


def read_cores(system: Path = SYSTEM, proc: Path = PROC, cgroup: Path = CGROUP) -> Cores:
    """What can be read of the cores."""
    allowed = _allowed()
    limit = _quota(proc, cgroup)
    return Cores(
        name=_processor(proc / "cpuinfo"),
        logical=os.cpu_count() or 1,
        allowed=len(allowed),
        physical=_physical(allowed, system),
        big=_physical(_fastest(allowed, system), system),
        quota=limit if limit < UNLIMITED else None,
    )


def machine(cpuinfo: Path = CPUINFO) -> str:
    """What tells this kind of machine from others for measurements: architecture, processor, cores."""
    return f"{platform.machine()} {_processor(cpuinfo)} {len(_allowed())} cores"


@cache
def instructions(cpuinfo: Path = CPUINFO) -> frozenset[str]:
    """What the processor's flags say it can do beyond its basic instructions, such as avx2 or asimddp."""
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", _read(cpuinfo, str, ""), re.MULTILINE)
    return frozenset(found[1].split() if found else ())


def _processor(cpuinfo: Path) -> str:
    text = _read(cpuinfo, str, "")
    if not text:
        return _as_the_system_calls_it()
    fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
    named = {key.strip(): " ".join(value.split()) for key, value in fields.items()}
    return next((named[key] for key in ("model name", "Model", "Hardware") if key in named), "")


@cache
def _as_the_system_calls_it() -> str:
    """The processor where no file tells, as on a Mac and on Windows."""
    return ask("sysctl", "-n", "machdep.cpu.brand_string").strip() or platform.processor()


def _physical(cpus: list[int], system: Path) -> int:
    return len({_read(system / f"cpu{cpu}/topology/thread_siblings_list", str, str(cpu)) for cpu in cpus})


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


def _quota(proc: Path, cgroup: Path) -> int:
    """Cores' worth of time, begun ones counted."""
    least = UNLIMITED
    for version, folder in groups_of("cpu", proc, cgroup):
        if version == 2:
            words = text_of(folder / "cpu.max").split()
        else:
            words = [text_of(folder / f"cpu.cfs_{word}_us") for word in ("quota", "period")]
        if len(words) == 2 and all(word.isdigit() for word in words):
            quota, period = map(int, words)
            least = min(least, max(1, math.ceil(quota / max(1, period))))
    return least


def _read(file: Path, parse: Callable[[str], T], default: T) -> T:
    try:
        return parse(file.read_text().strip())
    except (OSError, ValueError):
        return default
