"""What scripts/test has fetched must be found: its absence is no reason to skip."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_models import need, need_module


@pytest.fixture(autouse=True)
def no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))


def test_models_that_were_fetched_fail_and_others_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_REQUIRE_MODELS", "smollm2-135m gemma3-270m")
    with pytest.raises(pytest.fail.Exception, match="smollm2-135m was fetched for this run"):
        need("smollm2-135m")
    with pytest.raises(pytest.skip.Exception, match=r"edgespec pull qwen2\.5-coder"):
        need("qwen2.5-coder")
    with pytest.raises(ModuleNotFoundError):
        need_module("no_such_module")


def test_without_fetched_models_all_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_REQUIRE_MODELS", raising=False)
    with pytest.raises(pytest.skip.Exception):
        need("smollm2-135m")
    with pytest.raises(pytest.skip.Exception):
        need_module("no_such_module")
