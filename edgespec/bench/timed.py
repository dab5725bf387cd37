"""Answers as a benchmark times them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from edgespec.backends.base import Step
from edgespec.bench.passes import Model, total_bytes
from edgespec.decoding.generation import Generation
from edgespec.decoding.rounds import Round
from edgespec.device.energy import Stop, meter


class Run(NamedTuple):
    """What one answer took."""

    tokens: int
    decoded: int
    """of these, the tokens that came while decoding was timed: all but the first"""
    seconds: float
    """of decoding"""
    drafting: float
    """of these, in passes of the draft model"""
    verifying: float
    """in passes of the target; the rest of the time is edgespec's own"""
    rounds: int
    drafted: int
    accepted: int
    bytes: int | None
    """of weights read by all passes; None where the models do not say"""
    joules: float | None = None
    """that the machine took meanwhile; None where it does not say"""

    @property
    def speed(self) -> float:
        """Tokens per second, decode only."""
        return self.decoded / self.seconds if self.seconds else 0.0


class Decoded(NamedTuple):
    """What is kept of a round: no distributions, which are large."""

    drafted: int
    accepted: int
    verify: Step
    draft_steps: Sequence[Step]


class Watch:
    """Of an answer: its rounds, and the energy that it takes from the first of them on."""

    def __init__(self) -> None:
        self.rounds: list[Decoded] = []
        self._meter = meter()
        self._stop: Stop | None = None

    def __call__(self, r: Round) -> None:
        if self._meter is not None and not self.rounds:
            self._stop = self._meter.start()
        self.rounds.append(Decoded(len(r.drafted), r.accepted, r.verify, r.draft_steps))

    def joules(self) -> float | None:
        """At the end."""
        return None if self._stop is None else self._stop()


class Timed:
    """All answers of one way to one prompt."""

    def __init__(self, target: Model, draft: Model | None = None) -> None:
        self._target = target
        self._draft = draft
        self.first_token = 0.0
        self.draft_reads = 0.0
        self.runs: list[Run] = []
        self.texts: list[list[int]] = []
        self.steps: list[tuple[str, Step]] = []
        self.last: Sequence[Decoded] = ()

    def add(self, answer: Generation, watch: Watch) -> None:
        stats, joules = answer.stats, watch.joules()
        decoded = watch.rounds[1:]  # the first round's token comes with the prompt
        verifying = [r.verify for r in decoded]
        drafting = [step for r in decoded for step in r.draft_steps]
        read = [total_bytes(verifying, self._target), total_bytes(drafting, self._draft)]
        self.runs.append(
            Run(
                stats.tokens,
                stats.decode_tokens,
                stats.decode_seconds,
                sum(step.seconds for step in drafting),
                stats.verify_seconds,
                stats.rounds,
                stats.drafted,
                stats.accepted,
                None if None in read else sum(filter(None, read)),
                joules,
            )
        )
        self.texts.append(answer.tokens)
        self.steps += [(self._target.name, step) for step in verifying]
        if self._draft is not None:
            self.steps += [(self._draft.name, step) for step in drafting]
        self.draft_reads = max(self.draft_reads, stats.draft_prompt_seconds)
        self.last = decoded
