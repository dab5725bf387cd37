"""Converted graphs as this runtime and these options want them: adapted in memory when loaded."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from edgespec.backends.onnx_files import read_converted
from edgespec.backends.onnx_window import ATTENTION, fit_windows
from edgespec.kernels.library import DOMAIN

if TYPE_CHECKING:
    from onnx import GraphProto

SEGMENTS = "segments"
"""the input that tells our attention which rows belong to which sequence, see kernels/attention_op.cpp"""
_SEQUENCE = "seqlens_k"
_FLOATS = (0, 1, 2, 7, 8, 10)
"""inputs of the attention operator that must have the type of its cache, beside the cache"""


def adapted(path: Path, *, half: bool) -> bytes | None:
    """The graph of a model file with its windows as this runtime understands them, for several sequences
    where attention is ours, and, if `half`, with keys and values in float16; None if it may be loaded as it
    is."""
    model = read_converted(path)
    changed = fit_windows(model.graph)
    shared = _take_several(model.graph)
    if half:
        _keep_in_half(model.graph)
    if not (changed or shared or half):
        return None
    serialized: bytes = model.SerializeToString()
    return serialized


def _take_several(graph: GraphProto) -> bool:
    """Files have one sequence, of which ONNX Runtime's attention wants to know `seqlens_k`. Ours takes
    several; whether it is there."""
    ours = [node for node in graph.node if node.domain == DOMAIN and node.op_type == "Attention"]
    for node in ours:
        node.input[:] = [SEGMENTS if name == _SEQUENCE else name for name in node.input]
    for value in graph.input:
        if ours and value.name == _SEQUENCE:
            value.name = SEGMENTS
            shape = value.type.tensor_type.shape
            shape.dim[0].dim_param = "sequences"
            shape.dim.add().dim_value = 3
    return bool(ours)


def _keep_in_half(graph: GraphProto) -> None:
    """Keys and values in float16. ONNX Runtime's operator then takes and gives nothing else, so the rest is
    cast; ours has a twin."""
    from onnx import NodeProto, TensorProto, helper

    for node in graph.node:
        if node.domain == DOMAIN and node.op_type == "Attention":
            node.op_type = "HalfAttention"
    for value in [*graph.input, *graph.output]:
        if value.name.startswith(("past_key_values.", "present.")):
            value.type.tensor_type.elem_type = TensorProto.FLOAT16
    nodes: list[NodeProto] = []
    halves: dict[str, str] = {"": ""}

    def cast(name: str, to: str, kind: int) -> str:
        nodes.append(helper.make_node("Cast", [name], [to], name=f"{to}.cast", to=kind))
        return to

    for node in graph.node:
        if node.op_type != ATTENTION:
            nodes.append(node)
            continue
        for i in _FLOATS:
            if i < len(node.input):
                name = node.input[i]
                if name not in halves:
                    halves[name] = cast(name, f"{name}.half", TensorProto.FLOAT16)
                node.input[i] = halves[name]
        attended = node.output[0]
        node.output[0] = f"{attended}.half"
        nodes.append(node)
        cast(node.output[0], attended, TensorProto.FLOAT)
    del graph.node[:]
    graph.node.extend(nodes)
