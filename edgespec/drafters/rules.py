"""The rules drafter: tokens that the answer's grammar forces are a draft that costs nothing.

Other drafters go on behind it. Its tokens are verified like all others, so that exactness does not
depend on it.
"""

from __future__ import annotations

from collections.abc import Sequence

from edgespec.drafters.base import Node
from edgespec.grammar.matcher import Matcher

NAME = "rules"
MOST = 32
"""tokens at a time; what is forced beyond comes with the next round"""


def forced(matcher: Matcher, context: Sequence[int], room: int) -> list[Node]:
    """The tokens that must follow `context`, as a draft of at most `room`."""
    return [Node(token, drafter=NAME) for token in matcher.forced(context)[: min(room, MOST)]]
