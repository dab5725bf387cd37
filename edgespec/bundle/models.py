"""The models of a bundle: which files, and how the start script names them."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from edgespec.convert.folder import (
    VERSION,
    VOCABULARY,
    folder_for,
    is_converted,
    is_trimmed,
    read_report,
    trimmed_folder_for,
)
from edgespec.convert.origin import is_made_from
from edgespec.errors import ModelError, UsageError
from edgespec.hub.catalog import load_catalog
from edgespec.hub.gguf_info import read_parts
from edgespec.hub.model_file import ModelFile
from edgespec.hub.onnx_folder import home_of, is_onnx
from edgespec.hub.resolve import resolve_pair

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Bundled:
    """A model, and where its files go."""

    title: str
    licence: str
    notice: str | None
    """terms that its makers want shown"""
    name: str
    """what to load, below the bundle's folder"""
    files: dict[str, Path]
    """from places below the bundle's folder to files here"""
    sha256: str | None
    """of the only file, where it was verified"""

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(file.stat().st_size for file in self.files.values())


@dataclass(frozen=True)
class Models:
    """A pair's."""

    target: Bundled
    draft: Bundled | Literal["ngram"] | None

    @property
    def all(self) -> list[Bundled]:
        """Those with files."""
        return [model for model in (self.target, self.draft) if isinstance(model, Bundled)]


def choose(pair: str, backend: str, kernels: bool) -> Models:
    """What `pair` consists of on this machine, for a backend; `kernels`: edgespec's own are in the bundle.

    Raises as `resolve_pair` does; UsageError for a model that the backend does not run; ModelError for one
    that was not converted as needed. Each names the command to run.
    """
    found = resolve_pair(pair)
    draft = found.draft
    if isinstance(draft, ModelFile):
        return Models(_bundled(found.target, "target", backend, kernels), _draft(draft, backend, kernels))
    return Models(_bundled(found.target, "target", backend, kernels), draft)


def needs_llama(pair: str, backend: str) -> bool:
    """Whether running them takes llama.cpp. So it does with converted ones, whose vocabulary it reads."""
    found = resolve_pair(pair)
    models = [model for model in (found.target, found.draft) if isinstance(model, ModelFile)]
    ready = [is_onnx(model.path) and not (home_of(model.path) / VOCABULARY).is_file() for model in models]
    return backend == "llama.cpp" or not all(ready)


def _draft(file: ModelFile, backend: str, kernels: bool) -> Bundled:
    trimmed = trimmed_folder_for(file.path)
    if backend == "onnx" and kernels and is_trimmed(trimmed):
        if _is_current(trimmed, file):
            return _folder(file, trimmed, "draft")
        log.warning(
            "%s was made from another file or by another version, and is not packed; make it again: "
            "edgespec trim %s",
            trimmed.name,
            file.name,
        )
    return _bundled(file, "draft", backend, kernels)


def _bundled(file: ModelFile, role: str, backend: str, kernels: bool) -> Bundled:
    if backend == "onnx":
        return _folder(file, file.path if is_onnx(file.path) else _conversion(file, kernels), role)
    if is_onnx(file.path):
        raise UsageError(f"{file.title} is an ONNX model; bundle it with --backend onnx")
    parts = [header.path for header in read_parts(file.path)]
    files = {f"models/{role}/{part.name}": part for part in parts}
    sha256 = file.sha256 if len(parts) == 1 else None
    return Bundled(
        file.title, *_terms(file), name=f"models/{role}/{file.path.name}", files=files, sha256=sha256
    )


def _conversion(file: ModelFile, kernels: bool) -> Path:
    """The folder to bundle: the one for edgespec's kernels, where they are, else the portable one."""
    folders = [folder_for(file.path, portable=True)]
    if kernels:
        folders.insert(0, folder_for(file.path))
    for folder in folders:
        if _is_current(folder, file):
            return folder
    if kernels:
        raise ModelError(f"{file.title} has not been converted to ONNX yet: edgespec convert {file.name}")
    raise ModelError(
        "edgespec's kernels, which have to be compiled on such a machine, are not in this bundle; convert "
        f"{file.title} for ONNX Runtime's own operators: edgespec convert {file.name} --portable. (Or make "
        "edgespec's wheel there, and name its folder: --wheels FOLDER)"
    )


def _is_current(folder: Path, file: ModelFile) -> bool:
    """Whether a folder is a conversion of what the file holds, by this version: no other one is loaded."""
    report = read_report(folder) if is_converted(folder) else None
    return report is not None and report.version == VERSION and is_made_from(report, file.path, file.sha256)


def _folder(file: ModelFile, model: Path, role: str) -> Bundled:
    """Of an ONNX model, everything in its folder."""
    if not model.is_dir():
        raise UsageError(f"Name the folder of the model, not {model.name} in it: all of it is bundled.")
    root = home_of(model)
    files = {
        f"models/{role}/{root.name}/{path.relative_to(root).as_posix()}": path
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    return Bundled(file.title, *_terms(file), name=f"models/{role}/{root.name}", files=files, sha256=None)


def _terms(file: ModelFile) -> tuple[str, str | None]:
    """Licence, and what its makers want shown."""
    known = load_catalog().files.get(file.name)
    return file.licence or "not stated in its files", known.notice if known else None
