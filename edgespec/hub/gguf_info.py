"""What a GGUF model is: architecture, quantization mix, cost of a token, tokenizer, chat template."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import LlamaFileType

from edgespec.errors import ModelError
from edgespec.hub.gguf_header import Header, Strings, Tensor, read_header, split_parts

# Tables of which one decode step reads a single row.
_LOOKUPS = ("per_layer_token_embd.weight", "position_embd.weight", "token_types.weight")
_SPECIAL = "tokenizer.ggml.{}_token_id"
_SPECIAL_ROLES = ("bos", "eos", "eot", "eom", "unknown", "padding", "fim_pre", "fim_suf", "fim_mid")


@dataclass(frozen=True)
class TypeShare:
    """The tensors of one quantization type."""

    type: str
    tensors: int
    bytes: int
    share: float
    """of all tensor bytes, 0 to 1"""


@dataclass(frozen=True)
class SpecialToken:
    """A token with a role, such as `eos`."""

    role: str
    id: int
    text: str


@dataclass(frozen=True)
class ModelInfo:
    """A GGUF model as its header describes it. Sizes in bytes; None where the file does not say."""

    files: tuple[Path, ...]
    file_bytes: int
    name: str | None
    architecture: str
    parameters: int
    quantization: str | None
    """as the file's maker called it, such as Q4_K_M"""
    types: tuple[TypeShare, ...]
    """largest first"""
    bytes_per_token: int
    """weights one decode step reads: all but the embedding table, which counts only where it is
    also the output head; of experts, those used"""
    tied: bool
    """the embedding table is also the output head"""
    layers: int | None
    context_length: int | None
    """tokens the model was trained for"""
    sliding_window: int | None
    kv_bytes_per_token: int | None
    """keys and values of one token in all layers, at f16"""
    tokenizer: str | None
    vocabulary: int | None
    special_tokens: tuple[SpecialToken, ...]
    chat_template: str | None
    """Jinja source"""
    licence: str | None


def read_info(path: Path) -> ModelInfo:
    """Describe a GGUF model; of a split one, any part may be named.

    Raises ModelError when a part is missing, is not a GGUF, or is damaged or cut short.
    """
    headers = read_parts(path)
    meta = headers[0].metadata
    architecture = meta.get("general.architecture")
    if not isinstance(architecture, str):
        raise ModelError(f"{path} does not name its architecture, so it is not a language model.")
    tensors = [tensor for header in headers for tensor in header.tensors]
    window = _integer(meta, f"{architecture}.attention.sliding_window")
    return ModelInfo(
        files=tuple(header.path for header in headers),
        file_bytes=sum(header.file_bytes for header in headers),
        name=_text(meta, "general.name"),
        architecture=architecture,
        parameters=sum(tensor.elements for tensor in tensors),
        quantization=_file_type(meta),
        types=_types(tensors),
        bytes_per_token=_bytes_per_token(tensors, meta, architecture),
        tied=_tied(tensors),
        layers=_integer(meta, f"{architecture}.block_count"),
        context_length=_integer(meta, f"{architecture}.context_length"),
        sliding_window=window or None,
        kv_bytes_per_token=_kv_bytes(meta, architecture),
        tokenizer=_tokenizer(meta),
        vocabulary=_vocabulary(meta, architecture),
        special_tokens=tuple(_special_tokens(meta)),
        chat_template=_text(meta, "tokenizer.chat_template"),
        licence=_text(meta, "general.license"),
    )


def read_parts(path: Path) -> list[Header]:
    """The headers of a model's file, or of all its parts in order. Raises ModelError like `read_info`."""
    parts = split_parts(path)
    for i, part in enumerate(parts, 1):
        if len(parts) > 1 and not part.is_file():
            raise ModelError(f"{path.name} is part of a split model whose part {i}, {part}, is missing.")
    return [read_header(part) for part in parts]


def check_tokens(header: Header) -> None:
    """Raise ModelError if two tokens are the same, with which llama.cpp ends the process."""
    tokens = header.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Strings) and (i := tokens.repeated()) is not None:
        raise ModelError(
            f"{header.path} is damaged: its token {i}, {tokens[i]!r}, is there twice; fetch it again"
        )


def _text(meta: dict[str, Any], key: str) -> str | None:
    value = meta.get(key)
    return value if isinstance(value, str) else None


def _integer(meta: dict[str, Any], key: str) -> int | None:
    value = meta.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) else None


def _file_type(meta: dict[str, Any]) -> str | None:
    number = _integer(meta, "general.file_type")
    try:
        return None if number is None else LlamaFileType(number).name.replace("MOSTLY_", "")
    except ValueError:
        return None  # newer than the gguf package; the types of the tensors still tell


def _types(tensors: Iterable[Tensor]) -> tuple[TypeShare, ...]:
    count, size = Counter[str](), Counter[str]()
    for tensor in tensors:
        count[tensor.type] += 1
        size[tensor.type] += tensor.bytes
    total = size.total() or 1
    return tuple(TypeShare(kind, count[kind], n, n / total) for kind, n in size.most_common())


def _tied(tensors: Iterable[Tensor]) -> bool:
    return all(tensor.name != "output.weight" for tensor in tensors)


def _bytes_per_token(tensors: Sequence[Tensor], meta: dict[str, Any], architecture: str) -> int:
    experts = _integer(meta, f"{architecture}.expert_count") or 0
    used = _integer(meta, f"{architecture}.expert_used_count") or experts
    skipped = _LOOKUPS if _tied(tensors) else (*_LOOKUPS, "token_embd.weight")
    total = 0
    for tensor in tensors:
        if tensor.name in skipped:
            continue
        routed = experts > used and "_exps." in tensor.name
        total += tensor.bytes * used // experts if routed else tensor.bytes
    return total


def _kv_bytes(meta: dict[str, Any], architecture: str) -> int | None:
    def of(key: str) -> int | None:
        return _integer(meta, f"{architecture}.{key}")

    heads = meta.get(f"{architecture}.attention.head_count")
    kv_heads = meta.get(f"{architecture}.attention.head_count_kv", heads)
    layers = of("block_count")
    if layers is None or of("attention.kv_lora_rank"):  # compressed caches follow other rules
        return None
    width, first = of("embedding_length"), heads[0] if isinstance(heads, tuple) and heads else heads
    default = width // first if isinstance(width, int) and isinstance(first, int) and first > 0 else None
    key, value = of("attention.key_length") or default, of("attention.value_length") or default
    if key is None or value is None:
        return None
    own = max(0, layers - (of("attention.shared_kv_layers") or 0))  # the last ones may use those of others
    if isinstance(kv_heads, tuple):  # per layer; 0 for layers without attention
        total = sum(n for n in kv_heads[:own] if isinstance(n, int))
    elif isinstance(kv_heads, int):
        apart = of("full_attention_interval") or 1  # of hybrids: the layers between these keep states instead
        total = kv_heads * (own // max(1, apart))
    else:
        return None
    return total * (key + value) * 2


def _tokenizer(meta: dict[str, Any]) -> str | None:
    model, pre = _text(meta, "tokenizer.ggml.model"), _text(meta, "tokenizer.ggml.pre")
    return f"{model} ({pre})" if model and pre else model


def _vocabulary(meta: dict[str, Any], architecture: str) -> int | None:
    tokens = meta.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, Strings) else _integer(meta, f"{architecture}.vocab_size")


def _special_tokens(meta: dict[str, Any]) -> Iterable[SpecialToken]:
    tokens = meta.get("tokenizer.ggml.tokens")
    if not isinstance(tokens, Strings):
        return
    for role in _SPECIAL_ROLES:
        id_ = _integer(meta, _SPECIAL.format(role))
        if id_ is not None and 0 <= id_ < len(tokens):
            yield SpecialToken(role, id_, tokens[id_])
