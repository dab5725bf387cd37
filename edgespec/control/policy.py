"""Who decides how deep to draft: the seam between the engine and the controller."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from edgespec.drafters.base import Node

if TYPE_CHECKING:
    from edgespec.decoding.rounds import Round


class Policy(Protocol):
    """Asked before every drafted token, told about every finished round."""

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        """Whether to draft one more token behind `drafted`. May use their values and q's, but what
        was drafted is always verified."""
        ...

    def observe(self, finished: Round) -> None:
        """Learn from a round: what was accepted and what it cost."""
        ...


class FixedDepth:
    """Always draft `k` tokens; 0 is plain decoding."""

    def __init__(self, k: int) -> None:
        self.k = k

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        return len(drafted) < self.k

    def observe(self, finished: Round) -> None:
        pass
