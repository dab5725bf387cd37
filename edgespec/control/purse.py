"""The purse: what drafting may still lose in a generation, so that it is never slower than plain decoding."""

from __future__ import annotations

RISK = 0.0125
"""of plain decoding's time may be lost in a generation, at worst"""
ADVANCE = 40
"""tokens on which RISK may be taken before they are made, by a drafter that shows what it is worth by
drafting alone: half a token"""
KNOWN_ADVANCE = 8
"""and by one whose proposals are known without computing: it is judged before it is let"""
PAPER = 0.5
"""what a token is worth that such a drafter would have got right, had it been let"""
PAPER_ADVANCE = 60
"""up to which advance its gains on paper count: three quarters of a token"""


class Purse:
    """Every drafted round is a bet out of it. It holds what drafting has gained in this generation over plain
    decoding, and RISK of plain decoding's time.

    A drafter whose proposals are known without computing (lookup) begins with little of that and fills it on
    paper: a short answer of which nothing can be looked up loses next to nothing, and where a text copies its
    prompt a few tokens are enough, also when the purse was emptied before.
    """

    def __init__(self) -> None:
        self.made = 0
        """tokens so far"""
        self.gained = 0.0
        """seconds that drafting has saved so far; negative: lost"""
        self._paper = 0.0

    def holds(self, plain: float, known: bool = False) -> float:
        """Seconds that a round may lose. plain: of a token, plainly. known: without computing, what is
        proposed."""
        advance = KNOWN_ADVANCE if known else ADVANCE
        return self.gained + self._paper + RISK * plain * (self.made + advance)

    def on_paper(self, saved: float, plain: float) -> None:
        """A round that was not drafted would have saved so many seconds (negative: lost)."""
        lacking = RISK * plain * (PAPER_ADVANCE - self.made - KNOWN_ADVANCE) - self.gained
        self._paper = max(0.0, min(self._paper + PAPER * saved, lacking))
