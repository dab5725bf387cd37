"""ONNX models through ONNX Runtime: converted ones, and those made by others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import BinaryIO, cast

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Capabilities, Copy, Logits, Segment, Sequence, Step, Tokenizer
from edgespec.backends.onnx_converted import ConvertedModel
from edgespec.backends.onnx_model import Array, Cache, Feed, Limits, Model
from edgespec.backends.onnx_standard import StandardModel
from edgespec.backends.prefix import check_prefix
from edgespec.convert.folder import is_converted
from edgespec.device.cores import compute_threads
from edgespec.errors import BackendError, ContextFull, ModelError, UsageError
from edgespec.hub.onnx_folder import is_onnx, weight_bytes

DEFAULT_CONTEXT = 4096
MAX_THREADS = 512
"""as of llama.cpp; ONNX Runtime may hang where the system refuses it some of them"""
PROBE = 80
"""tokens of the text that strictness is probed with"""


@dataclass(frozen=True)
class OnnxOptions:
    """How to load an ONNX model."""

    n_ctx: int | None = None
    """tokens a sequence can hold, at most what the model was trained for; None: 4096 or that"""
    sequences: int = 1
    """sequences that can be open at once, each with a cache of its own"""
    threads: int | None = None
    """None: one per physical (big) core"""
    provider: str | None = None
    """None: the CPU; `auto`: the first accelerator that runs the model; or a name, see onnx_session"""
    strict: bool = False
    """a token's logits must not depend on its pass, which is tried: so they are by the way our kernels
    compute; elsewhere single tokens are computed in passes of two. Chains only, so not with `tree`"""
    kv_type: str | None = None
    """of the cache: f32 or f16; None: f32, or what a model made by others was exported with"""
    tree: bool = False
    """take trees of tokens too"""
    max_batch: int = 512
    """tokens per forward pass"""
    max_rows: int = 33
    """rows of logits per forward pass, so depth + 1 at most"""


@dataclass
class _Open:
    """An open sequence."""

    sequence: Sequence
    cache: Cache
    start: int = 0
    """where the tokens it was last fed begin"""
    tree: SequenceOf[int] | None = None
    """their parents, if they are a tree from which no path has been kept yet"""


class Onnx:
    """`Backend` on ONNX Runtime. Segments of several sequences share a pass where attention is edgespec's
    own; ONNX Runtime's takes several new tokens for one sequence at a time only, so there they follow one
    another."""

    def __init__(self, path: Path, options: OnnxOptions | None = None, name: str | None = None) -> None:
        """Load a folder that `edgespec convert` made, or one with an ONNX model and tokenizer by others.

        Raises ModelError for models that cannot be used, UsageError for options that cannot be honoured,
        BackendError when onnxruntime or a provider fails.
        """
        options = options or OnnxOptions()
        if options.strict and options.tree:
            raise UsageError("strict output is of chains; leave out trees, or strictness")
        self.path = path
        self._open: dict[int, _Open] = {}
        threads = options.threads if options.threads is not None else compute_threads()
        if not 1 <= threads <= MAX_THREADS:
            raise UsageError(f"{threads} threads were asked for; it takes 1 to {MAX_THREADS}")
        self._model: Model | None = _load(path, options, threads)
        try:
            model = self._model
            self.name = name or model.shape.name
            self.tokenizer: Tokenizer = model.tokenizer
            self.chat_template = model.chat_template
            self.provider = model.provider
            self.threads = threads
            self.weight_bytes = weight_bytes(path)
            self._prepare(model, options)
            self.capabilities = self._probe(model, options)
        except BaseException:
            self.close()
            raise

    def _prepare(self, model: Model, options: OnnxOptions) -> None:
        trained = model.shape.context
        self.n_ctx = min(DEFAULT_CONTEXT, trained) if options.n_ctx is None else options.n_ctx
        if not 1 <= self.n_ctx <= trained:
            raise UsageError(
                f"a context of {self.n_ctx} tokens was asked for; {self.name} takes 1 to {trained}"
            )
        if options.sequences < 1:
            raise UsageError(f"{options.sequences} sequences were asked for; it takes at least 1")
        self.n_vocab = model.shape.vocabulary
        self.max_batch, self.max_rows = options.max_batch, options.max_rows
        self.last_step = Step(0, 0, 0.0)
        self.compute_seconds = 0.0
        self.hidden: Mapping[str, NDArray[np.float32]] = {}
        self._free = list(range(options.sequences))
        limits = Limits(self.n_ctx, self.max_batch, self.max_rows, options.sequences, pad=options.strict)
        try:
            model.prepare(limits)
        except (MemoryError, OSError) as error:
            raise self._no_room() from error

    def _no_room(self) -> BackendError:
        return BackendError(
            f"there is no memory for a cache of {self.n_ctx} tokens for {self.name}; try a smaller --ctx or "
            "--kv-type f16"
        )

    def _probe(self, model: Model, options: OnnxOptions) -> Capabilities:
        """Whether logits depend on the pass is tried, not assumed: strict output rests on it."""
        if options.strict and not self._rows_agree():
            raise UsageError(
                f"strict output is not possible with {self.name} on this machine: a token's logits depend on "
                "the other tokens of the pass; leave --strict out"
            )
        return Capabilities(
            rollback=True,
            row_invariant=options.strict or (model.row_invariant and not model.tree),
            gpu=model.provider in ("cuda", "tensorrt"),
            tree=model.tree,
            hidden=bool(model.hidden),
            batch=model.batch,
            drafts_only=model.trimmed,
        )

    def _rows_agree(self) -> bool:
        """The same text in one pass and with its end in passes of a few tokens: are the logits behind it the
        same, in every bit? Whatever differed on the way would be in the cache, and so in them."""
        n = min(PROBE, self.n_ctx)
        tokens = [(37 * i + 11) % min(self.n_vocab, self.tokenizer.n_vocab) for i in range(n)]
        results = []
        for size in (n, 5, 3, 1):
            sequence = self.open()
            start = n if size == n else n - min(n, 24)
            ends = [n] if size == n else [start, *range(start + size, n, size), n]
            for end in ends:
                piece = tokens[len(sequence) : end]
                if piece:
                    rows = self.forward([Segment(sequence, piece)]).copy()
            results.append(rows)
            self.close(sequence)
        self.compute_seconds = 0.0
        return all(np.array_equal(results[0], other) for other in results[1:])

    # The protocol

    def open(self) -> Sequence:
        model = self._loaded()
        if not self._free:
            raise BackendError(f"all {len(self._open)} sequences of {self.name} are in use; close one first")
        slot = min(self._free)  # whose memory may be in use already
        try:
            state = _Open(Sequence(slot), model.cache(slot))
        except (MemoryError, OSError) as error:
            raise self._no_room() from error
        self._free.remove(slot)
        self._open[slot] = state
        return state.sequence

    def forward(self, segments: SequenceOf[Segment]) -> Logits:
        model = self._loaded()
        n, rows = self._check(segments)
        started = perf_counter()
        length = sum(len(s.sequence) for s in segments)
        try:
            logits = model.run(
                [
                    Feed(self._open[s.sequence.id].cache, len(s.sequence), s.tokens, s.rows, s.parents)
                    for s in segments
                ]
            )
        except UsageError:
            raise
        except Exception as error:  # onnxruntime's exceptions have no common base
            raise BackendError(f"ONNX Runtime failed on {self.name}: {error}") from error
        seconds = perf_counter() - started
        for s in segments:  # what a failed pass wrote lies behind the end of its sequence
            state = self._open[s.sequence.id]
            state.start, state.tree = len(s.sequence), s.parents
            s.sequence.tokens += s.tokens
        self.compute_seconds += seconds
        self.last_step = Step(n, length, seconds)
        if model.hidden:
            self.hidden = {name: buffer[:rows] for name, buffer in model.hidden.items()}
        return logits[:rows]

    def _check(self, segments: SequenceOf[Segment]) -> tuple[int, int]:
        """The numbers of tokens and of rows wanted, if the pass is possible."""
        n, rows = sum(len(s.tokens) for s in segments), sum(s.rows for s in segments)
        if not 0 < n <= self.max_batch or rows > self.max_rows:
            raise UsageError(
                f"a pass of {n} tokens with {rows} rows of logits; "
                f"{self.name} takes 1 to {self.max_batch} tokens and {self.max_rows} rows"
            )
        for s in segments:
            state = self._state(s.sequence)
            total = len(s.sequence) + len(s.tokens)
            if total > self.n_ctx:
                raise ContextFull(f"{total} tokens do not fit into the context of {self.n_ctx}; raise --ctx")
            if not s.tokens or not 0 <= s.rows <= len(s.tokens):
                raise UsageError(f"{s.rows} rows of {len(s.tokens)} tokens were asked for")
            if min(s.tokens) < 0 or max(s.tokens) >= self.n_vocab:
                raise UsageError(f"token ids of {self.name} are 0 to {self.n_vocab - 1}")
            if state.tree is not None:
                raise UsageError("the sequence ends in a tree; keep a path of it first")
            if s.parents is not None:
                self._check_tree(s)
        if len({s.sequence.id for s in segments}) < len(segments):
            raise UsageError("a sequence appears twice in one pass")
        return n, rows

    def _check_tree(self, s: Segment) -> None:
        assert s.parents is not None
        if not self.capabilities.tree:
            raise UsageError(f"{self.name} was loaded for chains only, not for trees")
        if len(s.parents) != len(s.tokens) or any(not -1 <= p < i for i, p in enumerate(s.parents)):
            raise UsageError("a tree needs one parent per token, each before its child")

    def rollback(self, sequence: Sequence, length: int) -> None:
        if not 0 <= length <= len(sequence):
            raise UsageError(f"cannot roll back to {length} tokens; the sequence has {len(sequence)}")
        state = self._state(sequence)
        if state.tree is not None and state.start < length < len(sequence):
            raise UsageError("the sequence ends in a tree, of which only a path can be kept")
        if length <= state.start:
            state.start, state.tree = length, None
        del sequence.tokens[length:]

    def keep(self, sequence: Sequence, indices: SequenceOf[int]) -> None:
        state = self._state(sequence)
        start, fed = state.start, len(sequence) - state.start
        if state.tree is None:
            check_prefix(indices, fed)
        else:
            before = [-1, *indices]
            if any(not 0 <= i < fed or state.tree[i] != p for i, p in zip(indices, before, strict=False)):
                raise UsageError(f"{list(indices)} is no path of the tree with parents {list(state.tree)}")
            state.cache.move(start, indices)
        sequence.tokens[start:] = [sequence.tokens[start + i] for i in indices]
        state.start, state.tree = len(sequence), None

    def copy(self, sequence: Sequence) -> Copy:
        state = self._state(sequence)
        if state.tree is not None:
            raise UsageError("the sequence ends in a tree; keep a path of it first")
        arrays = state.cache.arrays(len(sequence))
        return Copy(list(sequence.tokens), arrays, sum(array.nbytes for array in arrays.values()))

    def paste(self, sequence: Sequence, copy: Copy, length: int) -> None:
        arrays = cast("Mapping[str, Array]", copy.data)
        self._fill(sequence, copy.tokens[:length], {name: a[:, :, :length] for name, a in arrays.items()})

    def _fill(self, sequence: Sequence, tokens: SequenceOf[int], arrays: Mapping[str, Array]) -> None:
        """Raises ValueError and KeyError for arrays that do not fit; the cache is then empty."""
        self.rollback(sequence, 0)
        state = self._state(sequence)
        state.cache.fill(arrays)
        sequence.tokens[:] = tokens
        state.start, state.tree = len(tokens), None

    def save(self, sequence: Sequence, file: Path) -> None:
        """One JSON line (model, tokens, arrays), then the arrays' bytes. The file appears whole."""
        arrays = cast("Mapping[str, Array]", self.copy(sequence).data)
        layout = [[name, a.dtype.str, list(a.shape)] for name, a in arrays.items()]
        header = {"model": self._loaded().fingerprint, "tokens": sequence.tokens, "arrays": layout}
        partial = file.with_name(file.name + ".partial")
        with partial.open("wb") as out:
            out.write(json.dumps(header).encode() + b"\n")
            for array in arrays.values():
                out.write(np.ascontiguousarray(array).data)
        partial.replace(file)

    def restore(self, sequence: Sequence, file: Path) -> None:
        damaged = BackendError(f"{file.name} is damaged or was saved with other settings; delete it")
        with file.open("rb") as saved:
            try:
                header = json.loads(saved.readline())
                model, tokens, layout = header["model"], header["tokens"], header["arrays"]
            except (ValueError, KeyError, TypeError) as error:
                raise BackendError(f"{file.name} is not a saved cache; delete it") from error
            if model != self._loaded().fingerprint:
                raise BackendError(f"{file.name} was saved with another model than {self.name}; delete it")
            if len(tokens) > self.n_ctx:
                raise ContextFull(
                    f"{file.name} holds more than the context of {self.n_ctx} tokens; raise --ctx"
                )
            try:
                arrays = {name: _read(saved, dtype, shape) for name, dtype, shape in layout}
                if any(array.shape[2] != len(tokens) for array in arrays.values()):
                    raise damaged
            except (ValueError, TypeError, IndexError) as error:
                raise damaged from error
        try:
            self._fill(sequence, tokens, arrays)
        except (ValueError, KeyError) as error:
            raise damaged from error

    def close(self, sequence: Sequence | None = None) -> None:
        if sequence is not None:
            state = self._open.get(sequence.id)
            if state is not None and state.sequence is sequence:
                del self._open[sequence.id]
                sequence.tokens.clear()
                self._free.append(sequence.id)
            return
        for state in self._open.values():
            state.sequence.tokens.clear()
        self._open.clear()
        if self._model is not None:
            self._model.close()
            self._model = None

    def _loaded(self) -> Model:
        if self._model is None:
            raise BackendError(f"{self.name} is closed; load it again")
        return self._model

    def _state(self, sequence: Sequence) -> _Open:
        self._loaded()
        state = self._open.get(sequence.id)
        if state is None or state.sequence is not sequence:
            raise UsageError("the sequence is closed, or of another model")
        return state


def _load(path: Path, options: OnnxOptions, threads: int) -> Model:
    if is_converted(path):
        return ConvertedModel(path, threads, options.provider, options.tree, options.kv_type)
    if not path.exists() or not is_onnx(path):
        raise ModelError(f"{path} is neither an ONNX model nor a folder with one")
    if options.tree:
        raise UsageError(f"{path.name} takes chains only; trees need a model made by edgespec convert")
    return StandardModel(path, threads, options.provider, options.kv_type)


def _read(file: BinaryIO, dtype: str, shape: SequenceOf[int]) -> Array:
    """An array of a saved cache. Raises ValueError if the file ends before it does."""
    array: Array = np.fromfile(file, np.dtype(dtype), int(np.prod(shape)))
    return array.reshape(shape)
