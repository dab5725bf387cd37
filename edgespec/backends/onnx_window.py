"""Sliding windows: what `local_window_size` means to the installed ONNX Runtime.

GroupQueryAttention once let a token see that many tokens and itself, and later that many in all. So it
is tried on a tiny graph, and a converted model (whose windows count the token itself) adapted to it. In
trees it cannot be used at all.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from edgespec.backends.onnx_session import onnxruntime, session_options

if TYPE_CHECKING:
    from onnx import AttributeProto, GraphProto, NodeProto

BIAS = "attention_bias"
"""the input of tree graphs that says what a token sees"""
ATTENTION = "GroupQueryAttention"
_WINDOWS = {"local_window_size": -1, "window": 0}
"""attributes of ONNX Runtime's attention and of ours: what means no window"""
_WINDOW, _TOKENS, _HEAD = 2, 5, 8


def fit_windows(graph: GraphProto) -> bool:
    """Adapt the windows of a converted graph, in place; whether there was anything to do."""
    changed = False
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.name not in _WINDOWS or attribute.i <= 0:
                continue
            if BIAS in node.input:
                _as_bias(graph, node, attribute)
                changed = True
            elif node.op_type == ATTENTION and (excess := _seen() - _WINDOW) != 0:
                attribute.i -= excess
                changed = True
    return changed


def _as_bias(graph: GraphProto, node: NodeProto, window: AttributeProto) -> None:
    """The operators count places in the cache, and in a tree those are not positions: siblings push what
    is older out of the window. So a window becomes a bias like the tree's own, an input named after it."""
    name = f"{BIAS}.{window.i}"
    if name not in [value.name for value in graph.input]:
        like = next(value for value in graph.input if value.name == BIAS)
        graph.input.add().CopyFrom(like)
        graph.input[-1].name = name
    node.input[list(node.input).index(BIAS)] = name
    window.i = _WINDOWS[window.name]


@cache
def _seen() -> int:
    """How many tokens the last of _TOKENS attends to with a window of _WINDOW."""
    from onnx import TensorProto, ValueInfoProto, helper

    def floats(name: str, *shape: int) -> ValueInfoProto:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    tokens, past = (1, _TOKENS, _HEAD), (1, 1, 0, _HEAD)
    inputs = [floats(name, *tokens) for name in "qkv"] + [floats(name, *past) for name in ("pk", "pv")]
    inputs.append(helper.make_tensor_value_info("last", TensorProto.INT32, [1]))
    inputs.append(helper.make_tensor_value_info("total", TensorProto.INT32, []))
    node = helper.make_node(
        ATTENTION,
        ["q", "k", "v", "pk", "pv", "last", "total"],
        ["y", "nk", "nv"],
        domain="com.microsoft",
        num_heads=1,
        kv_num_heads=1,
        local_window_size=_WINDOW,
    )
    outputs = [floats("y", *tokens), *(floats(name, 1, 1, _TOKENS, _HEAD) for name in ("nk", "nv"))]
    graph = helper.make_graph([node], "window", inputs, outputs)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = onnxruntime().InferenceSession(
        model.SerializeToString(), session_options(1), providers=["CPUExecutionProvider"]
    )
    # Keys are zero, so attention is spread evenly; values are one-hots, so what is seen shows.
    zeros, values = np.zeros(tokens, np.float32), np.eye(_TOKENS, _HEAD, dtype=np.float32)[None]
    feeds = {
        "q": zeros,
        "k": zeros,
        "v": values,
        "pk": np.zeros(past, np.float32),
        "pv": np.zeros(past, np.float32),
        "last": np.array([_TOKENS - 1], np.int32),
        "total": np.array(_TOKENS, np.int32),
    }
    (y,) = session.run(["y"], feeds)
    return int(np.count_nonzero(y[0, -1] > 1e-3))
