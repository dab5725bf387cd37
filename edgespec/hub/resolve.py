"""From what a user names as target or draft to a model on this machine. Never touches the network."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from edgespec.errors import ModelError
from edgespec.hub import lmstudio, ollama, store
from edgespec.hub.catalog import CatalogPair, RemoteFile, load_catalog
from edgespec.hub.gguf_info import read_parts
from edgespec.hub.model_file import ModelFile, Pair
from edgespec.hub.names import exists, kind_of, pair_named, path_named, remote_files, unknown
from edgespec.hub.onnx_folder import is_onnx, models_in, size_of
from edgespec.hub.sizes import human
from edgespec.visible import shorten

_log = logging.getLogger("edgespec.hub")


def resolve(name: str) -> ModelFile:
    """The model on this machine that a name stands for.

    A name is one of the catalog's (a pair stands for its target), a path of a GGUF file (of any part
    of a split one) or of an ONNX model (file or folder), `hf:owner/repo/file.gguf`,
    `ollama:name[:tag]`, or `lmstudio:publisher/repo[/file]`.

    Raises UsageError for a name nobody knows, ModelError when the model is not on this machine (the
    message has the command that pulls it), damaged, or misses a part.
    """
    kind = kind_of(name)
    if kind == "pair":
        return _from_store((pair_named(name).target,), command=name)
    if kind in ("file", "hf"):
        return _from_store(remote_files(name), command=name)
    if kind == "ollama":
        return _complete(ollama.find(name.removeprefix("ollama:")))
    if kind == "lmstudio":
        return _complete(lmstudio.find(name.removeprefix("lmstudio:")))
    path = path_named(name)
    try:
        if kind == "unknown" and not (name.strip() and exists(path)):
            raise unknown(name)
        return _local(name, path)
    except OSError as error:  # it is where this user may not look
        raise ModelError(f"{shorten(str(path))} cannot be read: {error.strerror}") from error


def resolve_pair(name: str) -> Pair:
    """A pair of the catalog, or any single model, which then has no draft. Raises like `resolve`."""
    if kind_of(name) != "pair":
        return Pair(name, resolve(name), None)
    return _pair(pair_named(name))


def installed_pairs() -> list[CatalogPair]:
    """The catalog's pairs whose files are all on this machine, verified or of the right size. Raises
    ModelError where this user may not look."""
    try:
        return [pair for pair in load_catalog().pairs.values() if all(map(store.present, pair.files))]
    except OSError as error:
        raise ModelError(f"the models in {store.home()} cannot be read: {error.strerror}") from error


def best_installed_pair() -> Pair | None:
    """The catalog's pair with the largest target among those whose files are all on this machine.

    The largest answers best; whether it also fits into memory is for the caller to see. Files that came
    here some other way than by pulling are verified; pairs of which one is damaged do not count.
    """
    complete = installed_pairs()
    complete.sort(key=lambda pair: store.path_of(pair.target).stat().st_size, reverse=True)
    return next(filter(None, map(_sound, complete)), None)


def _sound(pair: CatalogPair) -> Pair | None:
    try:
        return _pair(pair)
    except ModelError as error:
        _log.warning("%s", error)
        return None


def _pair(pair: CatalogPair) -> Pair:
    target = _from_store((pair.target,), command=pair.name)
    draft = pair.draft if pair.draft == "ngram" else _from_store((pair.draft,), command=pair.name)
    return Pair(pair.name, target, draft)


def _from_store(files: Sequence[RemoteFile], command: str) -> ModelFile:
    size = 0
    for file in files:
        try:
            record = store.check(file)
        except OSError as error:  # it is where this user may not look
            raise ModelError(f"{store.path_of(file)} cannot be read: {error.strerror}") from error
        if record is None:
            about = f" ({human(file.size)})" if file.size else ""
            raise ModelError(f"{file.name}{about} is not on this machine. Fetch it: edgespec pull {command}")
        size += record.size
    first = files[0]
    path = store.path_of(first)
    sha256 = record.sha256 if record and len(files) == 1 else None
    return ModelFile(first.key, path, size, "store", first.name, first.licence, sha256)


def _local(name: str, path: Path) -> ModelFile:
    if exists(path) and is_onnx(path):
        return ModelFile(name, path.absolute(), size_of(path), "path", path.stem)
    if exists(path) and path.is_dir():
        if several := [str(file.relative_to(path)) for file in models_in(path)]:
            raise ModelError(f"{path} is a folder; name the ONNX model in it: {', '.join(several[:5])}.")
        raise ModelError(f"{path} is a folder; name the GGUF file in it.")
    if not exists(path):
        raise ModelError(f"There is no file {shorten(str(path))}. {_nearby(path)}".strip())
    return _complete(ModelFile(name, path.absolute(), 0, "path", path.stem))


def _nearby(path: Path) -> str:
    try:
        found = sorted(file.name for file in path.parent.glob("*.gguf"))
    except OSError:
        found = []
    have = [shorten(name) for name in found if not name.startswith(".")]
    return f"The folder has: {', '.join(have[:5])}." if have else ""


def _complete(model: ModelFile) -> ModelFile:
    """The model with its real size and licence, its parts checked to be whole: nobody verified them."""
    headers = read_parts(model.path)
    licence = headers[0].metadata.get("general.license")
    return ModelFile(
        name=model.name,
        path=headers[0].path,
        size=sum(header.file_bytes for header in headers),
        origin=model.origin,
        title=model.title,
        licence=licence if isinstance(licence, str) else None,
    )
