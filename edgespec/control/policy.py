"""Who decides which drafter drafts and how deep: the seam between the engine and the controller."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple, Protocol

from edgespec.drafters.base import Drafter, Node

if TYPE_CHECKING:
    from edgespec.decoding.rounds import Round


class Others(NamedTuple):
    """What other generations have in the same pass of the target."""

    tokens: int = 0
    generations: int = 0


ALONE = Others()


class Choice(NamedTuple):
    """Who drafts in a round; None: nobody, plain decoding."""

    drafter: Drafter | None
    look: bool = False
    """it only looks how it would have fared lately"""
    rules: bool = True
    """tokens that the grammar forces are drafted first, at no cost"""
    guesses: int = 0
    """tokens of prompt lookup that a draft model may read ahead in each pass"""


NOBODY = Choice(None, rules=False)


class Policy(Protocol):
    """Asked before every round and before every drafted token, told about every finished round.

    It may use all that is known when it is asked: tokens drafted so far, q before anything is sampled
    from it. What was sampled is verified, whatever it thinks of it.
    """

    def start(self, budget: int | None) -> None:
        """A generation begins, of at most `budget` tokens."""
        ...

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        """Who drafts in this round, up to `room` tokens behind `context`, whose last `forced` tokens are
        drafted already: the grammar allows no others. others: as expected."""
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

    def read(self, drafter: str, tokens: int, seconds: float) -> None:
        """A drafter has read so many tokens, of the prompt or what it missed since, before it drafts."""
        ...

    def finish(self, ended: bool) -> None:
        """The generation is over; ended: by itself, and not cut off."""
        ...

    def plain_seconds(self, length: int, others: Others = ALONE) -> float | None:
        """What a token would cost without drafting, behind `length` tokens and beside others; None if it does
        not know."""
        ...

    @property
    def verdict(self) -> str | None:
        """Why nothing is drafted, if nothing is."""
        ...

    def explain(self) -> str:
        """What was decided for the last round, and why, in one line."""
        ...

    def fork(self) -> Policy:
        """One for a generation alone, while others are under way: it knows what this one knows, and what it
        learns of the models all know."""
        ...


class FixedDepth:
    """Always let the first drafter draft `k` tokens, behind what is forced; 0 is plain decoding."""

    def __init__(self, k: int) -> None:
        self.k = k

    def start(self, budget: int | None) -> None:
        pass

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        return Choice(drafters[0] if drafters else None) if self.k > 0 else NOBODY

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        return len(drafted) < self.k

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        return True

    def observe(self, finished: Round) -> None:
        pass

    def read(self, drafter: str, tokens: int, seconds: float) -> None:
        pass

    def finish(self, ended: bool) -> None:
        pass

    def plain_seconds(self, length: int, others: Others = ALONE) -> float | None:
        return None

    @property
    def verdict(self) -> str | None:
        return None

    def explain(self) -> str:
        return f"depth {self.k}, as asked for"

    def fork(self) -> Policy:
        return self


def propose(drafter: Drafter, policy: Policy, room: int, drafted: list[Node]) -> Iterator[Node]:
    """Tokens of a drafter that has begun, up to `room` and as many as the policy wants; each is in `drafted`
    when it is yielded.

    The policy may stop before a token is sampled, knowing how sure q is; never after, for its value.
    """
    while len(drafted) < room and policy.wants_more(drafted):
        confidence = drafter.peek()
        if confidence is None or not policy.keeps(drafted, confidence):
            return
        node = drafter.extend()
        if node is None:
            return
        drafted.append(node)
        yield node
