"""The attention operator against float64 arithmetic, and against itself in other passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from numpy.typing import NDArray
from onnx import TensorProto, helper

from edgespec.kernels import library

Floats = NDArray[np.float32]
POSITIONS = 1400


@dataclass(frozen=True)
class Case:
    heads: int = 6
    kv_heads: int = 2
    size: int = 32
    interleaved: bool = False
    window: int = 0
    halves: bool = False
    packed: bool = False
    tree: bool = False
    scale: float = 0.2


def session(case: Case, threads: int) -> Any:
    cache = TensorProto.FLOAT16 if case.halves else TensorProto.FLOAT
    width = (case.heads + (2 * case.kv_heads if case.packed else 0)) * case.size
    kv = case.kv_heads * case.size
    shapes = {
        "query": (TensorProto.FLOAT, [1, "n", width]),
        "key": (TensorProto.FLOAT, [1, "n", kv]),
        "value": (TensorProto.FLOAT, [1, "n", kv]),
        "keys": (cache, [1, case.kv_heads, "tiles", case.size, 16]),
        "values": (cache, [1, case.kv_heads, "capacity", case.size]),
        "segments": (TensorProto.INT32, ["s", "columns"]),
        "cos": (TensorProto.FLOAT, ["positions", case.size // 2]),
        "sin": (TensorProto.FLOAT, ["as many", case.size // 2]),
        "positions": (TensorProto.INT64, [1, "n"]),
        "bias": (TensorProto.FLOAT, [1, 1, "n", "total"]),
    }
    left_out = {"key", "value"} if case.packed else set()
    left_out |= set() if case.tree else {"positions", "bias"}
    node = helper.make_node(
        "HalfAttention" if case.halves else "Attention",
        ["" if name in left_out else name for name in shapes],
        ["y", "new_keys", "new_values"],
        domain="edgespec",
        heads=case.heads,
        kv_heads=case.kv_heads,
        interleaved=int(case.interleaved),
        window=case.window,
        scale=case.scale,
    )
    inputs = [
        helper.make_tensor_value_info(name, *about) for name, about in shapes.items() if name not in left_out
    ]
    outputs = [
        helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "n", case.heads * case.size]),
        helper.make_tensor_value_info("new_keys", *shapes["keys"]),
        helper.make_tensor_value_info("new_values", *shapes["values"]),
    ]
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("edgespec", 1)]
    graph = helper.make_graph([node], "attention", inputs, outputs)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    library.register(options)
    return ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])


class Layer:
    """A layer with a cache, fed pass by pass: one sequence, or several whose segments are given."""

    def __init__(self, case: Case, capacity: int = 1024, threads: int = 2) -> None:
        self.case, self.session = case, session(case, threads)
        dtype = np.float16 if case.halves else np.float32
        self.keys = np.full((1, case.kv_heads, capacity // 16, case.size, 16), np.nan, dtype)
        self.values = np.full((1, case.kv_heads, capacity, case.size), np.nan, dtype)
        self.length = 0
        angles = np.arange(POSITIONS)[:, None] / 100.0 ** (np.arange(case.size // 2) / case.size)
        self.cos, self.sin = np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def feed(
        self, x: Floats, positions: Any = None, bias: Floats | None = None, segments: Any = None
    ) -> Floats:
        """x: float32 [n, queries, keys and values behind each other] → float32 [n, heads · size]."""
        case, n = self.case, len(x)
        q, kv = case.heads * case.size, case.kv_heads * case.size
        feeds: dict[str, Any] = (
            {"query": x[None]}
            if case.packed
            else {
                "query": x[None, :, :q],
                "key": x[None, :, q : q + kv],
                "value": x[None, :, q + kv :],
            }
        )
        segments = [[0, self.length, 0]] if segments is None else segments
        feeds |= {"cos": self.cos, "sin": self.sin, "segments": np.array(segments, np.int32)}
        if case.tree:
            positions = np.arange(self.length, self.length + n) if positions is None else positions
            feeds["positions"] = np.asarray(positions, np.int64)[None]
            bias = np.zeros((n, self.length + n), np.float32) if bias is None else bias
            feeds["bias"] = bias[None, None]
        binding = self.session.io_binding()
        for name, value in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(value))
        for name, new, buffer in (("keys", "new_keys", self.keys), ("values", "new_values", self.values)):
            place = ("cpu", 0, buffer.dtype.type, buffer.shape, buffer.ctypes.data)
            binding.bind_input(name, *place)
            binding.bind_output(new, *place)
        y = np.empty((1, n, q), np.float32)
        binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
        self.session.run_with_iobinding(binding)
        self.length += n
        result: Floats = y[0]
        return result


def expected(layer: Layer, x: Floats) -> NDArray[np.float64]:
    """Attention of tokens fed as a chain from the beginning, in float64."""
    case, n = layer.case, len(x)
    q, kv = case.heads * case.size, case.kv_heads * case.size
    parts = np.split(x.astype(np.float64), [q, q + kv], axis=1)
    queries, keys, values = (part.reshape(n, -1, case.size) for part in parts)
    cos, sin = layer.cos[:n, None].astype(float), layer.sin[:n, None].astype(float)

    def turned(v: NDArray[np.float64]) -> NDArray[np.float64]:
        if case.interleaved:
            a, b = v[..., 0::2], v[..., 1::2]
            return np.stack([a * cos - b * sin, b * cos + a * sin], axis=-1).reshape(v.shape)
        a, b = np.split(v, 2, axis=-1)
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)

    queries, keys = turned(queries), turned(keys)
    group = case.heads // case.kv_heads
    keys, values = keys.repeat(group, axis=1), values.repeat(group, axis=1)
    scores = case.scale * np.einsum("qhd,khd->hqk", queries, keys)
    distance = np.arange(n)[:, None] - np.arange(n)
    seen = (distance >= 0) & (distance < (case.window or n))
    scores = np.where(seen, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hqk,khd->qhd", weights, values).reshape(n, -1)


def tokens(case: Case, n: int, seed: int = 0) -> Floats:
    width = (case.heads + 2 * case.kv_heads) * case.size
    return np.random.default_rng(seed).standard_normal((n, width)).astype(np.float32)


CASES = [
    Case(),
    Case(packed=True),
    Case(interleaved=True, kv_heads=6),
    Case(window=37),
    Case(window=600, size=16),
    Case(heads=1, kv_heads=1, size=256, scale=0.05),
    Case(tree=True),
    Case(halves=True),
    Case(halves=True, packed=True, window=5),
]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("n", [1, 17, 700])
def test_attention_is_that_of_float64(case: Case, n: int) -> None:
    layer = Layer(case)
    x = tokens(case, n)
    np.testing.assert_allclose(layer.feed(x), expected(layer, x), atol=3e-3 if case.halves else 2e-5)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_token_does_not_depend_on_the_rest_of_its_pass(case: Case) -> None:
    n = 600
    x = tokens(case, n)
    whole = Layer(case).feed(x)
    pieces = Layer(case, threads=1)
    sizes = [490, 1, 2, 3, 1, 8, 16, 5, 1, 1, 64, 7, 1]
    assert sum(sizes) == n
    ends = np.cumsum(sizes)
    for start, end in zip(ends - sizes, ends, strict=True):
        np.testing.assert_array_equal(pieces.feed(x[start:end]), whole[start:end], strict=True)
    assert not np.isnan(whole).any()


@pytest.mark.parametrize("case", [case for case in CASES if not case.tree], ids=str)
def test_sequences_of_a_pass_do_not_see_each_other(case: Case) -> None:
    """Each gets what it gets in a cache of its own; their places are in another order than their rows."""
    texts = [tokens(case, n, seed) for seed, n in enumerate((600, 75, 130, 3))]
    places = [800, 16, 208, 0]
    wanted = [Layer(case).feed(x) for x in texts]
    layer = Layer(case, capacity=1408)
    lengths = [0] * len(texts)
    for sizes in ((500, 1, 60, 1), (1, 1, 1, 1), (7, 0, 5, 1), (92, 73, 64, 0)):
        rows, segments = [], []
        for i, (x, n) in enumerate(zip(texts, sizes, strict=True)):
            if n:
                segments.append([sum(map(len, rows)), lengths[i], places[i]])
                rows.append(x[lengths[i] : lengths[i] + n])
        y = layer.feed(np.concatenate(rows), segments=segments)
        for i, n in enumerate(sizes):
            np.testing.assert_array_equal(y[:n], wanted[i][lengths[i] : lengths[i] + n], strict=True)
            lengths[i], y = lengths[i] + n, y[n:]
    assert lengths == [*map(len, texts)]


@pytest.mark.parametrize(
    ("segments", "why"),
    [
        ([[0, 0]], "segments of a wrong shape"),
        ([[0, 0, 0, 0]], "segments of a wrong shape"),
        (np.zeros((0, 3)), "segments of a wrong shape"),
        ([0, 0, 0], "Invalid rank"),
        ([[1, 0, 0]], "do not begin with the first row"),
        ([[-1, 0, 0]], "do not begin with the first row"),
        ([[0, 0, 0], [8, 0, 64]], "a segment without rows"),
        ([[0, 0, 0], [0, 0, 64]], "a segment without rows"),
        ([[0, 0, 0], [5, 0, 64], [3, 0, 128]], "a segment without rows"),
        ([[0, 0, 8]], "at no place"),
        ([[0, 0, -16]], "at no place"),
        ([[0, -1, 0]], "at no place"),
        ([[0, 0, 1024]], "the cache is too small"),
        ([[0, 0, 0], [4, 13, 1008]], "the cache is too small"),
        ([[0, (1 << 31) - 1, 16]], "the cache is too small"),
        ([[0, 0, (1 << 31) - 16]], "the cache is too small"),
    ],
)
def test_segments_that_do_not_fit_are_refused(segments: Any, why: str) -> None:
    layer = Layer(Case())
    with pytest.raises(Exception, match=why):
        layer.feed(tokens(layer.case, 8), segments=segments)


def test_a_tree_is_of_one_sequence() -> None:
    layer = Layer(Case(tree=True))
    with pytest.raises(Exception, match="for one sequence"):
        layer.feed(tokens(layer.case, 8), segments=[[0, 0, 0], [4, 0, 64]])


def test_a_branch_of_a_tree_is_that_branch_as_a_chain() -> None:
    case = Case(tree=True)
    before, n = 530, 5
    x = tokens(case, before + n)
    parents = [-1, 0, 0, 1, 2]
    layer = Layer(case)
    layer.feed(x[:before])
    bias = np.full((n, before + n), -1e9, np.float32)
    bias[:, :before] = 0
    depth = [0] * n
    for i, parent in enumerate(parents):
        if parent >= 0:
            bias[i, before:] = bias[parent, before:]
            depth[i] = depth[parent] + 1
        bias[i, before + i] = 0
    y = layer.feed(x[before:], before + np.array(depth), bias)
    for branch in ([0, 1, 3], [0, 2, 4]):
        chain = Layer(replace(case, tree=False))
        chain.feed(x[:before])
        np.testing.assert_allclose(chain.feed(x[before:][branch]), y[branch], atol=1e-6)


def test_what_lies_behind_the_end_of_the_cache_is_never_read() -> None:
    case = Case()
    x = tokens(case, 20)
    layer = Layer(case)  # its cache is NaN where nothing was written
    layer.feed(x)
    layer.length = 3
    fresh = Layer(case)
    fresh.feed(x[:3])
    np.testing.assert_array_equal(layer.feed(x[7:8]), fresh.feed(x[7:8]))


@pytest.mark.parametrize("part", ["query", "key", "value"])
def test_what_is_no_number_does_not_become_one(part: str) -> None:
    case = Case()
    x, at, group = tokens(case, 70), 40, case.heads // case.kv_heads
    q, kv = case.heads * case.size, case.kv_heads * case.size
    x[at, {"query": 0, "key": q, "value": q + kv}[part]] = np.nan
    y = Layer(case).feed(x).reshape(len(x), case.heads, case.size)
    if part == "query":
        assert np.isnan(y[at, 0]).all() and np.isfinite(np.delete(y, at, axis=0)).all()
    elif part == "key":
        assert np.isnan(y[at:, :group]).all() and np.isfinite(y[:at]).all()
    else:
        assert np.isnan(y[at:, :group, 0]).all()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"length": 1020}, "the cache is too small"),
        ({"length": -9}, "at no place"),
        ({"cos": np.zeros((4, 16), np.float32), "sin": np.zeros((4, 16), np.float32)}, "beyond the rotary"),
        ({"sin": np.zeros((4, 16), np.float32)}, "rotary tables of a wrong shape"),
        ({"keys": np.zeros((1, 2, 8, 32, 16), np.float32)}, "caches of a wrong shape"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(change: dict[str, Any], why: str) -> None:
    layer = Layer(Case())
    for name, value in change.items():
        setattr(layer, name, value)
    with pytest.raises(Exception, match=why):
        layer.feed(tokens(layer.case, 8))
