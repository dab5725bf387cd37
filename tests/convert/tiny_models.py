"""Small models with random weights, one per architecture and variant, as GGUF files.

They say nothing, but every detail of their graph shows in the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from closed_form.gguf_file import _add_tokenizer
from closed_form.vocabulary import Vocabulary

VOCABULARY = Vocabulary()
CONTEXT = 256


@dataclass(frozen=True)
class Tiny:
    """A variant of an architecture."""

    architecture: str
    width: int = 64
    head: int = 16
    heads: int = 4
    kv_heads: int = 2
    layers: int = 2
    hidden: int = 96
    type: str = "F32"
    """of the matrices"""
    biases: bool = False
    head_bias: bool = False
    head_norms: bool = False
    post_norms: bool = False
    tied: bool = False
    divisors: bool = False
    """Llama 3's rope_freqs"""
    keys: Mapping[str, Any] = field(default_factory=dict)
    """further hyperparameters, by name without the architecture"""


YARN = {"rope.scaling.type": "yarn", "rope.scaling.factor": 4.0, "rope.scaling.original_context_length": 64}
TINY = {
    "llama": Tiny("llama"),
    "llama, one head for all": Tiny("llama", heads=4, kv_heads=1, tied=True),
    "llama, Llama 3 scaling": Tiny("llama", divisors=True, keys={"rope.freq_base": 500000.0}),
    "llama, linear scaling": Tiny(
        "llama", keys={"rope.scaling.type": "linear", "rope.scaling.factor": 2.0, "rope.freq_base": 1000.0}
    ),
    "llama, YaRN": Tiny("llama", keys=YARN),
    "llama, Q4_0": Tiny("llama", type="Q4_0"),
    "llama, Q8_0": Tiny("llama", type="Q8_0", tied=True),
    "llama, Q4_1": Tiny("llama", type="Q4_1"),
    "llama, Q5_1": Tiny("llama", type="Q5_1"),
    "llama, F16": Tiny("llama", type="F16", tied=True),
    "llama, BF16": Tiny("llama", type="BF16"),
    "llama, Q4_K": Tiny("llama", width=256, head=64, hidden=512, type="Q4_K"),
    "llama, Q5_K": Tiny("llama", width=256, head=64, hidden=512, type="Q5_K", tied=True),
    "llama, Q6_K": Tiny("llama", width=256, head=64, hidden=512, type="Q6_K", tied=True),
    "llama, IQ4_NL": Tiny("llama", type="IQ4_NL", tied=True),
    "llama, Q5_0": Tiny("llama", type="Q5_0"),
    "qwen2": Tiny("qwen2", biases=True, keys={"rope.freq_base": 1e6}),
    "qwen2, YaRN": Tiny("qwen2", biases=True, keys=YARN),
    "qwen2, Q8_0": Tiny("qwen2", biases=True, type="Q8_0"),
    "qwen3": Tiny("qwen3", head=32, head_norms=True, tied=True),
    "gemma3": Tiny(
        "gemma3",
        head=32,
        layers=7,
        head_norms=True,
        post_norms=True,
        tied=True,
        keys={"attention.sliding_window": 8, "rope.freq_base": 1e6},
    ),
    "gemma3, no window, soft cap": Tiny(
        "gemma3", head_norms=True, post_norms=True, tied=True, keys={"final_logit_softcapping": 3.0}
    ),
}


def write_tiny(path: Path, tiny: Tiny, seed: int = 0) -> Path:
    """Write a model over the closed-form vocabulary."""
    a = tiny.architecture
    writer = gguf.GGUFWriter(path, a)
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_vocab_size(len(VOCABULARY))
    writer.add_embedding_length(tiny.width)
    writer.add_block_count(tiny.layers)
    writer.add_feed_forward_length(tiny.hidden)
    writer.add_head_count(tiny.heads)
    writer.add_head_count_kv(tiny.kv_heads)
    writer.add_key_length(tiny.head)
    writer.add_value_length(tiny.head)
    writer.add_rope_dimension_count(tiny.head)
    writer.add_layer_norm_rms_eps(1e-5)
    adders: dict[type, Callable[..., None]] = {
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        bool: writer.add_bool,
    }
    for key, value in tiny.keys.items():
        adders[type(value)](f"{a}.{key}", value)
    _add_tokenizer(writer, VOCABULARY)
    for name, array in _tensors(tiny, np.random.default_rng(seed)).items():
        kind = gguf.GGMLQuantizationType[tiny.type]
        if array.ndim == 1:
            writer.add_tensor(name, array)
        elif tiny.type in ("F32", "F16"):
            writer.add_tensor(name, array.astype(np.float16) if tiny.type == "F16" else array)
        else:
            writer.add_tensor(name, _quantized(array, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _quantized(array: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """Rows of a type's bytes: of the array, or, where gguf cannot quantize, of random weights as large."""
    try:
        return gguf.quants.quantize(array, kind)
    except NotImplementedError:
        pass
    block, size = gguf.GGML_QUANT_SIZES[kind]
    rng = np.random.default_rng(array.size)
    data = rng.integers(0, 256, (len(array), array.shape[1] // block, size), dtype=np.uint8)
    # The scale of the block, and that of its minimums, such that weights are about as often negative.
    numbers = {"Q4_K": {0: 1.0, 2: 0.25}, "Q5_K": {0: 1.0, 2: 0.5}, "Q6_K": {208: 1.0}}.get(
        kind.name, {0: 1.0}
    )

    def scaled(scale: float) -> np.ndarray:
        for at, value in numbers.items():
            data[..., at : at + 2] = np.array([scale * value], "<f2").view(np.uint8)
        return data.reshape(len(array), -1)

    return scaled(float(array.std() / gguf.quants.dequantize(scaled(1.0), kind).std()))


def _tensors(tiny: Tiny, rng: np.random.Generator) -> dict[str, np.ndarray]:
    def matrix(outputs: int, inputs: int) -> np.ndarray:
        return (2 * rng.standard_normal((outputs, inputs)) / np.sqrt(inputs)).astype(np.float32)

    def vector(size: int, about: float) -> np.ndarray:
        return (about + 0.3 * rng.standard_normal(size)).astype(np.float32)

    q, kv = tiny.heads * tiny.head, tiny.kv_heads * tiny.head
    tensors = {"token_embd.weight": matrix(len(VOCABULARY), tiny.width)}
    if not tiny.tied:
        tensors["output.weight"] = matrix(len(VOCABULARY), tiny.width)
    tensors["output_norm.weight"] = vector(tiny.width, 1)
    if tiny.head_bias:
        tensors["output.bias"] = vector(len(VOCABULARY), 0)
    if tiny.divisors:
        tensors["rope_freqs.weight"] = np.linspace(1, 8, tiny.head // 2, dtype=np.float32)
    for i in range(tiny.layers):
        b = f"blk.{i}."
        for name, (outputs, inputs) in {
            "attn_q": (q, tiny.width),
            "attn_k": (kv, tiny.width),
            "attn_v": (kv, tiny.width),
            "attn_output": (tiny.width, q),
            "ffn_gate": (tiny.hidden, tiny.width),
            "ffn_up": (tiny.hidden, tiny.width),
            "ffn_down": (tiny.width, tiny.hidden),
        }.items():
            tensors[f"{b}{name}.weight"] = matrix(outputs, inputs)
            if tiny.biases and name in ("attn_q", "attn_k", "attn_v"):
                tensors[f"{b}{name}.bias"] = vector(outputs, 0)
        tensors[f"{b}attn_norm.weight"] = vector(tiny.width, 1)
        tensors[f"{b}ffn_norm.weight"] = vector(tiny.width, 1)
        if tiny.head_norms:
            tensors[f"{b}attn_q_norm.weight"] = vector(tiny.head, 1)
            tensors[f"{b}attn_k_norm.weight"] = vector(tiny.head, 1)
        if tiny.post_norms:
            tensors[f"{b}post_attention_norm.weight"] = vector(tiny.width, 1)
            tensors[f"{b}post_ffw_norm.weight"] = vector(tiny.width, 1)
    return tensors
