"""The command line: one file per command, click only, no logic."""

from __future__ import annotations

import logging
import sys

import click

from edgespec import __version__
from edgespec.errors import EdgespecError, UsageError


class _Group(click.Group):
    """Turns edgespec's errors into one clear line and an exit code: 2 usage, 1 failure."""

    def invoke(self, ctx: click.Context) -> object:
        try:
            return super().invoke(ctx)
        except EdgespecError as error:
            if ctx.params.get("debug"):
                raise
            click.echo(f"edgespec: {error}", err=True)
            sys.exit(2 if isinstance(error, UsageError) else 1)


@click.group(cls=_Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgespec")
@click.option("--debug", is_flag=True, help="Show tracebacks and the runtimes' own messages.")
def main(debug: bool) -> None:
    """Run language models on this machine, faster: lossless speculative decoding."""
    logging.basicConfig(
        level=logging.DEBUG if debug else logging.WARNING, format="edgespec: %(message)s", stream=sys.stderr
    )
