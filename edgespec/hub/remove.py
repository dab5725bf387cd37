"""Removing pulled models."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from edgespec.convert.folder import folders_of, unfinished_of
from edgespec.errors import HubError
from edgespec.hub import store
from edgespec.hub.catalog import RemoteFile, hub_file, load_catalog
from edgespec.hub.names import kind_of, path_named, remote_files
from edgespec.visible import shorten


@dataclass(frozen=True)
class Removal:
    """What removing a name would delete."""

    name: str
    files: tuple[RemoteFile, ...]
    kept: tuple[RemoteFile, ...]
    """shared with another pair on this machine"""

    @property
    def conversions(self) -> tuple[Path, ...]:
        """Folders that were made of the files to delete; they stay."""
        return self._beside(folders_of)

    @property
    def unfinished(self) -> tuple[Path, ...]:
        """Folders of conversions of them that are under way, or were killed; they stay, too."""
        return self._beside(unfinished_of)

    def _beside(self, find: Callable[[Path], list[Path]]) -> tuple[Path, ...]:
        return tuple(dict.fromkeys(f for file in self.files for f in find(store.path_of(file))))

    @property
    def bytes(self) -> int:
        """What the files to delete take, interrupted pulls included."""
        paths = [path for file in self.files for path in _paths(file)]
        return sum(path.stat().st_size for path in paths if path.is_file())


def plan_removal(name: str) -> Removal:
    """What `remove` will do. Raises UsageError for an unknown name, HubError when nothing of it is in
    the store, or the name means a file outside the store."""
    kind = kind_of(name)
    if kind in ("ollama", "lmstudio"):
        raise HubError(f"{shorten(name)} belongs to another program; remove it there.")
    files = (_of_path(path_named(name)),) if kind == "path" else remote_files(name)
    present = tuple(file for file in files if any(path.exists() for path in _paths(file)))
    if not present:
        raise HubError(f"{shorten(name)} is not on this machine.")
    kept = _shared(name, present) if kind == "pair" else ()
    return Removal(name, tuple(file for file in present if file not in kept), kept)


def remove(removal: Removal) -> int:
    """Delete the files; the bytes freed. Raises HubError while one of them is being pulled."""
    freed = 0
    for file in removal.files:
        with store.locked(file, None):
            freed += store.remove(store.path_of(file))
    return freed


def _paths(file: RemoteFile) -> list[Path]:
    path = store.path_of(file)
    return [path, *store.staging(path)]


def _of_path(path: Path) -> RemoteFile:
    root = store.home().resolve()
    full = path.resolve()
    if root not in full.parents:
        raise HubError(
            f"{shorten(str(path))} is not in edgespec's own store ({root}); delete it yourself if you "
            "mean it."
        )
    return hub_file(f"hf:{full.relative_to(root).as_posix()}")


def _shared(name: str, files: tuple[RemoteFile, ...]) -> tuple[RemoteFile, ...]:
    others = [
        pair
        for pair in load_catalog().pairs.values()
        if pair.name != name and all(map(store.present, pair.files))
    ]
    return tuple(file for file in files if any(file in pair.files for pair in others))
