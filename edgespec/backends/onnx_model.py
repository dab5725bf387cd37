"""What the ONNX backend asks of a model file, whatever the layout of its graph."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as SequenceOf
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from edgespec.backends.base import Logits, Tokenizer

Array = NDArray[np.generic]


class Cache(Protocol):
    """Keys and values of one sequence. Only positions below the sequence's length count."""

    def arrays(self, length: int) -> Mapping[str, Array]:
        """The first `length` positions, by input name: [1, kv heads, length, head]; to be saved."""
        ...

    def fill(self, arrays: Mapping[str, Array]) -> None:
        """Put saved positions back. Raises ValueError if they are of another shape or type."""
        ...

    def move(self, start: int, indices: SequenceOf[int]) -> None:
        """Positions start + indices become start, start + 1, …: the path kept of a tree."""
        ...


@dataclass(frozen=True)
class Feed:
    """New tokens for a cache: a segment of a pass."""

    cache: Cache
    length: int
    """positions of the cache that count, before these tokens"""
    tokens: SequenceOf[int]
    rows: int
    """of how many of the last tokens logits are wanted"""
    parents: SequenceOf[int] | None = None
    """as in `Segment`"""


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    name: str
    layers: int
    context: int
    """positions it can be run with"""
    vocabulary: int
    """width of the logits"""


@dataclass(frozen=True)
class Limits:
    """What buffers are made for."""

    n_ctx: int
    max_batch: int
    max_rows: int
    sequences: int
    """caches that there are at once"""
    pad: bool
    """never compute one token or one row alone: they take other kernels, which round differently"""


class Model(Protocol):
    """A session with the buffers of its passes."""

    shape: Shape
    tokenizer: Tokenizer
    chat_template: str | None
    fingerprint: str
    """tells models apart whose saved caches must not be mixed"""
    row_invariant: bool
    """a token's logits do not depend on its pass, by the way the graph is made"""
    batch: bool
    """what is fed to several caches is computed in one pass; known once it is prepared"""
    tree: bool
    hidden: Mapping[str, NDArray[np.float32]]
    """of the last passes, by name: float32 [max rows, width]"""
    provider: str
    trimmed: bool
    """its head has some of the tokens only; the others' logits are -inf"""

    def prepare(self, limits: Limits) -> None:
        """Make the buffers. Once, before the first cache."""
        ...

    def cache(self, slot: int) -> Cache:
        """An empty cache, the only one of its slot, 0 … sequences − 1."""
        ...

    def run(self, feeds: SequenceOf[Feed]) -> Logits:
        """Feed tokens to caches, each at most once; the buffer of logits, which begins with the rows wanted,
        feed after feed. Raises whatever the runtime raises."""
        ...

    def close(self) -> None:
        """Free everything."""
        ...
