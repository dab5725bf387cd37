"""Small helpers around ONNX's graph builder, and the one place where a linear layer becomes a node."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
from onnx import NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from edgespec.convert.tiles import Tiles
from edgespec.convert.weights import Matrix, as_rows
from edgespec.kernels.library import ABI, DOMAIN

CONTRIB = "com.microsoft"
OPSET, IR_VERSION = 21, 10


class Graph:
    """A graph in the making. Values are named; each method adds nodes and returns what they yield."""

    def __init__(self) -> None:
        self.nodes: list[NodeProto] = []
        self.inputs: list[ValueInfoProto] = []
        self.outputs: list[ValueInfoProto] = []
        self._initializers: dict[str, TensorProto] = {}

    def input(self, name: str, dtype: int, shape: Sequence[int | str]) -> str:
        self.inputs.append(helper.make_tensor_value_info(name, dtype, shape))
        return name

    def output(self, value: str, name: str, dtype: int, shape: Sequence[int | str]) -> None:
        """Make a value an output of the graph, under a name of its own."""
        if value != name:
            self.nodes.append(helper.make_node("Identity", [value], [name], name=f"{name}.out"))
        self.outputs.append(helper.make_tensor_value_info(name, dtype, shape))

    def weight(self, tensor: TensorProto | None) -> str:
        """A tensor of the external data."""
        if tensor is None:
            return ""
        self._initializers[tensor.name] = tensor
        return tensor.name

    def constant(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        """A small tensor inside the graph."""
        self._initializers[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def node(self, name: str, op: str, inputs: Sequence[str], domain: str = "", **attributes: Any) -> str:
        """A node with one output, which bears its name."""
        self.nodes.append(helper.make_node(op, inputs, [name], name=name, domain=domain, **attributes))
        return name

    def contrib(
        self, name: str, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """A node of ONNX Runtime's own operators."""
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=CONTRIB, **attributes))

    def own(
        self, name: str, op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any
    ) -> None:
        """A node of our operators."""
        self.nodes.append(helper.make_node(op, inputs, outputs, name=name, domain=DOMAIN, **attributes))

    def model(self, name: str, properties: dict[str, str]) -> onnx.ModelProto:
        """The finished model."""
        graph = helper.make_graph(self.nodes, name, self.inputs, self.outputs, [*self._initializers.values()])
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(CONTRIB, 1)]
        if any(node.domain == DOMAIN for node in self.nodes):
            opsets.append(helper.make_opsetid(DOMAIN, ABI))
        model = helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="edgespec"
        )
        helper.set_model_props(model, properties)
        return model


def linear(graph: Graph, name: str, x: str, matrix: Matrix) -> str:
    """x · Wᵀ (+ bias): every linear layer of a model, the output head included.

    x: float32 […, inputs] → float32 […, outputs].
    """
    if isinstance(matrix.form, Tiles):
        return _tiled(
            graph, name, "MatMul", [x, graph.weight(matrix.data), graph.weight(matrix.bias)], matrix
        )
    if matrix.form is None:
        y = f"{name}.product" if matrix.bias is not None else name
        graph.contrib(y, "FusedMatMul", [x, graph.weight(matrix.data)], [y], transB=1)
        return graph.node(name, "Add", [y, graph.weight(matrix.bias)]) if matrix.bias is not None else y
    inputs = [
        x,
        graph.weight(matrix.data),
        graph.weight(matrix.scales),
        graph.weight(matrix.zero_points),
        "",  # g_idx
        graph.weight(matrix.bias),
    ]
    while not inputs[-1]:
        inputs.pop()
    graph.contrib(
        name,
        "MatMulNBits",
        inputs,
        [name],
        bits=matrix.form.bits,
        block_size=matrix.form.block,
        N=matrix.outputs,
        K=matrix.inputs,
        accuracy_level=4,  # activations as int8, with one scale per block of the weights
    )
    return name


def _tiled(graph: Graph, name: str, op: str, inputs: Sequence[str], matrix: Matrix) -> str:
    """A node of our kernels."""
    assert isinstance(matrix.form, Tiles)
    inputs = [value for value in inputs if value]  # the bias comes last
    size = {"N": matrix.outputs, "K": matrix.inputs}
    return graph.node(name, op, inputs, DOMAIN, type=matrix.form.number, **size)


def lookup(graph: Graph, name: str, ids: str, matrix: Matrix) -> str:
    """Rows of a matrix: int64 [1, n] → float32 [1, n, inputs]. Quantized rows are expanded when read."""
    if isinstance(matrix.form, Tiles):
        return _tiled(graph, name, "Gather", [ids, graph.weight(matrix.data)], matrix)
    if matrix.form is None:
        return graph.node(name, "Gather", [graph.weight(matrix.data), ids])
    rows, scales, zeros = as_rows(matrix)
    inputs = [graph.weight(rows), ids, graph.weight(scales), graph.weight(zeros)]
    graph.contrib(
        name,
        "GatherBlockQuantized",
        inputs if zeros is not None else inputs[:3],
        [name],
        bits=matrix.form.bits,
        block_size=matrix.form.block,
        gather_axis=0,
        quantize_axis=1,
    )
    return name
