"""`edgespec chat`: a conversation."""

from __future__ import annotations

import sys
from typing import Any

import click

from edgespec.cli import options
from edgespec.cli.endings import FAILED


@click.command()
@click.argument("pair", required=False)
@click.option("--system", callback=options.unicode, metavar="TEXT", help="The system message.")
@options.report
@options.explain_policy
@options.generating(max_tokens=None)
@options.loading
def chat(
    pair: str | None, system: str | None, report: bool | None, explain_policy: bool, **families: Any
) -> None:
    """Talk with a model; /help, once inside, says how.

    PAIR is named as for `edgespec run`. In a pipe every line of stdin is a turn; the answers go to stdout,
    the exit code is 1 if a turn failed, and Ctrl-C ends it all.
    """
    from edgespec.terminal.chat import chat as converse

    if not converse(pair, system, report=report, explain_policy=explain_policy, **families):
        sys.exit(FAILED)
