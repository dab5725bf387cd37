"""Models that `edgespec convert` made; convert/graph.py says what their graphs take and yield."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Logits, Tokenizer
from edgespec.backends.fingerprint import identity
from edgespec.backends.onnx_adapted import SEGMENTS, adapted
from edgespec.backends.onnx_buffers import Binding, FixedCache, growing_zeros, kv_type
from edgespec.backends.onnx_model import Array, Feed, Limits, Shape
from edgespec.backends.onnx_session import open_session
from edgespec.backends.onnx_window import BIAS
from edgespec.backends.vocabulary_model import VocabularyModel
from edgespec.convert.folder import HEAD, MODEL, TREE, VERSION, VOCABULARY, read_report, remedy
from edgespec.errors import ModelError, UsageError

HIDE = np.float32(-1e9)
"""added to the score of what a token must not see"""

WIDE_HEAD, SHORT_TEXT = 128, 63
"""ONNX Runtime's attention adds up the products of heads wider than 128 channels in another order when
there are more than 64 tokens, those included that only fill up a pass: a pass that must not depend on
others does not cross that length."""


class ConvertedModel:
    """`Model` on a converted folder. The cache is written in place: inputs and outputs are one buffer. For
    our attention, the caches of all sequences lie in one, so that a pass can have tokens of several.

    Logits of a trimmed draft are put into rows as wide as the vocabulary, which are -inf elsewhere: whoever
    reads them need not know that it is one.
    """

    def __init__(self, folder: Path, threads: int, provider: str | None, tree: bool, kv: str | None) -> None:
        """Raises as `open_session` and `kv_type` do. `tree`: load the graph that takes trees."""
        self._kv_type = kv_type(kv or "f32")
        self.tree = tree
        self._folder = folder
        self._conversion = _identity(folder)
        self.vocabulary = VocabularyModel(folder / VOCABULARY)
        self.tokenizer: Tokenizer = self.vocabulary.tokenizer
        self.chat_template = self.vocabulary.chat_template
        try:
            file = folder / (TREE if tree else MODEL)
            adapt = partial(adapted, half=self._kv_type is np.float16)
            self.session, self.provider = open_session(file, threads, provider, self._start, adapt)
        except BaseException:
            self.close()
            raise

    def _start(self, session: Any) -> None:
        """Read what the graph says of itself, and run it once."""
        try:
            self._about = json.loads(session.get_modelmeta().custom_metadata_map["edgespec"])
            about = self._about
            if about["version"] != VERSION:
                raise ModelError(f"the model was converted by another version; {remedy(self._folder)}")
            self.shape = Shape(about["name"], about["layers"], about["context"], about["vocabulary"])
            self._windows = {
                i.name: int(i.name.removeprefix(f"{BIAS}."))
                for i in session.get_inputs()
                if i.name.startswith(f"{BIAS}.")
            }
            self.row_invariant: bool = about["row_invariant"]
            self._inputs = {i.name: i.shape for i in session.get_inputs()}
            self._kv_shape = (1, about["kv_heads"], about["head"])
            self._tiled = SEGMENTS in self._inputs
            self._head = self._ids_of_head(session)
        except (KeyError, ValueError, TypeError) as error:
            raise ModelError(
                f"the model is damaged, or not one of edgespec convert; {remedy(self._folder)}"
            ) from error
        self.trimmed = self._head is not None
        self.session = session
        self.prepare(Limits(n_ctx=4, max_batch=2, max_rows=2, sequences=1, pad=False))
        self.run([Feed(self.cache(0), 0, [0, 0], rows=2)])

    def _ids_of_head(self, session: Any) -> NDArray[np.int32] | None:
        """The ids whose rows a trimmed head has; None: it has all. Raises ValueError if they do not fit."""
        width = next(o.shape[-1] for o in session.get_outputs() if o.name == "logits")
        vocabulary = self.shape.vocabulary
        if width == vocabulary:
            return None
        try:
            ids: NDArray[np.int32] = np.load(self._folder / HEAD, allow_pickle=False)
        except (OSError, EOFError) as error:
            raise ValueError(f"{HEAD} cannot be read") from error
        if ids.dtype != np.int32 or ids.shape != (width,) or not (ids[0] >= 0 and ids[-1] < vocabulary):
            raise ValueError(f"{HEAD} is not of this model")
        if not (np.diff(ids) > 0).all():
            raise ValueError(f"{HEAD} is not in order")
        return ids

    def prepare(self, limits: Limits) -> None:
        self._limits = limits
        self._pad = limits.pad and not self.row_invariant
        self.batch = self._tiled and not self.tree and not self._pad
        # A padded pass and one of the tree graph round differently, and so would the keys and values.
        known = repr((*self._conversion, self.tree, self._pad))
        self.fingerprint = hashlib.sha256(known.encode()).hexdigest()
        tokens, rows = max(2, limits.max_batch), limits.max_rows + 1
        self._ids = np.zeros(tokens, np.int64)
        self._positions = np.zeros(tokens, np.int64)
        self._rows = np.zeros(rows + 1, np.int64)
        self._segments = np.zeros((limits.sequences, 3), np.int32)
        self._last = np.zeros(1, np.int32)
        self._total = np.zeros((), np.int32)
        self._logits: Logits = np.full((rows, self.shape.vocabulary), -np.inf, np.float32)
        self._yielded: Logits = self._logits
        if self._head is not None:
            self._yielded = np.empty((rows, len(self._head)), np.float32)
        key = self._inputs["past_key_values.0.key"]
        self._tile = key[-1] if self._tiled else 1
        needed = limits.n_ctx + 1  # one more for a row that only fills up a pass
        self._capacity = -(-needed // self._tile) * self._tile
        if self._tiled:
            self._shared = self._allocate(limits.sequences)
        self._no_bias = np.zeros(tokens * (limits.n_ctx + 1) if self.tree else 0, np.float32)
        self.hidden: Mapping[str, NDArray[np.float32]] = {
            output.name.removeprefix("hidden."): np.empty((rows, self._about["width"]), np.float32)
            for output in self.session.get_outputs()
            if output.name.startswith("hidden.")
        }

    def cache(self, slot: int) -> FixedCache:
        if not self._tiled:
            return FixedCache(*self._allocate(1))
        binding, buffers = self._shared
        place = slot * self._capacity
        own = {}
        for name, buffer in buffers.items():
            tile = buffer.shape[4] if buffer.ndim == 5 else 1
            own[name] = buffer[:, :, place // tile : (place + self._capacity) // tile]
        return FixedCache(binding, own, place)

    def _allocate(self, sequences: int) -> tuple[Binding, dict[str, Array]]:
        """Buffers for the caches of so many sequences, and what binds them."""
        _, heads, head = self._kv_shape
        positions = sequences * self._capacity
        shape: tuple[int, ...] = (1, heads, positions, head)
        shapes = {"key": shape, "value": shape}
        if self._tiled:
            shapes["key"] = (1, heads, positions // self._tile, head, self._tile)
        parts = {f"{i}.{part}": shapes[part] for i in range(self.shape.layers) for part in shapes}
        buffers: dict[str, Array] = {
            f"past_key_values.{part}": growing_zeros(shape, self._kv_type) for part, shape in parts.items()
        }
        return Binding(self.session, buffers, [f"present.{part}" for part in parts]), buffers

    def run(self, feeds: SequenceOf[Feed]) -> Logits:
        if self.batch:
            self._pass(feeds, 0)
            return self._logits
        at = 0
        for feed in feeds:
            for piece in self._pieces(feed):
                self._pass([piece], at)
                at += piece.rows
        return self._logits

    def _pieces(self, feed: Feed) -> list[Feed]:
        """A feed as the passes it takes, where they must not depend on each other."""
        n, cut = len(feed.tokens), SHORT_TEXT - feed.length
        if not self._pad or feed.parents is not None or self._kv_shape[2] <= WIDE_HEAD or not 0 < cut < n:
            return [feed]
        before, after = feed.tokens[:cut], feed.tokens[cut:]
        rows = min(feed.rows, len(after))
        return [
            Feed(feed.cache, feed.length, before, feed.rows - rows),
            Feed(feed.cache, feed.length + cut, after, rows),
        ]

    def _pass(self, feeds: SequenceOf[Feed], at: int) -> None:
        """One pass of ONNX Runtime, whose logits go into rows from `at` on."""
        cache = feeds[0].cache
        assert isinstance(cache, FixedCache)
        binding = cache.binding
        n = r = 0
        for segment, feed in zip(self._segments, feeds, strict=False):
            assert isinstance(feed.cache, FixedCache)
            segment[:] = n, feed.length, feed.cache.place
            end = n + len(feed.tokens)
            self._ids[n:end] = feed.tokens
            self._rows[r : r + feed.rows] = range(end - feed.rows, end)
            n, r = end, r + feed.rows
        if self._pad and n == 1:
            n, self._ids[1] = 2, 0
        if self._pad and r == 1:
            r, self._rows[1] = 2, self._rows[0]
        binding.input("input_ids", self._ids, (1, n))
        binding.input("rows", self._rows, (r,))
        if self._tiled:
            binding.input(SEGMENTS, self._segments, (len(feeds), 3))
        else:
            self._last[0], self._total[...] = feeds[0].length + n - 1, feeds[0].length + n
            binding.input("seqlens_k", self._last)
            binding.input("total_sequence_length", self._total)
        if self.tree:
            (feed,) = feeds
            bias = self._see(feed.length, n, feed.parents)
            binding.input("position_ids", self._positions, (1, n))
            biases = {BIAS: bias, **{name: self._near(bias, size) for name, size in self._windows.items()}}
            for name, seen in biases.items():
                binding.input(name, seen, (1, 1, *seen.shape))
        binding.output("logits", self._yielded[at:], (1, r, self._yielded.shape[1]))
        for name, buffer in self.hidden.items():
            binding.output(f"hidden.{name}", buffer[at:], (1, r, buffer.shape[1]))
        binding.run()
        if self._head is not None:
            for wide, row in zip(self._logits[at : at + r], self._yielded[at:], strict=False):
                wide[self._head] = row

    def _see(self, length: int, n: int, parents: SequenceOf[int] | None) -> NDArray[np.float32]:
        """Positions of the tokens, and what each may see: the sequence, its ancestors and itself."""
        if parents is None:
            self._positions[:n] = np.arange(length, length + n)
            return self._no_bias[: n * (length + n)].reshape(n, length + n)
        if length == 0:
            raise UsageError("a tree needs at least one token before it; feed the prompt first")
        bias = np.zeros((n, length + n), np.float32)
        bias[:, length:] = HIDE
        self._positions[:n] = length  # of a row that only fills up as well
        for i, parent in enumerate(parents):
            if parent >= 0:
                bias[i, length:] = bias[parent, length:]
                self._positions[i] = self._positions[parent] + 1
            bias[i, length + i] = 0
        return bias

    def _near(self, bias: NDArray[np.float32], window: int) -> NDArray[np.float32]:
        """A bias that also hides what lies more than a window before a token."""
        n, total = bias.shape
        positions = self._positions[:n]
        columns = np.concatenate([np.arange(total - n), positions])
        near: NDArray[np.float32] = np.where(columns > positions[:, None] - window, bias, HIDE)
        return near

    def close(self) -> None:
        self.vocabulary.close()
        self.session = None


def _identity(folder: Path) -> tuple[object, ...]:
    """What tells a conversion from others, those of the same file included."""
    report = read_report(folder)
    if report is None:
        return (identity(folder),)
    return report.source_sha256, report.version, report.portable, report.small, report.trimmed is not None
