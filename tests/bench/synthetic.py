"""Made-up traces whose acceptance is known, for what no recorded text shows on purpose."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from edgespec.bench.traces import Guess, Trace


def trace(
    length: int,
    rate: Callable[[int], float],
    seed: int = 0,
    telling: float = 0.5,
    depth: int = 12,
    prompt: int = 20,
) -> Trace:
    """A text of tokens that never repeat, so that lookup finds nothing, and a draft model that is right at
    place t with probability rate(t).

    prompt: its tokens. telling: how much its confidence shows of that, from 0 (nothing) to 1 (everything).
    """
    rng = np.random.default_rng(seed)
    text = list(range(1000, 1000 + length))

    def guess(t: int, right: bool) -> Guess:
        shown = telling * right + (1 - telling) * rate(min(t, length - 1))
        confidence = float(np.clip(shown + rng.normal(0.0, 0.1), 0.01, 0.999))
        return Guess(text[t] if right else 1, confidence, 1.0 - confidence)

    model = [guess(t, bool(rng.random() < rate(t))) for t in range(length)]
    astray = [
        [] if g.token == text[t] else [Guess(-1, *guess(t, False)[1:]) for _ in range(depth)]
        for t, g in enumerate(model)
    ]
    return Trace(f"synthetic-{seed}", "synthetic", list(range(5000, 5000 + prompt)), text, model, astray)
