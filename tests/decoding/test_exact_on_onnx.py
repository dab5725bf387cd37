"""The exactness of test_exact_distribution.py, with ONNX Runtime behind target, draft or both, and with a
draft that cannot draft most tokens."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
from pair import VOCABULARY

from .sampling_run import Case, UntilVowel, WhileSure
from .test_exact_distribution import test_continuations_have_the_exact_joint_distribution as check
from .test_exact_distribution import workers  # noqa: F401

CASES = {
    "both on ONNX Runtime": Case(
        {"temperature": 0.9, "top_k": 8, "repetition_penalty": 1.3, "penalty_window": 4},
        depth=2,
        max_tokens=3,
        runtime="onnx",
        draft_runtime="onnx",
    ),
    "target on ONNX Runtime, draft on llama.cpp": Case(
        {"temperature": 1.3}, policy=UntilVowel, runtime="onnx"
    ),
    "target on llama.cpp, draft on ONNX Runtime": Case(
        {"temperature": 1.0, "top_p": 0.8}, policy=WhileSure, draft_runtime="onnx"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_distribution_is_as_exact_on_onnx_runtime(
    workers: ProcessPoolExecutor,  # noqa: F811
    converted: Path,
    case: Case,
) -> None:
    check(workers, converted, case)


TRIMMED = {
    "a depth that depends on the drafted tokens": Case(
        {"temperature": 1.3}, policy=UntilVowel, draft_runtime="trimmed"
    ),
    "everything together": Case(
        {
            "temperature": 0.9,
            "top_k": 9,
            "top_p": 0.95,
            "min_p": 0.03,
            "repetition_penalty": 1.3,
            "presence_penalty": 0.4,
            "frequency_penalty": 0.5,
            "logit_bias": {VOCABULARY.id(b"s"): 1.5, VOCABULARY.id(b"e"): 0.5},
        },
        depth=4,
        runtime="onnx",
        draft_runtime="trimmed",
    ),
    "seeded, over seeds": Case({"temperature": 1.1, "top_p": 0.9}, seeded=True, draft_runtime="trimmed"),
}


@pytest.mark.parametrize("case", TRIMMED.values(), ids=TRIMMED.keys())
def test_the_distribution_is_as_exact_with_a_trimmed_draft(
    workers: ProcessPoolExecutor,  # noqa: F811
    trimmed: Path,
    case: Case,
) -> None:
    check(workers, trimmed, case)
