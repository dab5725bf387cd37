"""Prefix reuse: bring a cache as close to a context as possible without computing twice."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from collections.abc import Sequence as SequenceOf

from edgespec.backends.base import Backend, Segment, Sequence
from edgespec.errors import UsageError


def common_prefix(a: SequenceOf[int], b: SequenceOf[int]) -> int:
    """How many tokens `a` and `b` share from the start."""
    n = min(len(a), len(b))
    if (a if len(a) == n else a[:n]) == (b if len(b) == n else b[:n]):  # copies take their time
        return n
    low, high = 0, n  # shared up to low, not up to high
    while high - low > 1:
        middle = (low + high) // 2
        if a[low:middle] == b[low:middle]:
            low = middle
        else:
            high = middle
    return low


def usable(backend: Backend, tokens: SequenceOf[int], context: SequenceOf[int]) -> int:
    """Of a cache with these tokens, how many can be kept for `context`, whose last one is yet to be fed."""
    shared = min(common_prefix(tokens, context), len(context) - 1)
    return shared if shared == len(tokens) or backend.capabilities.rollback else 0


def rewind(backend: Backend, sequence: Sequence, context: SequenceOf[int]) -> int:
    """Make the cache a prefix of `context` that lacks at least its last token: keep what is shared, drop
    the rest. Returns how many tokens that leaves."""
    reused = usable(backend, sequence.tokens, context)
    if reused < len(sequence):
        backend.rollback(sequence, reused)
    return reused


def pieces(sequence: Sequence, context: SequenceOf[int], leave: int, size: int) -> Iterator[Segment]:
    """What a cache lacks of `context` but for the last tokens, at most `leave` and at least one: up to `size`
    tokens at a time, without logits. Each is to be fed before the next is asked for."""
    while (missing := len(context) - len(sequence)) > leave:
        start = len(sequence)
        yield Segment(sequence, context[start : start + min(size, missing - 1)], rows=0)


def align(
    backend: Backend,
    sequence: Sequence,
    context: SequenceOf[int],
    leave: int,
    checkpoint: Callable[[int, int], None],
) -> int:
    """`rewind`, and feed the `pieces`, in the largest passes. `checkpoint(done, total)` is called before each
    one; it may raise to cancel, which leaves a shorter but correct cache. Returns how many tokens were
    reused."""
    reused = rewind(backend, sequence, context)
    for piece in pieces(sequence, context, leave, backend.max_batch):
        checkpoint(len(sequence), len(context))
        backend.forward([piece])
    return reused


def check_prefix(indices: SequenceOf[int], fed: int) -> None:
    """Raise UsageError unless `indices` are 0, 1, … of `fed` tokens: what `keep` may keep of a chain."""
    if list(indices) != list(range(len(indices))) or len(indices) > fed:
        raise UsageError(f"of a chain of {fed} tokens only a beginning can be kept, not {list(indices)}")
