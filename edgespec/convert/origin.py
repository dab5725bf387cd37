"""The GGUF file a conversion was made from: whether it still holds what it held then."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from edgespec.convert.folder import Report
from edgespec.hub import state, store
from edgespec.hub.gguf_header import split_parts
from edgespec.hub.progress import Progress

log = logging.getLogger(__name__)

KEPT = "checksums.json"
"""the checksums of sources: by path and time of change"""


def changed_at(parts: Sequence[Path]) -> int:
    """When a file was changed, in nanoseconds; of a split model the sum over its parts, so that none is
    replaced unnoticed."""
    return sum(part.stat().st_mtime_ns for part in parts)


def checksum(parts: Sequence[Path], progress: Progress | None = None) -> str:
    """The SHA-256 of a file; of a split model, of its parts' checksums one after another."""
    sums = [store.sha256_of(part, progress) for part in parts]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def is_made_from(report: Report, source: Path, sha256: str | None = None) -> bool:
    """Whether a conversion was made from what its source (any part of a split one) holds now. If the source
    has another time of change than then, as copies have, its checksum tells, which takes a second per
    gigabyte, once.

    sha256: the source's, if it is known. Raises OSError for a source that cannot be read.
    """
    parts = split_parts(source)
    if sum(part.stat().st_size for part in parts) != report.source_bytes:
        return False
    changed = changed_at(parts)
    if changed == report.source_mtime_ns:
        return True
    return (sha256 or _checksum_at(tuple(parts), changed)) == report.source_sha256


@cache
def _checksum_at(parts: tuple[Path, ...], changed: int) -> str:
    """Of what was changed then: kept, as the conversion's folder may be one that is only to be read; and once
    per process where nothing can be kept."""
    key = f"{parts[0].resolve()} {changed}"
    found = state.read(KEPT).get(key)
    if not isinstance(found, str):
        log.warning("comparing %s with what was converted from it, once", parts[0].name)
        found = checksum(parts)
        state.write(KEPT, state.read(KEPT) | {key: found})
    return found
