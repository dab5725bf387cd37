"""How much memory this process may use: the machine's, or its control group's if that is less."""

from __future__ import annotations

import re
from pathlib import Path

MEMINFO = Path("/proc/meminfo")
CGROUP = Path("/sys/fs/cgroup")
UNKNOWN = 1 << 30
"""assumed where the system says nothing"""


def total_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes."""
    return min(_machine("MemTotal", meminfo), _limit(cgroup))


def available_memory(meminfo: Path = MEMINFO, cgroup: Path = CGROUP) -> int:
    """Bytes that can still be had without swapping; cached files count as available."""
    limit = _limit(cgroup)
    free = _machine("MemAvailable", meminfo)
    if limit >= _machine("MemTotal", meminfo):
        return free
    return max(0, min(free, limit - _used(cgroup)))


def _machine(key: str, meminfo: Path) -> int:
    found = re.search(rf"^{key}:\s+(\d+) kB", _text(meminfo), re.MULTILINE)
    return int(found[1]) << 10 if found else UNKNOWN


def _limit(cgroup: Path) -> int:
    """Of version 2, or 1."""
    for name in ("memory.max", "memory/memory.limit_in_bytes"):
        if (text := _text(cgroup / name)).isdigit():
            return int(text)
    return 1 << 62


def _used(cgroup: Path) -> int:
    for folder, usage in ((cgroup, "memory.current"), (cgroup / "memory", "memory.usage_in_bytes")):
        if (text := _text(folder / usage)).isdigit():
            cached = re.search(
                r"^(?:total_)?inactive_file (\d+)", _text(folder / "memory.stat"), re.MULTILINE
            )
            return int(text) - (int(cached[1]) if cached else 0)
    return 0


def _text(file: Path) -> str:
    try:
        return file.read_text().strip()
    except OSError:
        return ""
