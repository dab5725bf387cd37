"""The weights in tiles, read one by one as kernels/tile_formats.h describes them. For small matrices."""

from __future__ import annotations

import numpy as np

LEVELS = [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113]
OFFSETS = {"Q4_0": 8, "Q5_0": 16, "Q8_0": 128, "Q6_K": 32}


def read_tiles(data: np.ndarray, type_: str, outputs: int, inputs: int) -> np.ndarray:
    """float32 [outputs, inputs] of packed bytes, in ggml's order of operations. Checks the padding."""
    size = 256 if type_.endswith("K") else 32
    tiles, groups = -(-outputs // 16), inputs // size
    weights = np.concatenate(
        [
            np.concatenate([_group(group, type_) for group in tile], axis=1)
            for tile in data.reshape(tiles, groups, -1)
        ]
    )
    _padding_is_zero(data.reshape(tiles, groups, -1)[-1], type_, outputs)
    return weights[:outputs]


class _Cursor:
    def __init__(self, data: np.ndarray) -> None:
        self.data, self.at = data, 0

    def take(self, dtype: str, *shape: int) -> np.ndarray:
        n = int(np.prod(shape)) * np.dtype(dtype).itemsize
        self.at += n
        return self.data[self.at - n : self.at].view(dtype).reshape(shape)


def _quants(c: _Cursor, type_: str) -> np.ndarray:
    """int [16 rows, inputs], unsigned as stored."""
    blocks = 8 if type_.endswith("K") else 1
    if type_ == "Q8_0":
        v = c.take("u1", 1, 8, 64).astype(int)
    else:
        low = c.take("u1", blocks, 4, 64).astype(int)
        v = np.zeros((blocks, 8, 64), int)
        for i in range(4):
            v[:, 2 * i], v[:, 2 * i + 1] = low[:, i] % 16, low[:, i] // 16
        if type_.startswith("Q5"):
            fifth = c.take("u1", blocks, 64).astype(int)
            for j in range(8):
                v[:, j] += 16 * (fifth >> j & 1)
        if type_ == "Q6_K":
            high = c.take("u1", blocks, 2, 64).astype(int)
            for j in range(8):
                v[:, j] += 16 * (high[:, j // 4] >> 2 * (j % 4) & 3)
    quants = np.zeros((16, 32 * blocks), int)
    for b in range(blocks):
        for j in range(8):
            for r in range(16):
                quants[r, 32 * b + 4 * j : 32 * b + 4 * j + 4] = v[b, j, 4 * r : 4 * r + 4]
    return quants


def _group(data: np.ndarray, type_: str) -> np.ndarray:
    """float32 [16, inputs of a group]."""
    c = _Cursor(data)
    if type_ == "F16":
        return c.take("<f2", 32, 16).astype(np.float32).T
    quants = _quants(c, type_)
    if type_ == "IQ4_NL":
        values = np.array(LEVELS, np.float32)[quants]
    else:
        values = (quants - OFFSETS.get(type_, 0)).astype(np.float32)
    if type_ in ("Q4_K", "Q5_K"):
        scales, minimums = _six_bits(c.take("<u4", 3, 16))
        d, dmin = (c.take("<f2", 16).astype(np.float32)[:, None] for _ in range(2))
        result = np.repeat(d * scales, 32, axis=1) * values - np.repeat(dmin * minimums, 32, axis=1)
    elif type_ == "Q6_K":
        scales = c.take("i1", 16, 16).astype(np.float32).T
        d = c.take("<f2", 16).astype(np.float32)[:, None]
        result = np.repeat(d * scales, 16, axis=1) * values
    else:
        result = c.take("<f2", 16).astype(np.float32)[:, None] * values
        if type_.endswith("_1"):
            result = result + c.take("<f2", 16).astype(np.float32)[:, None]
    assert c.at == len(data)
    return result


def _six_bits(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """ggml's 12 bytes of eight scales and eight minimums: float32 [16, 8] each."""
    scales, minimums = np.zeros((16, 8), np.float32), np.zeros((16, 8), np.float32)
    for r in range(16):
        q = [int(words[i // 4, r]) >> 8 * (i % 4) & 255 for i in range(12)]
        for j in range(8):
            if j < 4:
                scales[r, j], minimums[r, j] = q[j] & 63, q[j + 4] & 63
            else:
                scales[r, j] = q[j + 4] & 15 | (q[j - 4] >> 6) << 4
                minimums[r, j] = q[j + 4] >> 4 | (q[j] >> 6) << 4
    return scales, minimums


def _padding_is_zero(tile: np.ndarray, type_: str, outputs: int) -> None:
    """Rows beyond the matrix are zero bytes: so are quants as stored, hence a row's first vector byte."""
    beyond = [r for r in range(16) if r >= (outputs - 1) % 16 + 1]
    for group in tile:
        c = _Cursor(group)
        if type_ == "F16":
            assert not c.take("u2", 32, 16)[:, beyond].any()
            continue
        assert not _quants(c, type_)[beyond].any()
        rest = group[c.at :]
        if type_ in ("Q4_K", "Q5_K"):
            assert not rest[:192].view("<u4").reshape(3, 16)[:, beyond].any()
            rest = rest[192:]
        elif type_ == "Q6_K":
            assert not rest[:256].reshape(16, 16)[:, beyond].any()
            rest = rest[256:]
        assert not rest.view("<u2").reshape(-1, 16)[:, beyond].any()
