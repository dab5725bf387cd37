"""`edgespec explain`: watch speculative decoding work."""

from __future__ import annotations

import sys
from typing import Any

import click

from edgespec.cli import options
from edgespec.cli.endings import INTERRUPTED


@click.command()
@options.prompting
@click.option("--json", "as_json", is_flag=True, help="Print the rounds as one JSON object.")
@options.generating(max_tokens=64)
@options.loading
def explain(as_json: bool, **families: Any) -> None:
    """Show, round by round, what is drafted, accepted and replaced.

    PAIR and PROMPT are as for `edgespec run`. With --temperature, the probabilities that decide are shown.
    """
    from edgespec.terminal.explain import explain as show

    if not show(as_json=as_json, **families):
        sys.exit(INTERRUPTED)
