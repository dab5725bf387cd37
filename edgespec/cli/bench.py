"""`edgespec bench`: how much faster, on one's own prompts."""

from __future__ import annotations

from typing import Any

import click

from edgespec.cli import options


@click.command()
@click.argument("pair", required=False)
@click.option(
    "--suite",
    required=True,
    metavar="FILE",
    help="Prompts: lines of JSON with turns or prompt, id, category.",
)
@click.option(
    "--repeats",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="Times each prompt is decoded each way; medians count.",
)
@click.option(
    "--reference",
    is_flag=True,
    help="Also compare with plain llama.cpp on the GGUF file of the same target.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option(
    "--html",
    callback=options.named,
    metavar="FILE",
    help="Also write a page with plots (needs matplotlib).",
)
@click.option(
    "--traces",
    callback=options.named,
    metavar="FILE",
    help="Recorded traces that the page compares depth policies on. Default: those of this run.",
)
@click.option(
    "--resume",
    callback=options.named,
    metavar="FILE",
    help="Keep results in FILE, and go on from those that are there.",
)
@options.generating(max_tokens=128)
@options.loading_several
def bench(pair: str | None, **given: Any) -> None:
    """Compare speculative with plain decoding, prompt by prompt, on this machine.

    Each prompt is decoded both ways, one right after the other, so that drift of the machine cancels. PAIR is
    named as for `edgespec run`.
    """
    from edgespec.terminal.bench import bench as run_suite

    run_suite(pair, **given)
