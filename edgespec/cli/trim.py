"""`edgespec trim`: make a draft with a smaller output head."""

from __future__ import annotations

import click


@click.command()
@click.argument("draft")
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    default=32_000,
    show_default=True,
    metavar="N",
    help="Tokens that stay in the output head: markers and single bytes, and of the others the most "
    "frequent ones in the corpus.",
)
@click.option(
    "--corpus",
    type=click.Path(),
    multiple=True,
    metavar="FILE",
    help="A text file like what will be generated, best with answers of the target; may be repeated. "
    "Where it tells little, and without one, the lowest ids stay: those of a BPE vocabulary are in the order "
    "of its merges, so the first ones are the most frequent.",
)
@click.option(
    "--small",
    is_flag=True,
    help="4 bits for every weight but the embedding's and the head's.",
)
@click.option("--force", is_flag=True, help="Trim even if it was done before.")
def trim(draft: str, keep: int, corpus: tuple[str, ...], small: bool, force: bool) -> None:
    """Make a faster draft of DRAFT, a GGUF model on this machine, for --backend onnx.

    A draft reads its whole output head for every token, and needs a part of it only. What is not kept cannot
    be drafted: that costs speed, never quality. The name of a pair stands for its draft. The folder beside
    the model is used wherever the model is the draft and runs on ONNX Runtime.
    """
    from edgespec.terminal.answer import write_stdout
    from edgespec.terminal.bars import BarProgress
    from edgespec.terminal.trim import trim_model

    with BarProgress() as progress:
        lines = trim_model(draft, keep, corpus, small, force, progress)
    for line in lines:
        write_stdout(f"{line}\n")
