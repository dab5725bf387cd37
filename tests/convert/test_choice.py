"""Which conversion is made and run: the one for our kernels where they work, else the portable one, aloud."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from kernels_here import need_kernels

from edgespec.errors import BackendError, ModelError, UsageError

from .tiny_models import Tiny, write_tiny

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import edgespec
from edgespec.backends.base import Segment
from edgespec.backends.conversion import _warn_without
from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.cli.commands import main
from edgespec.convert.convert import convert
from edgespec.convert.folder import folder_for
from edgespec.hub.resolve import resolve_pair
from edgespec.kernels import library
from edgespec.planning import plans


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_tiny(tmp_path / "tiny.gguf", Tiny("llama", type="Q4_1"))


@pytest.fixture
def no_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library._warn.cache_clear()
    monkeypatch.setenv("EDGESPEC_KERNELS", str(tmp_path / "nowhere.so"))


def loads(model: Path, backend: str = "onnx") -> str:
    """The backend that runs a model."""
    with edgespec.load(model, backend=backend, draft="none", threads=1) as runtime:
        runtime.generate("stay ", max_tokens=3)
        return type(runtime.target).__name__


def test_both_conversions_can_be_there(model: Path) -> None:
    ours, portable = convert(model, portable=False), convert(model, portable=True)
    assert {ours.folder, portable.folder} == {folder_for(model), folder_for(model, portable=True)}
    assert not convert(model, portable=False).fresh and not convert(model, portable=True).fresh


def test_our_kernels_are_the_default_where_they_work(model: Path) -> None:
    need_kernels()
    assert not convert(model).report.portable
    assert loads(model) == "Onnx"


def test_without_kernels_a_portable_conversion_is_made_aloud(
    model: Path, no_kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    assert convert(model).report.portable
    convert(model)
    (message,) = caplog.messages
    assert "nowhere.so is missing); converting for ONNX Runtime's own operators" in message
    assert loads(model) == "Onnx"


def test_without_kernels_the_portable_conversion_runs_aloud(
    model: Path, no_kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    convert(model, portable=False)
    convert(model, portable=True)
    caplog.set_level(logging.WARNING)
    assert loads(model) == "Onnx"
    assert any("nowhere.so is missing); using tiny.onnx-portable" in line for line in caplog.messages)


def test_without_kernels_a_conversion_for_them_is_refused(
    model: Path, no_kernels: None, caplog: pytest.LogCaptureFixture
) -> None:
    folder = convert(model, portable=False).folder
    with pytest.raises(ModelError, match=rf"nowhere\.so is missing.*edgespec convert {model} --portable"):
        loads(model)
    with pytest.raises(ModelError, match=r"nowhere\.so is missing.*edgespec convert --portable"):
        loads(folder)
    caplog.set_level(logging.WARNING)
    assert loads(model, "auto") == "LlamaCpp"
    assert any("tiny.onnx-edgespec is not used" in line for line in caplog.messages)


@pytest.mark.parametrize("missing", ["onnxruntime", "onnx"])
def test_where_onnx_is_not_installed_conversions_are_passed_over_aloud(
    model: Path,
    no_kernels: None,
    missing: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    for portable in (False, True):
        convert(model, portable=portable)
    _warn_without.cache_clear()
    caplog.set_level(logging.WARNING)
    caplog.clear()
    monkeypatch.setitem(sys.modules, missing, None)
    assert loads(model, "auto") == "LlamaCpp"
    assert [line for line in caplog.messages if "tiny.onnx" in line] == [
        f"tiny.onnx-edgespec is not used: there is no {missing} here; pip install 'edgespec[onnx]'"
    ]
    assert {plan.backend for plan in plans(resolve_pair(str(model)))} == {"llama.cpp"}


def test_our_kernels_need_no_strictness_for_rows_that_do_not_depend_on_the_pass(model: Path) -> None:
    need_kernels()
    tokens = [7 * i % 25 for i in range(28)]
    rows = []
    for strict, tree in ((False, False), (True, False), (False, True)):
        options = OnnxOptions(n_ctx=64, threads=1, strict=strict, tree=tree)
        backend = Onnx(convert(model, portable=False).folder, options)
        assert backend.capabilities.row_invariant is not tree
        for size in (len(tokens), 1, 5):
            sequence = backend.open()
            for i in range(0, len(tokens), size):
                piece = tokens[i : i + size]
                rows += [*backend.forward([Segment(sequence, piece, rows=len(piece))]).copy()]
            backend.close(sequence)
        backend.close()
    plain = np.array(rows).reshape(9, len(tokens), -1)[:6]
    assert (plain == plain[0]).all()


def test_a_provider_runs_the_portable_conversion_aloud(
    model: Path, cuda: None, caplog: pytest.LogCaptureFixture
) -> None:
    convert(model, portable=False)
    with pytest.raises(UsageError, match=rf"for cuda: edgespec convert {model} --portable"):
        edgespec.load(model, backend="onnx", provider="cuda", draft="none", threads=1)
    convert(model, portable=True)
    caplog.set_level(logging.WARNING)
    with pytest.raises(BackendError, match="provider cuda"):  # tried, that is
        edgespec.load(model, backend="onnx", provider="cuda", draft="none", threads=1)
    assert any(line.startswith("using tiny.onnx-portable: edgespec's kernels") for line in caplog.messages)


def test_a_provider_is_refused_where_auto_has_llama_cpp_only(model: Path) -> None:
    with pytest.raises(UsageError, match=rf"nothing here was converted.*edgespec convert {model} --portable"):
        edgespec.load(model, backend="auto", provider="cuda", draft="none", threads=1)
    edgespec.load(model, backend="auto", provider="auto", draft="none", threads=1).close()


def test_the_command_makes_a_portable_conversion(model: Path) -> None:
    result = CliRunner().invoke(main, ["convert", str(model), "--portable", "--check", "none"])
    assert result.exit_code == 0, result.output
    *_, folder, weights = result.stdout.splitlines()  # click before 8.2 mixes in what is on stderr
    assert folder == str(folder_for(model, portable=True))
    assert "rounded anew" in weights  # a minimum has no place in standard operators


@pytest.mark.parametrize(
    ("content", "message"), [(b"no library", "cannot be loaded"), (None, "cannot be loaded")]
)
def test_a_library_that_is_none_of_ours_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, message: str
) -> None:
    file = tmp_path / "other.so"
    if content is None:  # a library, but another one
        import _ctypes

        file = Path(_ctypes.__file__ or sys.executable)
    else:
        file.write_bytes(content)
    monkeypatch.setenv("EDGESPEC_KERNELS", str(file))
    assert message in str(library.unavailable()) and library.instruction_set() is None


def test_the_library_says_what_instructions_it_uses() -> None:
    need_kernels()
    assert library.instruction_set() in {"avx512vnni", "avxvnni", "avx2", "i8mm", "dotprod", "neon", "scalar"}
