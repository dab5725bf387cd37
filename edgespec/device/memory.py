"""How much memory this process may use: the machine's, or less where a limit is set for it.

Limits are those of its control group and of every group above it (`docker run --memory`, systemd's
MemoryMax), and of its address space (`ulimit -v`). Linux tells in files, a Mac by `sysctl` and `vm_stat`.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from edgespec.device.asking import ask, text_of
from edgespec.device.groups import CGROUP, PROC, groups_of

UNKNOWN = 1 << 30
"""assumed where the system says nothing"""
UNLIMITED = 1 << 60
_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes"),
    2: ("memory.max", "memory.current"),
}
"""limit and usage, by the version of control groups"""


@dataclass(frozen=True)
class Available:
    """Bytes that can still be had without swapping, and what says so. Cached files count as available:
    the system drops them when memory is wanted."""

    bytes: int
    source: str
    """in words, such as `the machine`"""


def total_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes."""
    return min([_total(proc), *(group.limit for group in _groups(proc, cgroup))])


def available_memory(proc: Path = PROC, cgroup: Path = CGROUP) -> int:
    """Bytes that can still be had without swapping."""
    return find_available(proc, cgroup).bytes


def find_available(proc: Path = PROC, cgroup: Path = CGROUP) -> Available:
    """The least of what the machine, its control groups and `ulimit -v` leave."""
    total = _total(proc)
    known = _kilobytes(text_of(proc / "meminfo"), "MemAvailable")
    if known is None:
        known = parse_vm_stat(ask("vm_stat"))
    who = "the machine" if known is not None else "this system (it does not say, so that is assumed)"
    found = [Available(known if known is not None else UNKNOWN, who)]
    found += (
        Available(max(0, group.limit - group.used), "the control group")
        for group in _groups(proc, cgroup)
        if group.limit < total
    )
    if (space := _address_space(proc)) is not None:
        found.append(Available(space, "ulimit -v"))
    return min(found, key=lambda each: each.bytes)


def resident_memory(proc: Path = PROC) -> int:
    """Bytes that this process has in memory now; 0 where the system does not say."""
    return _kilobytes(text_of(proc / "self/status"), "VmRSS") or 0


def peak_memory() -> int | None:
    """The most bytes that this process has had in memory; None where the system does not say."""
    try:
        import resource
    except ImportError:  # on Windows
        return None
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else most << 10


def parse_vm_stat(text: str) -> int | None:
    """Bytes that a Mac has free or holds files in, of what `vm_stat` prints; None of anything else."""
    page = re.search(r"page size of (\d+) bytes", text)
    kinds = ("Pages free", "Pages purgeable", "File-backed pages")
    pages = [int(n) for kind in kinds for n in re.findall(rf"^{kind}:\s+(\d+)\.", text, re.MULTILINE)]
    return int(page[1]) * sum(pages) if page and len(pages) == len(kinds) else None


@dataclass(frozen=True)
class _Group:
    """A control group. Bytes."""

    limit: int
    used: int
    """cached files aside"""


def _groups(proc: Path, root: Path) -> Iterator[_Group]:
    """The groups of this process that have a limit."""
    for version, folder in groups_of("memory", proc, root):
        limit, usage = _FILES[version]
        if (most := text_of(folder / limit)).isdigit() and int(most) < UNLIMITED:
            used = text_of(folder / usage)
            yield _Group(int(most), (int(used) if used.isdigit() else 0) - _cached(folder))


def _cached(folder: Path) -> int:
    """Bytes of files that a group holds in memory; of version 1 those of the groups below it too."""
    statistics = dict(line.split() for line in text_of(folder / "memory.stat").splitlines())
    kinds = ("inactive_file", "active_file")
    return sum(int(statistics.get(f"total_{kind}", statistics.get(kind, 0))) for kind in kinds)


def _total(proc: Path) -> int:
    if known := _kilobytes(text_of(proc / "meminfo"), "MemTotal"):
        return known
    of_mac = ask("sysctl", "-n", "hw.memsize").strip()
    return int(of_mac) if of_mac.isdigit() else UNKNOWN


def _address_space(proc: Path) -> int | None:
    """What `ulimit -v` leaves; None without such a limit."""
    found = re.search(r"^Max address space\s+(\d+)", text_of(proc / "self/limits"), re.MULTILINE)
    if found is None:
        return None
    return max(0, int(found[1]) - (_kilobytes(text_of(proc / "self/status"), "VmSize") or 0))


def _kilobytes(text: str, key: str) -> int | None:
    found = re.search(rf"^{key}:\s+(\d+) kB", text, re.MULTILINE)
    return int(found[1]) << 10 if found else None
