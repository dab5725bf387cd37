"""An order-4 n-gram language model: the next token depends on the last three, exactly.

    log P(y | …, x2, x1, x0) = log_softmax(recent[x0, x1] + earlier[x1, x2] + bias)[y]

x0 is the last token, x1 the one before, x2 the one before that. A text of fewer than three tokens
is padded on the left by repeating its first one, which is BOS in every prompt a tokenizer makes:
after [BOS, a] the context is x0 = a, x1 = BOS, x2 = BOS.

Both tables tie two tokens together, so p is no product of one-token effects, and x1 and x2, which a
transformer can know only from its KV cache, change p grossly.

Every logit is a multiple of 1/16 plus y/512, with y < 32 the token's id. Hence all are exact in
float32, and the logits of two tokens never differ by less than 1/512: an argmax does not depend on
rounding, and greedy outputs can be compared without talk of ties.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .vocabulary import Vocabulary

Floats = NDArray[np.float64]
Transform = Callable[[Floats, Sequence[int]], Floats]
"""(log-probabilities of the next token, all tokens so far) → the distribution that is sampled"""

MARGIN = 1 / 512
"""the logits of two tokens differ by at least this much"""
NEVER = -30.0
"""a bias under which a token has a probability near 1e-13"""


def plain(log_p: Floats, history: Sequence[int]) -> Floats:
    """The transform of sampling at temperature 1 with no filter: the model's own distribution."""
    return np.exp(log_p)


@dataclass(frozen=True, eq=False)
class NGram:
    """The vocabulary and the tables; `recent` and `earlier` are [context, context, next token]."""

    vocabulary: Vocabulary
    recent: Floats
    earlier: Floats
    bias: Floats

    @classmethod
    def random(
        cls,
        seed: int,
        *,
        near: NGram | None = None,
        mix: float = 0.0,
        spread: float = 1.5,
        end: float = -1.0,
    ) -> NGram:
        """A model drawn from a seed; the same arguments always give the same model.

        `near`, `mix`: the logits have correlation `mix` with those of another model, as a draft's
        have with its target's: 0 is unrelated, 1 is the same model.
        `spread`: standard deviation of the entries of each table; 0 makes all contexts alike.
        `end`: bias of the two tokens that end a generation; `NEVER` for texts that do not end.
        """
        vocabulary = near.vocabulary if near else Vocabulary()
        rng = np.random.default_rng(seed)
        recent, earlier = spread * rng.standard_normal((2, *[len(vocabulary)] * 3))
        if near:
            own = np.sqrt(1 - mix**2)
            recent = mix * near.recent + own * recent
            earlier = mix * near.earlier + own * earlier
        bias = np.arange(len(vocabulary)) / 512
        bias[list(vocabulary.ends)] += _snap(end)
        bias[list(vocabulary.never)] += NEVER
        return cls(vocabulary, _snap(recent), _snap(earlier), bias)

    def padded(self, rows: int) -> NGram:
        """The same distribution with `rows` unused tokens after it, as padded vocabularies have."""
        grow = [(0, rows)] * 3
        width = len(self.bias)
        padding = NEVER + np.arange(width, width + rows) / 512
        return NGram(
            self.vocabulary.padded(rows),
            np.pad(self.recent, grow),
            np.pad(self.earlier, grow),
            np.append(self.bias, padding),
        )

    def renamed(self, token: int, piece: bytes) -> NGram:
        """The same distribution over ids, one of which stands for other bytes."""
        return NGram(self.vocabulary.renamed(token, piece), self.recent, self.earlier, self.bias)

    @staticmethod
    def context(history: Sequence[int]) -> tuple[int, int, int]:
        """(x0, x1, x2): the last three tokens, newest first, the first token repeated if need be."""
        if len(history) == 0:
            raise ValueError("a text has at least one token")
        newest = len(history) - 1
        x0, x1, x2 = (int(history[max(newest - back, 0)]) for back in range(3))
        return x0, x1, x2

    def log_p(self, history: Sequence[int]) -> Floats:
        """Log-probabilities of the token after `history`, which begins at the start of the text."""
        x0, x1, x2 = self.context(history)
        logits = self.recent[x0, x1] + self.earlier[x1, x2] + self.bias
        log_p: Floats = logits - np.logaddexp.reduce(logits)
        return log_p

    def joint(
        self,
        prompt: Sequence[int],
        n: int,
        transform: Transform = plain,
        ends: Collection[int] | None = None,
    ) -> dict[tuple[int, ...], float]:
        """The exact distribution of what is generated after `prompt` with a budget of n tokens.

        A continuation that reaches one of `ends` (the vocabulary's, unless given; none if empty)
        stops there, with the end as its last token. The probabilities of all continuations sum
        to 1; impossible ones are left out.
        """
        ends = self.vocabulary.ends if ends is None else ends
        finished: dict[tuple[int, ...], float] = {}
        open_: dict[tuple[int, ...], float] = {(): 1.0}
        for _ in range(n):
            longer: dict[tuple[int, ...], float] = {}
            for continuation, probability in open_.items():
                history = [*prompt, *continuation]
                p = transform(self.log_p(history), history)
                for token in np.flatnonzero(p):
                    into = finished if token in ends else longer
                    grown = (*continuation, int(token))
                    into[grown] = probability * float(p[token])
            open_ = longer
        return finished | open_


def _snap(logits: Floats | float) -> Floats:
    return np.round(np.asarray(logits) * 16) / 16
