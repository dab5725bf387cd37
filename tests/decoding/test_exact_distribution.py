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

import pytest
from pair import TARGET, VOCABULARY

from .expected import chi_square, joint
from .policies import Controlled, Erratic, WhileQIsSure
from .sampling_run import Case, Sample, UntilVowel, WhileSure, sample

SAMPLES = int(os.environ.get("EDGESPEC_SAMPLES", "20000"))  # fewer where a processor is emulated
FALSE_ALARM = 1e-4

PLAIN = {"temperature": 1.0}
A, E, S, T = (VOCABULARY.id(piece) for piece in (b"a", b"e", b"s", b"t"))
# Whatever of a, e, s, t comes next has occurred in this text: prompt lookup finds a continuation.
REPEATING = tuple(VOCABULARY.ids(b"t", b"t", b"t", b"e", b"s", b"a", b"a"))

CASES = {
    "temperature, and a depth that depends on the drafted tokens": Case(
        {"temperature": 1.3}, policy=UntilVowel
    ),
    "top-k and min-p, depth 1": Case({"temperature": 1.2, "top_k": 9, "min_p": 0.08}, depth=1),
    "top-p, and a depth that depends on the drafted tokens' probabilities": Case(
        {"temperature": 1.0, "top_p": 0.8}, policy=WhileSure
    ),
    "penalties and bias": Case(
        PLAIN
        | {
            "repetition_penalty": 1.4,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.9,
            "penalty_window": 3,
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
    "the controller, with a draft model and prompt lookup": Case(
        {"temperature": 1.1, "logit_bias": {A: 1.0, E: 1.0, S: 1.0, T: 1.0}},
        drafter="draft+ngram",
        policy=Controlled,
        prompt=REPEATING,
    ),
    "the controller, with a draft model that reads ahead what lookup guesses": Case(
        {"temperature": 1.1, "logit_bias": {A: 1.0, E: 1.0, S: 1.0, T: 1.0}},
        drafter="draft<ngram",
        policy=Controlled,
        prompt=REPEATING,
    ),
    "the controller, filtered, with a draft that is no good beside one that is": Case(
        {"temperature": 1.0, "top_k": 8}, drafter="hopeless+draft", policy=Controlled
    ),
    "stopping before sampling where q is not sure": Case(PLAIN, depth=3, policy=WhileQIsSure),
    "whatever a policy may do": Case(
        PLAIN, drafter="draft<ngram+ngram+hopeless", policy=Erratic, prompt=REPEATING
    ),
    "seeded, over seeds": Case({"temperature": 1.1, "top_p": 0.9}, seeded=True),
    "the controller, three that share passes": Case(
        {"temperature": 1.1, "logit_bias": {A: 1.0, E: 1.0, S: 1.0, T: 1.0}},
        drafter="draft+ngram",
        policy=Controlled,
        prompt=REPEATING,
        together=3,
    ),
    "a depth that depends on the drafted tokens, three that share passes": Case(
        {"temperature": 1.3, "top_k": 9}, policy=UntilVowel, together=3
    ),
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
    p_value = chi_square(found.counts, joint(TARGET, case.prompt, case.max_tokens, case.options))
    print(f"p = {p_value:.3g}; {found.accepted} of {found.drafted} drafts accepted")
    assert p_value > FALSE_ALARM
