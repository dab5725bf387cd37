"""Loading GGUF models into llama.cpp: the options, and what is refused before or after."""

from __future__ import annotations

import ctypes
import logging
import os
import stat
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from edgespec.backends.llama_library import (
    amx_is_miscompiled,
    forget_messages,
    raise_interrupt,
    recent_messages,
)
from edgespec.errors import BackendError, ModelError, UsageError
from edgespec.hub.gguf_header import Header, read_header
from edgespec.hub.gguf_info import check_tokens

log = logging.getLogger(__name__)

DEFAULT_CONTEXT = 4096
MAX_THREADS = 512
"""llama.cpp's own limit; it aborts above"""
KV_TYPES = {"f16": "GGML_TYPE_F16", "q8_0": "GGML_TYPE_Q8_0", "f32": "GGML_TYPE_F32"}
"""Types of the KV cache's entries; q8_0 halves the cache, at a small cost in precision."""


@dataclass(frozen=True)
class LlamaCppOptions:
    """How to load a GGUF model."""

    n_ctx: int | None = None
    """tokens a sequence can hold, at most what the model was trained for; None: 4096 or that"""
    sequences: int = 1
    """sequences that can be open at once, each with a cache of its own"""
    threads: int | None = None
    """None: one per physical (big) core"""
    kv_type: str = "f16"
    """one of KV_TYPES"""
    repack: bool = True
    """let llama.cpp rearrange weights for the processor's wide instructions: faster, but the
    rearranged tensors are private copies (+625 MB for a 1.5B Q4_K_M) instead of mapped file pages"""
    mmap: bool = True
    """map the file rather than read it"""
    gpu_layers: int | None = None
    """layers to put on the GPU; None: all when the build has a GPU, else none"""
    lora: tuple[Path, ...] = ()
    """LoRA adapters (GGUF) to apply at full strength"""
    max_batch: int = 512
    """tokens per forward pass"""
    max_rows: int = 33
    """rows of logits per forward pass, so depth + 1 at most"""


def load_model(c: Any, path: Path, options: LlamaCppOptions) -> Any:
    """llama.cpp's pointer to the model. c: the bindings. Raises ModelError for a file that it cannot use,
    UsageError for options that it cannot honour."""
    _check_file(path)
    header = read_header(path)
    check_tokens(header)
    gpu = bool(c.llama_supports_gpu_offload())
    if options.gpu_layers and not gpu:
        raise UsageError(
            f"{options.gpu_layers} GPU layers were asked for, but this build of llama.cpp has no GPU "
            "support; reinstall llama-cpp-python with a GPU backend, or leave the option out"
        )
    params = c.llama_model_default_params()
    set_fields(
        params,
        n_gpu_layers=(999 if gpu else 0) if options.gpu_layers is None else options.gpu_layers,
        use_extra_bufts=options.repack and not _unsafe_to_repack(),
        load_mode=c.LLAMA_LOAD_MODE_MMAP if options.mmap else c.LLAMA_LOAD_MODE_NONE,
    )
    forget_messages()
    model = c.llama_model_load_from_file(os.fsencode(path), params)
    try:
        raise_interrupt()
        if not model:
            raise ModelError(f"{path.name} cannot be loaded: {recent_messages()}")
        if c.llama_model_has_encoder(model) or not c.llama_model_has_decoder(model):
            raise ModelError(f"{path.name} is not a text generation model (it has an encoder)")
        if c.llama_model_is_diffusion(model):
            raise ModelError(f"{path.name} is a diffusion model; it does not generate token by token")
        if _sees_ahead(header):
            raise no_text(path.name)
        if c.llama_vocab_type(c.llama_model_get_vocab(model)) == c.LLAMA_VOCAB_TYPE_NONE:  # it would abort
            raise ModelError(f"{path.name} carries no tokenizer, so it takes and gives no text")
    except BaseException:
        if model:
            c.llama_model_free(model)
        raise
    return model


def no_text(name: str) -> ModelError:
    """The error for a model that computes no logits, so that what lies in their place would become text."""
    return ModelError(f"{name} is an encoder or an embedding model; it does not generate text")


def _sees_ahead(header: Header) -> bool:
    """Whether tokens attend to those behind them, as in BERT and its like."""
    architecture = header.metadata.get("general.architecture")
    return header.metadata.get(f"{architecture}.attention.causal") is False


def apply_adapters(c: Any, model: Any, context: Any, paths: Sequence[Path], name: str) -> None:
    """Apply LoRA adapters at full strength; they are freed with the model. Raises ModelError for one that
    does not fit it."""
    adapters = []
    for path in paths:
        _check_file(path)
        forget_messages()
        adapter = c.llama_adapter_lora_init(model, os.fsencode(path))
        if not adapter:
            raise ModelError(f"LoRA adapter {path.name} does not fit {name}: {recent_messages()}")
        adapters.append(adapter)
    if n := len(adapters):
        handles, scales = (c.llama_adapter_lora_p_ctypes * n)(*adapters), (ctypes.c_float * n)(*[1.0] * n)
        if c.llama_set_adapters_lora(context, handles, n, scales) != 0:
            raise BackendError(f"llama.cpp refused the LoRA adapters: {recent_messages()}")


def set_fields(params: ctypes.Structure, **values: Any) -> None:
    """Set fields of a llama.cpp structure. A name it does not have (another version of the bindings)
    is an error: ctypes would take it silently, and the option would do nothing."""
    for name, value in values.items():
        if not hasattr(params, name):
            raise BackendError(
                f"this version of llama-cpp-python has no {name}; edgespec is tested with 0.3.36"
            )
        setattr(params, name, value)


def _unsafe_to_repack() -> bool:
    if not amx_is_miscompiled():
        return False
    log.warning(
        "weights are not repacked, which costs speed: this build of llama.cpp would crash on this processor "
        "(AMX code by GCC before 13); rebuild llama-cpp-python with "
        'CMAKE_ARGS=\'-DCMAKE_C_FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" '
        '-DCMAKE_CXX_FLAGS="-mno-amx-tile -mno-amx-int8 -mno-amx-bf16"\''
    )
    return True


def _check_file(path: Path) -> None:
    try:
        mode = path.stat().st_mode
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise ModelError(f"{path} is not a regular file")
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror}") from error
    if magic != b"GGUF":
        raise ModelError(f"{path.name} is not a GGUF file (it begins with {magic!r})")
