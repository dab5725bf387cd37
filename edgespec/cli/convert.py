"""`edgespec convert`: make an ONNX model from a GGUF file."""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
@click.option(
    "--portable",
    is_flag=True,
    help="Use ONNX Runtime's own operators only, for machines where edgespec's kernels do not work.",
)
@click.option(
    "--small",
    is_flag=True,
    help="4 bits for every weight but the embedding's and the head's: for draft models, whose errors "
    "cost speed and never quality.",
)
@click.option(
    "--check",
    type=click.Choice(["none", "quick", "full"]),
    default="quick",
    show_default=True,
    help="Compare the result with llama.cpp on a short text; full: with float32 arithmetic too.",
)
@click.option("--force", is_flag=True, help="Convert even if it was done before.")
def convert(name: str, portable: bool, small: bool, check: str, force: bool) -> None:
    """Make an ONNX model from NAME, a GGUF model on this machine, for --backend onnx.

    The folder beside it is complete by itself: the GGUF file may be deleted.
    """
    from edgespec.terminal.answer import write_stdout
    from edgespec.terminal.bars import BarProgress
    from edgespec.terminal.convert import convert_model

    with BarProgress() as progress:
        lines = convert_model(name, portable or None, small, check, force, progress)
    for line in lines:
        write_stdout(f"{line}\n")
