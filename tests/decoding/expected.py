"""What the sampler options mean, written down once more from their definitions, on the tables.

Works on whole rows in float64 with full sorts. Shares no code with edgespec, so that a test which
compares the two tests edgespec.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np
from closed_form import NGram
from closed_form.ngram import Floats
from scipy import stats

END = -1
"""stands for any token that ends a text: a generation does not say which one it was"""
PENALTIES = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
"""with the values that turn them off"""


def logits(ngram: NGram, history: Sequence[int]) -> Floats:
    """The raw logits after `history`: unlike log-probabilities they have a sign that means something."""
    x0, x1, x2 = ngram.context(history)
    table: Floats = ngram.recent[x0, x1] + ngram.earlier[x1, x2] + ngram.bias
    return table


def penalised(raw: Floats, history: Sequence[int], options: Mapping[str, Any]) -> Floats:
    """Repetition (divide if positive, else multiply), presence, frequency over a window; then bias."""
    out = raw.copy()
    repetition, presence, frequency = (options.get(name, off) for name, off in PENALTIES.items())
    window = options.get("penalty_window", 64)
    seen = Counter(history[-window:] if window and options.keys() & PENALTIES.keys() else ())
    for token, count in seen.items():
        out[token] = out[token] / repetition if out[token] > 0 else out[token] * repetition
        out[token] -= presence + count * frequency
    for token, bias in options.get("logit_bias", {}).items():
        out[token] += bias
    return out


def filtered(scores: Floats, options: Mapping[str, Any]) -> Floats:
    """Probabilities at a temperature above 0, then top-k, top-p, min-p, each on what is left."""
    p = np.exp((scores - scores.max()) / options["temperature"])
    order = np.argsort(-scores, kind="stable")  # most probable first, lowest id first among equals
    if k := options.get("top_k", 0):
        p[order[k:]] = 0
    p /= p.sum()
    if (top_p := options.get("top_p", 1.0)) < 1:
        held = 0.0
        for place, token in enumerate(order):
            held += p[token]
            if held >= top_p:
                p[order[place + 1 :]] = 0
                break
        p /= p.sum()
    p[p < options.get("min_p", 0.0) * p.max()] = 0
    p /= p.sum()
    return p


Allowed = Callable[[Sequence[int]], Collection[int]]
"""The tokens that may follow a continuation."""


def distribution(
    ngram: NGram, history: Sequence[int], options: Mapping[str, Any], allowed: Collection[int] | None = None
) -> Floats:
    """p after the sampler chain, of the tokens allowed if not all are."""
    scores = penalised(logits(ngram, history), history, options)
    if allowed is not None:
        scores[[token for token in range(len(scores)) if token not in allowed]] = -np.inf
    return filtered(scores, options)


Cells = dict[tuple[int, ...], float]


def joint(
    ngram: NGram, prompt: Sequence[int], n: int, options: Mapping[str, Any], allowed: Allowed | None = None
) -> Cells:
    """The distribution of the next n tokens, with `END` for whichever token ends the text."""

    def p(_: Floats, history: Sequence[int]) -> Floats:
        form = None if allowed is None else allowed(history[len(prompt) :])
        return distribution(ngram, history, options, form)

    return merged_ends(ngram.joint(prompt, n, p), ngram)


def merged_ends(exact: Cells, ngram: NGram) -> Cells:
    cells: Cells = {}
    for continuation, probability in exact.items():
        named = tuple(END if token in ngram.vocabulary.ends else token for token in continuation)
        cells[named] = cells.get(named, 0.0) + probability
    return cells


def chi_square(observed: Mapping[tuple[int, ...], float], expected: Cells, least: float = 10.0) -> float:
    """The p-value of Pearson's test. Cells expected less than `least` times are merged with others
    that begin alike; a continuation that has no probability at all refutes at once."""
    total = sum(observed.values())
    if any(expected.get(cell, 0.0) == 0.0 for cell in observed):
        return 0.0
    groups: list[list[float]] = []  # [observed, expected]
    rare = [0.0, 0.0]
    for cell in sorted(expected):
        pair = [float(observed.get(cell, 0)), expected[cell] * total]
        if pair[1] >= least:
            groups.append(pair)
            continue
        rare = [rare[0] + pair[0], rare[1] + pair[1]]
        if rare[1] >= least:
            groups.append(rare)
            rare = [0.0, 0.0]
    groups[-1] = [groups[-1][0] + rare[0], groups[-1][1] + rare[1]]
    found, wanted = np.array(groups).T
    statistic = float(((found - wanted) ** 2 / wanted).sum())
    return float(stats.chi2.sf(statistic, len(groups) - 1))
