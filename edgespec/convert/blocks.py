"""ggml's quantized blocks taken apart: integers, one scale per block, and for some types a minimum.

A weight is `scale · quant` or, for types with a minimum, `scale · quant + minimum`. Nothing is
rounded here: every type's own scales and integers come out as they are, K-quants' sub-blocks as
blocks of their own. Layouts: ggml-common.h and ggml-quants.c of ggml.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class Blocks:
    """Rows of blocks. The last axis of `quants` runs along the input dimension of the matrix."""

    quants: NDArray[np.int8]
    """int8 [rows, blocks, block size]"""
    scale: Floats
    """float32 [rows, blocks]"""
    minimum: Floats | None = None
    """float32 [rows, blocks]; None: quants are signed around zero"""

    def floats(self) -> Floats:
        """float32 [rows, columns]: the weights themselves."""
        values = self.scale[..., None] * self.quants.astype(np.float32)
        if self.minimum is not None:
            values += self.minimum[..., None]
        return values.reshape(len(values), -1)


@dataclass(frozen=True)
class BlockType:
    """What is known of a ggml type before its bytes are read."""

    size: int
    """weights per block with a scale of its own"""
    low: int
    high: int
    """range of the quants"""
    minimum: bool
    """whether blocks have a minimum"""
    unpack: Callable[[Bytes], Blocks]
    """uint8 [rows, ggml blocks, bytes per ggml block] → Blocks"""
    codes: Callable[[Bytes], Bytes] | None = None
    """likewise → uint8 [rows, ggml blocks, …]: the quants unsigned, as they are before an offset is
    subtracted or a table looked up; for the types that tiles are made of"""


def _half(data: Bytes) -> Floats:
    """Little-endian float16 pairs of bytes [..., 2] → float32 [...]."""
    return np.ascontiguousarray(data).view("<f2")[..., 0].astype(np.float32)


def _nibbles(data: Bytes) -> Bytes:
    """[..., 16] bytes → [..., 32]: the low nibbles, then the high ones."""
    return np.concatenate([data & 15, data >> 4], axis=-1)


def _five_bits(data: Bytes) -> Bytes:
    """[..., 4 + 16] bytes → [..., 32]: the bits worth 16 come first, then the nibbles."""
    fifth = np.unpackbits(data[..., :4], axis=-1, bitorder="little")
    codes: Bytes = _nibbles(data[..., 4:]) | (fifth << np.uint8(4))
    return codes


def _q4_0_codes(b: Bytes) -> Bytes:
    return _nibbles(b[..., 2:])


def _q4_0(b: Bytes) -> Blocks:
    return Blocks(_q4_0_codes(b).view(np.int8) - np.int8(8), _half(b[..., :2]))


def _q4_1_codes(b: Bytes) -> Bytes:
    return _nibbles(b[..., 4:])


def _q4_1(b: Bytes) -> Blocks:
    return Blocks(_q4_1_codes(b).view(np.int8), _half(b[..., :2]), _half(b[..., 2:4]))


def _q5_0_codes(b: Bytes) -> Bytes:
    return _five_bits(b[..., 2:])


def _q5_0(b: Bytes) -> Blocks:
    return Blocks(_q5_0_codes(b).view(np.int8) - np.int8(16), _half(b[..., :2]))


def _q5_1_codes(b: Bytes) -> Bytes:
    return _five_bits(b[..., 4:])


def _q5_1(b: Bytes) -> Blocks:
    return Blocks(_q5_1_codes(b).view(np.int8), _half(b[..., :2]), _half(b[..., 2:4]))


def _q8_0_codes(b: Bytes) -> Bytes:
    codes: Bytes = b[..., 2:] ^ np.uint8(128)
    return codes


def _q8_0(b: Bytes) -> Blocks:
    return Blocks(b[..., 2:].view(np.int8), _half(b[..., :2]))


_IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8)
"""The 16 levels of IQ4_NL and IQ4_XS."""


def _iq4_nl(b: Bytes) -> Blocks:
    return Blocks(_IQ4[_q4_0_codes(b)], _half(b[..., :2]))


def _iq4_xs(b: Bytes) -> Blocks:
    rows, n = b.shape[:2]
    high = np.ascontiguousarray(b[..., 2:4]).view("<u2").astype(np.int32)  # [rows, n, 1]
    low = np.stack([b[..., 4:8] & 15, b[..., 4:8] >> 4], axis=-1).reshape(rows, n, 8)
    scales = (low | (((high >> np.arange(0, 16, 2)) & 3) << 4)) - 32
    quants = _IQ4[_nibbles(b[..., 8:].reshape(rows, n, 8, 16))]
    return _flat(quants, _half(b[..., :2])[..., None] * scales.astype(np.float32))


def _six_bit_scales(b: Bytes) -> tuple[Floats, Floats]:
    """The 12 bytes of Q4_K and Q5_K: eight 6-bit scales and eight 6-bit minimums."""
    first, second, rest = b[..., 0:4], b[..., 4:8], b[..., 8:12]
    scales = np.concatenate([first & 63, (rest & 15) | ((first >> 6) << 4)], axis=-1)
    minimums = np.concatenate([second & 63, (rest >> 4) | ((second >> 6) << 4)], axis=-1)
    return scales.astype(np.float32), minimums.astype(np.float32)


def _flat(quants: NDArray[np.int8], scale: Floats, minimum: Floats | None = None) -> Blocks:
    """[rows, ggml blocks, sub-blocks, …] → [rows, blocks, …]."""
    rows, size = quants.shape[0], quants.shape[-1]
    minimum = None if minimum is None else minimum.reshape(rows, -1)
    return Blocks(quants.reshape(rows, -1, size), scale.reshape(rows, -1), minimum)


def _q4_k_codes(b: Bytes) -> Bytes:
    rows, n = b.shape[:2]
    pairs = b[..., 16:].reshape(rows, n, 4, 32)
    codes: Bytes = np.stack([pairs & 15, pairs >> 4], axis=3).reshape(rows, n, 8, 32)
    return codes


def _q4_k(b: Bytes) -> Blocks:
    scales, minimums = _six_bit_scales(b[..., 4:16])
    d, dmin = _half(b[..., 0:2])[..., None], _half(b[..., 2:4])[..., None]
    return _flat(_q4_k_codes(b).view(np.int8), d * scales, -(dmin * minimums))


def _q5_k_codes(b: Bytes) -> Bytes:
    rows, n = b.shape[:2]
    fifth = (b[..., 16:48][..., None, :] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    low = b[..., 48:].reshape(rows, n, 4, 32)
    codes: Bytes = np.stack([low & 15, low >> 4], axis=3).reshape(rows, n, 8, 32) | (fifth << 4)
    return codes


def _q5_k(b: Bytes) -> Blocks:
    scales, minimums = _six_bit_scales(b[..., 4:16])
    d, dmin = _half(b[..., 0:2])[..., None], _half(b[..., 2:4])[..., None]
    return _flat(_q5_k_codes(b).view(np.int8), d * scales, -(dmin * minimums))


def _q6_k_codes(b: Bytes) -> Bytes:
    rows, n = b.shape[:2]
    low = b[..., :128].reshape(rows, n, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=3).reshape(rows, n, 2, 4, 32)
    high = (b[..., 128:192].reshape(rows, n, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    codes: Bytes = low | (high << np.uint8(4))
    return codes


def _q6_k(b: Bytes) -> Blocks:
    rows, n = b.shape[:2]
    quants = _q6_k_codes(b).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(b[..., 192:208]).view(np.int8).astype(np.float32)
    return _flat(quants.reshape(rows, n, 16, 16), _half(b[..., 208:210])[..., None] * scales)


def _q2_k(b: Bytes) -> Blocks:
    rows, n = b.shape[:2]
    scales = (b[..., :16] & 15).astype(np.float32)
    minimums = (b[..., :16] >> 4).astype(np.float32)
    d, dmin = _half(b[..., 80:82])[..., None], _half(b[..., 82:84])[..., None]
    quants = (b[..., 16:80].reshape(rows, n, 2, 1, 32) >> np.arange(0, 8, 2, dtype=np.uint8)[:, None]) & 3
    return _flat(quants.view(np.int8).reshape(rows, n, 16, 16), d * scales, -(dmin * minimums))


def _q3_k(b: Bytes) -> Blocks:
    rows, n = b.shape[:2]
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    low = (b[..., 32:96].reshape(rows, n, 2, 1, 32) >> shifts) & 3
    third = (b[..., None, :32] >> np.arange(8, dtype=np.uint8)[:, None]) & 1
    quants = (low.reshape(rows, n, 8, 32) | (third << 2)).view(np.int8) - np.int8(4)
    packed = b[..., 96:108]
    four = np.concatenate([packed[..., :8] & 15, packed[..., :8] >> 4], axis=-1)
    two = (packed[..., None, 8:12] >> shifts) & 3
    scales = (four | (two.reshape(rows, n, 16) << 4)).astype(np.float32) - 32
    return _flat(quants.reshape(rows, n, 16, 16), _half(b[..., 108:110])[..., None] * scales)


BLOCK_TYPES = {
    "Q4_0": BlockType(32, -8, 7, False, _q4_0, _q4_0_codes),
    "Q4_1": BlockType(32, 0, 15, True, _q4_1, _q4_1_codes),
    "Q5_0": BlockType(32, -16, 15, False, _q5_0, _q5_0_codes),
    "Q5_1": BlockType(32, 0, 31, True, _q5_1, _q5_1_codes),
    "Q8_0": BlockType(32, -128, 127, False, _q8_0, _q8_0_codes),
    "Q2_K": BlockType(16, 0, 3, True, _q2_k),
    "Q3_K": BlockType(16, -4, 3, False, _q3_k),
    "Q4_K": BlockType(32, 0, 15, True, _q4_k, _q4_k_codes),
    "Q5_K": BlockType(32, 0, 31, True, _q5_k, _q5_k_codes),
    "Q6_K": BlockType(16, -32, 31, False, _q6_k, _q6_k_codes),
    "IQ4_NL": BlockType(32, -127, 113, False, _iq4_nl, _q4_0_codes),
    "IQ4_XS": BlockType(32, -127, 113, False, _iq4_xs),
}
"""Quantized ggml types that can be converted."""
FLOAT_TYPES = ("F32", "F16", "BF16")
