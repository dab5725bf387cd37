"""Policies that exactness must survive: the real controller, and one that does whatever is allowed."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

import numpy as np

from edgespec.control import priors
from edgespec.control.acceptance import Acceptance
from edgespec.control.arms import Arm
from edgespec.control.controller import Controller
from edgespec.control.cost import CostCurve
from edgespec.control.policy import ALONE, Choice, FixedDepth, Others
from edgespec.decoding.rounds import Round
from edgespec.drafters.base import Drafter, Node

COSTS = {"flat": {1: 1.0, 2: 1.0, 4: 1.1, 8: 1.3}, "steep": {1: 1.0, 2: 1.2, 3: 1.6, 4: 1.5, 8: 2.6}}


class Controlled(Controller):
    """The real controller, whose costs are simulated: what it decides depends on the tokens alone, so that
    a test gives the same result every time."""

    def __init__(self, drafters: Sequence[Drafter], costs: str = "flat") -> None:
        lookup = Acceptance(priors.LOOKUP)
        arms = {
            d.name: Arm(lookup)
            if d.name == "ngram"
            else Arm(Acceptance(priors.MODEL), CostCurve({1: 0.05}), lookup)
            for d in drafters
        }
        super().__init__(CostCurve(COSTS[costs]), arms)
        self.ledger.seconds = 1e6  # it may look around as often as it likes
        self.depths: list[int] = []

    def fork(self) -> Controlled:
        other = copy(self)
        vars(other).update(vars(super().fork()))
        return other

    def _observe_costs(self, finished: Round) -> None:
        self.depths.append(len(finished.drafted))


class Erratic(FixedDepth):
    """Any drafter, any depth, stopping before or after q is known: everything a policy may do, at random."""

    def __init__(self, seed: int) -> None:
        super().__init__(0)
        self._rng = np.random.default_rng(seed)

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        self.k = int(self._rng.integers(0, 8))
        which = int(self._rng.integers(-1, len(drafters)))
        rules = forced > 0 and bool(self._rng.random() < 0.8)
        if which < 0:
            return Choice(None, rules=rules)
        look = bool(self._rng.random() < 0.1)
        return Choice(drafters[which], look, rules, guesses=int(self._rng.integers(0, 6)))

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        odd = bool(drafted) and drafted[-1].token % 5 == 0  # values of drafted tokens may be looked at
        return super().wants_more(drafted) and not odd and bool(self._rng.random() < 0.95)

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        return confidence > 0.2 or bool(self._rng.random() < 0.5)


class WhileQIsSure(FixedDepth):
    """Stops before it samples from a q without a clear favourite."""

    def keeps(self, drafted: Sequence[Node], confidence: float) -> bool:
        return confidence > 0.25
