"""What a drafter is: anything that proposes the next tokens, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from edgespec.decoding.sampling import Distribution, Sampler
    from edgespec.decoding.verify import Rule


@dataclass(frozen=True)
class Node:
    """One drafted token and the distribution it was sampled from (None: a point mass on it)."""

    token: int
    q: Distribution | None = None


@dataclass(frozen=True)
class DraftState:
    """What a drafter needs to draft like the target will judge: the same sampler chain and the
    same source of randomness."""

    sampler: Sampler
    rule: Rule
    checkpoint: Callable[[], None]
    """called between forward passes of long work; raises to cancel"""


class Drafter(Protocol):
    """One round: `begin` with the context, `extend` while the policy wants more.

    Every token that `extend` returned is verified: whether to ask for another may depend on tokens
    drafted before, never on dropping one for its value (that would bias the output).
    A drafter that has nothing to say returns None; one that fails raises, and the engine goes on
    without it, aloud.
    """

    name: str

    def begin(self, context: Sequence[int], state: DraftState) -> None:
        """A round starts: `context` holds every token so far, the last one not yet in any cache."""
        ...

    def extend(self) -> Node | None:
        """One more token behind those drafted so far in this round."""
        ...

    def close(self) -> None:
        """Free what the drafter owns."""
        ...
