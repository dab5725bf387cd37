"""Telling model files apart without reading gigabytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

from edgespec.hub.gguf_header import split_parts

_ENDS = 1 << 20
"""bytes that are read of a file's beginning and of its end"""
_BLOCK, _BLOCKS = 1 << 12, 256
"""bytes of a sample in between, and how many there are, about"""


def fingerprint(path: Path) -> str:
    """A hexadecimal digest that another file has, for what must never be used with changed weights: of a
    file's `identity` and its time of change, as what changed may lie between the samples. Of a folder its
    identity."""
    if path.is_dir():
        return identity(path)
    times = [part.stat().st_mtime_ns for part in _parts(path)]
    return hashlib.sha256(f"{_content(path)} {times}".encode()).hexdigest()


def identity(path: Path) -> str:
    """16 hexadecimal digits that tell a model from others, and are the same for copies of it: of a file its
    size, its ends and samples of what lies between them; of a folder (ONNX) the names and sizes of what is in
    it, but for what is hidden: a Mac leaves .DS_Store wherever somebody looked."""
    if path.is_dir():
        places = [file.relative_to(path) for file in path.rglob("*") if file.is_file()]
        shown = [place for place in places if not any(part.startswith(".") for part in place.parts)]
        files = sorted((str(place), (path / place).stat().st_size) for place in shown)
        return hashlib.sha256(repr(files).encode()).hexdigest()[:16]
    return _content(path)[:16]


def _content(path: Path) -> str:
    digest = hashlib.sha256()
    for part in _parts(path):
        size = part.stat().st_size
        digest.update(str(size).encode())
        with part.open("rb", buffering=0) as file:
            digest.update(file.read(_ENDS))
            for place in range(0, size, max(1, size // _BLOCKS // _BLOCK) * _BLOCK):
                file.seek(place)
                digest.update(file.read(_BLOCK))
            file.seek(max(0, size - _ENDS))
            digest.update(file.read(_ENDS))
    return digest.hexdigest()


def _parts(path: Path) -> list[Path]:
    """Of a split GGUF model: its first part may hold no weights."""
    return [part for part in split_parts(path) if part == path or part.is_file()]
