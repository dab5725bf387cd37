"""Graphs with our operators, checked before ONNX Runtime sees them: each weight is as long as its node says.

The operators check what depends on inputs: widths of activations, ids of rows, caches.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgespec.convert.tiles import TILES
from edgespec.errors import ModelError
from edgespec.kernels.library import ABI, DOMAIN

if TYPE_CHECKING:
    from onnx import ModelProto, NodeProto, TensorProto

ALIGNMENT = 64
"""of weights in their file, so that vectors can be loaded in place"""
_ATTENTION = "Attention"
_OPERATORS = {"MatMul": (2, 3), "Gather": (2, 2), _ATTENTION: (8, 10)}
"""least and most inputs"""
_LARGEST = 1 << 31
_TILES = {tiles.number: tiles for tiles in TILES.values()}


def uses_kernels(model: ModelProto) -> bool:
    """Whether a graph has our operators."""
    return any(node.domain == DOMAIN for node in model.graph.node)


def check_kernels(model: ModelProto, remedy: str) -> None:
    """Raise ModelError if a node of ours does not fit its weights, or is of a kind that is not known;
    it ends with `remedy`, what to do about it."""
    if any(opset.domain == DOMAIN and opset.version != ABI for opset in model.opset_import):
        raise ModelError(f"it needs another version of edgespec's kernels; {remedy}")
    tensors = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.domain == DOMAIN:
            try:
                _check(node, tensors)
            except _Damaged as error:
                raise ModelError(f"the model is damaged at {error}; {remedy}") from error


def _check(node: NodeProto, tensors: dict[str, TensorProto]) -> None:
    from onnx import TensorProto

    least, most = _OPERATORS.get(node.op_type, (0, -1))
    if not least <= len(node.input) <= most:
        raise _damaged(node.name, f"edgespec's kernels have no {node.op_type} of {len(node.input)} inputs")
    if node.op_type == _ATTENTION:  # has no weights
        return
    sizes = {attribute.name: attribute.i for attribute in node.attribute if attribute.type == attribute.INT}
    outputs, inputs, type_ = (sizes.get(name, 0) for name in ("N", "K", "type"))
    tiles = _TILES.get(type_)
    if tiles is None:
        raise _damaged(node.name, f"its weights are of type {type_}, which is not known")
    if not 0 < outputs < _LARGEST or not 0 < inputs < _LARGEST or inputs % tiles.inputs:
        raise _damaged(node.name, f"a matrix of {outputs} × {inputs} cannot be of type {tiles.type}")
    weights = _tensor(node, 1, tensors)
    size = tiles.bytes(outputs, inputs)
    if weights.data_type != TensorProto.UINT8 or [*weights.dims] != [size]:
        raise _damaged(
            weights.name,
            f"it has the shape {[*weights.dims]}; {outputs} × {inputs} {tiles} are {size:,} bytes",
        )
    place = {entry.key: entry.value for entry in weights.external_data}
    if weights.data_location != TensorProto.EXTERNAL:
        if len(weights.raw_data) != size:
            raise _damaged(weights.name, f"it holds {len(weights.raw_data):,} bytes, not {size:,}")
    elif place.get("length") != str(size):
        raise _damaged(weights.name, f"{place.get('length')} bytes of the file are not its {size:,}")
    elif int(place.get("offset", "0")) % ALIGNMENT:
        raise _damaged(weights.name, f"it begins at {place['offset']}, no multiple of {ALIGNMENT}")
    if len(node.input) > 2 and node.input[2]:
        bias = _tensor(node, 2, tensors)
        if bias.data_type != TensorProto.FLOAT or [*bias.dims] != [outputs]:
            raise _damaged(bias.name, f"a bias of shape {[*bias.dims]} is not of {outputs} outputs")


def _tensor(node: NodeProto, index: int, tensors: dict[str, TensorProto]) -> TensorProto:
    tensor = tensors.get(node.input[index])
    if tensor is None:
        raise _damaged(node.name, f"its input {node.input[index]!r} is no tensor of the file")
    return tensor


class _Damaged(Exception):
    """Says where and why."""


def _damaged(name: str, why: str) -> _Damaged:
    return _Damaged(f"{name}: {why}")
