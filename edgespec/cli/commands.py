"""The top command and its subcommands."""

from __future__ import annotations

import io
import logging
import sys

import click

from edgespec import __version__
from edgespec.cli.bench import bench
from edgespec.cli.bundle import bundle
from edgespec.cli.chat import chat
from edgespec.cli.convert import convert
from edgespec.cli.endings import Group
from edgespec.cli.explain import explain
from edgespec.cli.models import models
from edgespec.cli.plan import plan
from edgespec.cli.probe import probe
from edgespec.cli.pull import pull
from edgespec.cli.run import run
from edgespec.cli.serve import serve
from edgespec.cli.trim import trim
from edgespec.visible import visible


@click.group(cls=Group, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="edgespec")
@click.option("--debug", is_flag=True, help="Show tracebacks and the runtimes' own messages.")
def main(debug: bool) -> None:
    """Run language models on this machine, faster: lossless speculative decoding."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an answer may hold what the user's encoding has not
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Formatter("edgespec: %(message)s"))
    logging.basicConfig(level=logging.DEBUG if debug else logging.WARNING, handlers=[handler])


class _Formatter(logging.Formatter):
    """Messages quote what files say."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))


for command in (run, chat, serve, explain, pull, models, convert, trim, probe, plan, bench, bundle):
    main.add_command(command)
