"""The library's exports, and its operators in small graphs."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np

from edgespec.convert.tiles import TILES
from edgespec.kernels import library

PATHS = ("scalar", "avx2", "avxvnni", "avx512vnni", "neon", "dotprod", "i8mm")


@cache
def _library() -> ctypes.CDLL:
    loaded = ctypes.CDLL(str(library.path()))
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    loaded.edgespec_matmul.argtypes = [
        ctypes.c_char_p, number, pointer, number, number, pointer, pointer, number, pointer
    ]  # fmt: skip
    return loaded


def multiply(
    path: str, type_: str, tiles: np.ndarray, outputs: int, x: np.ndarray, bias: np.ndarray | None = None
) -> np.ndarray | None:
    """float32 [tokens, inputs] · tilesᵀ (+ bias) → float32 [tokens, outputs]; None: not on this processor."""
    tokens, inputs = x.shape
    x = np.ascontiguousarray(x, np.float32)  # kept until the call is over
    y = np.full((tokens, outputs), np.nan, np.float32)
    status = _library().edgespec_matmul(
        path.encode(),
        TILES[type_].number,
        tiles.ctypes.data,
        outputs,
        inputs,
        None if bias is None else bias.ctypes.data,
        x.ctypes.data,
        tokens,
        y.ctypes.data,
    )
    return y if status == 0 else None


@cache
def paths() -> list[str]:
    """Those of this processor."""
    tiles, x = np.zeros(TILES["Q4_0"].bytes(1, 32), np.uint8), np.zeros((1, 32), np.float32)
    return [path for path in PATHS if multiply(path, "Q4_0", tiles, 1, x) is not None]


def operator(
    op: str,
    type_: str | int,
    outputs: int,
    inputs: int,
    tiles: np.ndarray,
    bias: np.ndarray | None = None,
    threads: int = 1,
) -> Any:
    """A session whose graph is one of our operators: input `x`, output `y`."""
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper

    names = ["x", "w"] + (["bias"] if bias is not None else [])
    attributes = {"N": outputs, "K": inputs, "type": type_ if isinstance(type_, int) else TILES[type_].number}
    node = helper.make_node(op, names, ["y"], domain=library.DOMAIN, **attributes)
    dtype = TensorProto.INT64 if op == "Gather" else TensorProto.FLOAT
    constants = [numpy_helper.from_array(tiles, "w")]
    constants += [numpy_helper.from_array(bias, "bias")] if bias is not None else []
    graph = helper.make_graph(
        [node],
        "operator",
        [helper.make_tensor_value_info("x", dtype, None)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        constants,
    )
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(library.DOMAIN, 1)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 4
    library.register(options)
    return onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
