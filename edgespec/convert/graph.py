"""The decoder as an ONNX graph.

Inputs: `input_ids` int64 [1, n]; `rows` int64 [r], the positions (0 … n−1) whose logits are wanted;
`seqlens_k` int32 [1] = total − 1 (where attention is ours, backends/onnx_adapted.py puts an input for several
sequences in its place) and, for ONNX Runtime's attention, `total_sequence_length` int32 [], total being the
tokens in the cache and the new ones; per layer `past_key_values.N.key` and `.value`,
float32 [1, kv heads, capacity, head], for our attention the keys in tiles: [1, kv heads, capacity / 16,
head, 16]. Outputs: `logits` float32 [1, r, vocabulary], in a trimmed draft [1, r, kept]; `present.N.key`
and `.value`, to be bound to the very buffers of the inputs: the cache is written in place.

The tree graph has two inputs more: `position_ids` int64 [1, n] and `attention_bias` float32
[1, 1, n, total], added to the scores (0 to see, a large negative number not to).

With `hidden`: `hidden.final` float32 [1, r, width], what the head multiplies, and for chosen layers
`hidden.N` float32 [1, r, width], the residual stream behind layer N.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto

from edgespec.convert.architectures import Decoder
from edgespec.convert.nodes import Graph, linear, lookup
from edgespec.convert.tiles import ROWS
from edgespec.convert.weights import Weights

LARGEST_HEAD = 1024
"""channels a head that our attention takes; kLargestHead in kernels/attention_call.h"""


@dataclass(frozen=True)
class Variant:
    """Which graph of a model."""

    tree: bool = False
    portable: bool = True
    """ONNX Runtime's own attention, not ours"""
    hidden: tuple[int, ...] | None = None
    """layers whose hidden states are outputs, beside the final one; None: no hidden states at all"""


def has_tiled_attention(decoder: Decoder, variant: Variant) -> bool:
    """Whether attention is ours, which takes heads of LARGEST_HEAD channels at most."""
    return not variant.portable and decoder.head <= LARGEST_HEAD


def build_graph(
    decoder: Decoder, weights: Weights, variant: Variant, properties: dict[str, str]
) -> onnx.ModelProto:
    """The graph of a model, whose weights are in the external data. `properties` go into its metadata."""
    return _Builder(decoder, weights, variant).build(properties)


class _Builder:
    def __init__(self, decoder: Decoder, weights: Weights, variant: Variant) -> None:
        self.d, self.w, self.variant = decoder, weights, variant
        self.g = Graph()

    def build(self, properties: dict[str, str]) -> onnx.ModelProto:
        d, g = self.d, self.g
        ids = g.input("input_ids", TensorProto.INT64, [1, "n"])
        rows = g.input("rows", TensorProto.INT64, ["r"])
        g.input("seqlens_k", TensorProto.INT32, [1])
        self.tiled = has_tiled_attention(d, self.variant)
        if not self.tiled:
            g.input("total_sequence_length", TensorProto.INT32, [])
        if self.variant.tree:
            g.input("position_ids", TensorProto.INT64, [1, "n"])
            g.input("attention_bias", TensorProto.FLOAT, [1, 1, "n", "total"])

        stream = lookup(g, "embedding", ids, self.w.matrices["token_embd"])
        if d.embedding_scale != 1:
            scale = g.constant("embedding_scale", np.float32(d.embedding_scale))
            stream = g.node("embedding.scaled", "Mul", [stream, scale])
        x = self._norm("blk.0.attn_norm", stream)
        for i in range(d.layers):
            block = f"blk.{i}"
            attended = self._attention(i, x)
            if d.post_norms:
                attended = self._norm(f"{block}.post_attention_norm", attended)
            x, stream = self._add_and_norm(f"{block}.ffn_norm", attended, stream)
            y = self._mlp(block, x)
            if d.post_norms:
                y = self._norm(f"{block}.post_ffw_norm", y)
            if i + 1 < d.layers:
                x, stream = self._add_and_norm(f"blk.{i + 1}.attn_norm", y, stream)
                self._hidden(i, stream, rows)
        # Only the wanted rows go through the last norm and the head.
        y = g.node("last.rows", "Gather", [y, rows], axis=1)
        stream = g.node("stream.rows", "Gather", [stream, rows], axis=1)
        final, stream = self._add_and_norm("output_norm", y, stream)
        self._hidden(d.layers - 1, stream, None)
        if self.variant.hidden is not None:
            g.output(final, "hidden.final", TensorProto.FLOAT, [1, "r", d.width])
        self._head(final)
        return g.model(d.architecture, properties)

    def _head(self, x: str) -> None:
        d, g = self.d, self.g
        matrix = self.w.matrices["token_embd" if d.tied else "output"]
        name = "logits" if d.softcap is None else "logits.raw"
        logits = linear(g, name, x, matrix)
        if d.softcap is not None:
            cap = g.constant("softcap", np.float32(d.softcap))
            logits = g.node("logits.tanh", "Tanh", [g.node("logits.divided", "Div", [logits, cap])])
            logits = g.node("logits", "Mul", [logits, cap])
        g.output(logits, "logits", TensorProto.FLOAT, [1, "r", matrix.outputs])

    def _attention(self, i: int, x: str) -> str:
        d, g = self.d, self.g
        block = f"blk.{i}"
        shape: list[int | str] = [1, d.kv_heads, "capacity", d.head]
        shapes: dict[str, list[int | str]]
        shapes = {"key": [1, d.kv_heads, "tiles", d.head, ROWS] if self.tiled else shape, "value": shape}
        past = [g.input(f"past_key_values.{i}.{part}", TensorProto.FLOAT, shapes[part]) for part in shapes]
        packed = self.w.matrices.get(f"{block}.attn_qkv")
        if packed is not None:
            qkv = [linear(g, f"{block}.qkv", x, packed), "", ""]
        else:
            q, k, v = (self._linear(f"{block}.attn_{part}", x) for part in "qkv")
            if d.head_norms:
                q = self._head_norm(f"{block}.attn_q_norm", q, d.heads)
                k = self._head_norm(f"{block}.attn_k_norm", k, d.kv_heads)
            qkv = [q, k, v]
        cos, sin = (g.weight(table) for table in self.w.ropes[i])
        attended, present = f"{block}.attended", [f"present.{i}.{part}" for part in shapes]
        total = [] if self.tiled else ["total_sequence_length"]
        inputs = [*qkv, *past, "seqlens_k", *total, cos, sin]
        if self.variant.tree:
            inputs += ["position_ids", "attention_bias"]
        interleaved, window = int(d.ropes[i].interleaved), d.windows[i]
        if self.tiled:
            g.own(
                attended,
                "Attention",
                inputs,
                [attended, *present],
                heads=d.heads,
                kv_heads=d.kv_heads,
                scale=d.attention_scale,
                interleaved=interleaved,
                window=window or 0,
            )
        else:
            g.contrib(
                attended,
                "GroupQueryAttention",
                inputs,
                [attended, *present],
                num_heads=d.heads,
                kv_num_heads=d.kv_heads,
                scale=d.attention_scale,
                do_rotary=1,
                rotary_interleaved=interleaved,
                **({} if window is None else {"local_window_size": window}),
            )
        for name, part in zip(present, shapes, strict=True):
            g.output(name, name, TensorProto.FLOAT, shapes[part])
        return self._linear(f"{block}.attn_output", attended)

    def _mlp(self, block: str, x: str) -> str:
        g = self.g
        gate = self._linear(f"{block}.ffn_gate", x)
        if self.d.activation == "silu":
            g.contrib(f"{block}.active", "QuickGelu", [gate], [f"{block}.active"], alpha=1.0)
        else:
            g.node(f"{block}.active", "Gelu", [gate], approximate="tanh")
        up = self._linear(f"{block}.ffn_up", x)
        return self._linear(f"{block}.ffn_down", g.node(f"{block}.gated", "Mul", [f"{block}.active", up]))

    def _linear(self, name: str, x: str) -> str:
        return linear(self.g, name, x, self.w.matrices[name])

    def _norm(self, name: str, x: str) -> str:
        weight = self.g.weight(self.w.vectors[name])
        return self.g.node(
            f"{name}.normed",
            "SimplifiedLayerNormalization",
            [x, weight],
            axis=-1,
            epsilon=self.d.epsilon,
            stash_type=1,
        )

    def _head_norm(self, name: str, x: str, heads: int) -> str:
        """An RMS norm on each head: [1, n, heads · head] as [1, n, heads, head] and back."""
        apart = self.g.constant(f"{name}.apart", [0, 0, heads, self.d.head], np.int64)
        together = self.g.constant(f"{name}.together", [0, 0, heads * self.d.head], np.int64)
        x = self.g.node(f"{name}.split", "Reshape", [x, apart])
        return self.g.node(f"{name}.joined", "Reshape", [self._norm(name, x), together])

    def _add_and_norm(self, name: str, x: str, stream: str) -> tuple[str, str]:
        """(norm(x + stream), x + stream)."""
        normed, total = f"{name}.normed", f"{name}.stream"
        self.g.contrib(
            normed,
            "SkipSimplifiedLayerNormalization",
            [x, stream, self.g.weight(self.w.vectors[name])],
            [normed, "", "", total],
            epsilon=self.d.epsilon,
        )
        return normed, total

    def _hidden(self, layer: int, stream: str, rows: str | None) -> None:
        """Make the residual stream behind a layer an output, if asked for."""
        chosen: Sequence[int] = self.variant.hidden or ()
        if layer not in chosen:
            return
        if rows is not None:
            stream = self.g.node(f"hidden.{layer}.rows", "Gather", [stream, rows], axis=1)
        self.g.output(stream, f"hidden.{layer}", TensorProto.FLOAT, [1, "r", self.d.width])
