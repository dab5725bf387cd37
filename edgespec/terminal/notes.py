"""Remarks beside the output: they go to stderr, so that stdout holds the answer alone."""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Callable
from shutil import get_terminal_size
from typing import TYPE_CHECKING

from edgespec.visible import shorten, visible

if TYPE_CHECKING:
    from edgespec.control.policy import Policy
    from edgespec.decoding.rounds import Round


def note(text: str) -> None:
    """One line for the user; dim on a terminal."""
    print(dim(f"edgespec: {visible(text)}"), file=sys.stderr, flush=True)


def in_words(error: OSError | MemoryError) -> str:
    """What the machine refused."""
    if isinstance(error, MemoryError):
        return "there is not enough memory; use a smaller model or a smaller --ctx, or end other programs"
    why = error.strerror or str(error) or type(error).__name__
    return f"{shorten(str(error.filename))}: {why}" if error.filename else why


def nobody_reads(error: Exception) -> bool:
    """Whether it says that whoever read our output is gone. A pipe of Windows may call that an invalid
    argument; other errors of that kind name a file."""
    if isinstance(error, BrokenPipeError):
        return True
    invalid = isinstance(error, OSError) and error.errno == errno.EINVAL and error.filename is None
    return invalid and sys.platform == "win32"


def dim(text: str) -> str:
    """For stderr."""
    plain = not sys.stderr.isatty() or os.environ.get("NO_COLOR") or _dumb()
    return text if plain else f"\x1b[2m{text}\x1b[0m"


def _dumb() -> bool:
    """Whether the terminal does nothing but print what it gets, as a console of Windows that was not told
    otherwise."""
    return os.environ.get("TERM") == "dumb" or sys.platform == "win32"


def policy_notes(policy: Policy) -> Callable[[Round], None]:
    """An `on_round` callback that says what was decided and what came of it."""

    def on_round(finished: Round) -> None:
        drafted = (
            f"{finished.accepted} of {len(finished.drafted)} accepted" if finished.drafted else "no draft"
        )
        if sys.stdout.isatty() and sys.stderr.isatty():
            print(file=sys.stderr)  # the answer so far stands in this line
        note(f"{drafted}, {finished.seconds * 1e3:.0f} ms. {policy.explain()}")

    return on_round


class PromptProgress:
    """Shows on a terminal how much of a long prompt has been read; an `on_prompt` callback."""

    def __init__(self) -> None:
        self._shown = False

    def __call__(self, done: int, total: int) -> None:
        if done < total - 1 and sys.stderr.isatty() and not _dumb():
            self._shown = True
            said = f"reading the prompt: {done} of {total} tokens"
            self._write(dim(said[: get_terminal_size().columns - 1]))  # a line that wraps cannot be cleared

    def clear(self) -> None:
        """Before anything else is written."""
        if self._shown:
            self._shown = False
            self._write("")

    def _write(self, text: str) -> None:
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
