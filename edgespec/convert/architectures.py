"""What the supported architectures compute, read from a GGUF header and checked.

All are decoders of one plan: RMS norms, rotary grouped-query attention, a gated MLP. `Decoder` holds
what differs. The authority on every detail is llama.cpp (src/models/*.cpp, src/llama-model.cpp).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from edgespec.errors import ModelError
from edgespec.hub.gguf_header import Header, Strings, Tensor
from edgespec.hub.gguf_info import check_tokens

SUPPORTED = {
    "llama": "Llama 2 and 3, Mistral, TinyLlama, SmolLM2",
    "qwen2": "Qwen2, Qwen2.5",
    "qwen3": "Qwen3 (dense)",
    "gemma3": "Gemma 3 (text)",
}
CHANNELS = 16
"""A head has a multiple of so many: neither our attention nor ONNX Runtime's takes others."""
MAX_POSITIONS = 1 << 17
"""Longer contexts are cut to this: the rotary tables are stored, 64 bytes or more a position."""


@dataclass(frozen=True)
class Rope:
    """How positions turn the pairs of a head's channels."""

    dimensions: int
    base: float
    scale: float
    """positions are multiplied by it; 1 unless the context was stretched"""
    interleaved: bool
    """pairs are neighbours (2i, 2i+1), as GGUF files of llama have them, not halves (i, i + d/2)"""
    yarn: bool = False
    trained_context: int = 0
    """YaRN: the context before stretching"""
    attention_factor: float = 1.0
    """the cosines and sines are multiplied by it"""


@dataclass(frozen=True)
class Decoder:
    """The hyperparameters of a model."""

    architecture: str
    layers: int
    width: int
    hidden: int
    """of the MLP"""
    heads: int
    kv_heads: int
    head: int
    """channels per head"""
    vocabulary: int
    context: int
    """positions it can be run with"""
    epsilon: float
    """of the norms"""
    ropes: tuple[Rope, ...]
    """one per layer"""
    windows: tuple[int | None, ...]
    """per layer: attention sees this many newest tokens, itself included; None: all"""
    activation: Literal["silu", "gelu"]
    """gelu is the tanh approximation"""
    embedding_scale: float
    attention_scale: float
    softcap: float | None
    """logits are softcap · tanh(logits / softcap)"""
    head_norms: bool
    """RMS norms on each head's query and key"""
    post_norms: bool
    """RMS norms behind attention and MLP, before they join the residual stream"""
    tied: bool
    """the embedding table is the output head"""


@dataclass(frozen=True)
class Expected:
    """A tensor the plan has."""

    name: str
    shape: tuple[int, ...]
    """as GGUF has it, inputs first"""
    optional: bool = False


def read_decoder(header: Header, tensors: Mapping[str, Tensor]) -> Decoder:
    """The model of a GGUF file (`header`: of its first part; `tensors`: of all parts, by name).

    Raises ModelError for architectures and variants that cannot be converted, by name, and for
    hyperparameters or tensors that make no sense.
    """
    keys = _Keys(header)
    architecture = keys.architecture
    if architecture not in SUPPORTED:
        known = "; ".join(f"{name} ({models})" for name, models in SUPPORTED.items())
        raise ModelError(
            f"{header.path.name}: models of architecture {architecture!r} cannot be converted yet. "
            f"These can: {known}. It still runs with --backend llama.cpp"
        )
    if keys.integer("expert_count", 0, 1 << 16, 0):
        raise ModelError(f"{header.path.name}: mixtures of experts cannot be converted yet")
    if keys.get("attention.causal") is False:  # its tokens attend to those behind them
        raise ModelError(f"{header.path.name} is an embedding model; it does not generate text")
    width = keys.integer("embedding_length", 1, 1 << 17)
    heads = keys.integer("attention.head_count", 1, 1 << 12)
    kv_heads = keys.integer("attention.head_count_kv", 1, heads, heads)
    head = keys.integer("attention.key_length", 2, 1 << 12, width // heads)
    if heads % kv_heads or head % 2 or head < 2:
        raise keys.nonsense(f"{heads} heads of {head} channels share {kv_heads} key-value heads")
    if head % CHANNELS:
        raise ModelError(
            f"{header.path.name}: heads of {head} channels cannot be converted yet, only of multiples of "
            f"{CHANNELS}. It still runs with --backend llama.cpp"
        )
    if keys.integer("attention.value_length", 2, 1 << 12, head) != head:
        raise ModelError(f"{header.path.name}: keys and values of different lengths cannot be converted yet")
    layers = keys.integer("block_count", 1, 1 << 10)
    gemma = architecture == "gemma3"
    windows = _windows(keys, layers) if gemma else (None,) * layers
    decoder = Decoder(
        architecture=architecture,
        layers=layers,
        width=width,
        hidden=keys.integer("feed_forward_length", 1, 1 << 20),
        heads=heads,
        kv_heads=kv_heads,
        head=head,
        vocabulary=_vocabulary(header, tensors),
        context=min(MAX_POSITIONS, keys.integer("context_length", 1, 1 << 31)),
        epsilon=keys.number("attention.layer_norm_rms_epsilon", 0.0, 1.0),
        ropes=tuple(_rope(keys, head, window is not None) for window in windows),
        windows=windows,
        activation="gelu" if gemma else "silu",
        embedding_scale=math.sqrt(width) if gemma else 1.0,
        attention_scale=_attention_scale(keys, layers, width, heads, head),
        softcap=keys.number("final_logit_softcapping", 0.0, 1e6, 0.0) or None,
        head_norms=architecture in ("qwen3", "gemma3"),
        post_norms=gemma,
        tied="output.weight" not in tensors,
    )
    _check_tensors(header, decoder, tensors)
    return decoder


def expected_tensors(d: Decoder) -> Iterator[Expected]:
    """Every tensor that the plan of a model has."""
    q, kv = d.heads * d.head, d.kv_heads * d.head
    yield Expected("token_embd.weight", (d.width, d.vocabulary))
    yield Expected("output.weight", (d.width, d.vocabulary), optional=True)
    yield Expected("output.bias", (d.vocabulary,), optional=True)
    yield Expected("output_norm.weight", (d.width,))
    yield Expected("rope_freqs.weight", (d.ropes[0].dimensions // 2,), optional=True)
    for i in range(d.layers):
        block = f"blk.{i}"
        for name, (inputs, outputs) in {
            "attn_q": (d.width, q),
            "attn_k": (d.width, kv),
            "attn_v": (d.width, kv),
            "attn_output": (q, d.width),
            "ffn_gate": (d.width, d.hidden),
            "ffn_up": (d.width, d.hidden),
            "ffn_down": (d.hidden, d.width),
        }.items():
            yield Expected(f"{block}.{name}.weight", (inputs, outputs))
            yield Expected(f"{block}.{name}.bias", (outputs,), optional=True)
        norms = {"attn_norm": d.width, "ffn_norm": d.width}
        if d.head_norms:
            norms |= {"attn_q_norm": d.head, "attn_k_norm": d.head}
        if d.post_norms:
            norms |= {"post_attention_norm": d.width, "post_ffw_norm": d.width}
        for name, size in norms.items():
            yield Expected(f"{block}.{name}.weight", (size,))


def _check_tensors(header: Header, decoder: Decoder, tensors: Mapping[str, Tensor]) -> None:
    left = set(tensors)
    if decoder.layers * 9 > len(tensors):
        raise ModelError(
            f"{header.path.name} is damaged: {decoder.layers} layers are declared, and there are "
            f"{len(tensors)} tensors; fetch it again"
        )
    for expected in expected_tensors(decoder):
        tensor = tensors.get(expected.name)
        if tensor is None:
            if not expected.optional:
                raise ModelError(f"{header.path.name} lacks the tensor {expected.name}; fetch it again")
            continue
        left.discard(expected.name)
        # Trailing dimensions of 1 mean nothing.
        shape = tensor.shape
        while len(shape) > len(expected.shape) and shape[-1] == 1:
            shape = shape[:-1]
        if shape != expected.shape:
            raise ModelError(
                f"{header.path.name}: tensor {expected.name} has shape {list(tensor.shape)}, "
                f"not {list(expected.shape)}; the file is damaged or of a variant that cannot be converted"
            )
    if left:
        some = ", ".join(sorted(left)[:3])
        raise ModelError(
            f"{header.path.name} is a variant of {decoder.architecture} that cannot be converted yet: "
            f"it has tensors beyond the usual ones ({some})"
        )


def _vocabulary(header: Header, tensors: Mapping[str, Tensor]) -> int:
    table = tensors.get("token_embd.weight")
    if table is None or len(table.shape) < 2:
        raise ModelError(f"{header.path.name} has no embedding table; it is not a text generation model")
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Strings) or not len(tokens):
        raise ModelError(f"{header.path.name} carries no tokenizer, so it cannot be converted")
    check_tokens(header)
    return table.shape[1]


def _windows(keys: _Keys, layers: int) -> tuple[int | None, ...]:
    """Gemma 3: five layers of six see a window only; the file may say otherwise."""
    window = keys.integer("attention.sliding_window", 0, 1 << 31, 0)
    if not window:
        return (None,) * layers
    pattern = keys.get("attention.sliding_window_pattern")
    if isinstance(pattern, tuple):
        if len(pattern) < layers:
            raise keys.nonsense(f"a sliding window pattern of {len(pattern)} for {layers} layers")
        return tuple(window if local else None for local in pattern[:layers])
    period = keys.integer("attention.sliding_window_pattern", 0, 1 << 16, 6)
    return tuple(window if period == 0 or i % period < period - 1 else None for i in range(layers))


def _rope(keys: _Keys, head: int, local: bool) -> Rope:
    dimensions = keys.integer("rope.dimension_count", 2, head, head)
    if dimensions != head:
        raise ModelError(
            f"{keys.name}: rotary embedding of {dimensions} of {head} channels cannot be converted yet"
        )
    interleaved = keys.architecture == "llama"
    if local:  # Gemma's windowed layers have a base of their own, and are never stretched
        return Rope(dimensions, keys.number("rope.freq_base_swa", 1e-3, 1e12, 10000.0), 1.0, interleaved)
    kind = keys.get("rope.scaling.type") or "linear"
    if kind not in ("none", "linear", "yarn"):
        raise ModelError(f"{keys.name}: rope scaling {kind!r} cannot be converted yet")
    factor = keys.number("rope.scaling.factor", 0.0, 1e6, 0.0) or keys.number(
        "rope.scale_linear", 0.0, 1e6, 0.0
    )
    return Rope(
        dimensions=dimensions,
        base=keys.number("rope.freq_base", 1e-3, 1e12, 10000.0),
        scale=1.0 if kind == "none" or not factor else 1.0 / factor,
        interleaved=interleaved,
        yarn=kind == "yarn",
        trained_context=keys.integer(
            "rope.scaling.original_context_length", 1, 1 << 31, keys.integer("context_length", 1, 1 << 31)
        ),
        attention_factor=keys.number("rope.scaling.attn_factor", 1e-3, 1e3, 1.0),
    )


def _attention_scale(keys: _Keys, layers: int, width: int, heads: int, head: int) -> float:
    if keys.architecture == "gemma3" and layers == 62:  # the 27B model divides by another width
        return 1 / math.sqrt(width // heads)
    return 1 / math.sqrt(head)


class _Keys:
    """Hyperparameters by name, checked for type and range."""

    def __init__(self, header: Header) -> None:
        self.name = header.path.name
        self._metadata = header.metadata
        architecture = self._metadata.get("general.architecture")
        if not isinstance(architecture, str):
            raise ModelError(f"{self.name} does not name its architecture, so it is not a language model")
        self.architecture = architecture

    def get(self, key: str) -> Any:
        return self._metadata.get(f"{self.architecture}.{key}")

    def integer(self, key: str, low: int, high: int, default: int | None = None) -> int:
        value = self.get(key)
        if isinstance(value, Sequence) and not isinstance(value, str) and value and len(set(value)) == 1:
            value = value[0]  # per layer, but all the same
        if value is None and default is not None:
            return default
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise self.nonsense(f"{key} is {_short(value)}; it must be between {low} and {high}")
        return value

    def number(self, key: str, low: float, high: float, default: float | None = None) -> float:
        value = self.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, int | float) or isinstance(value, bool) or not low <= value <= high:
            raise self.nonsense(f"{key} is {_short(value)}; it must be between {low:g} and {high:g}")
        return float(value)

    def nonsense(self, why: str) -> ModelError:
        return ModelError(f"{self.name} cannot be converted: its header says {why}")


def _short(value: object) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 40 else text[:40] + "…"
