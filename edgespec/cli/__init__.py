"""The command line: one file per command, click only, no logic."""

from __future__ import annotations

import sys


def main(prog_name: str | None = None) -> None:
    """Run the command in `sys.argv`. Imports happen inside, so that Ctrl-C during them is quiet too."""
    try:
        from edgespec.cli.streams import replace_closed

        replace_closed()
        from edgespec.cli.commands import main as commands

        commands.main(prog_name=prog_name)
    except KeyboardInterrupt:
        sys.exit(130)
