"""A wheel that pip chose, what it takes, and whether several of them need nothing else."""

from __future__ import annotations

import urllib.request
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

_PATIENCE = 10  # seconds
_AT_ONCE = 8


@dataclass(frozen=True)
class Wheel:
    """A wheel, here or in the package index."""

    name: str
    """in its canonical form"""
    version: str
    url: str
    sha256: str | None
    """as the index has it"""
    requires: tuple[str, ...]
    """its requirements, each with its condition"""

    @classmethod
    def of_report(cls, chosen: Mapping[str, Any]) -> Wheel:
        """From an entry of pip's installation report."""
        metadata, download = chosen["metadata"], chosen["download_info"]
        return cls(
            name=canonicalize_name(metadata["name"]),
            version=metadata["version"],
            url=download["url"],
            sha256=download.get("archive_info", {}).get("hashes", {}).get("sha256"),
            requires=tuple(metadata.get("requires_dist", ())),
        )

    @property
    def file(self) -> str:
        """Its file name, which says what machines it is for."""
        return Path(unquote(urlsplit(self.url).path)).name

    @property
    def here(self) -> Path | None:
        """Where it lies, if that is on this machine."""
        parts = urlsplit(self.url)
        return Path(urllib.request.url2pathname(parts.path)) if parts.scheme == "file" else None

    def pinned(self) -> str:
        """A requirement that this file alone meets."""
        return f"{self.name} @ {self.url}" + (f"#sha256={self.sha256}" if self.sha256 else "")

    def size(self) -> int | None:
        """Bytes; None if the index does not say, as one with a password, which only pip knows."""
        if self.here:
            return self.here.stat().st_size
        try:
            request = urllib.request.Request(self.url, method="HEAD")
            with urllib.request.urlopen(request, timeout=_PATIENCE) as answer:
                return int(answer.headers["Content-Length"])
        except (OSError, TypeError, ValueError):
            return None


def sizes(wheels: Iterable[Wheel]) -> list[int | None]:
    """Of each, as `Wheel.size`."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(Wheel.size, wheels))


def lacking(wheels: Iterable[Wheel], root: Requirement, environment: Mapping[str, str]) -> set[str]:
    """Requirements of `root` and of what it needs that none of the wheels meets, in an environment as
    conditions such as `python_version < "3.11"` mean it."""
    have = {wheel.name: wheel for wheel in wheels}
    missing: set[str] = set()
    seen: set[tuple[str, str]] = set()
    pending = [root]
    while pending:
        needed = pending.pop()
        wheel = have.get(canonicalize_name(needed.name))
        if wheel is None or not needed.specifier.contains(wheel.version, prereleases=True):
            extras = f"[{','.join(sorted(needed.extras))}]" if needed.extras else ""
            missing.add(f"{needed.name}{extras}{needed.specifier}")
            continue
        for extra in {"", *needed.extras}:
            if (wheel.name, extra) not in seen:
                seen.add((wheel.name, extra))
                pending += [r for r in map(Requirement, wheel.requires) if _applies(r, environment, extra)]
    return missing


def _applies(requirement: Requirement, environment: Mapping[str, str], extra: str) -> bool:
    return requirement.marker is None or requirement.marker.evaluate({**environment, "extra": extra})
