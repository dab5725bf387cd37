"""Models for our kernels that are damaged: refused in words when they are loaded, or run without harm."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from convert.tiny_models import Tiny, write_tiny
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kernels_here import need_kernels

from edgespec.backends.base import Segment
from edgespec.errors import EdgespecError, ModelError

pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import onnx

from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.convert.convert import convert
from edgespec.convert.folder import DATA, MODEL

Change = Callable[[onnx.ModelProto], None]

MODELS = {
    "tied": Tiny("llama", layers=1, type="Q5_1", tied=True),
    "biases": Tiny("qwen2", layers=1, biases=True, type="Q8_0"),
    "K-quants": Tiny("llama", layers=1, width=256, head=64, hidden=256, type="Q4_K"),
}
FUZZ = int(os.environ.get("EDGESPEC_FUZZ", "0"))
"""models to try, other ones every time; 0: the same few"""
ODD = [-(1 << 63), -1, 0, 1, 2, 15, 16, 17, 32, 64, 96, 256, 4096, 1 << 31, 1 << 32, (1 << 63) - 1]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    need_kernels()
    home = tmp_path_factory.mktemp("healthy")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGESPEC_HOME", str(home))
        return {
            name: convert(write_tiny(home / f"{name}.gguf", tiny), portable=False).folder
            for name, tiny in MODELS.items()
        }


def run(folder: Path) -> np.ndarray:
    """Logits of a few tokens."""
    backend = Onnx(folder, OnnxOptions(n_ctx=16, threads=1, max_batch=8, max_rows=4))
    try:
        return backend.forward([Segment(backend.open(), [1, 2, 3], rows=3)]).copy()
    finally:
        backend.close()


def changed(healthy: Path, folder: Path, *changes: Change) -> Path:
    """A copy of a model, with another graph."""
    shutil.copytree(healthy, folder, dirs_exist_ok=True)
    model = onnx.load_model(folder / MODEL, load_external_data=False)
    for change in changes:
        change(model)
    (folder / MODEL).write_bytes(model.SerializeToString())
    return folder


def ours(model: onnx.ModelProto) -> list[onnx.NodeProto]:
    return [node for node in model.graph.node if node.domain == "edgespec"]


def attribute(name: str, value: int) -> Change:
    """Of the first product."""

    def change(model: onnx.ModelProto) -> None:
        node = next(node for node in ours(model) if node.op_type == "MatMul")
        next(a for a in node.attribute if a.name == name).i = value

    return change


def weights(model: onnx.ModelProto) -> onnx.TensorProto:
    return next(tensor for tensor in model.graph.initializer if tensor.name == "blk.0.ffn_up.tiles")


def place(key: str, value: object) -> Change:
    """Of the weights of a product."""

    def change(model: onnx.ModelProto) -> None:
        next(entry for entry in weights(model).external_data if entry.key == key).value = str(value)

    return change


def opset(model: onnx.ModelProto) -> None:
    next(o for o in model.opset_import if o.domain == "edgespec").version = 2


def operator(model: onnx.ModelProto) -> None:
    ours(model)[-1].op_type = "Divide"


def computed(model: onnx.ModelProto) -> None:
    ours(model)[-1].input[1] = "input_ids"


def bias(model: onnx.ModelProto) -> None:
    node = next(node for node in ours(model) if len(node.input) == 3)
    node.input[2] = "output_norm"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (attribute("N", 200), r"bytes"),
        (attribute("N", 0), r"a matrix of 0 × 64 cannot be"),
        (attribute("N", 1 << 40), r"cannot be"),
        (attribute("K", 48), r"cannot be of type Q8_0"),
        (attribute("K", -64), r"cannot be"),
        (attribute("type", 2), r"Q4_0 tiles are"),
        (attribute("type", 10), r"type 10, which is not known"),
        (lambda m: weights(m).dims.__setitem__(0, 64), r"damaged at blk\.0\.ffn_up\.tiles: it has the shape"),
        (lambda m: weights(m).dims.append(1), r"damaged at blk\.0\.ffn_up\.tiles: it has the shape"),
        (lambda m: setattr(weights(m), "data_type", 3), r"damaged at blk\.0\.ffn_up\.tiles"),
        (place("length", 64), r"64 bytes of the file are not its"),
        (place("length", -64), r"damaged"),
        (place("offset", -64), r"damaged"),
        (place("offset", 8), r"no multiple of 64"),
        (place("offset", 1 << 40), r"is cut short"),
        (place("location", "/etc/passwd"), r"outside of its folder"),
        (opset, r"another version of edgespec's kernels"),
        (operator, r"no Divide of 2 inputs"),
        (computed, r"'input_ids' is no tensor of the file"),
        (bias, r"a bias of shape \[64\]"),
    ],
)
def test_a_graph_that_does_not_fit_its_weights_is_refused(
    healthy: dict[str, Path], tmp_path: Path, change: Change, message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        run(changed(healthy["biases"], tmp_path / "damaged", change))


def test_weights_cut_short_are_refused(healthy: dict[str, Path], tmp_path: Path) -> None:
    folder = changed(healthy["tied"], tmp_path / "damaged")
    with (folder / DATA).open("r+b") as file:
        file.truncate((folder / DATA).stat().st_size - 1)
    with pytest.raises(ModelError, match="is cut short"):
        run(folder)


def test_widths_that_differ_from_node_to_node_are_refused(healthy: dict[str, Path], tmp_path: Path) -> None:
    """The weights fit their node, and the node does not fit the one before it."""

    def transposed(model: onnx.ModelProto) -> None:
        node = next(node for node in ours(model) if node.name == "blk.0.ffn_down")
        for a in node.attribute:
            if a.name in "NK":
                a.i = {96: 64, 64: 96}[a.i]

    with pytest.raises(ModelError, match="does not run"):
        run(changed(healthy["biases"], tmp_path / "damaged", transposed))


@st.composite
def changes(draw: st.DrawFn) -> Change:
    """Some value of the graph becomes another."""
    kind = draw(st.sampled_from(["attribute", "place", "dims", "type", "input", "drop"]))
    which, other = draw(st.integers(0, 99)), draw(st.integers(0, 99))
    value = draw(st.sampled_from(ODD) | st.integers(-(1 << 63), (1 << 63) - 1) | st.integers(0, 300))
    nearby = draw(st.none() | st.sampled_from([-64, -32, -16, -1, 1, 16, 32, 64]))

    def odd(was: int) -> int:
        return value if nearby is None else was + nearby

    def change(model: onnx.ModelProto) -> None:
        nodes, tensors = ours(model), model.graph.initializer
        node, tensor = nodes[which % len(nodes)], tensors[which % len(tensors)]
        if kind == "attribute":
            chosen = node.attribute[other % len(node.attribute)]
            chosen.i = odd(chosen.i)
        elif kind == "place" and tensor.external_data:
            entry = tensor.external_data[other % len(tensor.external_data)]
            entry.value = str(odd(int(entry.value))) if entry.key != "location" else str(value)
        elif kind == "dims" and tensor.dims:
            tensor.dims[other % len(tensor.dims)] = odd(tensor.dims[0])
        elif kind == "type":
            tensor.data_type = abs(value) % 24
        elif kind == "input":
            node.input[which % len(node.input)] = tensors[other % len(tensors)].name
        elif kind == "drop":
            del node.attribute[other % len(node.attribute)]

    return change


@settings(
    max_examples=FUZZ or 120,
    derandomize=not FUZZ,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
@given(name=st.sampled_from([*MODELS]), changes=st.lists(changes(), min_size=1, max_size=3))
def test_a_damaged_graph_runs_or_is_refused_in_words(
    healthy: dict[str, Path], tmp_path: Path, name: str, changes: list[Change]
) -> None:
    folder = changed(healthy[name], tmp_path / "fuzz", *changes)
    try:
        run(folder)
    except EdgespecError as error:
        assert str(error)


def test_a_healthy_model_runs(healthy: dict[str, Path]) -> None:
    for folder in healthy.values():
        assert np.isfinite(run(folder)).all()
