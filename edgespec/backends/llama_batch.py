"""What llama.cpp computes in a pass: its batch, laid out anew for every one."""

from __future__ import annotations

from collections.abc import Sequence as SequenceOf
from typing import Any

import numpy as np

from edgespec.backends.base import Segment
from edgespec.errors import ContextFull, UsageError


class Batch:
    """llama.cpp's batch, of at most `max_tokens` tokens. `free` it."""

    def __init__(self, c: Any, max_tokens: int) -> None:
        """c: the bindings."""
        self._c = c
        self.batch: Any = c.llama_batch_init(max_tokens, 0, 1)
        size = (max_tokens,)
        self._token = np.ctypeslib.as_array(self.batch.token, size)
        self._pos = np.ctypeslib.as_array(self.batch.pos, size)
        self._wanted = np.ctypeslib.as_array(self.batch.logits, size)
        np.ctypeslib.as_array(self.batch.n_seq_id, size)[:] = 1
        self._slots = [-1] * max_tokens
        """the sequence that each place is laid out for"""

    def fill(self, segments: SequenceOf[Segment], n_ctx: int) -> None:
        """Lay out segments of chains that fit the batch. Raises UsageError, and ContextFull for one that does
        not fit into n_ctx tokens."""
        self.batch.n_tokens = n = sum(len(s.tokens) for s in segments)
        self._wanted[:n] = 0
        start = 0
        for s in segments:
            if s.parents is not None:
                raise UsageError("the llama.cpp backend verifies chains only, no trees")
            length, end = len(s.sequence), start + len(s.tokens)
            if not 0 <= s.rows <= len(s.tokens):
                raise UsageError(f"{s.rows} rows of logits of {len(s.tokens)} tokens were asked for")
            if length + len(s.tokens) > n_ctx:
                raise ContextFull(
                    f"{length + len(s.tokens)} tokens do not fit into the context of {n_ctx}; raise --ctx"
                )
            self._token[start:end] = s.tokens
            self._pos[start:end] = np.arange(length, length + len(s.tokens))
            self._wanted[end - s.rows : end] = 1
            if self._slots[start:end] != [s.sequence.id] * (end - start):  # rarely: ctypes is slow here
                for i in range(start, end):
                    self.batch.seq_id[i][0] = self._slots[i] = s.sequence.id
            start = end

    def free(self) -> None:
        """Give its memory back."""
        self._c.llama_batch_free(self.batch)
