"""The tensors of a GGUF model, read a few rows at a time: never a whole matrix in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from numpy.typing import NDArray

from edgespec.convert.architectures import Decoder, read_decoder
from edgespec.convert.blocks import BLOCK_TYPES, FLOAT_TYPES, Blocks, Bytes, Floats
from edgespec.convert.tiles import ROWS, Tiles, finite
from edgespec.errors import ModelError
from edgespec.hub.gguf_header import Header, Tensor
from edgespec.hub.gguf_info import read_parts

CHUNK = 1 << 21
"""weights per piece; a piece takes about 30 bytes a weight while it is worked on"""


class Source:
    """A GGUF model that can be converted."""

    def __init__(self, path: Path) -> None:
        """Raises ModelError for what is damaged or not supported; reads headers only."""
        self.headers: list[Header] = read_parts(path)
        self.path = self.headers[0].path
        self.tensors: dict[str, Tensor] = {}
        self._file_of: dict[str, Path] = {}
        self._head: NDArray[np.int32] | None = None
        for header in self.headers:
            for tensor in header.tensors:
                self.tensors[tensor.name] = tensor
                self._file_of[tensor.name] = header.path
        self.decoder: Decoder = read_decoder(self.headers[0], self.tensors)
        for tensor in self.tensors.values():
            if tensor.type not in BLOCK_TYPES and tensor.type not in FLOAT_TYPES:
                known = ", ".join([*BLOCK_TYPES, *FLOAT_TYPES])
                raise ModelError(
                    f"{self.path.name}: tensor {tensor.name} has type {tensor.type}, which cannot be "
                    f"converted; these can: {known}"
                )

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    @property
    def parts(self) -> list[Path]:
        """Its file, or the files of a split model."""
        return [header.path for header in self.headers]

    @property
    def bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.bytes for tensor in self.tensors.values())

    @property
    def head(self) -> Tensor:
        """The matrix that yields the logits."""
        return self.tensors["token_embd.weight" if self.decoder.tied else "output.weight"]

    def trim_head(self, ids: NDArray[np.int32]) -> None:
        """Leave the output head the rows of these ids only, ascending. If it was the embedding, it is a
        matrix of its own from now on."""
        whole = self.head
        per_row = whole.bytes // self.decoder.vocabulary
        self.tensors["output.weight"] = replace(
            whole,
            name="output.weight",
            shape=(whole.shape[0], len(ids)),
            elements=whole.shape[0] * len(ids),
            bytes=per_row * len(ids),
        )
        self._file_of["output.weight"] = self._file_of[whole.name]
        self._head = ids
        self.decoder = replace(self.decoder, tied=False)

    def type_of(self, name: str) -> str:
        """The ggml type of a tensor."""
        return self.tensors[name].type

    def rows(self, name: str, tiles: Tiles) -> Iterator[Bytes]:
        """Pieces of a matrix as the file has it: uint8 [rows, ggml blocks, bytes per block]. Raises
        ModelError for scales that are no finite numbers."""
        for _, data in self._pieces(name):
            if not finite(data, tiles):
                raise self._not_finite(name)
            yield data

    def blocks(self, name: str) -> Iterator[tuple[int, Blocks]]:
        """Pieces of a quantized matrix: (first row, blocks). Raises ModelError for scales that are no
        finite numbers."""
        kind = BLOCK_TYPES[self.type_of(name)]
        for row, data in self._pieces(name):
            with np.errstate(all="ignore"):
                blocks = kind.unpack(data)
            finite = np.isfinite(blocks.scale).all()
            if not finite or (blocks.minimum is not None and not np.isfinite(blocks.minimum).all()):
                raise self._not_finite(name)
            yield row, blocks

    def floats(self, name: str) -> Iterator[tuple[int, Floats]]:
        """Pieces of any matrix as float32: (first row, [rows, columns]). Raises ModelError likewise."""
        type_ = self.type_of(name)
        if type_ in BLOCK_TYPES:
            for row, blocks in self.blocks(name):
                yield row, blocks.floats()
            return
        for row, data in self._pieces(name):
            data = data.reshape(len(data), -1)
            if type_ == "F32":
                values = data.view("<f4").astype(np.float32)
            elif type_ == "F16":
                values = data.view("<f2").astype(np.float32)
            else:  # BF16: the upper half of a float32
                values = (data.view("<u2").astype(np.uint32) << 16).view(np.float32)
            if not np.isfinite(values).all():
                raise self._not_finite(name)
            yield row, values

    def vector(self, name: str) -> Floats:
        """A one-dimensional tensor as float32."""
        values = np.concatenate([piece.ravel() for _, piece in self.floats(name)])
        return values[self._head] if name == "output.bias" and self._head is not None else values

    def _not_finite(self, name: str) -> ModelError:
        return ModelError(
            f"{self.path.name} is damaged: tensor {name} holds infinite values or NaN; fetch it again"
        )

    def _pieces(self, name: str) -> Iterator[tuple[int, Bytes]]:
        """(first row, uint8 [rows, ggml blocks, bytes per block]): whole tiles but for the last."""
        tensor = self.tensors[name]
        block, size = GGML_QUANT_SIZES[GGMLQuantizationType[tensor.type]]
        columns = tensor.shape[0]
        if columns % block:
            raise ModelError(
                f"{self.path.name} is damaged: rows of {name} have {columns} weights, not blocks of {block}"
            )
        rows = tensor.elements // columns
        per_row = columns // block * size
        step = max(1, CHUNK // columns // ROWS) * ROWS
        if name == "output.weight" and self._head is not None:
            yield from self._head_pieces(tensor, (columns // block, size), step)
            return
        with self._file_of[name].open("rb") as file:
            file.seek(tensor.offset)
            for row in range(0, rows, step):
                count = min(step, rows - row)
                data = np.fromfile(file, np.uint8, count * per_row)
                if len(data) != count * per_row:
                    raise ModelError(f"{self.path.name} is cut short in {name}; fetch it again")
                yield row, data.reshape(count, columns // block, size)

    def _head_pieces(self, tensor: Tensor, blocks: tuple[int, int], step: int) -> Iterator[tuple[int, Bytes]]:
        """As `_pieces`: of the rows that a trimmed head keeps."""
        assert self._head is not None
        file, shape = self._file_of[tensor.name], (self.decoder.vocabulary, *blocks)
        rows = np.memmap(file, np.uint8, "r", tensor.offset, shape)
        for first in range(0, len(self._head), step):
            yield first, np.asarray(rows[self._head[first : first + step]])
