"""The tables of an n-gram model written by hand into the weights of a one-layer transformer.

The architecture is Llama's: RMSNorm, rotary attention (two query heads sharing one key-value head),
SwiGLU. For a vocabulary of V tokens a residual vector of width 128 has five fields,

    x0 [0, V)   x1 [V, 2V)   x2 [2V, 3V)   out [3V, 4V)   one [4V]

holding one-hots of the last three tokens, the logits, and a constant. What each part does:

Embedding. Token a is one-hot a in x0, and C = 2^16 in `one`.

Norms. C is so much larger than all else in the vector that its root mean square is C/√128 up to a
    relative 1e-6 whatever the logits are. The norms' own weights undo exactly that factor on
    the one-hot and logit fields and turn `one` into 1. So behind a norm the fields read as if there
    were none: one-hots of 0 and 1, the logits, the number 1.

Attention: x1 and x2 are fetched from the KV cache. The value of a cell is the one-hot of its token.
    Its key is the constant k = (1, 0, 1, 0, …), the query of head h is k turned back by
    h tokens' worth of rotation, so the rotary embedding makes the score of the cell d tokens ago

        score(d) = 16 · Σ_i cos(θ_i (d − h)),    θ_i = 4^(−i/32), i = 0 … 31,

    which is 512 at d = h, 86 less at its neighbours, and less still everywhere else (checked in
    `scores`). Softmax puts all but e^-86 on the token h steps back: head 1 writes x1, head 2 x2.
    Near the start, where no cell is h back, the oldest cell is the nearest to h and wins by as
    clear a margin: the history is padded by repeating the first token.

MLP: the tables are looked up. Hidden unit (a, b) of the first V² has gate 128·(x0[a] + x1[b]) − 192:
    64 if x0 = a and x1 = b, and −64 or −192 otherwise. SiLU passes 64 as it is, and turns −64 into
    −1e-26. The up projection is the constant 1/64, so exactly one unit is 1 and all others 0.
    The down projection of unit (a, b) writes recent[a, b] + bias to `out`. The next V² units do the
    same for x1, x2 and `earlier`.

Output. Reads the field `out`: the logits are those of the tables.

All numbers that reach the KV cache are 0 and 1 (values) or rotations of 1 (keys, whose rounding
shifts a score by far less than the 86 it wins by), so float16 caches lose nothing.
A q8_0 cache holds 0.9999 for 1, which moves log-probabilities by 2e-3.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .ngram import NGram

Matrix = NDArray[np.float32]

WIDTH = 128
HEAD = 64
CONSTANT = 2.0**16
SHARPNESS = 16.0
GATE = 64.0


@dataclass(frozen=True)
class Transformer:
    """Hyperparameters and weights of a Llama decoder; a matrix is [outputs, inputs].

    Rotary pairs are neighbouring channels (2i, 2i+1), as in GGUF files of this architecture.
    """

    vocabulary: int
    hidden: int
    weights: dict[str, Matrix]
    width: int = WIDTH
    layers: int = 1
    heads: int = WIDTH // HEAD
    kv_heads: int = 1
    head: int = HEAD
    rope_base: float = 4.0
    norm_epsilon: float = 1e-5


def frequencies() -> NDArray[np.float64]:
    """θ_i, the angle a rotary pair turns by per token."""
    exponents = -np.arange(HEAD // 2, dtype=np.float64) / (HEAD // 2)
    theta: NDArray[np.float64] = np.power(Transformer.rope_base, exponents)
    return theta


def scores(distance: NDArray[np.int64]) -> NDArray[np.float64]:
    """Attention score, in nats, of a cell `distance` = d − h away from the one a head looks for."""
    angles = np.multiply.outer(distance, frequencies())
    total: NDArray[np.float64] = np.sum(np.cos(angles), axis=-1)
    return SHARPNESS * total


def build(ngram: NGram) -> Transformer:
    """The transformer whose next-token distribution is the n-gram model's."""
    v = len(ngram.vocabulary)
    one = 4 * v
    if one >= WIDTH:
        raise ValueError(f"a vocabulary has at most {(WIDTH - 1) // 4} tokens, not {v}")
    x0, x1, x2, out = (slice(i * v, (i + 1) * v) for i in range(4))
    eye = np.eye(v)
    weights: dict[str, NDArray[np.float64]] = {}

    weights["embedding"] = np.zeros((v, WIDTH))
    weights["embedding"][:, x0] = eye
    weights["embedding"][:, one] = CONSTANT

    norm = np.full(WIDTH, CONSTANT / np.sqrt(WIDTH))
    norm[one] = 1 / np.sqrt(WIDTH)
    weights["attention_norm"] = weights["mlp_norm"] = weights["output_norm"] = norm

    # The runtime divides scores by √head; the query is larger by as much.
    strength = SHARPNESS * np.sqrt(HEAD)
    weights["query"] = np.zeros((2 * HEAD, WIDTH))
    for head, back in enumerate((1, 2)):
        pairs = weights["query"][head * HEAD : (head + 1) * HEAD, one].reshape(-1, 2)
        pairs[:, 0] = strength * np.cos(-back * frequencies())
        pairs[:, 1] = strength * np.sin(-back * frequencies())
        weights["query"][head * HEAD : (head + 1) * HEAD, one] = pairs.ravel()
    weights["key"] = np.zeros((HEAD, WIDTH))
    weights["key"][0::2, one] = 1
    weights["value"] = np.zeros((HEAD, WIDTH))
    weights["value"][:v, x0] = eye
    weights["attention_output"] = np.zeros((WIDTH, 2 * HEAD))
    weights["attention_output"][x1, 0:v] = eye
    weights["attention_output"][x2, HEAD : HEAD + v] = eye

    units = 2 * v * v
    hidden = -(-units // 32) * 32  # whole vectors for the runtime; the spare units are never on
    first, second = np.repeat(eye, v, axis=0), np.tile(eye, (v, 1))  # rows (a, b): one-hots of a and of b
    weights["gate"] = np.zeros((hidden, WIDTH))
    weights["gate"][: v * v, x0] = weights["gate"][v * v : units, x1] = 2 * GATE * first
    weights["gate"][: v * v, x1] = weights["gate"][v * v : units, x2] = 2 * GATE * second
    weights["gate"][:, one] = -3 * GATE
    weights["up"] = np.zeros((hidden, WIDTH))
    weights["up"][:, one] = 1 / GATE
    weights["down"] = np.zeros((WIDTH, hidden))
    weights["down"][out, : v * v] = (ngram.recent + ngram.bias).reshape(v * v, v).T
    weights["down"][out, v * v : units] = ngram.earlier.reshape(v * v, v).T

    weights["output"] = np.zeros((v, WIDTH))
    weights["output"][:, out] = eye
    return Transformer(v, hidden, {name: np.float32(w) for name, w in weights.items()})
