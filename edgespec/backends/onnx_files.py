"""A model file and its weights, checked before ONNX Runtime sees them: its own words are hard to read."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.convert.folder import remedy
from edgespec.errors import BackendError, ModelError
from edgespec.hub.onnx_folder import files_of

if TYPE_CHECKING:
    from onnx import ModelProto, TensorProto

_LARGE = 256 << 20


def read_converted(path: Path) -> ModelProto:
    """As `read_graph`, of a converted model. Raises BackendError without the package onnx, and ModelError
    if the weights are inside: what cannot be checked does not run."""
    try:
        import onnx  # noqa: F401
    except ImportError as error:
        raise BackendError(
            f"converted models need the package onnx: pip install 'edgespec[onnx]' ({error})"
        ) from error
    model = read_graph(path)
    if model is None:
        raise ModelError(f"{path} is damaged: a converted graph is never as large; {remedy(path.parent)}")
    return model


def read_graph(path: Path) -> ModelProto | None:
    """The graph of a model file, without its weights; None if it holds them, or without the package onnx.

    Raises ModelError if the file is missing or damaged, or if its external data are missing, cut short or
    outside of its folder.
    """
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if size > _LARGE:  # the weights are inside: too long to parse twice
        return None
    try:
        import onnx
        from onnx import TensorProto
    except ImportError:
        return None
    try:
        model: ModelProto = onnx.load_model(str(path), load_external_data=False)
    except Exception as error:
        raise ModelError(f"{path} is not an ONNX model, or damaged ({type(error).__name__})") from error
    if not model.graph.node:
        raise ModelError(f"{path} is not an ONNX model, or damaged (it has no graph)")
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            _check_place(path, tensor)
    return model


def weights_of(path: Path) -> list[Path]:
    """A model file and those that hold its weights, whatever they are called. Raises as `read_graph` does."""
    model = read_graph(path)
    tensors: Iterable[TensorProto] = () if model is None else model.graph.initializer
    places = {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
    return sorted({*files_of(path), *(path.parent / place for place in places)})


def _check_place(path: Path, tensor: TensorProto) -> None:
    """Raise ModelError if the external data of a tensor are not there."""
    place = {entry.key: entry.value for entry in tensor.external_data}
    location = Path(place.get("location", ""))
    if location.is_absolute() or ".." in location.parts:
        raise ModelError(f"{path.name} keeps weights outside of its folder ({location})")
    data = path.parent / location
    again = remedy(path.parent, "fetch or convert it again")
    try:
        have = data.stat().st_size
        offset, length = int(place.get("offset", 0)), int(place.get("length", 0))
    except (OSError, ValueError) as error:
        raise ModelError(f"{data}, the weights of {path.name}, is missing; {again}") from error
    if offset < 0 or length < 0:
        raise ModelError(f"{path} is damaged: {tensor.name} lies at {offset}, {length} bytes; {again}")
    if offset + length > have:
        raise ModelError(
            f"{data} is cut short: it has {have:,} bytes, and {tensor.name} ends at {offset + length:,}; "
            f"{again}"
        )
