"""What scripts/test has fetched must be found: its absence is no reason to skip."""

from __future__ import annotations

from pathlib import Path

import pytest
from real_models import need, need_module


@pytest.fixture(autouse=True)
def no_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path))


def test_models_that_were_fetched_fail_and_others_skip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDGESPEC_REQUIRE_MODELS", "smollm2-135m qwen2.5-coder")
    for name in ("smollm2-135m", "qwen2.5-coder", "qwen2.5-coder-0.5b"):
        with pytest.raises(pytest.fail.Exception, match=f"{name} was fetched for this run"):
            need(name)
    with pytest.raises(pytest.skip.Exception, match="gemma3-270m was not fetched for this run"):
        need("gemma3-270m")
    with pytest.raises(ModuleNotFoundError):
        need_module("no_such_module")


def test_without_fetched_models_all_is_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("EDGESPEC_REQUIRE_MODELS", raising=False)
    with pytest.raises(pytest.skip.Exception, match="edgespec pull smollm2-135m"):
        need("smollm2-135m")
    with pytest.raises(pytest.skip.Exception):
        need_module("no_such_module")
