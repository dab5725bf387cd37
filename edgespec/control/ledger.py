"""The ledger of probing: what looking at unused drafters may cost, and has cost."""

from __future__ import annotations

from dataclasses import dataclass, field

SHARE = 0.007
"""of all decoding time may be lost to probing: with the few rounds that teach it that a draft is hopeless,
still less than a hundredth"""


@dataclass
class Ledger:
    """Seconds decoded and seconds lost to probes, over all generations and, where kept, all runs."""

    seconds: float = 0.0
    lost: float = 0.0
    plain_age: int = field(default=0, compare=False)
    """rounds since T(1) was seen; not kept between runs"""

    def can_pay(self, loss: float) -> bool:
        """Whether a probe that loses so much stays within the share."""
        return self.lost + loss <= SHARE * self.seconds

    def add(self, seconds: float, lost: float) -> None:
        """A round took `seconds`, of which `lost` bought nothing but knowledge (negative: it gained)."""
        self.seconds += seconds
        self.lost = max(0.0, self.lost + lost)
