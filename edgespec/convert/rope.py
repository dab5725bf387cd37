"""The tables of cosines and sines that attention turns queries and keys by.

Follows ggml's rope_yarn (ggml-cpu/ops.cpp) and llama_context's choice of its factors, in float64.
Llama 3's scaling arrives as one divisor per pair of channels (the tensor rope_freqs).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from edgespec.convert.architectures import Rope

BETA_FAST, BETA_SLOW = 32.0, 1.0
"""YaRN: channels that turn more often than BETA_FAST in the trained context are not stretched, those
that turn less often than BETA_SLOW wholly."""

Table = NDArray[np.float32]


def rope_tables(rope: Rope, positions: int, divisors: NDArray[np.float32] | None) -> tuple[Table, Table]:
    """(cosines, sines), float32 [positions, dimensions / 2]. `divisors`: [dimensions / 2]."""
    half = rope.dimensions // 2
    frequencies = rope.base ** (-np.arange(half, dtype=np.float64) / half)
    if divisors is not None:
        frequencies = frequencies / divisors
    magnitude = rope.attention_factor
    stretched = frequencies * rope.scale
    if rope.yarn:
        kept = _share_kept(rope)
        stretched = stretched * (1 - kept) + frequencies * kept
        if rope.scale < 1:
            # llama.cpp multiplies by get_mscale(1/scale), cancels it, and ggml's rope_yarn applies it.
            magnitude *= 1 + 0.1 * math.log(1 / rope.scale)
    angles = np.multiply.outer(np.arange(positions, dtype=np.float64), stretched)
    return (np.cos(angles) * magnitude).astype(np.float32), (np.sin(angles) * magnitude).astype(np.float32)


def _share_kept(rope: Rope) -> NDArray[np.float64]:
    """How much of each pair's own frequency YaRN keeps, 0 to 1."""
    n = rope.dimensions

    def pair(turns: float) -> float:
        return n * math.log(rope.trained_context / (turns * 2 * math.pi)) / (2 * math.log(rope.base))

    low, high = max(0.0, math.floor(pair(BETA_FAST))), min(n - 1.0, math.ceil(pair(BETA_SLOW)))
    ramp = (np.arange(n // 2) - low) / max(0.001, high - low)
    kept: NDArray[np.float64] = 1 - np.clip(ramp, 0, 1)
    return kept
