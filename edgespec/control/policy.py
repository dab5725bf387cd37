"""Who decides which drafter drafts and how deep: the seam between the engine and the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from edgespec.drafters.base import Drafter, Node

if TYPE_CHECKING:
    from edgespec.decoding.rounds import Round


class Policy(Protocol):
    """Asked before every round and before every drafted token, told about every finished round.

    It may use all that is known when it is asked: tokens drafted so far, q before anything is sampled
    from it. What was sampled is verified, whatever it thinks of it.
    """

    def start(self, budget: int | None) -> None:
        """A generation begins, of at most `budget` tokens."""
        ...

    def choose(self, drafters: Sequence[Drafter], context: Sequence[int], room: int) -> Drafter | None:
        """Who drafts in this round, up to `room` tokens; None: nobody, plain decoding."""
        ...

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        """Whether to let the drafter compute q behind `drafted`."""
        ...

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        """Whether to sample from q, now that it is known how sure it is."""
        ...

    def observe(self, finished: Round) -> None:
        """Learn from a round: what was accepted and what it cost."""
        ...


class FixedDepth:
    """Always let the first drafter draft `k` tokens; 0 is plain decoding."""

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, budget: int | None) -> None:
        pass

    def choose(self, drafters: Sequence[Drafter], context: Sequence[int], room: int) -> Drafter | None:
        return drafters[0] if drafters and self.k > 0 else None

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        return len(drafted) < self.k

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        return True

    def observe(self, finished: Round) -> None:
        pass
