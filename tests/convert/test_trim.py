"""`edgespec trim`: which rows a head keeps, what the trimmed model computes, and that it only ever drafts."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from kernels_here import need_kernels
from pair import VOCABULARY

pytest.importorskip("onnxruntime")
pytest.importorskip("onnx")

import edgespec
from edgespec.backends.base import Segment
from edgespec.backends.loading import Settings, draft_file
from edgespec.backends.onnx import Onnx, OnnxOptions
from edgespec.cli.commands import main
from edgespec.control.policy import FixedDepth
from edgespec.convert.convert import convert
from edgespec.convert.folder import HEAD, REPORT, trimmed_folder_for
from edgespec.convert.head import Head
from edgespec.convert.trim import trim
from edgespec.errors import ModelError, UsageError
from edgespec.hub.resolve import resolve
from edgespec.kernels import library
from edgespec.runtime import Runtime

from .tiny_models import TINY, write_tiny

NEEDED = [i for i in range(len(VOCABULARY)) if len(VOCABULARY.piece(i)) < 2]
"""markers and single bytes"""
LONGER = [VOCABULARY.id(piece) for piece in (b"st", b"er", b" a")]
IDS = np.array([0, 3, 4, 11, 17, 20, 24], np.int32)


@pytest.fixture(autouse=True)
def kernels() -> None:
    need_kernels()


@pytest.fixture
def draft(model: Path) -> Path:
    return model.with_name("draft.gguf")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def kept(folder: Path) -> list[int]:
    ids: list[int] = np.load(folder / HEAD).tolist()
    return ids


# What it computes


def logits(folder: Path, tree: bool = False) -> list[np.ndarray]:
    """Behind a prompt in one pass, a token alone, and a chain or a tree."""
    backend = Onnx(folder, OnnxOptions(n_ctx=64, threads=1, tree=tree))
    sequence = backend.open()
    passes = [Segment(sequence, [20, 1, 2, 3], rows=2), Segment(sequence, [5])]
    passes.append(Segment(sequence, [1, 2, 7], rows=3, parents=[-1, -1, 0] if tree else None))
    found = [backend.forward([segment]).copy() for segment in passes]
    backend.close()
    return found


@pytest.mark.parametrize(
    "name",
    ["llama, Q4_K", "llama, Q5_K", "llama, Q8_0", "llama, F16", "llama, BF16", "gemma3, no window, soft cap"],
)
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
def test_kept_tokens_have_the_whole_models_logits_and_others_minus_infinity(
    tmp_path: Path, name: str, tree: bool
) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", TINY[name])
    whole = logits(convert(model, portable=False).folder, tree)
    trimmed = logits(convert(model, portable=False, head=Head(IDS)).folder, tree)
    others = np.setdiff1d(np.arange(len(VOCABULARY)), IDS)
    for all_rows, rows in zip(whole, trimmed, strict=True):
        np.testing.assert_allclose(rows[:, IDS], all_rows[:, IDS], rtol=1e-5, atol=1e-5)
        assert (rows[:, others] == -np.inf).all()


def test_the_bias_of_the_head_is_trimmed_too(tmp_path: Path) -> None:
    tiny = replace(TINY["qwen2"], head_bias=True)
    model = write_tiny(tmp_path / "tiny.gguf", tiny)
    whole = logits(convert(model, portable=False).folder)
    trimmed = logits(convert(model, portable=False, head=Head(IDS)).folder)
    np.testing.assert_allclose(trimmed[0][:, IDS], whole[0][:, IDS], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "ids", [IDS[:-1], IDS[::-1].copy(), IDS.astype(np.int64), IDS + 2, np.array(IDS, object)], ids=str
)
def test_a_list_of_ids_that_does_not_fit_is_refused(tmp_path: Path, ids: np.ndarray) -> None:
    model = write_tiny(tmp_path / "tiny.gguf", TINY["llama, Q8_0"])
    folder = convert(model, portable=False, head=Head(IDS)).folder
    np.save(folder / HEAD, ids, allow_pickle=True)
    with pytest.raises(ModelError, match="damaged"):
        Onnx(folder)
    (folder / HEAD).unlink()
    with pytest.raises(ModelError, match="damaged"):
        Onnx(folder)


# What is kept


def test_without_a_corpus_the_lowest_ids_stay_beside_what_is_needed(draft: Path) -> None:
    done = trim(draft, keep=len(NEEDED) + 1)
    assert kept(done.folder) == sorted([*NEEDED, LONGER[0]])
    report = json.loads((done.folder / REPORT).read_text())["trimmed"]
    assert (report["kept"], report["of"], report["covered"]) == (len(NEEDED) + 1, len(VOCABULARY) + 6, None)


def test_what_is_frequent_in_the_corpus_stays(draft: Path, tmp_path: Path) -> None:
    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("er st\n" * 3)
    second.write_text("erer")
    done = trim(draft, keep=len(NEEDED) + 1, corpus=[first, second])
    assert kept(done.folder) == sorted([*NEEDED, LONGER[1]])
    report = json.loads((done.folder / REPORT).read_text())["trimmed"]
    # er, space, s+t as one, newline: of 4 · 3 + 2 tokens all but the three "st"
    assert report["corpus"] == ["first.txt", "second.txt"]
    assert report["corpus_tokens"] == 14 and report["covered"] == pytest.approx(11 / 14)


def test_a_corpus_is_counted_the_same_however_it_is_cut(
    draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text.txt"
    text.write_text("stay er\nset a\n" * 40)
    wanted = trim(draft, keep=len(NEEDED) + 1, corpus=[text]).report.trimmed
    monkeypatch.setattr("edgespec.convert.head.PIECE", 17)
    assert trim(draft, keep=len(NEEDED) + 1, corpus=[text], force=True).report.trimmed == wanted


@pytest.mark.parametrize("keep", [1, len(NEEDED), len(VOCABULARY) + 6, 10**9])
def test_a_head_that_cannot_be_is_refused(draft: Path, keep: int) -> None:
    with pytest.raises(UsageError, match=f"choose a number between {len(NEEDED) + 1} and"):
        trim(draft, keep=keep)


@pytest.mark.parametrize(
    ("content", "message"), [(b"\xff\xfe\xff", "not a text file in UTF-8"), (b"", "there is no text in")]
)
def test_a_corpus_that_is_no_text_is_refused(
    draft: Path, tmp_path: Path, content: bytes, message: str
) -> None:
    file = tmp_path / "corpus"
    file.write_bytes(content)
    result = run("trim", draft, "--keep", len(NEEDED) + 1, "--corpus", file)
    assert result.exit_code == 2 and message in result.output
    result = run("trim", draft, "--keep", len(NEEDED) + 1, "--corpus", tmp_path / "nowhere")
    assert result.exit_code == 1 and "No such file" in result.output


# The command


def test_trim_says_what_was_kept_and_what_that_saves(draft: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("er er\nst")
    arguments = ("trim", draft, "--keep", len(NEEDED) + 1, "--corpus", corpus)
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    folder = trimmed_folder_for(draft)
    *_, where, weights, rows, head = result.stdout.splitlines()  # click before 8.2 mixes in stderr
    assert where == str(folder) and "bit for bit" in weights
    assert rows == f"kept: {len(NEEDED) + 1} of 31 tokens, which are 80.00% of the 5 in the corpus"
    assert "instead of" in head and "saved" in head
    assert "was trimmed so before" in run(*arguments).output
    for changes in (["--small"], ["--small", "--force"], ["--keep", len(NEEDED) + 2]):
        assert "before" not in run(*arguments, *changes).output
    corpus.write_text("st st er")  # other tokens, the same file
    assert "before" not in run(*arguments).output
    others = json.loads(run("models", "--json").stdout)["others"]
    assert str(folder) in [other["name"] for other in others]


def test_the_whole_conversion_stays(draft: Path) -> None:
    whole = convert(draft, portable=False)
    trim(draft, keep=len(NEEDED) + 1)
    assert not convert(draft, portable=False).fresh and whole.folder != trimmed_folder_for(draft)


def test_without_kernels_there_is_no_trimmed_draft(
    draft: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    convert(draft, portable=True)
    trim(draft, keep=len(NEEDED) + 1)
    library._warn.cache_clear()
    monkeypatch.setenv("EDGESPEC_KERNELS", str(tmp_path / "nowhere.so"))
    with pytest.raises(ModelError, match=r"nowhere\.so is missing.*draft with the whole model"):
        trim(draft, keep=len(NEEDED) + 1)
    caplog.set_level(logging.WARNING)
    assert drafted_with(draft) == "draft"
    assert any("draft.onnx-trimmed is not used" in line for line in caplog.messages)


# Who drafts


def drafted_with(draft: Path, **options: Any) -> str:
    """What drafts where the draft is named, once the output was found to be the target's own."""
    target = draft.with_name("target.gguf")
    with edgespec.load(target, depth=0, threads=1) as runtime:
        wanted = runtime.generate("stay ", max_tokens=40).text
    options = {"draft": draft, "draft_backend": "onnx", "depth": 4, "threads": 1} | options
    with edgespec.load(target, **options) as runtime:
        found = runtime.generate("stay ", max_tokens=40)
        assert found.text == wanted and found.stats.accepted > 0 and found.stats.draft_failure is None
        assert runtime.drafter is not None
        return runtime.drafter.name


def test_the_trimmed_draft_is_preferred_aloud(draft: Path, caplog: pytest.LogCaptureFixture) -> None:
    trim(draft, keep=len(NEEDED) + 1)
    caplog.set_level(logging.WARNING)
    assert drafted_with(draft) == "draft.onnx-trimmed"
    assert caplog.messages == ["drafting with the trimmed draft.onnx-trimmed"]


def test_layers_on_a_gpu_do_not_keep_the_trimmed_draft_from_being_preferred(draft: Path) -> None:
    """They are the target's."""
    trim(draft, keep=len(NEEDED) + 1)
    found = draft_file(resolve(str(draft)), "auto", "llama.cpp", Settings(gpu_layers=5))
    assert found.title == "draft.onnx-trimmed"


def test_the_whole_model_drafts_where_it_is_named(draft: Path) -> None:
    trim(draft, keep=len(NEEDED) + 1)
    assert drafted_with(draft, draft_backend="llama.cpp") == "draft"
    assert drafted_with(convert(draft, portable=False).folder) == "draft"


def test_the_folder_can_be_named_whatever_runs_the_target(draft: Path) -> None:
    folder = trim(draft, keep=len(NEEDED) + 1).folder
    assert drafted_with(folder, draft_backend=None) == "draft"


def test_auto_drafts_with_it_unless_options_are_llama_cpps(draft: Path) -> None:
    trim(draft, keep=len(NEEDED) + 1)
    assert drafted_with(draft, draft_backend="auto") == "draft.onnx-trimmed"
    assert drafted_with(draft, draft_backend="auto", mmap=False) == "draft"


def test_one_made_of_another_file_is_not_used(draft: Path, caplog: pytest.LogCaptureFixture) -> None:
    trim(draft, keep=len(NEEDED) + 1)
    with draft.open("ab") as file:
        file.write(bytes(64))
    convert(draft, portable=False)
    caplog.set_level(logging.WARNING)
    assert drafted_with(draft) == "draft"
    assert any(f"make it again: edgespec trim {draft}" in line for line in caplog.messages)


def test_the_error_about_a_damaged_one_names_the_command_that_mends_it(draft: Path) -> None:
    folder = trim(draft, keep=len(NEEDED) + 1).folder
    advice = f"make it again: edgespec trim {draft}"
    weights = folder / "model.onnx.data"
    with weights.open("r+b") as file:
        file.truncate(weights.stat().st_size - 1)
    command = ("run", draft.with_name("target.gguf"), "stay", "--raw", "--max-tokens", "5")
    result = run(*command, "--draft", draft, "--draft-backend", "onnx")
    assert result.exit_code == 1 and "cut short" in result.output and advice in result.output
    for damaged in ("model.onnx.data", "vocab.gguf"):
        (folder / damaged).unlink()
        result = run(*command, "--draft", draft, "--draft-backend", "onnx")
        assert result.exit_code == 1 and "is missing" in result.output and advice in result.output
    assert run("trim", draft, "--keep", len(NEEDED) + 1).exit_code == 0
    assert drafted_with(draft) == "draft.onnx-trimmed"


def test_a_trimmed_draft_is_no_target(draft: Path) -> None:
    folder = trim(draft, keep=len(NEEDED) + 1).folder
    for command in (["run", folder, "stay"], ["chat", folder]):
        for backend in ("onnx", "auto"):
            result = run(*command, "--backend", backend, "--draft", "none")
            assert result.exit_code == 2, result.output
            assert "can only draft" in result.output and f"--draft {folder}" in result.output
    with pytest.raises(UsageError, match="can only draft"):
        edgespec.load(folder, backend="onnx")
    backend = Onnx(folder, OnnxOptions(threads=1))
    with pytest.raises(UsageError, match="can only draft"):
        Runtime("trimmed", backend, [], FixedDepth(0), 0)
    backend.close()


def test_where_no_allowed_token_is_in_the_head_the_target_goes_on_alone(draft: Path) -> None:
    trim(draft, keep=len(NEEDED) + 1)
    allowed = LONGER[1:]
    bans = {t: float("-inf") for t in range(len(VOCABULARY)) if t not in allowed}
    target = draft.with_name("target.gguf")
    with edgespec.load(target, draft=draft, draft_backend="onnx", depth=3, threads=1) as runtime:
        found = runtime.generate("stay ", max_tokens=12, logit_bias=bans)
    assert set(found.tokens) <= set(allowed) and len(found.tokens) == 12
    assert found.stats.drafted == 0 and found.stats.draft_failure is None
