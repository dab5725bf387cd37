"""Caches that a graph writes in place, as ONNX Runtime's attention does where past and present are one."""

from __future__ import annotations

import mmap
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.onnx_files import read_graph
from edgespec.backends.onnx_model import Array
from edgespec.errors import UsageError

KV_TYPES: Mapping[str, type[np.floating[Any]]] = {"f32": np.float32, "f16": np.float16}
_ATTENTION = "GroupQueryAttention"
_PAST, _PRESENT = slice(3, 5), slice(1, 3)
"""where keys and values are among its inputs and outputs"""


def kv_type(name: str) -> type[np.floating[Any]]:
    """The type of a cache by its name on the command line. Raises UsageError for those not to be had."""
    if name == "q8_0":
        raise UsageError(
            "the KV type q8_0 is llama.cpp's: the 8-bit caches of ONNX Runtime need scales known in advance; "
            f"choose from {', '.join(KV_TYPES)}, or use --backend llama.cpp"
        )
    if name not in KV_TYPES:
        raise UsageError(f"KV type {name!r} is unknown; choose from {', '.join(KV_TYPES)}")
    return KV_TYPES[name]


def growing_zeros(shape: tuple[int, ...], dtype: type[np.floating[Any]]) -> Array:
    """As `np.zeros`, in memory that is taken page by page as it is written to. numpy asks for huge pages, of
    which the beginnings of many texts, head by head, would take far more than they fill."""
    if not hasattr(mmap, "MADV_NOHUGEPAGE"):
        return np.zeros(shape, dtype)
    memory = mmap.mmap(-1, prod(shape) * np.dtype(dtype).itemsize, flags=mmap.MAP_PRIVATE)
    with suppress(OSError):  # a kernel that knows no huge pages
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    return np.frombuffer(memory, dtype).reshape(shape)


class Binding:
    """Arrays bound to a session's inputs and outputs. They must stay alive."""

    def __init__(self, session: Any, caches: Mapping[str, Array], presents: SequenceOf[str]) -> None:
        """`caches`: by input; `presents`: the outputs that are written into them."""
        self._session, self._binding = session, session.io_binding()
        self._bound: dict[str, tuple[int, tuple[int, ...]]] = {}
        for (past, buffer), present in zip(caches.items(), presents, strict=True):
            self.input(past, buffer)
            self.output(present, buffer)

    def input(self, name: str, buffer: Array, shape: tuple[int, ...] | None = None) -> None:
        """`shape`: of as much of the buffer as is meant."""
        self._bind(self._binding.bind_input, name, buffer, shape or buffer.shape)

    def output(self, name: str, buffer: Array, shape: tuple[int, ...] | None = None) -> None:
        self._bind(self._binding.bind_output, name, buffer, shape or buffer.shape)

    def _bind(self, to: Any, name: str, buffer: Array, shape: tuple[int, ...]) -> None:
        place = (buffer.ctypes.data, shape)
        if self._bound.get(name) != place:  # a look costs less
            to(name, "cpu", 0, buffer.dtype, shape, buffer.ctypes.data)
            self._bound[name] = place

    def run(self) -> None:
        self._session.run_with_iobinding(self._binding)


class FixedCache:
    """`Cache` in buffers as long as the context, bound as both inputs and outputs."""

    def __init__(self, binding: Binding, buffers: Mapping[str, Array], place: int = 0) -> None:
        """`buffers`: zeros [1, kv heads, capacity, head] by input, or in tiles of t positions [1, kv heads,
        capacity / t, head, t], whose pages are committed when first written; `place`: where they begin in
        what is bound."""
        self.binding, self.place = binding, place
        self._buffers = buffers

    def arrays(self, length: int) -> Mapping[str, Array]:
        return {name: _read(buffer, np.arange(length)) for name, buffer in self._buffers.items()}

    def fill(self, arrays: Mapping[str, Array]) -> None:
        for name, buffer in self._buffers.items():
            saved = arrays[name]
            at = np.arange(saved.shape[2])
            if saved.dtype != buffer.dtype or saved.shape != _read(buffer, at).shape:
                raise ValueError(f"{name} is {saved.dtype} {saved.shape}")
            _write(buffer, at, saved)

    def move(self, start: int, indices: SequenceOf[int]) -> None:
        source = start + np.asarray(indices, np.int64)
        for buffer in self._buffers.values():
            _write(buffer, start + np.arange(len(source)), _read(buffer, source))


def _read(buffer: Array, at: NDArray[np.int64]) -> Array:
    """Positions of a cache: [1, kv heads, positions, head]."""
    if buffer.ndim == 4:
        return buffer[:, :, at]
    tile = buffer.shape[4]
    return np.moveaxis(buffer[:, :, at // tile, :, at % tile], 0, 2)


def _write(buffer: Array, at: NDArray[np.int64], values: Array) -> None:
    """Put them there."""
    if buffer.ndim == 4:
        buffer[:, :, at] = values
    else:
        tile = buffer.shape[4]
        buffer[:, :, at // tile, :, at % tile] = np.moveaxis(values, 2, 0)


def writes_in_place(path: Path, pasts: SequenceOf[str], presents: SequenceOf[str]) -> bool:
    """Whether a model's keys and values go through GroupQueryAttention and nothing else, so that they may
    be kept in a `FixedCache`."""
    model = read_graph(path)
    if model is None:
        return False
    wanted = dict(zip(pasts, presents, strict=True))
    outputs: dict[str, str] = {}
    for node in model.graph.node:
        if node.op_type == _ATTENTION:
            outputs |= zip(node.input[_PAST], node.output[_PRESENT], strict=False)
            others = {*node.input[: _PAST.start], *node.input[_PAST.stop :]}
        else:
            others = {*node.input}
        inner = any(attribute.HasField("g") for attribute in node.attribute)  # may read them as well
        if inner or not others.isdisjoint(wanted):
            return False
    return outputs == wanted
