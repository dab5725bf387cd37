"""What a model computes in plain float32: numpy on the dequantized weights, one piece at a time.

Neither runtime computes this: both round activations to 8 bits in their quantized matmuls. It is the
yardstick that a better activation format must not be punished by, and a second opinion on the graph.
Written for clarity, layer by layer, for texts of a few hundred tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from edgespec.convert.blocks import Floats
from edgespec.convert.rope import rope_tables
from edgespec.convert.source import Source


def reference_logits(
    source: Source, tokens: Sequence[int], advance: Callable[[int], None] = lambda _: None
) -> Floats:
    """float32 [tokens, vocabulary]. `advance(bytes)` is told how much of the source has been read."""
    return _Reference(source, advance).logits(tokens)


class _Reference:
    def __init__(self, source: Source, advance: Callable[[int], None]) -> None:
        self.source, self.d, self.advance = source, source.decoder, advance

    def logits(self, tokens: Sequence[int]) -> Floats:
        d = self.d
        x = self._embed(tokens) * np.float32(d.embedding_scale)
        for i in range(d.layers):
            block = f"blk.{i}"
            y = self._attention(i, self._norm(f"{block}.attn_norm", x))
            if d.post_norms:
                y = self._norm(f"{block}.post_attention_norm", y)
            x = x + y
            y = self._mlp(block, self._norm(f"{block}.ffn_norm", x))
            if d.post_norms:
                y = self._norm(f"{block}.post_ffw_norm", y)
            x = x + y
        logits = self._linear("token_embd" if d.tied else "output", self._norm("output_norm", x))
        if d.softcap is not None:
            logits = np.float32(d.softcap) * np.tanh(logits / np.float32(d.softcap))
        return logits

    def _embed(self, tokens: Sequence[int]) -> Floats:
        ids = np.asarray(tokens)
        rows = np.empty((len(ids), self.d.width), np.float32)
        for first, piece in self.source.floats("token_embd.weight"):
            here = (ids >= first) & (ids < first + len(piece))
            rows[here] = piece[ids[here] - first]
        return rows

    def _linear(self, name: str, x: Floats) -> Floats:
        full = f"{name}.weight"
        tensor = self.source.tensors[full]
        y = np.empty((len(x), tensor.elements // tensor.shape[0]), np.float32)
        for first, piece in self.source.floats(full):
            y[:, first : first + len(piece)] = x @ piece.T
        if f"{name}.bias" in self.source:
            y += self.source.vector(f"{name}.bias")
        self.advance(tensor.bytes)
        return y

    def _norm(self, name: str, x: Floats) -> Floats:
        mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
        normed: Floats = (x / np.sqrt(mean + self.d.epsilon)).astype(np.float32)
        return normed * self.source.vector(f"{name}.weight")

    def _attention(self, i: int, x: Floats) -> Floats:
        d, n, block = self.d, len(x), f"blk.{i}"
        q = self._linear(f"{block}.attn_q", x).reshape(n, d.heads, d.head)
        k = self._linear(f"{block}.attn_k", x).reshape(n, d.kv_heads, d.head)
        v = self._linear(f"{block}.attn_v", x).reshape(n, d.kv_heads, d.head)
        if d.head_norms:
            q, k = self._norm(f"{block}.attn_q_norm", q), self._norm(f"{block}.attn_k_norm", k)
        divisors = self.source.vector("rope_freqs.weight") if "rope_freqs.weight" in self.source else None
        cos, sin = rope_tables(d.ropes[i], n, divisors)
        q, k = (_turn(heads, cos, sin, d.ropes[i].interleaved) for heads in (q, k))
        ago = np.subtract.outer(np.arange(n), np.arange(n))
        window = d.windows[i]
        seen = (ago >= 0) & (ago < (n if window is None else window))
        out = np.empty((n, d.heads, d.head), np.float32)
        for head in range(d.heads):
            shared = head // (d.heads // d.kv_heads)
            scores = np.where(seen, q[:, head] @ k[:, shared].T * np.float32(d.attention_scale), -np.inf)
            weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=-1, keepdims=True) @ v[:, shared]
        return self._linear(f"{block}.attn_output", out.reshape(n, -1))

    def _mlp(self, block: str, x: Floats) -> Floats:
        gate = self._linear(f"{block}.ffn_gate", x)
        if self.d.activation == "silu":
            with np.errstate(over="ignore"):
                gate = gate / (1 + np.exp(-gate))
        else:
            gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        up = self._linear(f"{block}.ffn_up", x)
        return self._linear(f"{block}.ffn_down", gate.astype(np.float32) * up)


def _turn(heads: Floats, cos: Floats, sin: Floats, interleaved: bool) -> Floats:
    """Rotary embedding of [tokens, heads, channels]."""
    cos, sin = cos[:, None], sin[:, None]
    turned: NDArray[np.float32] = np.empty_like(heads)
    if interleaved:
        a, b = heads[..., 0::2], heads[..., 1::2]
        turned[..., 0::2], turned[..., 1::2] = a * cos - b * sin, a * sin + b * cos
    else:
        half = heads.shape[-1] // 2
        a, b = heads[..., :half], heads[..., half:]
        turned[..., :half], turned[..., half:] = a * cos - b * sin, a * sin + b * cos
    return turned
