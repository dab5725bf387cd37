"""The closed-form model as others export models: Optimum's layout and onnxruntime-genai's.

The same weights as in the GGUF file, in graphs that owe nothing to edgespec's own converter.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from closed_form import CHAT_TEMPLATE, NGram, build
from closed_form.gguf_file import _spell
from closed_form.transformer import HEAD, WIDTH, frequencies
from closed_form.vocabulary import BOS, EOS, TURN_END
from onnx import TensorProto, helper, numpy_helper

CONTEXT = 512
HALVES = [*range(0, HEAD, 2), *range(1, HEAD, 2)]
"""channels reordered so that rotary pairs are (i, i + HEAD/2)"""


class Nodes:
    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def const(self, name: str, value: Any, dtype: Any = np.float32) -> str:
        self.weights[name] = numpy_helper.from_array(np.asarray(value, dtype), name)
        return name

    def __call__(
        self, op: str, *inputs: str, outputs: Sequence[str] = (), domain: str = "", **attributes: Any
    ) -> str:
        names = list(outputs) or [f"v{len(self.nodes)}"]
        self.nodes.append(helper.make_node(op, inputs, names, domain=domain, **attributes))
        return names[0]


def _norm(g: Nodes, x: str, weight: np.ndarray, name: str) -> str:
    mean = g("ReduceMean", g("Mul", x, x), g.const("last", [-1], np.int64), keepdims=1)
    root = g("Sqrt", g("Add", mean, g.const("eps", 1e-5)))
    return g("Mul", g("Div", x, root), g.const(name, weight))


def _turn(g: Nodes, x: str, cos: str, sin: str) -> str:
    a, b = f"{x}.a", f"{x}.b"
    g("Split", x, g.const("halves", [HEAD // 2] * 2, np.int64), outputs=[a, b], axis=-1)
    real = g("Sub", g("Mul", a, cos), g("Mul", b, sin))
    imaginary = g("Add", g("Mul", a, sin), g("Mul", b, cos))
    return g("Concat", real, imaginary, axis=-1)


def _heads(g: Nodes, x: str, n: int) -> str:
    shape = g.const(f"heads{n}", [0, 0, n, HEAD], np.int64)
    return g("Transpose", g("Reshape", x, shape), perm=[0, 2, 1, 3])


def _plain_attention(g: Nodes, q: str, k: str, v: str, past: list[str], present: list[str]) -> str:
    angles = np.multiply.outer(np.arange(CONTEXT), frequencies())
    at = g.const("axis1", [1], np.int64)
    cos = g("Unsqueeze", g("Gather", g.const("cos", np.cos(angles)), "position_ids"), at)
    sin = g("Unsqueeze", g("Gather", g.const("sin", np.sin(angles)), "position_ids"), at)
    q = _turn(g, _heads(g, q, 2), cos, sin)
    k = g("Concat", past[0], _turn(g, _heads(g, k, 1), cos, sin), outputs=[present[0]], axis=2)
    v = g("Concat", past[1], _heads(g, v, 1), outputs=[present[1]], axis=2)
    scores = g("Mul", g("MatMul", q, g("Transpose", k, perm=[0, 1, 3, 2])), g.const("scale", HEAD**-0.5))
    total = g("Gather", g("Shape", "attention_mask"), g.const("one", 1, np.int64))
    columns = g("Range", g.const("zero", 0, np.int64), total, g.const("step", 1, np.int64))
    later = g("Less", g("Unsqueeze", "position_ids", g.const("axis12", [1, 3], np.int64)), columns)
    scores = g("Where", later, g.const("never", -1e9), scores)
    mixed = g("Transpose", g("MatMul", g("Softmax", scores, axis=-1), v), perm=[0, 2, 1, 3])
    return g("Reshape", mixed, g.const("flat", [0, 0, 2 * HEAD], np.int64))


def _grouped_attention(g: Nodes, q: str, k: str, v: str, past: list[str], present: list[str]) -> str:
    angles = np.multiply.outer(np.arange(CONTEXT), frequencies())
    lengths = g("ReduceSum", "attention_mask", g.const("axis1", [1], np.int64), keepdims=0)
    last = g("Cast", g("Sub", lengths, g.const("one", [1], np.int64)), to=TensorProto.INT32)
    total = g("Gather", g("Shape", "attention_mask"), g.const("index", 1, np.int64))
    return g(
        "GroupQueryAttention",
        *(q, k, v, *past, last, g("Cast", total, to=TensorProto.INT32)),
        *(g.const("cos", np.cos(angles)), g.const("sin", np.sin(angles))),
        outputs=["attended", *present],
        domain="com.microsoft",
        num_heads=2,
        kv_num_heads=1,
        do_rotary=1,
    )


def _graph(
    ngram: NGram, grouped: bool, past: list[str], present: list[str], merged: bool, keeps: bool = False
) -> onnx.ModelProto:
    model, g = build(ngram), Nodes()
    w = {name: matrix.copy() for name, matrix in model.weights.items()}
    for name in ("query", "key"):
        w[name] = w[name].reshape(-1, HEAD, WIDTH)[:, HALVES].reshape(-1, WIDTH)

    def multiply(x: str, name: str) -> str:
        return g("MatMul", x, g.const(name, w[name].T))

    stream = g("Gather", g.const("embedding", w["embedding"]), "input_ids")
    x = _norm(g, stream, w["attention_norm"], "norm1")
    attention = _grouped_attention if grouped else _plain_attention
    parts = (multiply(x, name) for name in ("query", "key", "value"))
    stream = g("Add", stream, multiply(attention(g, *parts, past, present), "attention_output"))
    x = _norm(g, stream, w["mlp_norm"], "norm2")
    gate = multiply(x, "gate")
    x = g("Mul", g("Mul", gate, g("Sigmoid", gate)), multiply(x, "up"))
    stream = g("Add", stream, multiply(x, "down"))
    logits = multiply(_norm(g, stream, w["output_norm"], "norm3"), "output")
    if merged:
        nothing = g("Mul", g("Cast", "use_cache_branch", to=TensorProto.FLOAT), g.const("nothing", 0.0))
        logits = g("Add", logits, nothing)
    if keeps:
        start = g("Reshape", g("Neg", "num_logits_to_keep"), g.const("one number", [1], np.int64))
        end, rows = g.const("the end", [(1 << 63) - 1], np.int64), g.const("rows", [1], np.int64)
        logits = g("Slice", logits, start, end, rows)
    g("Identity", logits, outputs=["logits"])

    def value(name: str, kind: int, shape: list[Any]) -> onnx.ValueInfoProto:
        return helper.make_tensor_value_info(name, kind, shape)

    integers = ["input_ids", "attention_mask", *([] if grouped else ["position_ids"])]
    inputs = [value(name, TensorProto.INT64, ["batch", name]) for name in integers]
    inputs += [value(name, TensorProto.FLOAT, ["batch", 1, "past", HEAD]) for name in past]
    if merged:
        inputs.append(value("use_cache_branch", TensorProto.BOOL, [1]))
    if keeps:
        inputs.append(value("num_logits_to_keep", TensorProto.INT64, []))
    outputs = [value("logits", TensorProto.FLOAT, ["batch", "n", model.vocabulary])]
    outputs += [value(name, TensorProto.FLOAT, ["batch", 1, "total", HEAD]) for name in present]
    graph = helper.make_graph(g.nodes, "model", inputs, outputs, [*g.weights.values()])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=9)


def write_tokenizer(ngram: NGram, folder: Path, *, template_file: bool) -> None:
    """tokenizer.json and tokenizer_config.json for byte-level BPE that begins texts with BOS."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

    vocabulary = ngram.vocabulary
    ids = {_spell(piece): id for id, piece in enumerate(vocabulary.pieces)}
    merges = [(_spell(a), _spell(b)) for a, b in vocabulary.merges]
    tokenizer = Tokenizer(models.BPE(vocab=ids, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([*vocabulary.controls])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", special_tokens=[(BOS, vocabulary.bos)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    config: dict[str, Any] = {"bos_token": BOS, "eos_token": {"content": EOS}}
    if template_file:
        (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE)
    else:
        config["chat_template"] = CHAT_TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_optimum(
    ngram: NGram, folder: Path, merged: bool = True, keeps: bool = False, grouped: bool = False
) -> Path:
    """As transformers.js models lie on the Hub: the graph in onnx/, the rest beside it."""
    (folder / "onnx").mkdir(parents=True)
    past = ["past_key_values.0.key", "past_key_values.0.value"]
    graph = _graph(ngram, grouped, past, ["present.0.key", "present.0.value"], merged, keeps)
    onnx.save(graph, folder / "onnx" / ("decoder_model_merged.onnx" if merged else "model.onnx"))
    write_tokenizer(ngram, folder, template_file=False)
    vocabulary = ngram.vocabulary
    ends = [vocabulary.eos, vocabulary.marker(TURN_END)]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ends}))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": CONTEXT}))
    return folder


def write_genai(ngram: NGram, folder: Path) -> Path:
    """As onnxruntime-genai's builder writes models, with names of its own choice."""
    folder.mkdir(parents=True)
    past, present = ["past_0_k", "past_0_v"], ["now_0_k", "now_0_v"]
    onnx.save(_graph(ngram, True, past, present, False), folder / "decoder.onnx")
    write_tokenizer(ngram, folder, template_file=True)
    vocabulary = ngram.vocabulary
    decoder = {
        "filename": "decoder.onnx",
        "inputs": {"past_key_names": "past_%d_k", "past_value_names": "past_%d_v"},
        "outputs": {"present_key_names": "now_%d_k", "present_value_names": "now_%d_v"},
    }
    ends = [vocabulary.eos, vocabulary.marker(TURN_END)]
    model = {"decoder": decoder, "context_length": CONTEXT, "eos_token_id": ends}
    (folder / "genai_config.json").write_text(json.dumps({"model": model}))
    return folder
