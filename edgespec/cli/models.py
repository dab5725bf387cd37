"""`edgespec models`: list, inspect and remove models."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import click

_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON.")


@click.group(invoke_without_command=True)
@_JSON
@click.pass_context
def models(context: click.Context, as_json: bool) -> None:
    """List the models: what the catalog offers, and what is on this machine."""
    command = context.invoked_subcommand
    if command is None:
        context.invoke(list_, as_json=as_json)
    elif as_json:
        raise click.UsageError(f"--json has no place here; put it behind: edgespec models {command} --json")


@models.command("list")
@_JSON
def list_(as_json: bool) -> None:
    """What the catalog offers, and what is on this machine."""
    from edgespec.hub.inventory import take_inventory
    from edgespec.terminal.models import print_inventory

    inventory = take_inventory()
    if as_json:
        click.echo(json.dumps(inventory.as_dict(), indent=2))
    else:
        print_inventory(inventory)


@models.command()
@click.argument("name")
@click.option("--full", is_flag=True, help="Show the whole chat template.")
@_JSON
def inspect(name: str, full: bool, as_json: bool) -> None:
    """What a model is: architecture, quantization, cost of a token, tokenizer, chat template.

    NAME is the path of a GGUF file, or any name that `run` takes.
    """
    from edgespec.hub.gguf_info import read_info
    from edgespec.hub.resolve import resolve
    from edgespec.terminal.models import info_dict, print_info

    info = read_info(resolve(name).path)
    if as_json:
        click.echo(json.dumps(info_dict(info), indent=2))
    else:
        print_info(info, full=full)


@models.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
def rm(name: str, yes: bool) -> None:
    """Delete the pulled files of NAME, and what interrupted pulls of it left. Its conversions stay."""
    from edgespec.hub.remove import plan_removal, remove
    from edgespec.hub.sizes import human

    removal = plan_removal(name)
    for file in removal.kept:
        click.echo(f"Kept: {file.name}, which another pair on this machine uses.", err=True)
    if removal.files and not yes:
        names = " and ".join(file.name for file in removal.files)
        click.confirm(f"Delete {names} ({human(removal.bytes)})?", abort=True, err=True)
    click.echo(f"{human(remove(removal))} freed.")
    if left := removal.conversions:
        what = "a conversion, which works" if len(left) == 1 else "conversions, which work"
        said = f"{_named(left)}, {what} without the file; delete what you do not want."
        click.echo(f"Left: {said}", err=True)
    if left := removal.unfinished:
        said = f"{_named(left)}, of conversions that are under way or were killed; delete what is of no use."
        click.echo(f"Left: {said}", err=True)


def _named(folders: Sequence[Path]) -> str:
    from edgespec.hub.onnx_folder import size_of
    from edgespec.hub.sizes import human
    from edgespec.visible import visible

    return " and ".join(f"{visible(str(folder))} ({human(size_of(folder))})" for folder in folders)
