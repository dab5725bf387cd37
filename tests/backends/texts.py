"""Random texts of the closed-form pair, and what the target says of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from closed_form.ngram import Floats
from pair import TARGET, VOCABULARY

TOLERANCE = 1e-4


def text(length: int, seed: int) -> list[int]:
    rng = np.random.default_rng(seed)
    return [VOCABULARY.bos, *rng.integers(0, len(VOCABULARY), length - 1).tolist()]


def log_p(rows: np.ndarray) -> Floats:
    wide = rows.astype(np.float64)
    out: Floats = wide - np.logaddexp.reduce(wide, axis=-1, keepdims=True)
    return out


def table(tokens: Sequence[int], rows: int) -> Floats:
    return np.array([TARGET.log_p(tokens[: i + 1]) for i in range(len(tokens) - rows, len(tokens))])
