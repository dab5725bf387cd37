"""The drafters as the controller sees them, and what a finished round teaches about how they fare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from edgespec.control.acceptance import Acceptance, Judged
from edgespec.control.cost import LONGEST, CostCurve
from edgespec.decoding.rounds import Round
from edgespec.drafters.base import Offer

GUESSES = 4
"""tokens that a draft model reads ahead at most; more are hardly ever drafted"""


@dataclass
class Arm:
    """A drafter as the controller sees it."""

    acceptance: Acceptance
    cost: CostCurve | None = None
    """of a draft model's passes; None: drafting is free"""
    lookup: Acceptance | None = None
    """of the lookup that guesses ahead for a draft model: it agrees with the draft model about as often as
    with the target"""

    def guesses(self) -> int:
        """How many tokens of lookup each of its passes should read ahead: each must save more time, as a
        pass that is then not needed, than it takes."""
        if self.cost is None or self.lookup is None:
            return 0
        table, level, agreed = self.cost.table(GUESSES + 1), self.lookup.level, 1.0
        for n in range(1, GUESSES + 1):
            agreed *= level
            if agreed * table[1] <= table[n + 1] - table[n]:
                return n - 1
        return GUESSES

    def reading(self, lag: int, length: int, target: CostCurve) -> float:
        """Seconds to read `lag` tokens. A model that has read no prompt yet is taken to be as much faster at
        it than the target as it is with single tokens."""
        if self.cost is None:
            return 0.0
        if lag > LONGEST and self.cost.per_token is None and target.per_token is not None:
            return target.seconds(lag, length) * self.cost.seconds(1) / target.seconds(1)
        return self.cost.seconds(max(lag, 1), length)


def forked(arms: Mapping[str, Arm]) -> dict[str, Arm]:
    """For another text: see `Acceptance.fork`. Arms may have one in common, and then have its fork."""
    found = [a for arm in arms.values() for a in (arm.acceptance, arm.lookup) if a is not None]
    forks = {id(acceptance): acceptance.fork() for acceptance in found}
    return {
        name: replace(
            arm,
            acceptance=forks[id(arm.acceptance)],
            lookup=None if arm.lookup is None else forks[id(arm.lookup)],
        )
        for name, arm in arms.items()
    }


class Evidence:
    """What was proposed and what the target said, of one text."""

    def __init__(self, arms: Mapping[str, Arm]) -> None:
        self._arms = arms
        self._emitted: dict[int, float] = {}
        """p of what the target said, by place"""
        self._foreseen: dict[str, tuple[int, float]] = {}

    def foresee(self, offers: Mapping[str, Offer]) -> None:
        """What each drafter would propose next, as far as that is known."""
        self._foreseen = {
            name: (offer.token, offer.confidences[0])
            for name, offer in offers.items()
            if offer.token is not None
        }

    def idle(self, finished: Round) -> dict[str, Judged]:
        """How each drafter would have fared that foresaw a token and was not let."""
        behind = finished.p[finished.forced :]
        return {
            name: Judged(confidence, behind[0].prob(token))
            for name, (token, confidence) in self._foreseen.items()
            if name != finished.drafter and behind
        }

    def take(self, finished: Round, idle: Mapping[str, Judged]) -> None:
        """Teach the arms what a round showed: of drafted tokens, of foreseen ones, in hindsight."""
        for i, p in enumerate(finished.p):
            self._emitted[finished.place + i] = p.prob(finished.emitted[i].id)
        while len(self._emitted) > 2 * LONGEST:
            del self._emitted[next(iter(self._emitted))]  # the oldest
        for name, judged in idle.items():
            self._arms[name].acceptance.look_back([judged])
        self._foreseen = {}  # in the last round of a budget there is nothing to choose
        arm = self._arms.get(finished.drafter or "")
        if arm is None:
            return
        # A token y ~ p would have been drafted with probability q(y) and accepted with Σ min(p, q), of
        # which min(1, q(y) / p(y)) is an unbiased sample. Under a seed it is 1 or 0, the outcome.
        arm.acceptance.look_back(
            [
                Judged(seen.confidence, min(1.0, seen.q / said))
                for seen in finished.hindsight
                if (said := self._emitted.get(seen.place, 0.0)) > 0.0
            ]
        )
        drafted = zip(
            finished.drafted[finished.forced :], finished.likelihoods[finished.forced :], strict=False
        )
        arm.acceptance.observe([Judged(node.confidence, likely) for node, likely in drafted])
