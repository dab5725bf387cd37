"""`edgespec bundle`: all that a machine without a network needs, in one folder."""

from __future__ import annotations

import click


@click.command()
@click.argument("pair")
@click.option(
    "--output", type=click.Path(), required=True, metavar="PATH", help="The folder (or archive) to make."
)
@click.option("--archive", is_flag=True, help="Make one .tar file instead of a folder.")
@click.option(
    "--backend",
    type=click.Choice(["llama.cpp", "onnx"]),
    default="llama.cpp",
    show_default=True,
    help="What runs the models there; onnx takes converted ones (edgespec convert).",
)
@click.option(
    "--platform",
    metavar="TAG",
    help="The machine it is for, such as manylinux_2_31_aarch64: Linux on 64-bit Arm, with glibc 2.31 or "
    "newer. Default: one like this.",
)
@click.option("--python", metavar="VERSION", help="The Python it is for, such as 3.11. Default: this one.")
@click.option(
    "--extra",
    "extras",
    type=click.Choice(["server", "grammar", "bench"]),
    multiple=True,
    default=("server", "grammar"),
    show_default=True,
    help="What else it can do; may be repeated.",
)
@click.option(
    "--wheels",
    type=click.Path(),
    multiple=True,
    metavar="FOLDER",
    help="A folder with wheels of yours, such as one of llama-cpp-python for that machine; may be repeated.",
)
@click.option("--offline", is_flag=True, help="Do not touch the network: take wheels from --wheels only.")
def bundle(pair: str, output: str, archive: bool, offline: bool, **options: object) -> None:
    """Pack PAIR, edgespec and what it needs into a folder that installs and runs without any network.

    The models must be on this machine. Wheels come from the Python package index; what is fetched is said
    before. There, `sh start` installs it all into the folder, and starts a conversation.
    """
    from edgespec.terminal.answer import write_stdout
    from edgespec.terminal.bars import BarProgress
    from edgespec.terminal.bundle import make_bundle

    with BarProgress() as progress:
        made = make_bundle(pair, output, archive, offline, progress, **options)  # type: ignore[arg-type]
    write_stdout(f"{made}\n")
