"""`edgespec run`: answer one prompt."""

from __future__ import annotations

import sys
from typing import Any

import click

from edgespec.cli import options
from edgespec.cli.endings import INTERRUPTED


@click.command()
@options.prompting
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: text, tokens, statistics.")
@click.option(
    "--logprobs",
    type=click.IntRange(0, 100),
    metavar="N",
    help="With --json: each token's log-probability and the N most probable alternatives.",
)
@options.report
@options.explain_policy
@options.forming
@options.generating(max_tokens=None)
@options.loading
def run(
    as_json: bool,
    report: bool | None,
    explain_policy: bool,
    logprobs: int | None,
    forming: dict[str, Any],
    **families: Any,
) -> None:
    """Answer PROMPT.

    PAIR is a name that `edgespec models` lists, a GGUF file, or hf:, ollama: or lmstudio: and a name;
    without it the best pair on this machine is used. A PROMPT of - (or none, in a pipe) is read from stdin.
    The answer goes to stdout, all remarks go to stderr.
    """
    from edgespec.terminal.run import run as answer

    if logprobs is not None and not as_json:
        raise click.UsageError("--logprobs are printed with --json only; add it")
    families["generating"] |= {"logprobs": logprobs, **forming}
    if not answer(as_json=as_json, report=report, explain_policy=explain_policy, **families):
        sys.exit(INTERRUPTED)
