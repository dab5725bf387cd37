"""What a backend is: the owner of one model and of the KV caches of its sequences.

The decoding engine, the drafters and the controller see models only through these protocols;
they know nothing of llama.cpp or ONNX Runtime.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Logits = NDArray[np.float32]
"""float32 [rows, n_vocab]; a view that is valid until the backend's next forward pass."""


@dataclass
class Sequence:
    """One KV cache. `tokens` are exactly those whose keys and values are in it, in order.

    Only the backend that opened a sequence changes it.
    """

    id: int
    tokens: list[int] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class Copy:
    """What a KV cache held, in memory of its own."""

    tokens: SequenceOf[int]
    data: object
    """the backend's own form of it"""
    nbytes: int


@dataclass(frozen=True)
class Segment:
    """New tokens for one sequence, and for how many of the last of them logits are wanted."""

    sequence: Sequence
    tokens: SequenceOf[int]
    rows: int = 1
    parents: SequenceOf[int] | None = None
    """None: a chain. A tree: for each token the index of its parent among `tokens`, less than its own,
    or -1 for the end of the sequence. The path to keep is chosen by `keep` before the next pass."""


@dataclass(frozen=True)
class Step:
    """One measured forward pass: a point T(n, L) of the cost curve."""

    n: int
    """tokens fed, of all segments"""
    length: int
    """tokens already in their caches, L"""
    seconds: float


@dataclass(frozen=True)
class Capabilities:
    """What a loaded model can do, probed at load rather than assumed."""

    rollback: bool
    """the tail of a sequence can be dropped; recurrent and hybrid states cannot"""
    row_invariant: bool
    """a token's logits do not depend, in any bit, on what else is in the pass"""
    gpu: bool = False
    reason: str = ""
    """why `rollback` is False, in words for the user"""
    tree: bool = False
    """segments may be trees"""
    hidden: bool = False
    """passes yield hidden states too"""
    batch: bool = False
    """segments of several sequences share one pass instead of following one another"""
    drafts_only: bool = False
    """its head has some of the tokens only, the others' logits are -inf: no target"""


class Tokenizer(Protocol):
    """Text ↔ token ids of one model, at the level of bytes."""

    n_vocab: int
    bos: int | None
    """the token every text of this model begins with, if it has one"""
    bos_text: str
    eos_text: str
    """the texts of the BOS and EOS markers, for chat templates; empty if there are none"""

    def encode(self, text: str, *, special: bool = False, bos: bool = True) -> list[int]:
        """Token ids of `text`. `special`: markers such as <|im_end|> in the text become control
        tokens (templates only, never user text). `bos`: prepend the BOS token if the model has one."""
        ...

    def piece(self, token: int) -> bytes:
        """The bytes a token adds to the text; empty for control tokens."""
        ...

    def is_end(self, token: int) -> bool:
        """Whether the token ends a generation (EOS, end of turn)."""
        ...

    def markers(self) -> list[str]:
        """The texts that only a template may turn into special tokens, such as <|im_end|>."""
        ...

    def vocabulary(self) -> list[bytes]:
        """The bytes of every id, control tokens by their marker text; what compatibility compares."""
        ...


class Backend(Protocol):
    """One loaded model. Not thread-safe: one caller at a time; compute releases the GIL."""

    name: str
    """the model's name for people"""
    path: Path
    """what it was loaded from"""
    tokenizer: Tokenizer
    capabilities: Capabilities
    n_ctx: int
    """tokens a sequence can hold"""
    n_vocab: int
    """width of a row of logits; may exceed the tokenizer's by padding rows"""
    max_batch: int
    """tokens one forward pass takes at most"""
    max_rows: int
    """rows of logits one forward pass yields at most"""
    weight_bytes: int
    """weights that a forward pass reads"""
    last_step: Step
    """the last forward pass as measured"""
    compute_seconds: float
    """time spent inside the runtime since load"""
    chat_template: str | None
    """the Jinja source the model file carries"""
    hidden: Mapping[str, NDArray[np.float32]]
    """of the last pass, for each row of its logits, where the model was loaded to yield them: "final"
    is what the output head multiplies, "N" the residual stream behind layer N; float32 [rows, width]"""

    def open(self) -> Sequence:
        """A new empty sequence. Raises BackendError when all are taken."""
        ...

    def forward(self, segments: SequenceOf[Segment]) -> Logits:
        """Feed the segments in one pass; logits of their last `rows` tokens, segment after segment.

        The tokens enter the caches. Raises BackendError when the pass fails, in which case the
        sequences are as before, or empty where the model cannot go back, and ContextFull when a sequence
        lacks room.
        """
        ...

    def rollback(self, sequence: Sequence, length: int) -> None:
        """Keep the first `length` tokens of the cache, drop the rest. Raises BackendError when
        the model cannot; the cache is then reset to empty, never left in between."""
        ...

    def keep(self, sequence: Sequence, indices: SequenceOf[int]) -> None:
        """Of the tokens this sequence was last fed, keep those at `indices` (ascending, each the parent of
        the next), drop the rest. Where trees cannot be fed, `indices` is 0, 1, …, a prefix. Raises
        UsageError for other indices."""
        ...

    def copy(self, sequence: Sequence) -> Copy:
        """What a sequence's cache holds."""
        ...

    def paste(self, sequence: Sequence, copy: Copy, length: int) -> None:
        """Replace a sequence's cache by the first `length` tokens of a copy that this backend made. Raises
        BackendError as `rollback` does; the cache is then empty."""
        ...

    def save(self, sequence: Sequence, file: Path) -> None:
        """Write a sequence's cache to a file."""
        ...

    def restore(self, sequence: Sequence, file: Path) -> None:
        """Replace a sequence's cache by a saved one. Raises BackendError if it is of another model."""
        ...

    def close(self, sequence: Sequence | None = None) -> None:
        """Free one sequence, or, without an argument, everything. Safe to call twice."""
        ...
