"""The GGUF file a conversion was made from: whether it still holds what it held then."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from pathlib import Path

from edgespec.convert.folder import Report, read_report
from edgespec.hub import store
from edgespec.hub.gguf_header import split_parts
from edgespec.hub.progress import Progress

log = logging.getLogger(__name__)


def changed_at(parts: Sequence[Path]) -> int:
    """When a file was changed, in nanoseconds; of a split model the sum over its parts, so that none is
    replaced unnoticed."""
    return sum(part.stat().st_mtime_ns for part in parts)


def checksum(parts: Sequence[Path], progress: Progress | None = None) -> str:
    """The SHA-256 of a file; of a split model, of its parts' checksums one after another."""
    sums = [store.sha256_of(part, progress) for part in parts]
    return sums[0] if len(sums) == 1 else hashlib.sha256("".join(sums).encode()).hexdigest()


def is_made_from(folder: Path, report: Report, source: Path, sha256: str | None = None) -> bool:
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
    if (sha256 or _checksum_at(tuple(parts), changed)) != report.source_sha256:
        return False
    note_time(folder, report, changed)
    return True


@cache
def _checksum_at(parts: tuple[Path, ...], changed: int) -> str:
    """Of what was changed then. Once per process, where the result cannot be noted."""
    log.warning("comparing %s with what was converted from it, once", parts[0].name)
    return checksum(parts)


def note_time(folder: Path, report: Report, changed: int) -> Report:
    """The report of a conversion whose source was found to be the same at another time of change; written
    down where that is possible."""
    noted = replace(report, source_mtime_ns=changed)
    with suppress(OSError):  # a folder that is only to be read: next time the source is hashed again
        if noted != report == read_report(folder):  # it may have been converted anew meanwhile
            noted.save(folder)
    return noted
