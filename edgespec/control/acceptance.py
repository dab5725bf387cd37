"""How likely the target accepts what a drafter proposes, learned while decoding.

What is estimated is *conditional*: the probability that a drafted token is accepted, given that all
before it in its round were. Tokens behind a rejection were never judged and teach nothing (censoring);
conditioning on acceptance so far is what makes the judged ones an unbiased sample.

Two questions are asked:

- `now`: q is known, its confidence (its maximum, or for lookup the length of the match) says much. A
  calibration table by confidence, which changes slowly and is kept between runs.
- `ahead`: q is not known yet. By position in the round, and for the very next token by the confidence
  of the one before it: a draft that was sure tends to be sure again.

The odds of each are multiplied by how the last few tokens differed from what its table said:
that is how the estimate follows the text. Observations are probabilities where the accept rule knows
them (min(1, p/q) of the drafted token, whose mean is Σ min(p, q)), outcomes otherwise.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

EDGES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.995)
"""confidence is looked up between these"""
BINS = len(EDGES) + 1
POSITIONS = 8
"""places in a round told apart; further ones count as the last"""
MEMORY = 400.0
"""judged tokens that a table cell remembers"""
PRIOR = 8.0
"""judged tokens that what a cell started from weighs"""
TEXT_MEMORY = 20.0
"""judged tokens over which the text's own level is taken"""
TEXT_PRIOR = 2.0
"""judged tokens that the assumption of a text like all others weighs"""


@dataclass
class Cell:
    """A discounted mean: `hits` of `trials`, behind a prior."""

    prior: float
    hits: float = 0.0
    trials: float = 0.0

    @property
    def mean(self) -> float:
        return (self.hits + PRIOR * self.prior) / (self.trials + PRIOR)

    def add(self, value: float) -> None:
        kept = 1.0 - 1.0 / MEMORY
        self.hits = self.hits * kept + value
        self.trials = self.trials * kept + 1.0


class Level:
    """How the last tokens fared against what a table said of them: a ratio of odds."""

    def __init__(self) -> None:
        self._hits = self._expected = self._weight = 0.0
        self._ratio: float | None = 1.0

    def add(self, value: float, expected: float) -> None:
        kept = 1.0 - 1.0 / TEXT_MEMORY
        self._hits = self._hits * kept + value
        self._expected = self._expected * kept + expected
        self._weight = self._weight * kept + 1.0
        self._ratio = None

    def apply(self, probability: float) -> float:
        """What a table says, for the text as it is now."""
        if self._ratio is None:
            usual = self._expected / self._weight
            found = (self._hits + TEXT_PRIOR * usual) / (self._weight + TEXT_PRIOR)
            self._ratio = _odds(found) / _odds(usual)
        odds = _odds(probability) * self._ratio
        return odds / (1.0 + odds)


@dataclass(frozen=True)
class Prior:
    """What to start from where nothing is known of a pair."""

    by_confidence: Sequence[float]
    """acceptance by confidence, one value per bin of EDGES"""
    typical: float
    """of a token whose confidence is not known yet"""


@dataclass(frozen=True)
class Judged:
    """A drafted token that the target judged, all before it accepted."""

    confidence: float
    accepted: float
    """probability of acceptance in [0, 1], or the outcome"""


class Acceptance:
    """What is known of one drafter for one target."""

    def __init__(self, prior: Prior, known: Mapping[str, Any] | None = None) -> None:
        """known: what `as_dict` gave in another run."""
        self._now = [Cell(value) for value in prior.by_confidence]
        self._next = [[Cell(value) for value in prior.by_confidence] for _ in range(2)]
        self._place = [Cell(prior.typical) for _ in range(POSITIONS)]
        self._learned = [0]
        self._recall(known or {})
        self.start()

    def start(self) -> None:
        """Another text begins: nothing is known of its level."""
        self._sure, self._text = Level(), Level()
        self._by_place: list[float] | None = None
        self._by_bin: dict[int, float] = {}

    def fork(self) -> Acceptance:
        """For another text, written at the same time: the tables are the same, the level is its own."""
        other = copy(self)
        other.start()
        return other

    @property
    def observations(self) -> int:
        """Judged tokens so far, in all texts."""
        return self._learned[0]

    # --- estimates ---

    def now(self, confidence: float) -> float:
        """P(accepted) of a token whose q is known."""
        i = bin_of(confidence)
        if (found := self._by_bin.get(i)) is None:
            found = self._by_bin[i] = self._sure.apply(self._now[i].mean)
        return found

    def ahead(self, steps: int, drafted: Sequence[float] = ()) -> list[float]:
        """P(accepted | all before accepted) of the next `steps` tokens, whose q is not known yet, behind
        tokens drafted with these confidences."""
        first, last = len(drafted), POSITIONS - 1
        by_place = self._chain()
        chain = by_place[first : first + steps]
        chain += [by_place[last]] * (steps - len(chain))
        if drafted and steps:
            chain[0] = self._text.apply(self._next[min(first - 1, 1)][bin_of(drafted[-1])].mean)
        return chain

    @property
    def level(self) -> float:
        """P(accepted) of a first drafted token in the text as it is now."""
        known = self._by_place
        return self._text.apply(self._place[0].mean) if known is None else known[0]

    # --- learning ---

    def observe(self, judged: Sequence[Judged]) -> None:
        """A round's drafted tokens, in order, up to and including the first that was rejected."""
        before: float | None = None
        for i, token in enumerate(judged):
            self._learn(min(i, POSITIONS - 1), token)
            if before is not None:
                self._next[min(i - 1, 1)][bin_of(before)].add(token.accepted)
            before = token.confidence

    def look_back(self, judged: Sequence[Judged]) -> None:
        """Tokens that no round drafted, but of which it is known how they would have fared."""
        for token in judged:
            self._learn(0, token)

    def _learn(self, place: int, token: Judged) -> None:
        for level, cell in (
            (self._sure, self._now[bin_of(token.confidence)]),
            (self._text, self._place[place]),
        ):
            level.add(token.accepted, cell.mean)
            cell.add(token.accepted)
        self._learned[0] += 1
        self._by_place = None
        self._by_bin.clear()

    def _chain(self) -> list[float]:
        if self._by_place is None:
            self._by_place = [self._text.apply(cell.mean) for cell in self._place]
        return self._by_place

    # --- between runs ---

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping: the tables, not the text."""
        return {
            "now": [[c.hits, c.trials] for c in self._now],
            "next": [[[c.hits, c.trials] for c in row] for row in self._next],
            "place": [[c.hits, c.trials] for c in self._place],
            "observations": self.observations,
        }

    def _recall(self, known: Mapping[str, Any]) -> None:
        """Take over what another run learned, if it has the form of what this one keeps."""
        try:
            rows = [known["now"], known["place"], *known["next"]]
            cells = [self._now, self._place, *self._next]
            if [len(row) for row in rows] != [len(row) for row in cells]:
                return
            found = [[(float(hits), float(trials)) for hits, trials in row] for row in rows]
            learned = int(known["observations"])
        except (KeyError, TypeError, ValueError, OverflowError):
            return
        if not all(0.0 <= value < math.inf for row in found for cell in row for value in cell):
            return
        self._learned[0] = learned
        for row, values in zip(cells, found, strict=True):
            for cell, (hits, trials) in zip(row, values, strict=True):
                cell.hits, cell.trials = hits, trials


def bin_of(confidence: float) -> int:
    """Which of the `BINS` a confidence belongs to."""
    return bisect_right(EDGES, confidence)


def _odds(probability: float) -> float:
    p = 0.002 if probability < 0.002 else 0.998 if probability > 0.998 else probability
    return p / (1.0 - p)
