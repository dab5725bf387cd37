"""GGUF models through llama.cpp (llama-cpp-python's low-level API)."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import stat
import zlib
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Capabilities, Copy, Logits, Segment, Sequence, Step, Tokenizer
from edgespec.backends.fingerprint import fingerprint
from edgespec.backends.gguf_tokenizer import GGUFTokenizer
from edgespec.backends.llama_library import (
    amx_is_miscompiled,
    forget_messages,
    llama,
    raise_interrupt,
    recent_messages,
)
from edgespec.backends.prefix import check_prefix
from edgespec.device.cores import compute_threads
from edgespec.errors import BackendError, ContextFull, ModelError, UsageError
from edgespec.hub.gguf_header import read_header
from edgespec.hub.gguf_info import check_tokens, read_info

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


class LlamaCpp:
    """`Backend` on llama.cpp. Not row-invariant: its kernels differ with the number of tokens in a
    pass (see docs/exactness.md: equality with plain decoding)."""

    def __init__(self, path: Path, options: LlamaCppOptions | None = None, name: str | None = None) -> None:
        """Load `path`. Raises ModelError for a file llama.cpp cannot use, UsageError for options it
        cannot honour, BackendError when memory or the GPU is lacking."""
        self._c = llama()
        self._model: Any = None
        self._context: Any = None
        self._batch: Any = None
        self._open: dict[int, Sequence] = {}
        self._vocabulary: GGUFTokenizer | None = None
        self._fed: dict[int, int] = {}
        self.path = path
        self.name = name or path.name
        options = options or LlamaCppOptions()
        try:
            self._load_model(path, options)
            self._create_context(options)
            self._apply_adapters(options.lora)
            self._vocabulary = GGUFTokenizer(self._model)
            self.tokenizer: Tokenizer = self._vocabulary
            self.capabilities = self._probe(options)
        except BaseException:
            self.close()
            raise

    # Loading

    def _load_model(self, path: Path, options: LlamaCppOptions) -> None:
        c = self._c
        _check_file(path)
        check_tokens(read_header(path))
        gpu = bool(c.llama_supports_gpu_offload())
        if options.gpu_layers and not gpu:
            raise UsageError(
                f"{options.gpu_layers} GPU layers were asked for, but this build of llama.cpp has no GPU "
                "support; reinstall llama-cpp-python with a GPU backend, or leave the option out"
            )
        params = c.llama_model_default_params()
        _set(
            params,
            n_gpu_layers=(999 if gpu else 0) if options.gpu_layers is None else options.gpu_layers,
            use_extra_bufts=options.repack and not _unsafe_to_repack(),
            load_mode=c.LLAMA_LOAD_MODE_MMAP if options.mmap else c.LLAMA_LOAD_MODE_NONE,
        )
        forget_messages()
        self._model = c.llama_model_load_from_file(os.fsencode(path), params)
        raise_interrupt()
        if not self._model:
            raise ModelError(f"{path.name} cannot be loaded: {recent_messages()}")
        if c.llama_model_has_encoder(self._model) or not c.llama_model_has_decoder(self._model):
            raise ModelError(f"{path.name} is not a text generation model (it has an encoder)")
        if c.llama_model_is_diffusion(self._model):
            raise ModelError(f"{path.name} is a diffusion model; it does not generate token by token")
        self._fingerprint = fingerprint(path)
        self.weight_bytes = read_info(path).bytes_per_token
        template = c.llama_model_chat_template(self._model, None)
        self.chat_template: str | None = template.decode("utf-8", "replace") if template else None

    def _create_context(self, options: LlamaCppOptions) -> None:
        c = self._c
        trained = c.llama_model_n_ctx_train(self._model)
        n_ctx = min(DEFAULT_CONTEXT, trained) if options.n_ctx is None else options.n_ctx
        if not 1 <= n_ctx <= trained:
            raise UsageError(f"a context of {n_ctx} tokens was asked for; {self.name} takes 1 to {trained}")
        if options.kv_type not in KV_TYPES:
            raise UsageError(f"KV type {options.kv_type!r} is unknown; choose from {', '.join(KV_TYPES)}")
        threads = options.threads if options.threads is not None else compute_threads()
        if not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"{threads} threads were asked for; it takes 1 to {MAX_THREADS}")
        if not 1 <= options.sequences <= min(options.max_rows, options.max_batch):  # llama.cpp would abort
            raise UsageError(
                f"{options.sequences} sequences were asked for, with {options.max_rows} rows of logits and "
                f"{options.max_batch} tokens per pass; it takes at least 1, and no more than either"
            )
        params = c.llama_context_default_params()
        kv_type = getattr(c, KV_TYPES[options.kv_type])
        _set(
            params,
            n_ctx=n_ctx * options.sequences,
            n_batch=options.max_batch,
            n_ubatch=options.max_batch,
            n_seq_max=options.sequences,
            n_outputs_max=options.max_rows,  # no buffer of n_ctx × n_vocab
            n_threads=threads,
            n_threads_batch=threads,
            type_k=kv_type,
            type_v=kv_type,
            swa_full=True,  # sliding-window layers keep what a rollback may need again
            # A cache for each sequence would take a pass for each length of segment.
            kv_unified=options.sequences > 1,
            no_perf=True,
        )
        forget_messages()
        self._context = c.llama_init_from_model(self._model, params)
        raise_interrupt()
        if not self._context:
            raise BackendError(
                f"no context of {n_ctx} tokens for {self.name}: {recent_messages()}; "
                "try a smaller --ctx or --kv-type q8_0"
            )
        self._memory = c.llama_get_memory(self._context)
        self.hidden: Mapping[str, NDArray[np.float32]] = {}
        self.n_ctx = n_ctx
        self.n_vocab: int = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self.max_batch = options.max_batch
        self.max_rows = options.max_rows
        self.threads = threads
        self._free = list(range(options.sequences))
        self.last_step = Step(0, 0, 0.0)
        self.compute_seconds = 0.0
        self._batch = c.llama_batch_init(options.max_batch, 0, 1)
        size = (options.max_batch,)
        self._token = np.ctypeslib.as_array(self._batch.token, size)
        self._pos = np.ctypeslib.as_array(self._batch.pos, size)
        self._wanted = np.ctypeslib.as_array(self._batch.logits, size)
        np.ctypeslib.as_array(self._batch.n_seq_id, size)[:] = 1
        self._slots = [-1] * options.max_batch
        """the sequence that each place of the batch is laid out for"""
        self._views: dict[tuple[int, int], Logits] = {}

    def _apply_adapters(self, paths: SequenceOf[Path]) -> None:
        c = self._c
        adapters = []
        for path in paths:
            _check_file(path)
            forget_messages()
            adapter = c.llama_adapter_lora_init(self._model, os.fsencode(path))
            if not adapter:
                raise ModelError(f"LoRA adapter {path.name} does not fit {self.name}: {recent_messages()}")
            adapters.append(adapter)
            self._fingerprint += fingerprint(path)  # a cache made with it is another model's
        if n := len(adapters):
            handles, scales = (c.llama_adapter_lora_p_ctypes * n)(*adapters), (ctypes.c_float * n)(*[1.0] * n)
            if c.llama_set_adapters_lora(self._context, handles, n, scales) != 0:
                raise BackendError(f"llama.cpp refused the LoRA adapters: {recent_messages()}")

    def _probe(self, options: LlamaCppOptions) -> Capabilities:
        """Feed two tokens and take one back: whether a rollback works is tried, not looked up."""
        c = self._c
        gpu = bool(c.llama_supports_gpu_offload()) and options.gpu_layers != 0
        sequence = self.open()
        token = self.tokenizer.bos or 0
        try:
            self.forward([Segment(sequence, [token, token])])
            if c.llama_memory_seq_rm(self._memory, sequence.id, 1, -1):
                return Capabilities(rollback=True, row_invariant=False, gpu=gpu, batch=True)
        finally:
            self.close(sequence)
        recurrent, hybrid = c.llama_model_is_recurrent(self._model), c.llama_model_is_hybrid(self._model)
        kind = "recurrent " if recurrent else "hybrid " if hybrid else ""
        return Capabilities(
            rollback=False,
            row_invariant=False,
            gpu=gpu,
            reason=f"its {kind}state cannot go back to an earlier token",
            batch=True,
        )

    # The protocol

    def open(self) -> Sequence:
        self._check_open()
        if not self._free:
            raise BackendError(f"all {len(self._open)} sequences of {self.name} are in use; close one first")
        sequence = Sequence(self._free.pop(0))
        self._open[sequence.id] = sequence
        return sequence

    def forward(self, segments: SequenceOf[Segment]) -> Logits:
        self._check_open()
        n, rows = self._fill_batch(segments)
        self._batch.n_tokens = n
        try:
            pointer = self._decode(n, rows, sum(len(s.sequence) for s in segments))
            for segment in segments:
                self._fed[segment.sequence.id] = len(segment.tokens)
                segment.sequence.tokens += segment.tokens
        except BaseException:  # Ctrl-C too may come between the computation and the note of it
            self._drop_partial(segments)
            raise
        return self._view(pointer, rows)

    def _decode(self, n: int, rows: int, length: int) -> Any:
        """Compute the batch; llama.cpp's pointer to the logits."""
        forget_messages()
        started = perf_counter()
        status = self._c.llama_decode(self._context, self._batch)
        pointer = self._c.llama_get_logits(self._context) if rows and status == 0 else None
        if not rows:
            self._c.llama_synchronize(self._context)
        seconds = perf_counter() - started
        raise_interrupt()
        self.compute_seconds += seconds
        self.last_step = Step(n, length, seconds)
        if status == 1:
            raise ContextFull(f"the KV cache of {self.name} is full; raise --ctx or reset the chat")
        if status != 0:
            raise BackendError(f"llama.cpp failed on {self.name} ({status}): {recent_messages()}")
        return pointer

    def _fill_batch(self, segments: SequenceOf[Segment]) -> tuple[int, int]:
        """Lay the segments out for llama.cpp; the numbers of tokens and of rows wanted."""
        n = sum(len(s.tokens) for s in segments)
        rows = sum(s.rows for s in segments)
        if not 0 < n <= self.max_batch or rows > self.max_rows:
            raise UsageError(
                f"a pass of {n} tokens with {rows} rows of logits; "
                f"{self.name} takes 1 to {self.max_batch} tokens and {self.max_rows} rows"
            )
        start = 0
        self._wanted[:n] = 0
        for s in segments:
            if s.parents is not None:
                raise UsageError("the llama.cpp backend verifies chains only, no trees")
            length, end = len(s.sequence), start + len(s.tokens)
            if not 0 <= s.rows <= len(s.tokens):
                raise UsageError(f"{s.rows} rows of logits of {len(s.tokens)} tokens were asked for")
            if length + len(s.tokens) > self.n_ctx:
                raise ContextFull(
                    f"{length + len(s.tokens)} tokens do not fit into the context of {self.n_ctx}; "
                    "raise --ctx"
                )
            self._token[start:end] = s.tokens
            self._pos[start:end] = np.arange(length, length + len(s.tokens))
            self._wanted[end - s.rows : end] = 1
            if self._slots[start:end] != [s.sequence.id] * (end - start):  # rarely: ctypes is slow here
                for i in range(start, end):
                    self._batch.seq_id[i][0] = self._slots[i] = s.sequence.id
            start = end
        return n, rows

    def _view(self, pointer: Any, rows: int) -> Logits:
        if not rows:
            return np.empty((0, self.n_vocab), np.float32)
        key = (ctypes.addressof(pointer.contents), rows)
        view = self._views.get(key)
        if view is None:
            if len(self._views) > 64:
                self._views.clear()
            view = self._views[key] = np.ctypeslib.as_array(pointer, (rows, self.n_vocab))
        return view

    def _drop_partial(self, segments: SequenceOf[Segment]) -> None:
        """After a failed pass: what llama.cpp has kept of it must go."""
        for s in segments:
            self._remove_from(s.sequence, len(s.sequence))

    def rollback(self, sequence: Sequence, length: int) -> None:
        if not 0 <= length <= len(sequence):
            raise UsageError(f"cannot roll back to {length} tokens; the sequence has {len(sequence)}")
        self._check_open()
        self._fed.pop(sequence.id, None)
        del sequence.tokens[
            length:
        ]  # first: if interrupted in between, the cache holds more, which is found out
        self._remove_from(sequence, length)

    def keep(self, sequence: Sequence, indices: SequenceOf[int]) -> None:
        check_prefix(indices, fed := self._fed.get(sequence.id, 0))
        self.rollback(sequence, len(sequence) - fed + len(indices))

    def _remove_from(self, sequence: Sequence, position: int) -> None:
        if self._c.llama_memory_seq_rm(self._memory, sequence.id, position, -1):
            return
        self._c.llama_memory_seq_rm(self._memory, sequence.id, -1, -1)  # removing all never fails
        sequence.tokens.clear()
        raise BackendError(f"{self.name} could not roll back to token {position}; its cache was reset")

    def copy(self, sequence: Sequence) -> Copy:
        self._check_open()
        size = self._c.llama_state_seq_get_size(self._context, sequence.id)
        data = np.empty(size, np.uint8)
        written = self._c.llama_state_seq_get_data(self._context, _pointer(data), size, sequence.id)
        if written != size:
            raise BackendError(f"llama.cpp could not save the cache of {self.name}")
        return Copy(list(sequence.tokens), data, size)

    def paste(self, sequence: Sequence, copy: Copy, length: int) -> None:
        self.rollback(sequence, 0)
        data = cast("NDArray[np.uint8]", copy.data)
        read = self._c.llama_state_seq_set_data(self._context, _pointer(data), len(data), sequence.id)
        if read != len(data):
            self._remove_from(sequence, 0)
            raise BackendError(f"llama.cpp could not bring back a cache of {self.name}")
        sequence.tokens[:] = copy.tokens
        if length < len(sequence):
            self.rollback(sequence, length)

    def save(self, sequence: Sequence, file: Path) -> None:
        """One JSON line (model fingerprint, tokens), then llama.cpp's bytes. The file appears whole."""
        copy = self.copy(sequence)
        data = cast("NDArray[np.uint8]", copy.data).data
        tokens, check = copy.tokens, _checksum(copy.tokens, data)
        header = json.dumps({"model": self._fingerprint, "tokens": tokens, "crc32": check})
        partial = file.with_name(file.name + ".partial")
        try:
            with partial.open("wb") as out:
                out.write(header.encode() + b"\n")
                out.write(data)
            partial.replace(file)
        except OSError as error:
            partial.unlink(missing_ok=True)
            raise BackendError(f"the cache could not be saved to {file}: {error.strerror}") from error

    def restore(self, sequence: Sequence, file: Path) -> None:
        try:
            with file.open("rb") as saved:
                header = json.loads(saved.readline())
                model, tokens, check = header["model"], header["tokens"], header["crc32"]
                data = saved.read()
        except OSError as error:
            raise BackendError(f"{file.name} cannot be read: {error.strerror}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise BackendError(f"{file.name} is not a saved cache; delete it") from error
        if model != self._fingerprint:
            raise BackendError(
                f"{file.name} was saved with another model or adapter than {self.name}; delete it"
            )
        if check != _checksum(tokens, data):
            raise BackendError(f"{file.name} is damaged; delete it")
        try:
            self.paste(sequence, Copy(tokens, np.frombuffer(data, np.uint8), len(data)), len(tokens))
        except BackendError as error:
            raise BackendError(
                f"{file.name} was saved with other settings or does not fit; delete it"
            ) from error

    def close(self, sequence: Sequence | None = None) -> None:
        if sequence is not None:
            if self._open.pop(sequence.id, None) is sequence:
                self._c.llama_memory_seq_rm(self._memory, sequence.id, -1, -1)
                sequence.tokens.clear()
                self._fed.pop(sequence.id, None)
                self._free.append(sequence.id)
            return
        if self._batch is not None:
            self._c.llama_batch_free(self._batch)
            self._batch = None
        if self._context:
            self._c.llama_free(self._context)
            self._context = None
        if self._model:
            if self._vocabulary is not None:
                self._vocabulary.close()
            self._c.llama_model_free(self._model)  # frees its LoRA adapters too
            self._model = None
        for opened in self._open.values():
            opened.tokens.clear()
        self._open.clear()

    def _check_open(self) -> None:
        """llama.cpp would touch memory that is no longer its own."""
        if not self._context:
            raise BackendError(f"{self.name} is closed; load it again")


def _checksum(tokens: SequenceOf[int], data: bytes | memoryview) -> int:
    return zlib.crc32(data, zlib.crc32(json.dumps(tokens).encode()))


def _pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))


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


def _set(params: ctypes.Structure, **values: Any) -> None:
    """Set fields of a llama.cpp structure. A name it does not have (another version of the bindings)
    is an error: ctypes would take it silently, and the option would do nothing."""
    for name, value in values.items():
        if not hasattr(params, name):
            raise BackendError(
                f"this version of llama-cpp-python has no {name}; edgespec is tested with 0.3.36"
            )
        setattr(params, name, value)


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
