"""ggml's blocks → the tiles that our kernels read; kernels/tile_formats.h says how they lie in memory.

Nothing is converted: quants, scales and minimums keep their bits, only their order changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import quantize

from edgespec.convert.blocks import BLOCK_TYPES, Bytes, Floats

ROWS = 16
"""of a tile"""


@dataclass(frozen=True)
class Field:
    """Bytes of a ggml block that a group holds behind its quants: per item, its 16 rows."""

    begin: int
    end: int
    item: int
    """bytes of an item; 2: float16 numbers"""


@dataclass(frozen=True)
class Tiles:
    """How the matrices of a ggml type are tiled."""

    type: str
    """ggml's name of it"""
    inputs: int
    """of a group"""
    bits: int
    """of a quant; 0: the fields are the weights"""
    fields: tuple[Field, ...]
    """in the order of the group"""

    @property
    def number(self) -> int:
        """ggml's number of the type."""
        return int(GGMLQuantizationType[self.type])

    @property
    def group_bytes(self) -> int:
        """Bytes of 16 rows of `inputs` weights."""
        return ROWS * (self.inputs * self.bits // 8 + sum(field.end - field.begin for field in self.fields))

    def bytes(self, outputs: int, inputs: int) -> int:
        """Bytes of a whole matrix."""
        return -(-outputs // ROWS) * (inputs // self.inputs) * self.group_bytes

    def __str__(self) -> str:
        return f"{self.type} tiles"


def _tiles(type_: str, inputs: int, bits: int, *fields: tuple[int, int, int]) -> Tiles:
    return Tiles(type_, inputs, bits, tuple(Field(*field) for field in fields))


TILES = {
    tiles.type: tiles
    for tiles in (
        _tiles("F16", 32, 0, (0, 64, 2)),
        _tiles("Q4_0", 32, 4, (0, 2, 2)),
        _tiles("Q4_1", 32, 4, (0, 2, 2), (2, 4, 2)),
        _tiles("Q5_0", 32, 5, (0, 2, 2)),
        _tiles("Q5_1", 32, 5, (0, 2, 2), (2, 4, 2)),
        _tiles("Q8_0", 32, 8, (0, 2, 2)),
        _tiles("Q4_K", 256, 4, (4, 16, 4), (0, 2, 2), (2, 4, 2)),
        _tiles("Q5_K", 256, 5, (4, 16, 4), (0, 2, 2), (2, 4, 2)),
        _tiles("Q6_K", 256, 6, (192, 208, 1), (208, 210, 2)),
        _tiles("IQ4_NL", 32, 4, (0, 2, 2)),
    )
}
"""The types that our kernels take, by ggml's names."""


def tiles_for(type_: str, inputs: int) -> Tiles | None:
    """How a matrix with rows of so many weights is tiled; None if our kernels do not take it."""
    tiles = TILES.get(type_)
    return tiles if tiles is not None and inputs % tiles.inputs == 0 else None


def requantized(values: Floats, tiles: Tiles) -> Bytes:
    """float32 [rows, weights] → [rows, ggml blocks, bytes per block], rounded to a type's quants."""
    type_ = GGMLQuantizationType[tiles.type]
    rows: Bytes = quantize(values, type_).reshape(len(values), -1, GGML_QUANT_SIZES[type_][1])
    return rows


def pack(rows: Bytes, tiles: Tiles) -> Bytes:
    """uint8 [rows, ggml blocks, bytes per block] → uint8, flat: tiles one after another.

    Rows that the last tile lacks are zero bytes.
    """
    rows = _grouped(rows, tiles)
    parts = _quants(_whole(_codes(rows, tiles)), tiles) if tiles.bits else []
    parts += [_field(_whole(rows[..., field.begin : field.end]), field) for field in tiles.fields]
    return np.concatenate(parts, axis=-1).ravel()


def whole_tiles(pieces: Iterable[Bytes]) -> Iterator[Bytes]:
    """The same rows in pieces of whole tiles; only the last one may end within a tile."""
    rest: Bytes | None = None
    for piece in pieces:
        if rest is not None and len(rest):
            piece = np.concatenate([rest, piece])
        cut = len(piece) // ROWS * ROWS
        rest = piece[cut:]
        if cut:
            yield piece[:cut]
    if rest is not None and len(rest):
        yield rest


def finite(rows: Bytes, tiles: Tiles) -> bool:
    """Whether all float16 numbers of ggml blocks are numbers."""
    rows = _grouped(rows, tiles)
    for field in tiles.fields:
        if field.item == 2:
            halves = np.ascontiguousarray(rows[..., field.begin : field.end]).view("<u2")
            if ((halves & 0x7C00) == 0x7C00).any():
                return False
    return True


def _grouped(rows: Bytes, tiles: Tiles) -> Bytes:
    """[rows, groups, bytes]: ggml's block is a group, except that of a float, which stands alone."""
    return rows if tiles.bits else rows.reshape(len(rows), -1, 2 * tiles.inputs)


def _whole(rows: Bytes) -> Bytes:
    """[rows, groups, bytes] with zero rows added up to whole tiles: [tiles, 16, groups, bytes]."""
    missing = -len(rows) % ROWS
    if missing:
        rows = np.concatenate([rows, np.zeros((missing, *rows.shape[1:]), np.uint8)])
    return rows.reshape(-1, ROWS, *rows.shape[1:])


def _codes(rows: Bytes, tiles: Tiles) -> Bytes:
    codes = BLOCK_TYPES[tiles.type].codes
    assert codes is not None
    return codes(rows).reshape(*rows.shape[:2], tiles.inputs)


def _quants(codes: Bytes, tiles: Tiles) -> list[Bytes]:
    """[tiles, 16, groups, inputs] → the parts of a group that hold quants, each [tiles, groups, bytes]."""
    t, _, groups, inputs = codes.shape
    # Four inputs of a row stay together, so they are moved as one number.
    fours = np.ascontiguousarray(codes).view(np.uint32).reshape(t, ROWS, groups, inputs // 4)
    v: Bytes = np.ascontiguousarray(fours.transpose(0, 2, 3, 1)).view(np.uint8).reshape(-1, 8, 64)
    if tiles.bits == 8:
        return [v.reshape(t, groups, -1)]
    parts: list[Bytes] = [v[:, 0::2] & np.uint8(15) | v[:, 1::2] << np.uint8(4)]
    if tiles.bits == 5:
        parts.append(np.packbits(v >> np.uint8(4), axis=1, bitorder="little"))
    if tiles.bits == 6:
        high = (v >> np.uint8(4)).reshape(-1, 2, 4, 64)
        first, second, third, fourth = (high[:, :, j] << np.uint8(2 * j) for j in range(4))
        parts.append(first | second | third | fourth)
    return [part.reshape(t, groups, -1) for part in parts]


def _field(rows: Bytes, field: Field) -> Bytes:
    """[tiles, 16, groups, bytes] → [tiles, groups, bytes]."""
    t, _, groups, _ = rows.shape
    items = rows.reshape(t, ROWS, groups, -1, field.item).transpose(0, 2, 3, 1, 4)
    return np.ascontiguousarray(items).reshape(t, groups, -1)
