"""Tables on stdout, for people and for programs."""

from __future__ import annotations

from collections.abc import Callable

from rich.console import Console

_NO_LIMIT = 1 << 20
"""columns"""


def print_whole(show: Callable[[Console], None]) -> None:
    """Print tables; where there is no terminal, no line is cut, folded or padded, as others read them. What
    users and files call their things is text, brackets and colons included, and no mark-up."""
    console = _console(None)
    if console.is_terminal:
        show(console)
        return
    wide = _console(_NO_LIMIT)
    with wide.capture() as shown:
        show(wide)
    for line in shown.get().splitlines():
        console.file.write(f"{line.rstrip()}\n")


def _console(width: int | None) -> Console:
    return Console(width=width, highlight=False, markup=False, emoji=False)
