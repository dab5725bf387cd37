"""Prefix reuse: bring a cache as close to a context as possible without computing twice."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as SequenceOf

from edgespec.backends.base import Backend, Segment, Sequence
from edgespec.errors import UsageError


def common_prefix(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """How many tokens `a` and `b` share from the start."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    low, high = 0, n  # shared up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def align(
    backend: Backend,
    sequence: Sequence,
    context: SequenceOf[int],
    leave: int,
    checkpoint: Callable[[int, int], None],
) -> int:
    """Make the cache a prefix of `context` that lacks at most `leave` tokens, and at least one.

    Keeps what is shared, drops the rest, and feeds whole chunks without asking for logits.
    `checkpoint(done, total)` is called before each pass; it may raise to cancel, which leaves a
    shorter but correct cache. Returns how many tokens were reused.
    """
    reused = min(common_prefix(sequence.tokens, context), len(context) - 1)
    if reused < len(sequence):
        reused = reused if backend.capabilities.rollback else 0
        backend.rollback(sequence, reused)
    while (missing := len(context) - len(sequence)) > leave:
        checkpoint(len(sequence), len(context))
        start = len(sequence)
        chunk = context[start : start + min(backend.max_batch, missing - 1)]
        backend.forward([Segment(sequence, chunk, rows=0)])
    return reused


def check_prefix(indices: SequenceOf[int], fed: int) -> None:
    """Raise UsageError unless `indices` are 0, 1, … of `fed` tokens: what `keep` may keep of a chain."""
    if list(indices) != list(range(len(indices))) or len(indices) > fed:
        raise UsageError(f"of a chain of {fed} tokens only a beginning can be kept, not {list(indices)}")
