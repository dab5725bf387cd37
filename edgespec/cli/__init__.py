"""The command line: one file per command, click only, no logic."""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType


def main(prog_name: str | None = None) -> None:
    """Run the command in `sys.argv`. Imports happen inside, so that Ctrl-C during them is quiet too."""
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # else the caller ignores it
        signal.signal(signal.SIGINT, _leave)
    from edgespec.cli.commands import main as commands
    from edgespec.cli.streams import let_remarks_be_lost, replace_closed

    signal.signal(signal.SIGINT, usual)
    try:
        replace_closed()
        let_remarks_be_lost()
        commands.main(prog_name=prog_name)
    except KeyboardInterrupt:
        sys.exit(130)


def _leave(signal_number: int, frame: FrameType | None) -> None:
    """At once: the import system swallows and prints some of the exceptions that come to it."""
    os._exit(130)
