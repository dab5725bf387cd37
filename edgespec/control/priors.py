"""What the controller starts from, and what it keeps between runs."""

from __future__ import annotations

import math
from typing import Any

from edgespec.control.acceptance import Acceptance, Prior
from edgespec.control.controller import Controller
from edgespec.control.ledger import Ledger

MODEL = Prior((0.15, 0.2, 0.3, 0.35, 0.45, 0.55, 0.7, 0.8, 0.88, 0.93, 0.97, 0.98, 0.99), typical=0.8)
"""of a draft model: measured with the 0.5B coder for the 1.5B one"""
LOOKUP = Prior((0.2, 0.2, 0.4, 0.45, 0.7, 0.7, 0.85, 0.9, 0.95, 0.96, 0.97, 0.98, 0.98), typical=0.6)
"""of prompt lookup, whose confidence is the length of the match: likewise, with the coder's answers"""


def recall(kept: dict[str, Any], name: str, prior: Prior) -> Acceptance:
    """A drafter's acceptance as another run of the same pair left it."""
    known = kept.get("acceptance")
    return Acceptance(prior, known.get(name) if isinstance(known, dict) else None)


def recall_ledger(kept: dict[str, Any]) -> Ledger:
    """The probing ledger as another run left it."""
    try:
        seconds, lost = map(float, kept["ledger"])
    except (KeyError, TypeError, ValueError, OverflowError):
        return Ledger()
    return Ledger(seconds, lost) if 0.0 <= lost < math.inf and 0.0 <= seconds < math.inf else Ledger()


def keep(controller: Controller) -> dict[str, Any]:
    """For the next run, as JSON takes it."""
    return {
        "acceptance": {name: arm.acceptance.as_dict() for name, arm in controller.arms.items()},
        "lengths": controller.lengths.as_dict(),
        "ledger": [controller.ledger.seconds, controller.ledger.lost],
    }
