"""The reference: plain llama.cpp on the GGUF file that an ONNX target was converted from."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from edgespec import planning
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.backends.onnx import Onnx
from edgespec.bench.passes import bytes_per_pass
from edgespec.bench.reference import open_reference
from edgespec.convert.folder import folder_for
from edgespec.device.memory import Available
from edgespec.errors import NotEnoughMemory, UsageError
from edgespec.hub.gguf_info import read_info


def test_it_is_loaded_with_the_targets_context(converted: Path) -> None:
    target = Onnx(folder_for(converted / "target.gguf"))
    beside = open_reference(target, 1)
    assert beside is not None
    with beside:
        assert isinstance(beside.target, LlamaCpp)
        assert beside.target.n_ctx == target.n_ctx
        assert beside.depth == 0
    target.close()


def test_a_target_on_llama_cpp_has_none(target: LlamaCpp) -> None:
    assert open_reference(target, 1) is None


def test_a_target_without_its_gguf_file_is_refused(converted: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(folder_for(converted / "target.gguf"), tmp_path / "target.onnx-edgespec")
    target = Onnx(folder)
    with pytest.raises(UsageError, match="no GGUF file"):
        open_reference(target, 1)
    (tmp_path / "target.gguf").write_bytes(b"another")
    with pytest.raises(UsageError, match="made from another file"):
        open_reference(target, 1)
    target.close()


def test_it_is_refused_where_memory_does_not_allow_one_model_more(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(planning, "find_available", lambda: Available(1000, "the machine"))
    target = Onnx(folder_for(converted / "target.gguf"))
    with pytest.raises(NotEnoughMemory, match=r"leave --reference out\.\n.* the machine has 1 kB left"):
        open_reference(target, 1)
    target.close()


def test_a_conversion_reads_as_many_bytes_as_its_source(converted: Path) -> None:
    """All weights but the table of embeddings; those of the closed-form model are float32 in both."""
    file = converted / "target.gguf"
    assert bytes_per_pass(file) == read_info(file).bytes_per_token
    assert bytes_per_pass(folder_for(file)) == pytest.approx(bytes_per_pass(file), rel=0.05)
