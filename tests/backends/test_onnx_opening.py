"""How a conversion is opened: damaged ones, providers and options that cannot be, each told in words."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
from kernels_here import need_kernels
from pair import load
from real_models import need_module

need_module("onnxruntime")
onnx = need_module("onnx")

from edgespec.backends.onnx import Onnx, OnnxOptions  # noqa: E402
from edgespec.errors import BackendError, ModelError, UsageError  # noqa: E402


@pytest.fixture
def copy(folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(folder, tmp_path / folder.name))


def refused(folder: Path, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        Onnx(folder, OnnxOptions(n_ctx=64, threads=1))


def test_weights_cut_short_or_missing_are_told(copy: Path) -> None:
    data = copy / "model.onnx.data"
    with data.open("r+b") as file:
        file.truncate(data.stat().st_size - 1)
    refused(copy, "cut short: it has")
    data.unlink()
    refused(copy, "is missing; fetch or convert it again")


def test_a_missing_tokenizer_is_told(copy: Path) -> None:
    (copy / "vocab.gguf").unlink()
    refused(copy, "tokenizer .* is missing")


def test_a_damaged_tokenizer_is_told(copy: Path) -> None:
    """With a token that is there twice llama.cpp would end the process."""
    file = copy / "vocab.gguf"
    data = file.read_bytes()
    one, other = (len(t).to_bytes(8, "little") + t for t in (b"m", b"n"))
    for damaged in (data.replace(one, other), data[: len(data) // 8]):
        assert damaged != data
        file.write_bytes(damaged)
        refused(copy, "tokenizer .* is damaged")


def test_without_the_package_onnx_nothing_runs_unchecked(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(BackendError, match="need the package onnx: pip install"):
        load(folder)


def test_a_damaged_graph_is_told(copy: Path) -> None:
    graph = copy / "model.onnx"
    whole = graph.read_bytes()
    graph.write_bytes(whole[: len(whole) // 2])
    refused(copy, "not an ONNX model, or damaged")
    graph.write_bytes(b"")
    refused(copy, "not an ONNX model, or damaged")


def test_an_opset_from_the_future_is_told(copy: Path) -> None:
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    model.opset_import[0].version = 99
    onnx.save(model, copy / "model.onnx")
    refused(copy, "needs a newer onnxruntime")


def test_weights_outside_of_the_folder_are_refused(copy: Path) -> None:
    model = onnx.load(copy / "model.onnx", load_external_data=False)
    for entry in model.graph.initializer[0].external_data:
        if entry.key == "location":
            entry.value = "../secret"
    onnx.save(model, copy / "model.onnx")
    refused(copy, "outside of its folder")


def test_providers_that_are_not_there_are_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="cuda is not in this build"):
        load(folder, provider="cuda")
    with pytest.raises(UsageError, match="'gpu' is unknown; choose from auto, cpu"):
        load(folder, provider="gpu")
    backend: Onnx = load(folder, provider="auto")
    assert backend.provider == "cpu"
    backend.close()


def test_a_provider_that_does_not_start_is_told(
    portable: Path, cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(BackendError, match="provider cuda"):
        load(portable, provider="cuda")
    backend: Onnx = load(portable, provider="auto")
    assert backend.provider == "cpu" and "provider cuda is installed and does not run" in caplog.text
    backend.close()


def test_accelerators_are_refused_and_not_tried_with_our_kernels(
    folder: Path, cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    need_kernels()
    with pytest.raises(UsageError, match=r"compute on the CPU.*for cuda: edgespec convert NAME --portable"):
        load(folder, provider="cuda")
    for provider in ("auto", "cpu", None):
        backend: Onnx = load(folder, provider=provider)
        assert backend.provider == "cpu" and not backend.capabilities.gpu
        backend.close()
    assert not caplog.messages


def test_contexts_and_threads_that_are_impossible_are_refused(folder: Path) -> None:
    for options, message in (
        ({"n_ctx": 1025}, "takes 1 to 1024"),
        ({"threads": 0}, "takes 1 to 512"),
        ({"threads": 513}, "513 threads were asked for; it takes 1 to 512"),
        ({"sequences": 0}, "at least 1"),
    ):
        with pytest.raises(UsageError, match=message):
            load(folder, **options)


def test_strictness_is_refused_where_rows_depend_on_the_pass(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Onnx, "_rows_agree", lambda _: False)
    with pytest.raises(UsageError, match="strict output is not possible"):
        load(folder, strict=True)
