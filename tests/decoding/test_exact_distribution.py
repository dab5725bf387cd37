"""Speculative sampling is lossless: what real generations look like, against the exact joint
distribution of several tokens, known in closed form.

Every case draws 20,000 continuations through llama.cpp with a draft that differs from the target. The
random streams are fixed, so a case passes always or never; were they not, a case would raise a false
alarm with a probability of at most 1e-4. How many of the usual mistakes this notices: test_mutants.py.
"""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from closed_form.ngram import Floats
from pair import TARGET, VOCABULARY

from .expected import END, Cells, chi_square, distribution, joint, projected
from .sampling_run import Case, Sample, UntilVowel, WhileSure, sample

SAMPLES = 20_000
FALSE_ALARM = 1e-4

PLAIN = {"temperature": 1.0}
A, E, S, T = (VOCABULARY.id(piece) for piece in (b"a", b"e", b"s", b"t"))
# Whatever of a, e, s, t comes next has occurred in this text: prompt lookup finds a continuation.
REPEATING = tuple(VOCABULARY.ids(b"t", b"t", b"t", b"e", b"s", b"a", b"a"))

CASES = {
    "temperature, and a depth that depends on the drafted tokens": Case(
        {"temperature": 1.3}, policy=UntilVowel, depth=3, max_tokens=5
    ),
    "top-k, depth 1": Case({"temperature": 1.0, "top_k": 6}, depth=1),
    "top-p, and a depth that depends on the drafted tokens' probabilities": Case(
        {"temperature": 1.0, "top_p": 0.8}, policy=WhileSure
    ),
    "min-p": Case({"temperature": 1.2, "min_p": 0.08}),
    "repetition penalty": Case(PLAIN | {"repetition_penalty": 1.8, "penalty_window": 3}),
    "presence and frequency penalty and bias": Case(
        PLAIN
        | {
            "presence_penalty": 0.7,
            "frequency_penalty": 0.9,
            "logit_bias": {A: 2.0, E: -1.5, S: float("-inf")},
        },
    ),
    "prompt lookup": Case(
        {"temperature": 1.0, "logit_bias": {A: 2.0, E: 2.0, S: 2.0, T: 2.0}},
        drafter="ngram",
        prompt=REPEATING,
    ),
    "everything together, depth 4": Case(
        {
            "temperature": 0.9,
            "top_k": 6,
            "top_p": 0.95,
            "min_p": 0.03,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.5,
            "logit_bias": {A: 1.0, S: 1.5, E: -0.5},
        },
        depth=4,
        max_tokens=6,
    ),
    "seeded, over seeds": Case({"temperature": 1.1, "top_p": 0.9}, seeded=True),
}


@pytest.fixture(scope="module")
def workers(model_files: Path) -> Iterator[ProcessPoolExecutor]:
    """Two processes, so that the samples take half the time."""
    with ProcessPoolExecutor(
        min(2, os.cpu_count() or 1), mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        yield pool


def draw(workers: ProcessPoolExecutor, folder: Path, case: Case) -> Sample:
    parts = [workers.submit(sample, folder, case, SAMPLES // 2, seed) for seed in (1_000_000, 2_000_000)]
    return parts[0].result() + parts[1].result()


def speculated(found: Sample) -> bool:
    """Whether acceptance and rejection were both frequent enough to be tested by this sample."""
    rejected = found.drafted - found.accepted
    return min(found.accepted, rejected) > SAMPLES / 5


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_continuations_have_the_exact_joint_distribution(
    workers: ProcessPoolExecutor, model_files: Path, case: Case
) -> None:
    found = draw(workers, model_files, case)
    assert speculated(found), found
    tokens = 4 if case.policy is UntilVowel else case.max_tokens  # of 25^5 continuations, fewer
    expected = joint(TARGET, case.prompt, tokens, case.options)
    p_value = chi_square(projected(found.counts, 0, tokens), expected)
    print(f"p = {p_value:.3g}; {found.accepted} of {found.drafted} drafts accepted")
    assert p_value > FALSE_ALARM


def test_continuations_at_depth_4_have_the_exact_joint_distribution(
    workers: ProcessPoolExecutor, model_files: Path
) -> None:
    """Six tokens are too many to count all continuations: the first four, and the last three."""
    case = Case(PLAIN, depth=4, max_tokens=6)
    found = draw(workers, model_files, case)
    assert speculated(found), found
    first, last = joint(TARGET, case.prompt, 4, PLAIN), last_three_of_six(case.prompt)
    p_values = (
        chi_square(projected(found.counts, 0, 4), first),
        chi_square(projected(found.counts, 3, 6), last),
    )
    print(f"p = {p_values}; {found.accepted} of {found.drafted} drafts accepted")
    assert min(p_values) > FALSE_ALARM / 2


def last_three_of_six(prompt: tuple[int, ...]) -> Cells:
    """The marginal over tokens 4 to 6 at temperature 1, () if the text ended before. Computed
    from the Markov chain that an order-4 model is: probabilities of (x2, x1, x0) after each step."""
    size = len(VOCABULARY)
    step = np.zeros((size,) * 4)  # [x2, x1, x0, y]
    for x2, x1, x0 in np.ndindex(size, size, size):
        step[x2, x1, x0] = distribution(TARGET, [x2, x1, x0], PLAIN)
    ends = sorted(VOCABULARY.ends)
    text = [t for t in range(size) if t not in VOCABULARY.ends]
    state: Floats = np.zeros((size,) * 3)
    state[prompt[-3:]] = 1.0
    for _ in range(3):
        state = np.einsum("cba,cbay->bay", state, step)
        state[:, :, ends] = 0.0
    cells: Cells = {(): 1.0 - float(state.sum())}
    fourth = np.einsum("cba,cbay->bay", state, step)  # [., ., x4]
    cells[(END,)] = float(fourth[:, :, ends].sum())
    for x4 in text:
        fifth = np.einsum("ba,bay->ay", fourth[:, :, x4], step[:, :, x4, :])
        cells[(x4, END)] = float(fifth[:, ends].sum())
        for x5 in text:
            sixth = fifth[:, x5] @ step[:, x4, x5, :]
            cells[(x4, x5, END)] = float(sixth[ends].sum())
            cells |= {(x4, x5, x6): float(sixth[x6]) for x6 in text}
    return cells
