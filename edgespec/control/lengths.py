"""How long answers get, learned from those that ended: whether what is paid once is earned back.

That an answer of t tokens gets another r has probability S(t + r) / S(t). S falls by a factor of its own in
every stage, each about twice as long as the one before it (they end at 8, 24, 56, 120, … tokens): the longer
an answer has lasted, the longer it will, as far as is known. Where nothing is, a quarter of the answers
outlasts a stage: then as many tokens are expected as there are, and to pay when as many were made as earn
it back is the rule for ski rental of an unknown season, never dearer than twice what foresight would pay
(Karlin, Manasse, Rudolph & Sleator 1988).

Who pays and then sees the answer end early is slower than plain decoding; who waits is only slower than
could be. The promise is about the first, so a lost token weighs as much as CAUTION gained ones.
"""

from __future__ import annotations

import math
from typing import Any

UNIT = 8
"""tokens of the first stage"""
STAGES = 10
"""the last goes on from 4088 tokens"""
PRIOR = 0.25
"""share that outlasts a stage, where nothing is known"""
PRIOR_WEIGHT = 0.5
"""answers that PRIOR counts as"""
MEMORY = 50.0
"""answers remembered"""
CAUTION = 3.0
"""gained tokens that make up for a lost one"""


class Lengths:
    """Of answers, apart by the size of their prompts: a long one asks to pick something out as often as to
    retell it."""

    def __init__(self, known: Any = None) -> None:
        """known: what `as_dict` gave in another run."""
        self._stages: dict[int, list[list[float]]] = {}
        """by size of prompt: for each stage, how many answers outlasted it, of how many that reached it"""
        self._powers: dict[int, list[float]] = {}
        """what follows from that, until there is another answer: a round asks for it several times"""
        try:
            for size, stages in dict(known or {}).items():
                found = [[float(outlasted), float(reached)] for outlasted, reached in stages]
                if len(found) == STAGES and all(0.0 <= a <= b < math.inf for a, b in found):
                    self._stages[int(size)] = found
        except (TypeError, ValueError, OverflowError):
            self._stages = {}

    def add(self, prompt: int, tokens: int, ended: bool) -> None:
        """An answer behind a prompt of so many tokens; one that was cut off would have gone on."""
        size = _size(prompt)
        stages = self._stages.setdefault(size, [[0.0, 0.0] for _ in range(STAGES)])
        self._powers.pop(size, None)
        kept = 1.0 - 1.0 / MEMORY
        for i, stage in enumerate(stages):
            outlasted = tokens >= _end(i)
            if outlasted or ended:
                stage[:] = stage[0] * kept + outlasted, stage[1] * kept + 1.0
            if not outlasted:
                return

    def expected(self, prompt: int, made: int, ahead: int) -> float:
        """Of the next `ahead` tokens of an answer that has `made`, how many there will be on average."""
        powers = self._powers_of(_size(prompt))
        tokens, alive, at, end = 0.0, 1.0, made, made + ahead
        i = min(int(math.log2(at / UNIT + 1.0)), STAGES - 1)
        while at < end:
            to = end if i == STAGES - 1 else min(end, _end(i))
            grown, power = (to + UNIT) / (at + UNIT), powers[i]
            rise = power + 1.0 or 1e-9
            tokens += alive * (at + UNIT) * math.expm1(rise * math.log(grown)) / rise
            alive *= grown**power
            at, i = to, min(i + 1, STAGES - 1)
        return tokens

    def _powers_of(self, size: int) -> list[float]:
        """S falls like a power within a stage, and by the share that outlasts it over all of it."""
        if (powers := self._powers.get(size)) is None:
            stages = self._stages.get(size) or [[0.0, 0.0]] * STAGES
            powers = self._powers[size] = [
                math.log2((outlasted + PRIOR_WEIGHT * PRIOR) / (reached + PRIOR_WEIGHT))
                for outlasted, reached in stages
            ]
        return powers

    def earns_back(self, prompt: int, made: int, needed: float, ahead: int) -> bool:
        """Whether to pay at `made` tokens what `needed` further ones earn back, if at most `ahead` follow."""
        if needed >= ahead:
            return False
        until = self.expected(prompt, made, math.ceil(needed))
        return self.expected(prompt, made, ahead) - until >= CAUTION * (needed - until)

    def as_dict(self) -> dict[str, Any]:
        """What is worth keeping."""
        return {str(size): stages for size, stages in self._stages.items()}


def _size(prompt: int) -> int:
    """One for prompts up to eight times as long."""
    return prompt.bit_length() // 3


def _end(stage: int) -> int:
    return UNIT * ((2 << stage) - 1)
