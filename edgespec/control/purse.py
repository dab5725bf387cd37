"""The purse: what drafting may still lose in a generation, so that it is never slower than plain decoding."""

from __future__ import annotations

RISK = 0.0125
"""of plain decoding's time may be lost in a generation"""
ADVANCE = 24
"""tokens on which RISK may be taken before they are made, by a drafter that shows what it is worth by
drafting alone: three tenths of a token"""
KNOWN_ADVANCE = 8
"""and by one whose proposals are known without computing: it is judged before it is let"""
PAPER = 0.5
"""what a token is worth that such a drafter would have got right, had it been let"""
PAPER_RISK = 0.025
"""of plain decoding's time, up to which its gains on paper count: what may be lost at worst beyond RISK"""


class Purse:
    """Every drafted round is a bet out of it. It holds what drafting has gained in this generation over plain
    decoding, and RISK of plain decoding's time.

    A drafter whose proposals are known without computing (lookup) begins with little of that and wins up to
    PAPER_RISK on paper: a short answer of which nothing can be looked up loses next to nothing, and where a
    text copies its prompt a few tokens are enough, also when the purse was emptied before.
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
        if not known:
            return self.gained + RISK * plain * (self.made + ADVANCE)
        paper = min(self._paper, PAPER_RISK * plain * self.made)
        return self.gained + paper + RISK * plain * (self.made + KNOWN_ADVANCE)

    def on_paper(self, saved: float) -> None:
        """A round that was not drafted would have saved so many seconds (negative: lost)."""
        self._paper = max(0.0, self._paper + PAPER * saved)
