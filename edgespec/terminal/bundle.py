"""`edgespec bundle`: from its options to a bundle."""

from __future__ import annotations

from pathlib import Path

from edgespec.bundle.bundle import Order, make
from edgespec.bundle.machine import machine
from edgespec.hub.names import path_named
from edgespec.hub.offline import offline as asked_offline
from edgespec.hub.progress import Progress


def make_bundle(
    pair: str,
    output: str,
    archive: bool,
    offline: bool,
    progress: Progress,
    *,
    backend: str,
    platform: str | None,
    python: str | None,
    extras: tuple[str, ...],
    wheels: tuple[str, ...],
) -> Path:
    """Make it; where it is. An archive's name ends in .tar."""
    place = path_named(output)
    if archive and place.suffix != ".tar":
        place = place.with_name(f"{place.name}.tar")
    folders = tuple(path_named(folder).absolute() for folder in wheels)
    order = Order(pair, place, machine(platform, python), backend, extras, folders, archive)
    return make(order, offline or asked_offline(), progress)
