"""What a comparison of two runs says, and when a conversion is called suspicious."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")
pytest.importorskip("llama_cpp")

from edgespec.convert.quality import compare, warning

FLOOR = {"kl": 0.004, "top1": 0.96}


def measured(kl: float, top1: float = 0.96) -> dict[str, object]:
    return {"onnx vs llama.cpp": {"kl": kl, "top1": top1}, "llama.cpp token by token vs llama.cpp": FLOOR}


def test_the_first_token_is_reported_apart() -> None:
    a = np.random.default_rng(0).standard_normal((5, 8)).astype(np.float32)
    b = a.copy()
    b[0] = -b[0]
    found = compare(a, b)
    assert found["kl_first"] > 0.1
    assert found["kl"] == 0 and found["top1"] == 1 and found["logit_max"] == 0


@pytest.mark.parametrize(
    ("kl", "top1", "exact", "suspicious"),
    [
        (0.005, 0.96, True, False),
        (0.012, 0.96, True, True),
        (0.012, 0.96, False, False),  # weights rounded anew may cost more
        (0.030, 0.96, False, True),
        (0.005, 0.90, True, True),
    ],
)
def test_a_conversion_is_judged_by_what_llama_cpp_differs_from_itself(
    kl: float, top1: float, exact: bool, suspicious: bool
) -> None:
    line = warning(measured(kl, top1), exact)
    assert (line is not None) == suspicious
    assert line is None or "llama.cpp against itself: 96.0%, 0.004" in line
