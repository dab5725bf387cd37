"""Random matrices in ggml's types, as bytes and as numbers."""

from __future__ import annotations

import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from edgespec.convert.tiles import TILES


def random_rows(type_: str, rows: int, groups: int, seed: int) -> np.ndarray:
    """uint8 [rows, ggml blocks, bytes]: any bits that are numbers. A group is as tiles have it."""
    tiles = TILES[type_]
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_]]
    rng = np.random.default_rng(seed)
    data = rng.integers(0, 256, (rows, groups * tiles.inputs // block, size), dtype=np.uint8)
    for field in tiles.fields:
        if field.item == 2:  # no exponent of all ones
            data[..., field.begin + 1] &= 0xBF
    return data


def weights(rows: np.ndarray, type_: str) -> np.ndarray:
    """float32 [rows, inputs], as ggml's own Python package computes them."""
    return np.asarray(dequantize(rows.reshape(len(rows), -1), GGMLQuantizationType[type_]), np.float32)
