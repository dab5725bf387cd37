"""Blocks → what ONNX Runtime's MatMulNBits multiplies fast: 4 or 8 bits, integer zero points.

A weight there is `scale · (code − zero point)`, the zero point an integer, 2^(bits−1) unless given.

- Types without a minimum fit exactly: 4 bits for quants within ±8, else 8 bits.
- A minimum lies between two integers, and a float zero point falls to a path 25 times slower. With
  8 bits there is room to subdivide a quant into k steps and so to come close: of all k that fit, the
  best one leaves an error of about 1/300 of a quant, the same for the whole block. That costs memory;
  `small` instead rounds to the nearest 4-bit codes, for draft models, whose errors cost no quality.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from edgespec.convert.blocks import BLOCK_TYPES, Blocks, Floats

Codes = NDArray[np.uint8]


@dataclass(frozen=True)
class Format:
    """How a matrix is laid out for MatMulNBits."""

    bits: int
    block: int
    """weights per scale"""
    zero_points: bool
    """stored, one per block; False: 2^(bits−1) for all"""
    exact: bool
    """holds the source's weights bit for bit"""

    def __str__(self) -> str:
        return f"{self.bits} bits, blocks of {self.block}{', zero points' if self.zero_points else ''}"


@dataclass(frozen=True)
class Packed:
    """Rows of a matrix in MatMulNBits' layout."""

    data: Codes
    """uint8 [rows, blocks, block · bits / 8]; of two 4-bit codes in a byte the first is the low one"""
    scales: Floats
    """float32 [rows, blocks]"""
    zero_points: Codes | None
    """uint8 [rows, ceil(blocks · bits / 8)]"""


def format_of(type_: str, small: bool) -> Format:
    """The format that a quantized ggml type becomes."""
    kind = BLOCK_TYPES[type_]
    if not kind.minimum and kind.low >= -8 and kind.high <= 7:
        return Format(4, kind.size, zero_points=False, exact=True)
    if small:
        return Format(4, kind.size, zero_points=True, exact=False)
    return Format(8, kind.size, zero_points=kind.minimum, exact=not kind.minimum)


def pack(blocks: Blocks, form: Format) -> Packed:
    """Express blocks in a format that `format_of` gave for their type."""
    if not form.zero_points:
        bias = 1 << (form.bits - 1)
        codes = (blocks.quants.astype(np.int16) + bias).astype(np.uint8)
        return Packed(_in_bytes(codes, form.bits), blocks.scale, None)
    if form.bits == 8:
        codes, scale, zero = _subdivide(blocks)
    else:
        codes, scale, zero = _round_to_four_bits(blocks)
    return Packed(_in_bytes(codes, form.bits), scale, _in_bytes(zero, form.bits))


def _in_bytes(codes: Codes, bits: int) -> Codes:
    if bits == 8:
        return codes
    if codes.shape[-1] % 2:
        codes = np.concatenate([codes, np.zeros_like(codes[..., :1])], axis=-1)
    pairs: Codes = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return pairs


def _subdivide(blocks: Blocks) -> tuple[Codes, Floats, Codes]:
    """8-bit codes of blocks with a minimum: the quant is k codes wide, for the k that suits the block."""
    assert blocks.minimum is not None
    highest = max(1, int(blocks.quants.max(initial=0)))
    with np.errstate(all="ignore"):
        offset = np.where(blocks.scale != 0, blocks.minimum.astype(np.float64) / blocks.scale, np.inf)
    best = np.full(offset.shape, np.inf)
    steps = np.zeros(offset.shape, np.int64)
    for k in range(1, 255 // highest + 1):
        shifted = offset * k
        rounded = np.rint(shifted)
        with np.errstate(invalid="ignore"):
            error = np.abs(rounded - shifted) / k
            fits = (rounded >= -255) & (rounded + highest * k <= 255)
        better = fits & (error <= best)
        best[better], steps[better] = error[better], k
    fine = steps > 0
    parts = np.maximum(steps, 1)
    shift = np.where(fine, np.rint(np.where(fine, offset, 0) * parts), 0).astype(np.int64)
    zero = np.clip(-shift, 0, 255)
    codes = (blocks.quants * parts[..., None] + (shift + zero)[..., None]).astype(np.uint8)
    scale = (blocks.scale / parts).astype(np.float32)
    if not fine.all():  # a minimum far outside: the plain way, codes over the range of the block
        odd = ~fine
        values = blocks.scale[odd][:, None] * blocks.quants[odd] + blocks.minimum[odd][:, None]
        codes[odd], scale[odd], zero[odd] = _spread(values.astype(np.float64), 255)
    return codes, scale, zero.astype(np.uint8)


def _spread(values: NDArray[np.float64], highest: int) -> tuple[Codes, Floats, NDArray[np.int64]]:
    """Codes 0 … highest over the range of each row of values [blocks, size], zero included."""
    low, high = np.minimum(values.min(axis=-1), 0), np.maximum(values.max(axis=-1), 0)
    scale = (high - low) / highest
    safe = np.where(scale > 0, scale, 1)
    zero = np.rint(-low / safe)
    codes = np.clip(np.rint(values / safe[:, None]) + zero[:, None], 0, highest)
    return codes.astype(np.uint8), scale.astype(np.float32), zero.astype(np.int64)


def _round_to_four_bits(blocks: Blocks) -> tuple[Codes, Floats, Codes]:
    """The 4-bit codes nearest to the weights: several ranges are tried per block."""
    rows, n, size = blocks.quants.shape
    values = blocks.floats().reshape(-1, size)
    low = np.minimum(values.min(axis=-1), 0)
    high = np.maximum(values.max(axis=-1), 0)
    best = np.full(len(values), np.inf, np.float32)
    codes = np.zeros(values.shape, np.uint8)
    scale = np.zeros(len(values), np.float32)
    zero = np.zeros(len(values), np.uint8)
    for shrink in (1.0, 0.94, 0.88, 0.82):
        step = ((high - low) * np.float32(shrink / 15)).astype(np.float32)
        safe = np.where(step > 0, step, np.float32(1))
        offset = np.clip(np.rint(-low * np.float32(shrink) / safe), 0, 15)
        tried = np.clip(np.rint(values / safe[:, None]) + offset[:, None], 0, 15)
        error = np.square((tried - offset[:, None]) * step[:, None] - values).sum(axis=-1)
        better = error < best
        best[better], scale[better], zero[better] = error[better], step[better], offset[better]
        codes[better] = tried[better]
    return codes.reshape(rows, n, size), scale.reshape(rows, n), zero.reshape(rows, n)
