"""What a drafter is: anything that proposes the next tokens, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

from edgespec.backends.base import Step

if TYPE_CHECKING:
    from edgespec.decoding.sampling import Distribution, Mask, Sampler
    from edgespec.decoding.verify import Rule
    from edgespec.grammar.matcher import Matcher

GLANCE = 24
"""tokens that `Drafter.look` reads"""


@dataclass(frozen=True)
class Node:
    """One drafted token and the distribution it was sampled from (None: a point mass on it)."""

    token: int
    q: Distribution | None = None
    confidence: float = 1.0
    """how sure the drafter was before it sampled: q's maximum, or what stands for it; in [0, 1]"""
    drafter: str = ""
    """who proposed it"""


class Offer(NamedTuple):
    """What a drafter could do behind a context, known without computing anything."""

    lag: int = 1
    """tokens that it has yet to read, the newest one included"""
    token: int | None = None
    """what it would propose first, if it already knows"""
    confidences: Sequence[float] = ()
    """of its next tokens, if it already knows"""


@dataclass(frozen=True)
class Hindsight:
    """What a drafter, reading on, would have thought of a token that the target emitted meanwhile."""

    place: int
    """the token's place in the context"""
    confidence: float
    q: float
    """how likely it was to be drafted: its probability under q; under a seed, whether it would have been"""


@dataclass(frozen=True)
class DraftState:
    """What a drafter needs to draft like the target will judge: the same sampler chain and the
    same source of randomness."""

    sampler: Sampler
    rule: Rule
    checkpoint: Callable[[], None]
    """called between forward passes of long work; raises to cancel"""
    grammar: Matcher | None = None
    """which tokens may follow, where the answer must have a form; what it forbids is never accepted"""

    def allowed(self, context: Sequence[int]) -> Mask | None:
        """The tokens that may follow `context`; None: every one."""
        return None if self.grammar is None else self.grammar.allowed(context)


class Drafter(Protocol):
    """One round: `begin` with the context, then `peek` and `extend` while the policy wants more.

    Every token that `extend` returned is verified: whether to ask for another may depend on tokens
    drafted before and on what `peek` says of q, never on dropping one for its value (that would bias the
    output). A drafter that has nothing to say returns None; one that fails raises, and the engine goes
    on without it, aloud. Implementations outside this package may subclass it for what they leave out.
    """

    name: str
    steps: Sequence[Step] = ()
    """passes of this round, as measured, with everything that belongs to them: the D(L) of the cost model"""
    hindsight: Sequence[Hindsight] = ()
    """what this round's first pass showed about tokens drafted by others"""
    guesses: int = 0
    """tokens of prompt lookup that a draft model may read ahead in each pass; set before `begin`"""

    def offer(self, context: Sequence[int]) -> Offer | None:
        """What it could do behind `context`; None if nothing. Computes no model."""
        return Offer()

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        """A round starts: `context` holds every token so far, the last one not yet in any cache."""
        ...

    @property
    def ready(self) -> bool:
        """Whether `peek` computes nothing: the next q is known from an earlier pass."""
        return False

    def look(self, context: Sequence[int], state: DraftState) -> None:
        """Instead of drafting in this round: read the last few tokens, without what it missed before them,
        only to see in `hindsight` how they would have fared. Cheap however far it lags."""

    def peek(self) -> float | None:
        """How sure it is of its next token: q is computed, and nothing sampled from it yet."""
        return 1.0

    def extend(self) -> Node | None:
        """One more token behind those drafted so far in this round."""
        ...

    def fork(self) -> Drafter:
        """The same for one generation alone, while others may be under way; until it is released. Itself,
        if it keeps nothing of a text."""
        return self

    def release(self) -> None:
        """The generation that it was forked for is over."""
        return

    def close(self) -> None:
        """Free what the drafter owns."""
        ...
