"""`edgespec bench` on the closed-form pair."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from backends.hand_made import write_lora

from .conftest import Edgespec

USUAL = ("--max-tokens", 30, "--logit-bias", "22=-inf", "--threads", 1)
"""answers of one length, and no more threads than a tiny model has work for"""


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """Three prompts of two categories."""
    file = tmp_path / "suite.jsonl"
    lines = [{"id": i, "category": "abc"[i % 2], "prompt": "yes, stay"} for i in range(3)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


def test_a_suite_is_compared_reported_and_resumed(
    edgespec: Edgespec, pair: list[object], suite: Path, tmp_path: Path
) -> None:
    kept, html = tmp_path / "kept.jsonl", tmp_path / "page.html"
    words = ("bench", *pair, "--suite", suite, "--repeats", 2, "--resume", kept, *USUAL)
    found = edgespec(*words, "--json", "--html", html).json
    assert {"geomean_speedup", "worst_speedup", "categories", "interval"} <= found.keys()
    assert set(found["categories"]) == {"a", "b"}
    assert [len(r["repeats"]["speculative"]) for r in found["results"]] == [2, 2, 2]
    assert found["same_tokens"] == 1.0
    assert found["bytes_per_second"] > 0
    page = html.read_text()
    assert page.startswith("<!doctype html>")
    assert "edgespec's controller" in page  # policies were replayed on what the draft proposed
    kept.write_text("".join(kept.read_text().splitlines(keepends=True)[:3]))  # as if killed before the third
    again = edgespec(*words)
    assert again.code == 0
    assert "3 of 3" in again.err
    assert "1 of 3" not in again.err
    for said in ("against plain decoding", "GB/s", "peak memory", "100% of the answers are token for token"):
        assert said in again.out


def test_results_of_other_options_or_another_machine_are_not_resumed(
    edgespec: Edgespec, pair: list[object], suite: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "kept.jsonl"
    words = ("bench", *pair, "--suite", suite, "--resume", kept, *USUAL)
    assert edgespec(*words).code == 0
    for option, value, told in (
        ("--temperature", 0.7, "temperature 0.0, not 0.7"),
        ("--threads", 2, "threads 1, not 2"),
        ("--kv-type", "f32", "kv_type None, not 'f32'"),
    ):
        ended = edgespec(*words, option, value)
        assert ended.code == 2
        assert f"were made with {told}" in ended.err
    head, *rest = kept.read_text().splitlines(keepends=True)
    found = json.loads(head)
    found["settings"]["machine"] = "another"  # as in a home that two machines share
    kept.write_text(json.dumps(found) + "\n" + "".join(rest))
    assert "were made with machine 'another'" in edgespec(*words).err


def test_several_drafts_are_compared_with_the_same_plain_runs(
    edgespec: Edgespec, model_files: Path, suite: Path, tmp_path: Path
) -> None:
    drafts = [word for name in ("hopeless", "draft") for word in ("--draft", model_files / f"{name}.gguf")]
    kept = ("--resume", tmp_path / "kept.jsonl")
    words = ("bench", model_files / "target.gguf", *drafts, "--suite", suite, *USUAL, *kept)
    bad, good = edgespec(*words, "--depth", 4, "--json").json["drafts"]
    assert (bad["draft"], good["draft"]) == ("hopeless", "draft")
    assert good["same_tokens"] == bad["same_tokens"] == 1.0
    assert good["acceptance"] > bad["acceptance"]  # though the target it was loaded with is closed
    for one, other in zip(good["results"], bad["results"], strict=True):
        assert one["repeats"]["plain"] == other["repeats"]["plain"]
        assert one["repeats"]["speculative"] != other["repeats"]["speculative"]
    again = edgespec(*words, "--depth", 4)
    assert "1 of 3" not in again.err  # all were finished
    assert again.out.count("peak memory") == 2
    assert "draft: hopeless" in again.out
    ended = edgespec(*words, "--depth", 4, "--html", tmp_path / "page.html")
    assert (ended.code, "a page shows one draft" in ended.err) == (2, True)


def test_a_model_that_was_replaced_is_not_mixed_in(
    edgespec: Edgespec, model_files: Path, suite: Path, tmp_path: Path
) -> None:
    draft = tmp_path / "draft.gguf"
    words = ("bench", model_files / "target.gguf", "--draft", draft, "--suite", suite, *USUAL)
    for name in ("draft", "hopeless"):
        shutil.copy(model_files / f"{name}.gguf", draft)
        ended = edgespec(*words, "--resume", tmp_path / "kept.jsonl")
    assert ended.code == 2
    assert "were made with models" in ended.err


def test_nor_is_an_adapter_that_was_replaced(
    edgespec: Edgespec, model_files: Path, suite: Path, tmp_path: Path
) -> None:
    words = ("bench", model_files / "target.gguf", "--draft", "ngram", "--lora", tmp_path / "lora.gguf")
    for seed in (0, 1):
        write_lora(tmp_path / "lora.gguf", seed=seed)
        ended = edgespec(*words, "--suite", suite, *USUAL, "--resume", tmp_path / "kept.jsonl")
    assert ended.code == 2
    assert "were made with models" in ended.err


def test_random_answers_are_not_compared_token_by_token(
    edgespec: Edgespec, pair: list[object], suite: Path
) -> None:
    ended = edgespec("bench", *pair, "--suite", suite, *USUAL, "--temperature", 0.7, "--json")
    assert ended.json["same_tokens"] is None


def test_llama_cpp_is_its_own_reference_and_not_run_twice(
    edgespec: Edgespec, pair: list[object], suite: Path
) -> None:
    ended = edgespec("bench", *pair, "--suite", suite, *USUAL, "--reference", "--json")
    assert "plain decoding is the reference already" in ended.err
    found = ended.json
    assert found["reference"] == "plain decoding"
    assert found["reference_geomean_speedup"] == found["geomean_speedup"]
    assert set(found["results"][0]["repeats"]) == {"plain", "speculative"}


def test_onnx_runtime_is_compared_with_plain_llama_cpp_on_the_gguf_file(
    edgespec: Edgespec, converted: Path, suite: Path
) -> None:
    words = ("bench", converted / "target.gguf", "--draft", converted / "draft.gguf", "--backend", "onnx")
    found = edgespec(*words, "--suite", suite, *USUAL, "--reference", "--json").json
    assert found["reference"] == "target.gguf"
    for category in (found, *found["categories"].values()):
        assert category["reference_geomean_speedup"] > 0
        assert category["reference_worst_speedup"] > 0
    assert set(found["results"][0]["repeats"]) == {"plain", "speculative", "reference"}
    assert found["results"][0]["reference_first_token_seconds"] > 0
    table = edgespec(*words, "--suite", suite, *USUAL, "--reference").out
    assert "against the reference, plain llama.cpp" in table


def test_what_cannot_be_written_in_the_end_is_refused_at_the_beginning(
    edgespec: Edgespec, pair: list[object], suite: Path, tmp_path: Path
) -> None:
    for option in ("--html", "--resume"):
        ended = edgespec("bench", *pair, "--suite", suite, option, tmp_path / "none" / "file")
        assert ended.code == 2
        assert "cannot be written" in ended.err
    ended = edgespec("bench", *pair, "--suite", suite, "--traces", suite)
    assert ended.code == 2
    assert "add --html" in ended.err


def test_a_page_that_cannot_be_written_after_all_loses_no_results(
    edgespec: Edgespec, pair: list[object], suite: Path
) -> None:
    ended = edgespec("bench", *pair, "--suite", suite, *USUAL, "--json", "--html", "/dev/full")
    assert (ended.code, ended.err.endswith("No space left on device\n")) == (1, True)
    assert len(ended.json["results"]) == 3


def test_a_suite_that_is_not_there_is_refused_before_anything_is_loaded(
    edgespec: Edgespec, tmp_path: Path
) -> None:
    ended = edgespec("bench", tmp_path / "no.gguf", "--suite", tmp_path / "none.jsonl")
    assert ended.code == 2
    assert "there is no file" in ended.err


def test_a_suite_may_be_no_regular_file(edgespec: Edgespec, tmp_path: Path) -> None:
    ended = edgespec("bench", tmp_path / "no.gguf", "--suite", "/dev/null")
    assert ended.code == 2
    assert "null has no prompts" in ended.err


def test_a_prompt_that_does_not_fit_is_named_before_any_is_measured(
    edgespec: Edgespec, pair: list[object], tmp_path: Path
) -> None:
    suite = tmp_path / "suite.jsonl"
    prompts = {"short": "yes", "long": "stay " * 200}
    suite.write_text("".join(json.dumps({"id": id, "prompt": text}) + "\n" for id, text in prompts.items()))
    ended = edgespec("bench", *pair, "--suite", suite, "--ctx", 96, *USUAL)
    assert ended.code == 1
    assert "the prompt long does not fit into the context of 96 tokens" in ended.err
    assert "1 of 2" not in ended.err
