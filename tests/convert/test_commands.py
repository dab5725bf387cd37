"""`edgespec convert` and the choice of a backend, from the command line and from `edgespec.load`."""

from __future__ import annotations

import json
import logging
import os
import shutil
from contextlib import closing
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import edgespec
from edgespec.backends.llama_cpp import LlamaCpp, LlamaCppOptions
from edgespec.backends.loading import Settings
from edgespec.cli.commands import main
from edgespec.convert.convert import convert
from edgespec.convert.folder import VOCABULARY, read_report
from edgespec.convert.origin import _checksum_at
from edgespec.errors import ModelError, UsageError
from edgespec.hub.resolve import resolve
from edgespec.kernels import library
from edgespec.pairing import open_draft

from .tiny_models import CONTEXT, Tiny, write_tiny


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_convert_says_where_the_model_is_and_how_good(model: Path) -> None:
    result = run("convert", model, "--check", "full")
    assert result.exit_code == 0, result.output
    folder = model.with_name("target.onnx-edgespec")
    assert str(folder) in result.output
    assert "onnx vs float32: same choice 100.0%, KL 0.0000" in result.output
    quality = json.loads((folder / "report.json").read_text())["quality"]
    assert quality["onnx vs llama.cpp"]["kl"] < 1e-6 and quality["full"]
    again = run("convert", model)
    assert again.exit_code == 0 and "was converted before" in again.output


def test_a_model_of_a_short_context_is_checked_with_a_shorter_text(tmp_path: Path) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", Tiny("llama"))
    result = run("convert", model)
    assert result.exit_code == 0, result.output
    quality = convert(model).report.quality
    assert quality is not None and quality["tokens"] == CONTEXT - 1


def test_converted_models_are_listed(model: Path) -> None:
    folders = [convert(model, portable=portable).folder for portable in (False, True)]
    others = json.loads(run("models", "--json").stdout)["others"]
    names = ["draft.gguf", "target.gguf", *(folder.name for folder in folders)]
    assert [Path(other["path"]).name for other in others] == names
    assert [other["name"] for other in others[2:]] == [str(folder) for folder in folders]


def test_what_is_being_converted_is_not_listed_as_a_model(model: Path) -> None:
    folder = convert(model).folder
    for name in (f"{folder.name}.partial", "draft.onnx-trimmed"):
        (model.parent / name).mkdir()
        shutil.copy(folder / VOCABULARY, model.parent / name)
    others = json.loads(run("models", "--json").stdout)["others"]
    assert [Path(other["path"]).name for other in others] == ["draft.gguf", "target.gguf", folder.name]


def test_a_model_that_was_not_converted_names_the_command(model: Path) -> None:
    result = run("run", model, "stay", "--backend", "onnx", "--draft", "none")
    assert result.exit_code == 1
    assert f"has not been converted to ONNX yet: edgespec convert {model}" in result.output


def test_a_conversion_of_another_file_is_not_used(model: Path) -> None:
    convert(model)
    with model.open("ab") as file:
        file.write(bytes(64))
    with pytest.raises(ModelError, match="made from another file; convert again"):
        edgespec.load(model, backend="onnx")


def test_a_conversion_of_another_file_of_the_same_size_is_not_used(model: Path) -> None:
    """As of a model that was fetched again after its makers changed it."""
    convert(model)
    with model.open("r+b") as file:
        file.seek(-2, os.SEEK_END)
        file.write(b"\1\1")
    os.utime(model, (1, 1))
    with pytest.raises(ModelError, match="made from another file; convert again"):
        edgespec.load(model, backend="onnx")
    assert convert(model).fresh
    edgespec.load(model, backend="onnx", draft="none").close()


def test_a_source_with_another_time_is_compared_once(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """As a copy has."""
    caplog.set_level(logging.WARNING)
    done = convert(model)
    edgespec.load(model, backend="onnx", draft="none").close()
    assert "comparing" not in caplog.text
    os.utime(model, (1, 1))
    for _ in range(2):
        edgespec.load(model, backend="onnx", draft="none").close()
        _checksum_at.cache_clear()  # as the next process begins
    assert [line for line in caplog.messages if line.startswith("comparing")] == [
        "comparing target.gguf with what was converted from it, once"
    ]
    assert read_report(done.folder) == done.report  # the folder may be one that is only to be read
    assert not convert(model).fresh


def test_the_conversion_runs_without_its_source(model: Path) -> None:
    folder = convert(model).folder
    with edgespec.load(model, depth=0, threads=1) as runtime:
        wanted = runtime.generate("stay ", max_tokens=30)
    model.unlink()
    with edgespec.load(folder, backend="onnx", threads=1) as runtime:
        assert runtime.generate("stay ", max_tokens=30).text == wanted.text
        assert runtime.has_chat_template


@pytest.mark.parametrize(
    ("backend", "draft_backend"), [("onnx", "llama.cpp"), ("llama.cpp", "onnx"), ("onnx", None)]
)
def test_target_and_draft_choose_their_backends(model: Path, backend: str, draft_backend: str | None) -> None:
    draft = model.with_name("draft.gguf")
    convert(model)
    convert(draft)
    with edgespec.load(model, depth=0, threads=1) as runtime:
        wanted = runtime.generate("stay ", max_tokens=40).text
    with edgespec.load(
        model, draft=draft, backend=backend, draft_backend=draft_backend, depth=4, threads=1
    ) as runtime:
        found = runtime.generate("stay ", max_tokens=40)
        assert found.text == wanted and found.stats.accepted > 0


def test_layers_on_a_gpu_are_the_affair_of_a_target_on_llama_cpp(model: Path) -> None:
    """A draft on ONNX Runtime goes with them."""
    folder = convert(model.with_name("draft.gguf")).folder
    draft, settings = resolve(str(model.with_name("draft.gguf"))), Settings(threads=1, gpu_layers=5)
    with closing(LlamaCpp(model, LlamaCppOptions(threads=1, n_ctx=64))) as target:
        open_draft(draft, target, "onnx", settings, "").close()
        open_draft(resolve(str(folder)), target, "auto", settings, "").close()


def test_strict_works_on_onnx_and_is_refused_on_llama_cpp(model: Path) -> None:
    convert(model)
    assert (
        run("run", model, "stay", "--strict", "--backend", "onnx", "--max-tokens", "5", "--raw").exit_code
        == 0
    )
    assert (
        run("run", model, "stay", "--strict", "--backend", "auto", "--max-tokens", "5", "--raw").exit_code
        == 0
    )
    result = run("run", model, "stay", "--strict", "--max-tokens", "5", "--raw")
    assert result.exit_code == 2 and "use --backend onnx" in result.output


def test_auto_measures_once_and_says_what_it_chose(
    model: Path, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    caplog.set_level(logging.WARNING)
    edgespec.load(model, backend="auto", depth=4, threads=1).close()
    assert not caplog.messages  # llama.cpp is all there is
    convert(model)
    edgespec.load(model, backend="auto", depth=4, threads=1).close()
    first = "\n".join(caplog.messages)
    assert "measuring target.gguf with llama.cpp, once" in first and "runs on" in first
    kept = json.loads((tmp_path / "home" / "state" / "backend_speed.json").read_text()).values()
    times = {name: found for by_name in kept for name, found in by_name.items()}
    assert set(times) == {"llama.cpp", "onnx"} and set(times["onnx"]) == set("123458")
    caplog.clear()
    edgespec.load(model, backend="auto", depth=4, threads=1).close()
    assert "measuring" not in "\n".join(caplog.messages)


def test_another_conversion_is_measured_anew_and_llama_cpp_is_not(
    model: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    convert(model, portable=True)
    edgespec.load(model, backend="auto", depth=4, threads=1).close()
    measured = [line for line in caplog.messages if "measuring" in line]
    assert measured == [f"measuring target.gguf with {name}, once" for name in ("llama.cpp", "onnx")]
    caplog.clear()
    convert(model, portable=False, small=True)
    edgespec.load(model, backend="auto", depth=4, threads=1).close()
    measured = [line for line in caplog.messages if "measuring" in line]
    assert measured == ["measuring target.gguf with onnx, once"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"backend": "tensorflow"}, "choose from llama.cpp, onnx, auto"),
        ({"kv_type": "q8_0"}, "choose from f32, f16"),
        ({"gpu_layers": 3}, "--provider"),
        ({"lora": __file__}, "LoRA adapters"),
        ({"mmap": False}, "--no-mmap"),
        ({"provider": "cuda"}, "cuda is not in this build"),
    ],
)
def test_what_onnx_cannot_honour_is_refused(model: Path, options: dict[str, object], message: str) -> None:
    convert(model)
    with pytest.raises(UsageError, match=message):
        edgespec.load(model, **{"backend": "onnx", "threads": 1} | options)


def test_only_what_copies_no_weights_runs_in_low_memory(model: Path) -> None:
    convert(model, portable=True)
    with pytest.raises(UsageError, match="which keep a copy of the weights; leave --low-memory out"):
        edgespec.load(model, backend="onnx", threads=1, low_memory=True)
    with edgespec.load(model, backend="auto", threads=1, low_memory=True) as runtime:
        assert isinstance(runtime.target, LlamaCpp)
    if library.unavailable() is None:
        convert(model, portable=False)
        edgespec.load(model, backend="onnx", threads=1, low_memory=True).close()


def test_an_onnx_model_is_not_for_llama_cpp(model: Path) -> None:
    folder = convert(model).folder
    with pytest.raises(UsageError, match="run it with --backend onnx"):
        edgespec.load(folder)
    result = run("convert", folder)
    assert result.exit_code == 2 and "is an ONNX model already" in result.output
