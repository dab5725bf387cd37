"""How pulling reports what it does, without knowing of the terminal."""

from __future__ import annotations

import logging
from typing import Protocol

_log = logging.getLogger("edgespec.hub")


class Progress(Protocol):
    """Receives the progress of a pull. One task at a time."""

    def message(self, text: str) -> None:
        """Something the user should read: terms, waiting, what was found."""
        ...

    def start(self, task: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        """A task of `total` bytes (or tokens, …) begins, of which `done` were done earlier."""
        ...

    def advance(self, n: int) -> None:
        """`n` more of them; negative when some must be done again."""
        ...


class LogProgress:
    """Messages go to the `edgespec.hub` logger, at a level that is shown by default; the rest is dropped."""

    def message(self, text: str) -> None:
        """Log it."""
        _log.warning(text)

    def start(self, task: str, total: int, done: int = 0, unit: str = "bytes") -> None:
        """Log it where details are wanted."""
        _log.info("%s: %d of %d %s", task, done, total, unit)

    def advance(self, n: int) -> None:
        """Nothing to show."""
