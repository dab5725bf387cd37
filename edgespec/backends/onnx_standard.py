"""ONNX language models made by others, in the two usual layouts.

- Optimum and transformers.js: `input_ids`, `attention_mask`, `position_ids`, `past_key_values.N.key` and
  `.value`; merged decoders also take `use_cache_branch`, newer exports `num_logits_to_keep`.
- onnxruntime-genai: the same, the names in genai_config.json.

Where attention is ONNX Runtime's own, the cache is written in place; otherwise it is an input and grows as
an output. Logits come for every position, so passes are cut into pieces whose logits fit into LOGITS_BYTES.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Logits, Tokenizer
from edgespec.backends.fingerprint import fingerprint
from edgespec.backends.hf_tokenizer import HFTokenizer
from edgespec.backends.onnx_buffers import KV_TYPES, Binding, FixedCache, kv_type, writes_in_place
from edgespec.backends.onnx_files import weights_of
from edgespec.backends.onnx_model import Array, Cache, Feed, Limits, Shape
from edgespec.backends.onnx_session import PROVIDERS, open_session
from edgespec.errors import ModelError, UsageError
from edgespec.hub.onnx_folder import GENAI, home_of, model_in, read_json, trained_context

LOGITS_BYTES = 64 << 20
_TYPES = {"tensor(float)": np.float32, "tensor(float16)": np.float16}
_INTEGERS = {"tensor(int64)": np.int64, "tensor(int32)": np.int32}
_FOREIGN = {
    "pixel_values": "it takes images",
    "input_features": "it takes sound",
    "encoder_hidden_states": "it is the decoder of an encoder-decoder pair",
    "inputs_embeds": "it takes embeddings instead of tokens",
    "token_type_ids": "it is an encoder",
}
_STATES = ("past_conv", "past_recurrent", "past_ssm")
"""how inputs begin that hold what convolutions and recurrences remember"""


@dataclass(frozen=True)
class Names:
    """What a graph calls its inputs and outputs."""

    ids: str = "input_ids"
    mask: str = "attention_mask"
    positions: str = "position_ids"
    past_key: str = "past_key_values.%d.key"
    past_value: str = "past_key_values.%d.value"
    logits: str = "logits"
    present_key: str = "present.%d.key"
    present_value: str = "present.%d.value"
    branch: str = "use_cache_branch"
    keep: str = "num_logits_to_keep"
    """0: of all tokens"""


_GENAI_NAMES = {
    "ids": ("inputs", "input_ids"),
    "mask": ("inputs", "attention_mask"),
    "positions": ("inputs", "position_ids"),
    "past_key": ("inputs", "past_key_names"),
    "past_value": ("inputs", "past_value_names"),
    "logits": ("outputs", "logits"),
    "present_key": ("outputs", "present_key_names"),
    "present_value": ("outputs", "present_value_names"),
}
"""where genai_config.json has them"""


class StandardModel:
    """`Model` on a file or folder of the layouts above."""

    batch = False
    tree = False
    row_invariant = False
    trimmed = False

    def __init__(self, path: Path, threads: int, provider: str | None, kv: str | None) -> None:
        """Raises as `open_session` and `kv_type` do, and ModelError for graphs that are no text decoders
        with a cache. `kv`: what type the cache must have."""
        self._kv = kv
        file = path if path.is_file() else model_in(path)
        if file is None:
            raise ModelError(f"{path} has no ONNX model, or several; name the file")
        home = home_of(path)
        self.hidden: Mapping[str, NDArray[np.float32]] = {}
        self.names = _names(home)
        self._file, self._home = file, home
        self._limits = Limits(n_ctx=4, max_batch=2, max_rows=2, sequences=1, pad=False)
        self._title = path.stem if path.is_file() else path.name
        self.session, self.provider = open_session(file, threads, provider, self._start)
        tokenizer = HFTokenizer(home)
        self.tokenizer: Tokenizer = tokenizer
        self.chat_template = tokenizer.chat_template

    def _start(self, session: Any) -> None:
        """Read what the graph takes and yields, and run it once: the width of its logits is what comes."""
        self.session = session
        self._inputs = {i.name: i for i in session.get_inputs()}
        outputs = [o.name for o in session.get_outputs()]
        self._check(outputs)
        names = self.names
        layers = sum(1 for i in range(len(self._inputs)) if names.past_key % i in self._inputs)
        self._past = [name % i for i in range(layers) for name in (names.past_key, names.past_value)]
        self._present = [name % i for i in range(layers) for name in (names.present_key, names.present_value)]
        if missing := [n for n in self._past if n not in self._inputs] + [
            n for n in self._present if n not in outputs
        ]:
            raise ModelError(f"{self._title} lacks {missing[0]} in its graph")
        self._dtype = self._float_type()
        self._empty = self._empty_cache()
        self._in_place = False
        logits = self._step(self._growing(), 0, np.zeros(1, np.int64))
        self.shape = Shape(self._title, layers, trained_context(self._home), logits.shape[-1])
        on_cpu = session.get_providers()[0] == PROVIDERS["cpu"]
        self._in_place = on_cpu and writes_in_place(self._file, self._past, self._present)
        self._weights = "".join(map(fingerprint, weights_of(self._file)))
        self.prepare(self._limits)
        self.run([Feed(self.cache(0), 0, [0, 0], rows=2)])

    def _check(self, outputs: SequenceOf[str]) -> None:
        """Say what a graph is that is no text decoder with a cache."""
        names, title = self.names, self._title
        for name, why in _FOREIGN.items():
            if name in self._inputs:
                raise ModelError(f"{title} is not a text generation model edgespec can run: {why}")
        if names.ids not in self._inputs:
            raise ModelError(f"{title} is not a language model: it has no input {names.ids}")
        if names.logits not in outputs:
            raise ModelError(f"{title} gives no logits, so it is an encoder or an embedding model")
        if state := next((name for name in self._inputs if name.startswith(_STATES)), None):
            raise ModelError(
                f"{title} is a hybrid, whose {state} edgespec cannot take back; as a GGUF file it runs on "
                "llama.cpp"
            )
        if names.past_key % 0 not in self._inputs:
            raise ModelError(
                f"{title} has no inputs for a key-value cache; export it with one (Optimum: --task "
                "text-generation-with-past)"
            )
        known = {names.ids, names.mask, names.positions, names.branch, names.keep}
        pasts = (names.past_key.partition("%d")[0], names.past_value.partition("%d")[0])
        for name in self._inputs:
            if name not in known and not name.startswith(pasts):
                raise ModelError(f"{title} wants an input {name}, which edgespec does not know")

    def _float_type(self) -> type[np.floating[Any]]:
        kind = self._inputs[self._past[0]].type
        if kind not in _TYPES:
            raise ModelError(f"{self._title} keeps its cache as {kind}; edgespec takes float and float16")
        found = _TYPES[kind]
        if self._kv is not None and kv_type(self._kv) is not found:
            other = next(name for name, type_ in KV_TYPES.items() if type_ is found)
            raise UsageError(
                f"{self._title} was exported with a cache of {other}, not {self._kv}; leave --kv-type out"
            )
        return found

    def _empty_cache(self) -> list[Array]:
        config = read_json(self._home / "config.json") if (self._home / "config.json").is_file() else {}
        heads = config.get("num_key_value_heads", config.get("num_attention_heads"))
        arrays: list[Array] = []
        for name in self._past:
            shape = self._inputs[name].shape
            if len(shape) != 4:
                raise ModelError(f"{self._title}: {name} has {len(shape)} dimensions instead of 4")
            kv_heads, head = (shape[1] if isinstance(shape[1], int) else heads), shape[3]
            if not isinstance(kv_heads, int) or not isinstance(head, int) or min(kv_heads, head) < 1:
                raise ModelError(f"{self._title} does not say how many heads its cache has")
            arrays.append(np.zeros((1, kv_heads, 0, head), self._dtype))
        return arrays

    def prepare(self, limits: Limits) -> None:
        self._limits = limits
        self.fingerprint = self._weights + ("/padded" if limits.pad else "")  # which rounds differently
        self._logits: Logits = np.empty((limits.max_rows + 1, self.shape.vocabulary), np.float32)
        self._piece = max(2, LOGITS_BYTES // (4 * self.shape.vocabulary))
        kind = next(o.type for o in self.session.get_outputs() if o.name == self.names.logits)
        rows = min(self._piece, max(2, limits.max_batch))
        self._all_logits = np.empty((rows if self._in_place else 0, self.shape.vocabulary), _TYPES[kind])

    def cache(self, slot: int) -> Cache:
        return self._fixed() if self._in_place else self._growing()

    def _growing(self) -> _Cache:
        return _Cache(dict(zip(self._past, self._empty, strict=True)))

    def _fixed(self) -> FixedCache:
        capacity = self._limits.n_ctx + 1  # one more for a row that only fills up a pass
        buffers: dict[str, Array] = {
            name: np.zeros((1, empty.shape[1], capacity, empty.shape[3]), self._dtype)
            for name, empty in zip(self._past, self._empty, strict=True)
        }
        return FixedCache(Binding(self.session, buffers, self._present), buffers)

    def run(self, feeds: SequenceOf[Feed]) -> Logits:
        at = 0
        for feed in feeds:
            if feed.parents is not None:
                raise UsageError(f"{self._title} takes chains only, no trees")
            ids = np.asarray(feed.tokens, np.int64)
            wanted = np.arange(len(ids) - feed.rows, len(ids))
            for start in range(0, len(ids), self._piece):
                piece = ids[start : start + self._piece]
                if self._limits.pad and len(piece) == 1:
                    piece = np.append(piece, 0)
                logits = self._step(feed.cache, feed.length + start, piece)
                here = wanted[(wanted >= start) & (wanted < start + self._piece)]
                self._logits[at : at + len(here)] = logits[here - start]
                at += len(here)
        return self._logits

    def _step(self, cache: Cache, length: int, ids: NDArray[np.int64]) -> NDArray[Any]:
        """One call of the session; logits [tokens, vocabulary] of all its tokens."""
        names, total = self.names, length + len(ids)
        values: dict[str, Array] = {
            names.ids: ids[None],
            names.mask: np.ones((1, total), np.int64),
            names.positions: np.arange(length, total)[None],
            names.branch: np.array([length > 0]),
            names.keep: np.zeros((), np.int64),
        }
        feeds = {
            name: value.astype(_INTEGERS.get(self._inputs[name].type, value.dtype))
            for name, value in values.items()
            if name in self._inputs
        }
        if isinstance(cache, FixedCache):
            for name, value in feeds.items():
                cache.binding.input(name, value)
            rows = self._all_logits[: len(ids)]
            cache.binding.output(names.logits, rows, (1, *rows.shape))
            cache.binding.run()
            return rows
        assert isinstance(cache, _Cache)
        cache.cut(length)
        logits, *present = self.session.run([names.logits, *self._present], feeds | cache.values)
        cache.values = dict(zip(self._past, present, strict=True))
        first: NDArray[Any] = logits[0]
        return first

    def close(self) -> None:
        self.session = None


class _Cache:
    """`Cache` in arrays that every pass replaces by longer ones."""

    def __init__(self, values: dict[str, Array]) -> None:
        self.values = values

    def cut(self, length: int) -> None:
        """Keep the first `length` positions."""
        for name, value in self.values.items():
            if value.shape[2] > length:
                self.values[name] = np.ascontiguousarray(value[:, :, :length])

    def arrays(self, length: int) -> Mapping[str, Array]:
        return {name: value[:, :, :length] for name, value in self.values.items()}

    def fill(self, arrays: Mapping[str, Array]) -> None:
        filled = {}
        for name, value in self.values.items():
            saved = arrays[name]
            if saved.dtype != value.dtype or saved.ndim != 4 or saved.shape[1::2] != value.shape[1::2]:
                raise ValueError(f"{name} is {saved.dtype} {saved.shape}")
            filled[name] = saved
        self.values = filled

    def move(self, start: int, indices: SequenceOf[int]) -> None:
        raise UsageError("trees are not fed to models of this layout")


def _names(home: Path) -> Names:
    """The names of a graph's inputs and outputs: genai_config.json's, or Optimum's."""
    file = home / GENAI
    if not file.is_file():
        return Names()
    given = {part: read_json(file, "model", "decoder", part) for part in ("inputs", "outputs")}
    names: dict[str, str] = {}
    for field, (part, key) in _GENAI_NAMES.items():
        name = given[part].get(key)
        if name is None:
            continue
        holes = 1 if key.endswith("_names") else 0
        if not isinstance(name, str) or not name.count("%") == name.count("%d") == holes:
            what = "a name with one %d" if holes else "a name"
            raise ModelError(f"{file} is damaged: {key!r} is {name!r} instead of {what}")
        names[field] = name
    return Names(**names)
