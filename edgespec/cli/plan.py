"""`edgespec plan`: what fits into memory."""

from __future__ import annotations

import click


@click.command()
@click.argument("pair", required=False)
@click.option("--memory", metavar="SIZE", help="A limit, such as 2GB or 900MiB. Default: what is available.")
@click.option(
    "--ctx",
    "--context",
    "n_ctx",
    type=click.IntRange(min=1),
    metavar="N",
    help="Tokens of context. Default: 4096, and less where that does not fit.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def plan(pair: str | None, memory: str | None, n_ctx: int | None, as_json: bool) -> None:
    """Say which pairs fit into memory, and how: context, KV cache, backend, with a draft model or without.

    With PAIR: what it consists of, and every way to run it.
    """
    from edgespec.terminal.plan import plan as show

    show(pair, memory, n_ctx, as_json)
