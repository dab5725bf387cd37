"""`edgespec serve`: an OpenAI-compatible server."""

from __future__ import annotations

from typing import Any

import click

from edgespec.cli import options


@click.command()
@click.argument("pair")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option(
    "--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="0 takes a free one."
)
@click.option(
    "--api-key",
    envvar="EDGESPEC_API_KEY",
    show_envvar=True,
    metavar="KEY",
    help="What clients must send. Other users of this machine can see it in the list of processes; the "
    "variable hides it.",
)
@click.option("--no-key", is_flag=True, help="Let anyone use a server that other machines can reach.")
@click.option("--name", metavar="NAME", help="The model's name in the API. Default: PAIR.")
@click.option(
    "--cors-origin",
    "origins",
    multiple=True,
    metavar="URL",
    help="Let pages of this origin use the server; may be repeated.",
)
@click.option(
    "--queue",
    type=click.IntRange(min=0),
    default=16,
    show_default=True,
    metavar="N",
    help="How many requests may wait; more are refused.",
)
@click.option(
    "--parallel",
    type=click.IntRange(min=1),
    metavar="N",
    help="How many requests are answered at once, in shared passes; each needs memory for a context. "
    "Default: 4, or as many as an eighth of this machine's memory holds.",
)
@click.option(
    "--cache-memory",
    type=click.IntRange(min=0),
    metavar="MB",
    help="What the caches of earlier conversations may take. Default: 1024, or a sixteenth of this machine's "
    "memory if that is less.",
)
@click.option(
    "--cache-dir",
    metavar="DIR",
    help="Where the caches of conversations are saved when models leave memory; who can read them knows what "
    "was said. Default: nowhere.",
)
@click.option(
    "--cache-disk",
    type=click.IntRange(min=0),
    metavar="MB",
    help="How much may be saved there; what was not used for longest goes first. Default: 1024.",
)
@click.option(
    "--max-body",
    type=click.IntRange(min=1),
    default=4 << 20,
    show_default=True,
    metavar="BYTES",
    help="The largest request.",
)
@click.option(
    "--idle-unload",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Free the memory of the models when nobody asked for this long; the next request loads them again.",
)
@click.option(
    "--grace",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    metavar="SECONDS",
    help="How long answers may go on when the server is told to end.",
)
@options.loading
def serve(pair: str, loading: dict[str, Any], **serving: Any) -> None:
    """Serve PAIR to programs that speak OpenAI's API, on this machine.

    PAIR is named as for `edgespec run`. Chat and text completions are at /v1, described in /openapi.json;
    /health, /metrics and /v1/edgespec/stats tell how it goes.
    """  # fmt: skip
    from edgespec.terminal.serve import serve as run

    run(pair, loading, serving)
