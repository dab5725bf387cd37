"""The control groups that limit this process, of version 2 or 1: its own and every one above it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from edgespec.device.asking import text_of

PROC = Path("/proc")
CGROUP = Path("/sys/fs/cgroup")


def groups_of(controller: str, proc: Path = PROC, root: Path = CGROUP) -> Iterator[tuple[int, Path]]:
    """Version and folder of each group, from the process's own up to the topmost that can be seen from here.
    Some come twice, and not all are there. (In a container its own is at the root, whatever path it is said
    to have.) controller: `memory` or `cpu`."""
    for line in ("0::/", f"0:{controller}:/", *text_of(proc / "self/cgroup").splitlines()):
        _, _, place = line.partition(":")
        controllers, _, path = place.partition(":")
        if controllers == "":
            yield from ((2, folder) for folder in _up(root, path))
        elif controller in controllers.split(","):
            yield from ((1, folder) for folder in _up(root / controller, path))


def _up(root: Path, path: str) -> Iterator[Path]:
    folder = root / path.strip("/")
    while folder == root or root in folder.parents:
        yield folder
        folder = folder.parent
