"""Caches that llama.cpp saved: one JSON line (model fingerprint, tokens, checksum), then its bytes."""

from __future__ import annotations

import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Copy
from edgespec.errors import BackendError


def write(copy: Copy, model: str, file: Path) -> None:
    """Save a cache of the model with this fingerprint. The file appears whole. Raises BackendError."""
    data = cast("NDArray[np.uint8]", copy.data).data
    header = {"model": model, "tokens": copy.tokens, "crc32": _checksum(copy.tokens, data)}
    partial = file.with_name(file.name + ".partial")
    try:
        with partial.open("wb") as out:
            out.write(json.dumps(header).encode() + b"\n")
            out.write(data)
        partial.replace(file)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BackendError(f"the cache could not be saved to {file}: {error.strerror}") from error


def read(file: Path) -> tuple[Copy, str]:
    """What was saved, and the fingerprint of the model. Raises BackendError."""
    try:
        with file.open("rb") as saved:
            header = json.loads(saved.readline())
            model, tokens, check = header["model"], header["tokens"], header["crc32"]
            data = saved.read()
    except OSError as error:
        raise BackendError(f"{file.name} cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise BackendError(f"{file.name} is not a saved cache; delete it") from error
    if check != _checksum(tokens, data):
        raise BackendError(f"{file.name} is damaged; delete it")
    return Copy(tokens, np.frombuffer(data, np.uint8), len(data)), model


def _checksum(tokens: Sequence[int], data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(json.dumps(tokens).encode()))
