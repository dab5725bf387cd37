"""Blocks of every ggml type: unpacked exactly, and re-expressed exactly or as closely as is said."""

from __future__ import annotations

import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

from edgespec.convert.blocks import BLOCK_TYPES, Blocks
from edgespec.convert.repack import Packed, format_of, pack

ROWS, N = 8, 16
HALVES = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,)}
"""where the float16 numbers of a block are; at its beginning unless said otherwise"""
CLOSE = 2e-3
"""relative RMS error of types with a minimum at 8 bits; measured: 3e-4 (Q2_K) to 1.5e-3 (Q5_1)"""


def random_blocks(type_: str, seed: int = 0) -> np.ndarray:
    """uint8 [ROWS, N, bytes]: any bits at all, but scales and minimums as models have them."""
    rng = np.random.default_rng(seed)
    _, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_]]
    data = rng.integers(0, 256, (ROWS, N, size), dtype=np.uint8)
    minimum = BLOCK_TYPES[type_].minimum
    for i, at in enumerate(HALVES.get(type_, (0, 2) if minimum else (0,))):
        values = rng.uniform(0.001, 0.01, (ROWS, N, 1))
        if i == 1 and not type_.endswith("K"):
            values *= -5  # these types add their minimum, K-quants subtract it
        data[..., at : at + 2] = values.astype("<f2").view(np.uint8)
    return data


def expanded(packed: Packed, bits: int) -> np.ndarray:
    """What MatMulNBits takes the weights to be."""

    def codes(data: np.ndarray) -> np.ndarray:
        if bits == 8:
            return data
        return np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:-1], -1)

    zero = np.float32(1 << (bits - 1))
    if packed.zero_points is not None:
        zero = codes(packed.zero_points)[:, : packed.data.shape[1], None].astype(np.float32)
    values = packed.scales[..., None] * (codes(packed.data).astype(np.float32) - zero)
    return values.reshape(len(values), -1)


@pytest.mark.parametrize("type_", BLOCK_TYPES)
def test_unpacked_blocks_are_the_weights(type_: str) -> None:
    data = random_blocks(type_)
    blocks = BLOCK_TYPES[type_].unpack(data)
    wanted = dequantize(data.reshape(ROWS, -1), GGMLQuantizationType[type_])
    assert np.array_equal(blocks.floats(), wanted)
    kind = BLOCK_TYPES[type_]
    assert blocks.quants.shape[-1] == kind.size
    assert kind.low <= blocks.quants.min() and blocks.quants.max() <= kind.high
    assert (blocks.minimum is not None) == kind.minimum


@pytest.mark.parametrize("type_", BLOCK_TYPES)
def test_repacked_blocks_are_the_weights_or_close(type_: str) -> None:
    blocks = BLOCK_TYPES[type_].unpack(random_blocks(type_))
    form = format_of(type_, small=False)
    found, wanted = expanded(pack(blocks, form), form.bits), blocks.floats()
    if form.exact:
        assert np.array_equal(found, wanted)
    else:
        assert np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2)) < CLOSE


@pytest.mark.parametrize("type_", BLOCK_TYPES)
def test_small_ones_take_4_bits(type_: str) -> None:
    blocks = BLOCK_TYPES[type_].unpack(random_blocks(type_))
    form = format_of(type_, small=True)
    packed = pack(blocks, form)
    assert form.bits == 4 and packed.data.shape == (*blocks.scale.shape, form.block // 2)
    found, wanted = expanded(packed, 4), blocks.floats()
    error = np.sqrt(np.mean((found - wanted) ** 2) / np.mean(wanted**2))
    assert error == 0 if form.exact else error < 0.08


def affine(scale: float, minimum: float, highest: int = 15) -> Blocks:
    quants = np.arange(32, dtype=np.int8).reshape(1, 1, 32) % (highest + 1)
    return Blocks(quants, np.full((1, 1), scale, np.float32), np.full((1, 1), minimum, np.float32))


@pytest.mark.parametrize(
    ("scale", "minimum"),
    [
        (0.0, 0.0),
        (0.0, -0.7),
        (0.01, 0.0),
        (0.01, -0.07),
        (0.01, 5.0),
        (0.01, -5.0),
        (-0.01, 0.04),
        (1e-8, 1.0),
    ],
)
def test_odd_blocks_stay_close(scale: float, minimum: float) -> None:
    blocks = affine(scale, minimum)
    form = format_of("Q4_1", small=False)
    found, wanted = expanded(pack(blocks, form), 8), blocks.floats()
    assert np.abs(found - wanted).max() <= max(abs(scale) / 34, np.ptp([*wanted.ravel(), 0]) / 255) * 1.01
