"""A program that embeds edgespec keeps its terminal and its process to itself."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from real_models import need

RUN = """
import asyncio, logging, os, signal, sys, threading

before = [signal.getsignal(number) for number in signal.valid_signals()]
folder, streams, hook = os.getcwd(), (sys.stdout, sys.stderr), threading.excepthook

import edgespec

model, options = sys.argv[1], eval(sys.argv[2])
with edgespec.load(model, **options) as runtime:
    assert runtime.generate("stay", max_tokens=20).tokens
    assert asyncio.run(runtime.agenerate([{"role": "user", "content": "stay"}], max_tokens=20)).stats.rounds
    assert [token for token in runtime.stream("stay", max_tokens=20, seed=1, temperature=1)]
    try:
        edgespec.load(model + ".missing")
    except edgespec.EdgespecError:
        pass

assert [signal.getsignal(number) for number in signal.valid_signals()] == before
assert (os.getcwd(), (sys.stdout, sys.stderr), threading.excepthook) == (folder, streams, hook)
assert not logging.getLogger().handlers
assert [thread.name for thread in threading.enumerate()] == ["MainThread"], threading.enumerate()
"""


def assert_silent(model: str | Path, options: dict[str, object], home: Path | None = None) -> None:
    """A run writes nothing to its standard streams, native libraries included, and leaves no trace in its
    process."""
    environment = os.environ | ({} if home is None else {"EDGESPEC_HOME": str(home)})
    done = subprocess.run(
        [sys.executable, "-c", RUN, str(model), repr(options)],
        capture_output=True,
        text=True,
        timeout=300,
        env=environment,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize("options", [{"draft": "ngram"}, {"depth": 0}])
def test_a_run_with_llama_cpp_is_silent(
    model_files: Path, tmp_path: Path, options: dict[str, object]
) -> None:
    assert_silent(model_files / "target.gguf", options, tmp_path)


def test_a_run_with_onnx_runtime_is_silent(converted: Path, tmp_path: Path) -> None:
    options = {"backend": "onnx", "draft": str(converted / "draft.gguf")}
    assert_silent(converted / "target.gguf", options, tmp_path)


def test_onnx_runtime_prepares_to_tell_nobody_of_it(
    converted: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Since 1.29 it reports what runs, unless told not to, and keeps reports in the user's cache folder."""
    for name in ("ORT_DISABLE_TELEMETRY", "CI", "GITHUB_ACTIONS", "TF_BUILD"):  # in CI it does not anyway
        monkeypatch.delenv(name, raising=False)
    for name in ("HOME", "XDG_CACHE_HOME"):
        monkeypatch.setenv(name, str(tmp_path / "user"))
    assert_silent(converted / "target.gguf", {"backend": "onnx", "draft": "ngram"}, tmp_path / "home")
    assert not list(tmp_path.glob("user/**/*onnxruntime*"))


def test_a_run_of_a_real_model_is_silent() -> None:
    assert_silent(need("smollm2-135m"), {"n_ctx": 512, "depth": 4})
