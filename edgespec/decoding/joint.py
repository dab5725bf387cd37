"""A turn of several generations, in passes of the target that they share.

Each generation says what it wants computed (its newest token and its own draft, or a piece of its prompt),
all of that goes through the target together, and each judges its own rows. Generations may come and go
between any two turns (continuous batching; Yu et al. 2022, "Orca").
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from typing_extensions import ParamSpec

from edgespec.backends.base import Backend, Logits, Segment
from edgespec.control.policy import ALONE, Others
from edgespec.decoding.stopping import Token

if TYPE_CHECKING:
    from edgespec.decoding.generation import Generation


log = logging.getLogger(__name__)


class Pass(NamedTuple):
    """What a generation gets of a forward pass of the target."""

    rows: Logits
    """those that it asked for, valid until the next pass"""
    seconds: float
    """of the whole pass"""
    others: Others = ALONE
    """in the same pass"""
    first: bool = True
    """whether this is the first of them to have rows"""


Result = TypeVar("Result")
Steps: TypeAlias = Generator["Segment | list[Token]", Pass, Result]
"""Work in turns. Yields a segment that it wants computed, and is sent the pass; at the end of a turn yields
the tokens that it released, perhaps none."""
Outcome: TypeAlias = "list[Token] | Exception"
"""what a turn came to: tokens, or what ended the generation, StopIteration if it had ended before"""
Asking: TypeAlias = "tuple[Generation, Segment]"


Arguments = ParamSpec("Arguments")


class Cancelled(Exception):
    """Ends a generation before its next pass."""


def turn(target: Backend, generations: Sequence[Generation]) -> list[Outcome]:
    """A turn of each, in as few passes as the target takes for all that they want. What one raises ends that
    one only."""
    outcomes: dict[Generation, Outcome] = {}
    asking: list[Asking] = []
    for one in generations:
        shares = [other.share for other in generations if other is not one and other.share]
        one.others = Others(sum(shares), len(shares))
        wanted = _attempt(one.ask)
        if isinstance(wanted, Segment):
            asking.append((one, wanted))
        else:
            outcomes[one] = wanted
    for shared in _passes(target, asking):
        outcomes |= _compute(target, shared)
    return [outcomes[one] for one in generations]


def _passes(target: Backend, asking: Sequence[Asking]) -> Iterator[list[Asking]]:
    """In their order, as many in a pass as fit."""
    shared: list[Asking] = []
    tokens = rows = 0
    for one, segment in asking:
        tokens, rows = tokens + len(segment.tokens), rows + segment.rows
        if shared and (tokens > target.max_batch or rows > target.max_rows):
            yield shared
            shared, tokens, rows = [], len(segment.tokens), segment.rows
        shared.append((one, segment))
    if shared:
        yield shared


def _compute(target: Backend, shared: Sequence[Asking]) -> dict[Generation, Outcome]:
    """One pass, and what each makes of its part."""
    outcomes = {one: _attempt(one.end, Cancelled()) for one, _ in shared if one.cancelled}
    shared = [asking for asking in shared if asking[0] not in outcomes]
    segments = [segment for _, segment in shared]
    if not segments:
        return outcomes
    started = perf_counter()
    try:
        rows = target.forward(segments)
    except Exception as error:
        if len(shared) == 1:
            return outcomes | {one: _attempt(one.end, error) for one, _ in shared}
        log.warning("a pass of %d answers failed, so each has one alone: %s", len(shared), error)
        for one, _ in shared:  # alone, only the one at fault fails
            again = _attempt(one.ask)
            outcomes |= _compute(target, [(one, again)]) if isinstance(again, Segment) else {one: again}
        return outcomes
    seconds = perf_counter() - started
    tokens, end = sum(len(segment.tokens) for segment in segments), 0
    for one, segment in shared:
        start, end = end, end + segment.rows
        others = Others(tokens - len(segment.tokens), len(shared) - 1)
        outcomes[one] = _attempt(one.go_on, Pass(rows[start:end], seconds, others, first=start == 0))
    return outcomes


def _attempt(
    work: Callable[Arguments, Result], *arguments: Arguments.args, **more: Arguments.kwargs
) -> Result | Exception:
    try:
        return work(*arguments, **more)
    except Exception as error:
        return error
