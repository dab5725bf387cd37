"""Sliding windows: what `local_window_size` means to the installed ONNX Runtime.

GroupQueryAttention once let a token see that many tokens and itself, and later that many in all. So it
is tried on a tiny graph, and a converted model (whose windows count the token itself) adapted in memory.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np

from edgespec.backends.onnx_session import onnxruntime, session_options

_WINDOW, _TOKENS, _HEAD = 2, 5, 8


def adapted(path: Path) -> bytes | None:
    """The graph of a model file with its windows as this runtime understands them; None if it may be
    loaded as it is."""
    import onnx

    model = onnx.load_model(str(path), load_external_data=False)
    windows = [
        attribute
        for node in model.graph.node
        if node.op_type == "GroupQueryAttention"
        for attribute in node.attribute
        if attribute.name == "local_window_size" and attribute.i > 0
    ]
    if not windows or (excess := _seen() - _WINDOW) == 0:
        return None
    for attribute in windows:
        attribute.i -= excess
    serialized: bytes = model.SerializeToString()
    return serialized


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
        "GroupQueryAttention",
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
