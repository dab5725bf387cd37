"""GGUF → a folder with an ONNX decoder, its weights, its tokenizer and a report.

Streams: memory stays at a few hundred megabytes whatever the size of the model. The folder appears
under its name when all of it is written.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from edgespec.errors import BackendError, ModelError, UsageError

try:
    import onnx
except ImportError as error:
    raise BackendError(
        f"converting needs the package onnx: pip install 'edgespec[onnx]' ({error})"
    ) from error

from edgespec.backends.onnx_files import read_graph
from edgespec.convert.external_data import ExternalData
from edgespec.convert.folder import (
    DATA,
    HEAD,
    MODEL,
    PARTIAL,
    TREE,
    UNFINISHED,
    VERSION,
    VOCABULARY,
    Report,
    folder_for,
    read_report,
    trimmed_folder_for,
)
from edgespec.convert.graph import Variant, build_graph, has_tiled_attention
from edgespec.convert.head import Head
from edgespec.convert.origin import changed_at, checksum, is_made_from
from edgespec.convert.source import Source
from edgespec.convert.storage import Storage, stored_bytes
from edgespec.convert.tiles import Tiles
from edgespec.convert.vocabulary_file import write_vocabulary
from edgespec.convert.weights import Weights, write_weights
from edgespec.hub import store
from edgespec.hub.gguf_header import Tensor
from edgespec.hub.progress import LogProgress, Progress
from edgespec.hub.sizes import human
from edgespec.kernels import library


@dataclass(frozen=True)
class Conversion:
    """A converted model."""

    folder: Path
    report: Report
    fresh: bool
    """False: it was there already, of the same source and options"""


def convert(
    path: Path,
    *,
    portable: bool | None = None,
    small: bool = False,
    hidden: tuple[int, ...] | None = None,
    head: Head | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> Conversion:
    """Convert a GGUF model (any part of a split one may be named).

    portable: for ONNX Runtime's own operators; False: for our kernels; None: for those that work here.
    small: 4-bit weights wherever the source has more, except in the embedding and the head; for
        draft models, whose errors cost speed and never quality.
    hidden: make the final hidden state an output, and those behind these layers.
    head: the rows that the output head shall have; the result is a trimmed draft, in a folder of its own.
    force: convert even if it was done before.

    Raises ModelError for models that are damaged or cannot be converted, when the disk is full and when
    another process converts the same model; UsageError for layers that do not exist.
    """
    progress = progress or LogProgress()
    source = Source(path)
    changed = changed_at(source.parts)
    layers = source.decoder.layers
    if hidden is not None and not all(0 <= layer < layers for layer in hidden):
        raise UsageError(
            f"hidden states of layers {list(hidden)} were asked for; there are 0 to {layers - 1}"
        )
    if portable is None:
        portable = library.unavailable() is not None
        if portable:
            library.warn_unavailable("converting for ONNX Runtime's own operators")
    storage = Storage(portable, small)
    folder, trimmed = folder_for(source.path, portable), None
    if head is not None:
        folder, trimmed = trimmed_folder_for(source.path), _trim(source, head, storage)
    _check_name(folder)
    with _locked(folder):
        known = None if force else read_report(folder)
        options = (VERSION, portable, small, None if hidden is None else [*hidden], trimmed)
        if (
            known is not None
            and options == (known.version, known.portable, known.small, known.hidden, known.trimmed)
            and is_made_from(known, source.path)
        ):
            if _is_whole(folder, known, progress):
                return Conversion(folder, known, fresh=False)
            progress.message(f"{folder.name} is damaged, and is made again")
        place = folder.resolve()  # it may be a link to where there is more room
        partial, old = (place.with_name(place.name + end) for end in UNFINISHED)
        for left in (partial, old):  # of an attempt that was killed
            shutil.rmtree(left, ignore_errors=True)
        _require_room(source, storage, place)
        try:
            partial.mkdir(parents=True)
            if head is not None:
                np.save(partial / HEAD, head.ids)
            report = _write(source, partial, storage, hidden, trimmed, progress)
            if changed_at(source.parts) != changed:
                raise ModelError(f"{source.path.name} changed while it was converted; convert it again")
            for file in partial.iterdir():
                store.sync(file)  # a folder that bears its name is complete after a power cut, too
            if place.exists():  # deleted last: that takes time, and fails if it is in use on a network drive
                place.rename(old)
            partial.rename(place)
            shutil.rmtree(old, ignore_errors=True)
            with suppress(OSError):  # some file systems have no such thing
                store.sync(place.parent)
        except OSError as error:
            raise ModelError(f"{folder} cannot be written: {error.strerror or error}") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
    return Conversion(folder, report, fresh=True)


def _is_whole(folder: Path, report: Report, progress: Progress) -> bool:
    """Whether graphs and vocabulary of a conversion are there, its weights as long as they should be, and
    all of it what was written."""
    try:
        for file in (MODEL, TREE):
            read_graph(folder / file)
        return (folder / VOCABULARY).is_file() and _checksums(
            folder, report.sha256, progress
        ) == report.sha256
    except (ModelError, OSError):
        return False


def _checksums(folder: Path, names: Iterable[str], progress: Progress) -> dict[str, str]:
    """Of these files."""
    files = [folder / name for name in names]
    progress.start(
        f"checksums of {folder.name.removesuffix(PARTIAL)}", sum(file.stat().st_size for file in files)
    )
    return {file.name: store.sha256_of(file, progress) for file in files}


def _trim(source: Source, head: Head, storage: Storage) -> dict[str, object]:
    """Trim the head of a source; what the report says about it."""
    whole = _stored(source.head, storage)
    source.trim_head(head.ids)
    rows = {"kept": len(head.ids), "of": source.decoder.vocabulary}
    return rows | {"head_bytes": _stored(source.head, storage), "whole_head_bytes": whole} | head.about()


def _write(
    source: Source,
    folder: Path,
    storage: Storage,
    hidden: tuple[int, ...] | None,
    trimmed: dict[str, object] | None,
    progress: Progress,
) -> Report:
    decoder, header = source.decoder, source.headers[0]
    title = header.metadata.get("general.name")
    name = title if isinstance(title, str) and title else source.path.stem
    progress.start(f"converting {source.path.name}", source.bytes)
    data = ExternalData(folder / DATA)
    try:
        weights = write_weights(source, data, storage, progress.advance)
    finally:
        data.close()
    chain = Variant(tree=False, portable=storage.portable, hidden=hidden)
    ours = has_tiled_attention(decoder, chain) and all(
        isinstance(matrix.form, Tiles) for matrix in weights.matrices.values()
    )
    properties = {
        "edgespec": json.dumps(
            {
                "version": VERSION,
                "name": name,
                "layers": decoder.layers,
                "kv_heads": decoder.kv_heads,
                "head": decoder.head,
                "context": decoder.context,
                "vocabulary": decoder.vocabulary,
                "width": decoder.width,
                "row_invariant": ours,  # a token's logits do not depend on its pass
            }
        )
    }
    for variant, file in ((chain, MODEL), (replace(chain, tree=True), TREE)):
        onnx.save(build_graph(decoder, weights, variant, properties), folder / file)
    write_vocabulary(header, folder / VOCABULARY)
    licence = header.metadata.get("general.license")
    report = Report(
        version=VERSION,
        name=name,
        source=source.path.name,
        source_sha256=_sha256(source, progress),
        source_bytes=_bytes(source),
        source_mtime_ns=changed_at(source.parts),
        portable=storage.portable,
        small=storage.small,
        hidden=None if hidden is None else [*hidden],
        licence=licence if isinstance(licence, str) else None,
        weights=_types(weights),
        trimmed=trimmed,
        sha256=_checksums(folder, sorted(file.name for file in folder.iterdir()), progress),
    )
    report.save(folder)
    return report


def add_quality(conversion: Conversion, quality: dict[str, object]) -> Conversion:
    """Note in the report how good the model is."""
    report = replace(conversion.report, quality=quality)
    report.save(conversion.folder)
    return replace(conversion, report=report)


def _types(weights: Weights) -> list[dict[str, object]]:
    return [
        {"type": type_, "became": became, "weights": n, "exact": exact}
        for (type_, became, exact), n in weights.became.most_common()
    ]


def _bytes(source: Source) -> int:
    return sum(header.file_bytes for header in source.headers)


def _sha256(source: Source, progress: Progress) -> str:
    progress.start(f"hashing {source.path.name}", _bytes(source))
    return checksum(source.parts, progress)


def _check_name(folder: Path) -> None:
    """ONNX Runtime opens files by names in UTF-8 only, unlike all that writes them."""
    try:
        str(folder).encode("utf-8")
    except UnicodeEncodeError as error:
        raise ModelError(
            f"{folder.name} in {folder.parent} would have a name that is no valid Unicode, by which ONNX "
            "Runtime opens no file; rename the model, or the folder it is in"
        ) from error


def _require_room(source: Source, storage: Storage, folder: Path) -> None:
    needed = sum(_stored(tensor, storage) for tensor in source.tensors.values())
    free = shutil.disk_usage(folder.parent).free
    if needed > free:
        raise ModelError(
            f"not enough room to convert {source.path.name}: {human(needed)} needed, "
            f"{human(free)} free in {folder.parent}"
        )


def _stored(tensor: Tensor, storage: Storage) -> int:
    """Bytes that a matrix takes in a conversion."""
    inputs = tensor.shape[0]
    form = storage.form(tensor.name.removesuffix(".weight"), tensor.type, inputs)
    return stored_bytes(form, tensor.elements // inputs, inputs)


def _locked(folder: Path) -> AbstractContextManager[None]:
    taken = ModelError(f"{folder.name} is being written by another process; wait for it")
    return store.locked_path("convert", folder, taken)
