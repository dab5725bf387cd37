"""Standard streams that the caller closed (`edgespec … <&-`), so that Python has None in their place, or that
take nothing."""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Any


def replace_closed() -> None:
    """Nothing comes from a closed stdin, what goes to a closed stderr is lost; to write to a closed stdout
    is an error, for that is what the user asked for."""
    if None not in (sys.stdin, sys.stdout, sys.stderr):
        return
    # The descriptors are taken, or the next file opened would get one of them, and others' output.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    if sys.stdin is None:
        sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    if sys.stdout is None:
        sys.stdout = Closed()


def let_remarks_be_lost() -> None:
    """What stderr does not take, as on a full disk, is lost as if it were closed; the answer is not. Consoles
    of Windows are left as they are: they are no files, and have a way of their own."""
    stderr = sys.stderr
    raw = getattr(stderr, "buffer", None)
    raw = getattr(raw, "raw", raw)  # with PYTHONUNBUFFERED there is nothing between
    if isinstance(stderr, io.TextIOWrapper) and isinstance(raw, io.FileIO):
        lossy = Lossy(raw.fileno(), "w", closefd=False)
        sys.stderr = io.TextIOWrapper(
            io.BufferedWriter(lossy), stderr.encoding, stderr.errors, line_buffering=True
        )


class Lossy(io.FileIO):
    """A file that never refuses what is written."""

    def write(self, data: Any) -> int:
        try:
            return super().write(data) or len(data)
        except OSError:
            return len(data)


class Closed(io.TextIOBase):
    """Where stdout was: refuses what is written, at once."""

    encoding = "utf-8"

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if not isinstance(text, str):
            raise TypeError("a text stream")  # click asks in this way what stream it has
        if text:
            raise OSError(errno.EBADF, "stdout is closed, so there is nowhere to write to")
        return 0
