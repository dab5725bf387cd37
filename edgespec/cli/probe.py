"""`edgespec probe`: what this machine can do."""

from __future__ import annotations

import click


@click.command()
@click.option(
    "--refresh",
    is_flag=True,
    help="Measure bandwidth again, and have what passes of a model cost, by which --backend auto chooses, "
    "measured again when it is next loaded.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def probe(refresh: bool, as_json: bool) -> None:
    """Measure how fast this machine reads memory, and say what to expect of the models on it.

    Decoding reads all weights for every token, so memory bandwidth is the limit. It is measured once,
    which takes some seconds, and remembered; other programs should be idle meanwhile.
    """
    from edgespec.terminal.probe import probe as measure_and_show

    measure_and_show(refresh, as_json)
