"""What the catalog offers and what is on this machine."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.convert.folder import (
    PORTABLE_SUFFIX,
    SUFFIX,
    TRIMMED_SUFFIX,
    folder_for,
    is_converted,
    trimmed_folder_for,
)
from edgespec.hub import lmstudio, ollama, store
from edgespec.hub.catalog import CatalogPair, RemoteFile, load_catalog
from edgespec.hub.gguf_header import split_names
from edgespec.hub.model_file import ModelFile
from edgespec.hub.onnx_folder import size_of

_SUFFIXES = (SUFFIX, PORTABLE_SUFFIX, TRIMMED_SUFFIX)


@dataclass(frozen=True)
class FileState:
    """A file of the catalog, and whether it is on disk."""

    file: RemoteFile
    size: int | None
    """bytes; as measured where it is on disk"""
    on_disk: bool
    verified: bool
    """nothing has changed since its checksum was found right; otherwise it is verified when used"""
    checksum: str
    """`catalog`: pinned by edgespec; `hub`: the one the Hub publishes"""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.file.key,
            "title": self.file.name,
            "bytes": self.size,
            "on_disk": self.on_disk,
            "verified": self.verified,
            "path": str(store.path_of(self.file)) if self.on_disk else None,
            "checksum_from": self.checksum,
            "licence": self.file.licence,
            "sources": ["hub", *(["packages"] if self.file.packages else [])],
        }


@dataclass(frozen=True)
class PairState:
    """A pair of the catalog, and whether it can be run."""

    pair: CatalogPair
    target: FileState
    draft: FileState | None
    """None: drafts by prompt lookup, needs no file"""

    @property
    def on_disk(self) -> bool:
        """All files are there."""
        return self.target.on_disk and (self.draft is None or self.draft.on_disk)

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "name": self.pair.name,
            "about": self.pair.about,
            "tested": self.pair.tested,
            "on_disk": self.on_disk,
            "target": self.target.as_dict(),
            "draft": self.draft.as_dict() if self.draft else "ngram",
        }


@dataclass(frozen=True)
class Inventory:
    """Everything `edgespec models` shows."""

    pairs: tuple[PairState, ...]
    others: tuple[ModelFile, ...]
    """models on this machine beyond the catalog: pulled ones, Ollama's, LM Studio's, converted ones"""

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "store": str(store.home()),
            "pairs": [pair.as_dict() for pair in self.pairs],
            "others": [
                {"name": model.name, "bytes": model.size, "origin": model.origin, "path": str(model.path)}
                for model in self.others
            ],
        }


def take_inventory() -> Inventory:
    """Look at the catalog, the store and what Ollama and LM Studio keep. Hashes nothing."""
    pairs = tuple(
        PairState(pair, _state(pair.target), None if pair.draft == "ngram" else _state(pair.draft))
        for pair in load_catalog().pairs.values()
    )
    others = (*_pulled_by_name(), *ollama.list_models(), *lmstudio.list_models())
    return Inventory(pairs, (*others, *_converted(others)))


def _state(file: RemoteFile) -> FileState:
    on_disk = store.present(file)
    return FileState(
        file,
        size=store.path_of(file).stat().st_size if on_disk else file.size,
        on_disk=on_disk,
        verified=store.installed(file) is not None,
        checksum="catalog" if file.sha256 else "hub",
    )


def _pulled_by_name() -> list[ModelFile]:
    """Files of the store that the catalog does not list. Of a split one the first part stands for all."""
    root = store.home()
    known = {store.path_of(file) for file in load_catalog().files.values()}
    models = []
    for path in sorted(root.glob("*/*/**/*.gguf")):
        hidden = path.name.startswith(".")  # a Mac puts ._x.gguf beside x.gguf on exFAT
        if hidden or path in known or path.name != split_names(path.name)[0] or _is_made(path.parent):
            continue
        parts = [path.with_name(name) for name in split_names(path.name)]
        size = sum(part.stat().st_size for part in parts if part.is_file())
        name = f"hf:{path.relative_to(root).as_posix()}"
        models.append(ModelFile(name, path, size, "store", path.stem))
    return models


def _is_made(folder: Path) -> bool:
    """Whether a folder is a conversion, or becomes one; the GGUF file in it is its tokenizer."""
    return is_converted(folder) or any(suffix in folder.name for suffix in _SUFFIXES)


def _converted(others: Iterable[ModelFile]) -> list[ModelFile]:
    """ONNX models made of these and of the store's files; each lies beside its source."""
    folders = {folder_for(model.path, portable) for model in others for portable in (False, True)}
    folders.update(trimmed_folder_for(model.path) for model in others)
    for suffix in _SUFFIXES:
        folders.update(store.home().glob(f"*/*/**/*{suffix}"))
    return [
        ModelFile(str(folder), folder, size_of(folder), "path", folder.name)
        for folder in sorted(folders)
        if is_converted(folder)
    ]
