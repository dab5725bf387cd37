"""The exactness of test_exact_distribution.py, with ONNX Runtime behind target, draft or both."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

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
