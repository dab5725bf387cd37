"""The purse: what drafting may still lose in a generation, so that it is never slower than plain decoding."""

from __future__ import annotations

RISK = 0.0125
"""of plain decoding's time may be lost in a generation, at worst"""
ADVANCE = 40
"""tokens on which RISK may be taken before they are made: half a token, 2.5% of an answer of twenty"""
PAPER = 0.25
"""what a token is worth that a drafter would have got right, had it been let, where it lost all before"""


class Purse:
    """Every drafted round is a bet out of it. It holds what drafting has gained in this generation over plain
    decoding, and RISK of plain decoding's time.

    Where it was emptied, a drafter whose proposals are known without computing (lookup) refills it on paper,
    up to what it held in the beginning: else what failed ten times would not be let again for the rest
    of a text that has turned into a copy of its prompt.
    """

    def __init__(self) -> None:
        self.made = 0
        """tokens so far"""
        self.gained = 0.0
        """seconds that drafting has saved so far; negative: lost"""
        self._paper = 0.0

    def holds(self, plain: float) -> float:
        """Seconds that a round may lose. plain: of a token, plainly."""
        return self.gained + self._paper + RISK * plain * (self.made + ADVANCE)

    def on_paper(self, saved: float, plain: float) -> None:
        """A round that was not drafted would have saved so many seconds (negative: lost)."""
        lacking = RISK * plain * ADVANCE - (self.holds(plain) - self._paper)
        self._paper = max(0.0, min(self._paper + PAPER * saved, lacking))
