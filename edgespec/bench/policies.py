"""Other people's depth policies, each from its published rule, for comparison in replay.

All of them draft with the draft model alone, as published, or with prompt lookup where there is none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from edgespec.bench.replay import Costs, Proposed
from edgespec.control.policy import ALONE, Choice, FixedDepth, Others
from edgespec.decoding.rounds import Round
from edgespec.drafters.base import Drafter, Node

DEEPEST = 12


class Lookup(FixedDepth):
    """Prompt lookup at a fixed depth (Saxena 2023)."""

    def choose(
        self,
        drafters: Sequence[Drafter],
        context: Sequence[int],
        room: int,
        forced: int = 0,
        others: Others = ALONE,
    ) -> Choice:
        return Choice(drafters[-1])


class PlusTwoMinusOne(FixedDepth):
    """Hugging Face transformers' heuristic schedule: start at 5; two more after full acceptance, else one
    less, at least 1."""

    def __init__(self) -> None:
        super().__init__(5)

    def observe(self, finished: Round) -> None:
        if finished.drafted:
            full = finished.accepted == len(finished.drafted)
            self.k = min(self.k + 2, DEEPEST) if full else max(1, self.k - 1)


class ConfidenceThreshold(FixedDepth):
    """Stop behind a token whose probability was below a threshold (transformers' dynamic speculation,
    Mamou et al. 2024; default 0.4)."""

    def __init__(self, threshold: float = 0.4) -> None:
        super().__init__(DEEPEST)
        self.threshold = threshold

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        return super().wants_more(drafted) and not (drafted and drafted[-1].confidence < self.threshold)


class EntropyBound(FixedDepth):
    """AdaEDL (Agrawal et al. 2024): acceptance is at least 1 − √(γ·H(q)); stop where that lower bound
    falls below λ, which is moved to hold a target acceptance rate α."""

    def __init__(self, gamma: float = 0.2, alpha: float = 0.9) -> None:
        super().__init__(DEEPEST)
        self._gamma, self._alpha = gamma, alpha
        self.start(None)

    def start(self, budget: int | None) -> None:
        self._limit, self._rate = 0.3, self._alpha

    def wants_more(self, drafted: Sequence[Node]) -> bool:
        if not super().wants_more(drafted):
            return False
        return not drafted or 1.0 - math.sqrt(self._gamma * _entropy(drafted[-1])) >= self._limit

    def observe(self, finished: Round) -> None:
        if finished.drafted:
            self._rate = 0.5 * self._rate + 0.5 * finished.accepted / len(finished.drafted)
            towards = self._limit + 0.01 * (1.0 if self._rate < self._alpha else -1.0)
            self._limit = min(max(0.9 * self._limit + 0.1 * towards, 0.0), 1.0)


def _entropy(node: Node) -> float:
    """In nats. Of lookup, which has no q: of a distribution with this maximum and the rest spread like a
    geometric one."""
    if isinstance(node, Proposed):
        return node.entropy
    c = min(max(node.confidence, 1e-3), 1.0 - 1e-6)
    return (-c * math.log(c) - (1.0 - c) * math.log(1.0 - c)) / c


class Goodput(FixedDepth):
    """argmax over k ≥ 0 of (1 + Σ_{m ≤ k} α^m) / (k·D + T(k + 1)), with one acceptance rate α, averaged
    over all rounds so far, and a latency profile taken offline (Liu et al. 2024, SmartSpec)."""

    def __init__(self, costs: Costs) -> None:
        super().__init__(0)
        self._costs = costs
        self._hits, self._trials = 7.0, 10.0
        self._choose()

    def _choose(self) -> None:
        alpha = self._hits / self._trials
        speeds, tokens = [1.0 / self._costs.target(1)], 1.0
        for k in range(1, DEEPEST + 1):
            tokens += alpha**k
            speeds.append(tokens / (k * self._costs.model(1) + self._costs.target(k + 1)))
        self.k = speeds.index(max(speeds))

    def observe(self, finished: Round) -> None:
        if finished.drafted:
            self._hits += finished.accepted
            self._trials += min(finished.accepted + 1, len(finished.drafted))
        self._choose()


class Bandit(FixedDepth):
    """UCB1 (Auer et al. 2002) over depths 0 … 12, the reward of a round its tokens per second. Under the root
    stands 1/2 for their 2, which explores less: texts are short."""

    def __init__(self, scale: float) -> None:
        """scale: tokens per second that count as a reward of 1."""
        super().__init__(0)
        self._scale = scale
        self._sums = [0.0] * (DEEPEST + 1)
        self._counts = [0] * (DEEPEST + 1)

    def observe(self, finished: Round) -> None:
        if finished.verify.n > len(finished.drafted) + 1:  # the prompt
            return
        self._sums[self.k] += len(finished.emitted) / finished.seconds / self._scale
        self._counts[self.k] += 1
        total = sum(self._counts)
        self.k = max(
            range(DEEPEST + 1),
            key=lambda k: (
                math.inf
                if not self._counts[k]
                else self._sums[k] / self._counts[k] + math.sqrt(0.5 * math.log(total) / self._counts[k])
            ),
        )
