"""GGUF models through llama.cpp (llama-cpp-python's low-level API)."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from contextlib import ExitStack, suppress
from pathlib import Path
from time import perf_counter
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.backends import llama_cache_file
from edgespec.backends.base import Capabilities, Copy, Logits, Segment, Sequence, Step, Tokenizer
from edgespec.backends.fingerprint import fingerprint
from edgespec.backends.gguf_tokenizer import GGUFTokenizer
from edgespec.backends.llama_batch import Batch
from edgespec.backends.llama_library import (
    check_process,
    forget_messages,
    llama,
    note_process,
    raise_interrupt,
    recent_messages,
)
from edgespec.backends.llama_loading import (
    DEFAULT_CONTEXT,
    KV_TYPES,
    MAX_THREADS,
    LlamaCppOptions,
    apply_adapters,
    load_model,
    no_text,
    set_fields,
)
from edgespec.backends.prefix import check_prefix
from edgespec.device.cores import compute_threads
from edgespec.errors import BackendError, ContextFull, UsageError
from edgespec.hub.gguf_info import read_info

__all__ = ["KV_TYPES", "LlamaCpp", "LlamaCppOptions"]


class LlamaCpp:
    """`Backend` on llama.cpp. Not row-invariant: its kernels differ with the number of tokens in a
    pass (see docs/exactness.md: equality with plain decoding)."""

    def __init__(self, path: Path, options: LlamaCppOptions | None = None, name: str | None = None) -> None:
        """Load `path`. Raises ModelError for a file llama.cpp cannot use, UsageError for options it
        cannot honour and as `check_process` does, BackendError when memory or the GPU is lacking."""
        check_process()
        self._c = llama()
        self._model: Any = None
        self._context: Any = None
        self._batch: Batch | None = None
        self._open: dict[int, Sequence] = {}
        self._vocabulary: GGUFTokenizer | None = None
        self._fed: dict[int, int] = {}
        self.path = path
        self.name = name or path.name
        options = options or LlamaCppOptions()
        try:
            self._model = load_model(self._c, path, options)
            note_process()
            self.weight_bytes = read_info(path).bytes_per_token
            template = self._c.llama_model_chat_template(self._model, None)
            self.chat_template: str | None = template.decode("utf-8", "replace") if template else None
            self._create_context(options)
            apply_adapters(self._c, self._model, self._context, options.lora, self.name)
            # A cache made with an adapter is another model's.
            self._fingerprint = "".join(map(fingerprint, (path, *options.lora)))
            self._vocabulary = GGUFTokenizer(self._model)
            self.tokenizer: Tokenizer = self._vocabulary
            self.capabilities = self._probe(options)
        except BaseException:
            self.close()
            raise

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
        set_fields(
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
                f"no context of {n_ctx} tokens for {self.name}: {recent_messages()}; try a smaller --ctx"
                + ("" if options.kv_type == "q8_0" else " or --kv-type q8_0")
            )
        self._memory = c.llama_get_memory(self._context)
        if not self._memory:  # EmbeddingGemma, for one, does not say that its tokens see ahead
            raise no_text(self.name)
        self.hidden: Mapping[str, NDArray[np.float32]] = {}
        self.n_ctx = n_ctx
        self.n_vocab: int = c.llama_vocab_n_tokens(c.llama_model_get_vocab(self._model))
        self.max_batch = options.max_batch
        self.max_rows = options.max_rows
        self.threads = threads
        self._free = list(range(options.sequences))
        self.last_step = Step(0, 0, 0.0)
        self.compute_seconds = 0.0
        self._batch = Batch(c, options.max_batch)
        self._views: dict[tuple[int, int], Logits] = {}

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

    def open(self) -> Sequence:
        self._check_open()
        if not self._free:
            raise BackendError(f"all {len(self._open)} sequences of {self.name} are in use; close one first")
        sequence = Sequence(self._free.pop(0))
        self._open[sequence.id] = sequence
        return sequence

    def forward(self, segments: SequenceOf[Segment]) -> Logits:
        self._check_open()
        assert self._batch is not None
        n, rows = sum(len(s.tokens) for s in segments), sum(s.rows for s in segments)
        if not 0 < n <= self.max_batch or rows > self.max_rows:
            raise UsageError(
                f"a pass of {n} tokens with {rows} rows of logits; "
                f"{self.name} takes 1 to {self.max_batch} tokens and {self.max_rows} rows"
            )
        self._batch.fill(segments, self.n_ctx)
        try:
            pointer = self._decode(self._batch, n, rows, sum(len(s.sequence) for s in segments))
            for segment in segments:
                self._fed[segment.sequence.id] = len(segment.tokens)
                segment.sequence.tokens += segment.tokens
        except BaseException:  # Ctrl-C too may come between the computation and the note of it
            with suppress(BackendError):  # where it cannot go back the cache is empty now
                self._drop_partial(segments)
            raise
        return self._view(pointer, rows)

    def _decode(self, batch: Batch, n: int, rows: int, length: int) -> Any:
        """Compute the batch; llama.cpp's pointer to the logits."""
        forget_messages()
        started = perf_counter()
        status = self._c.llama_decode(self._context, batch.batch)
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
        with ExitStack() as removals:  # all of them, even if some fail
            for s in segments:
                removals.callback(self._remove_from, s.sequence, len(s.sequence))

    def rollback(self, sequence: Sequence, length: int) -> None:
        if not 0 <= length <= len(sequence):
            raise UsageError(f"cannot roll back to {length} tokens; the sequence has {len(sequence)}")
        self._check_open()
        self._fed.pop(sequence.id, None)
        # First: if interrupted in between, the cache holds more, which is found out.
        del sequence.tokens[length:]
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
        llama_cache_file.write(self.copy(sequence), self._fingerprint, file)

    def restore(self, sequence: Sequence, file: Path) -> None:
        copy, model = llama_cache_file.read(file)
        if model != self._fingerprint:
            raise BackendError(
                f"{file.name} was saved with another model or adapter than {self.name}; delete it"
            )
        try:
            self.paste(sequence, copy, len(copy.tokens))
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
            self._batch.free()
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


def _pointer(data: NDArray[np.uint8]) -> Any:
    return data.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
