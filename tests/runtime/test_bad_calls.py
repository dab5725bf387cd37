"""What the Python API refuses, in words, instead of ignoring it or failing in some depth."""

from __future__ import annotations

import copy
import os
import pickle
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE

import edgespec
from edgespec.backends import llama_library
from edgespec.options import request_of


@pytest.fixture(scope="module")
def runtime(model_files: Path) -> Iterator[edgespec.Runtime]:
    with edgespec.load(model_files / "target.gguf", n_ctx=256) as loaded:
        yield loaded


async def told(token: edgespec.Token) -> None:
    """A callback that nobody would await."""


@pytest.mark.parametrize(
    "options",
    [
        {"max_tokens": 1.5},
        {"max_tokens": float("nan")},
        {"seed": 1.5},
        {"logprobs": "x"},
        {"temperature": "x"},
        {"temperature": np.bool_(True)},
        {"temperature": None},
        {"top_k": 1.5},
        {"penalty_window": "x"},
        {"logit_bias": 5},
        {"logit_bias": {1: "x"}},
        {"logit_bias": {float("nan"): 1}},
        {"stop": [5]},
        {"stop": 5},
        {"on_token": None},
        {"on_token": told},
        {"temprature": 1},
    ],
)
def test_an_option_of_the_wrong_kind_is_refused(runtime: edgespec.Runtime, options: dict[str, Any]) -> None:
    with pytest.raises(edgespec.UsageError, match=next(iter(options))):
        runtime.generate("stay", **options)


@pytest.mark.parametrize(
    "prompt",
    [
        5,
        None,
        b"stay",
        bytearray(b"stay"),
        memoryview(b"stay"),
        [],
        [1.5],
        [True],
        ["a"],
        {"role": "user"},
        [-1],
        [{}, 5],
    ],
)
def test_a_prompt_of_the_wrong_kind_is_refused(runtime: edgespec.Runtime, prompt: Any) -> None:
    with pytest.raises(edgespec.UsageError):
        runtime.generate(prompt)


@pytest.mark.parametrize(
    "options",
    [
        {"depth": "3"},
        {"depth": 1.5},
        {"n_ctx": "x"},
        {"n_ctx": True},
        {"threads": 1.5},
        {"threads": 100000},
        {"provider": "cuda"},
        {"draft": "ngram", "draft_backend": "onnx"},
        {"chat_template": "template.jinja"},
        {"chat_template": Path("template.jinja")},
        {"lora": 3},
        {"lora": None},
        {"lora": b"adapter.gguf"},
        {"lora": [3]},
        {"strict": "no"},
        {"mmap": None},
        {"kv_type": ["f16"]},
        {"backend": ["onnx"]},
        {"power": ["saver"]},
        {"cache_dir": False},
        {"cache_disk": 1 << 20},
    ],
)
def test_a_setting_that_cannot_be_honoured_is_refused(model_files: Path, options: dict[str, Any]) -> None:
    with pytest.raises(edgespec.UsageError):
        edgespec.load(model_files / "target.gguf", **options)


@pytest.mark.parametrize("given", ["missing.gguf", Path("missing.gguf"), ["missing.gguf"]])
def test_an_adapter_alone_or_in_a_list_is_looked_for_before_anything_is_loaded(
    model_files: Path, tmp_path: Path, given: Any
) -> None:
    with pytest.raises(edgespec.ModelError, match=r"the LoRA adapter missing\.gguf cannot be read"):
        edgespec.load(model_files / "target.gguf", lora=given, cache_dir=tmp_path / "caches")
    assert not (tmp_path / "caches").exists()


def test_what_is_neither_tokens_nor_messages_is_told_as_both(runtime: edgespec.Runtime) -> None:
    prompt: Any = ["first prompt" * 1000, "second prompt"]
    with pytest.raises(edgespec.UsageError, match=r"^'first prompt.*no token id of.*no message") as refused:
        runtime.generate(prompt)
    assert len(str(refused.value)) < 300


def test_numbers_of_numpy_are_numbers(model_files: Path) -> None:
    plainly = {"max_tokens": 5, "seed": 3, "temperature": 0.5, "top_k": 7, "logit_bias": {4: -1.0}}
    swept = {
        "max_tokens": np.int64(5),
        "seed": np.uint32(3),
        "temperature": np.float32(0.5),
        "top_k": np.int16(7),
        "logit_bias": {np.int64(4): np.float32(-1.0)},
    }
    assert repr(request_of(swept)) == repr(request_of(plainly))
    options: dict[str, Any] = {"depth": np.int64(2), "n_ctx": np.int32(128), "threads": np.int8(1)}
    with edgespec.load(model_files / "target.gguf", draft="ngram", **options) as loaded:
        assert (repr(loaded.depth), loaded.target.n_ctx) == ("2", 128)


def test_an_adapter_that_cannot_be_looked_for_is_told(model_files: Path) -> None:
    with pytest.raises(edgespec.ModelError, match=r"the LoRA adapter x+…x+ cannot be read"):
        edgespec.load(model_files / "target.gguf", lora="x" * 300)


def test_a_tilde_in_the_name_of_the_caches_folder_is_the_home(
    model_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    edgespec.load(model_files / "target.gguf", draft="none", threads=1, cache_dir="~/caches").close()
    assert (tmp_path / "home" / "caches").is_dir()
    assert [folder.name for folder in tmp_path.iterdir()] == ["home"]


def test_a_depth_without_a_draft_is_refused(model_files: Path) -> None:
    with pytest.raises(edgespec.UsageError, match="--depth 4 has no place; leave --depth out"):
        edgespec.load(model_files / "target.gguf", draft="none", depth=4)


@pytest.mark.parametrize("options", [{}, {"depth": "auto"}, {"depth": 0}])
def test_no_draft_is_plain_decoding(model_files: Path, options: dict[str, Any]) -> None:
    with edgespec.load(model_files / "target.gguf", draft="none", **options) as loaded:
        assert loaded.drafter is None and loaded.depth == 0


def test_a_prompt_of_megabytes_is_refused_before_it_is_tokenized(runtime: edgespec.Runtime) -> None:
    with pytest.raises(edgespec.ContextFull, match="20000000 characters"):
        runtime.generate("a" * 20_000_000)
    with pytest.raises(edgespec.ContextFull, match="20000000 characters"):
        runtime.generate([{"role": "user", "content": "a" * 20_000_000}])


def test_a_bias_that_bans_every_token_is_named(runtime: edgespec.Runtime) -> None:
    ban = dict.fromkeys(range(runtime.target.tokenizer.n_vocab), float("-inf"))
    with pytest.raises(edgespec.UsageError, match="bans every token"):
        runtime.generate("stay", logit_bias=ban)


def test_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    with pytest.raises(edgespec.ModelError, match="not a regular file"):
        edgespec.load(tmp_path / "pipe.gguf")


def test_ctrl_c_while_llama_cpp_reports_something_is_not_lost(model_files: Path) -> None:
    llama_library.llama()
    llama_library._interrupts.append(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        edgespec.load(model_files / "target.gguf")
    edgespec.load(model_files / "target.gguf").close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_process_is_refused_the_runtime_it_inherited(model_files: Path) -> None:
    with edgespec.load(model_files / "target.gguf", draft="ngram", threads=1, n_ctx=256) as runtime:
        answer = runtime.stream("stay", max_tokens=9)
        next(answer)
        attempts: list[Callable[[], object]] = [
            answer.run,
            lambda: runtime.step([answer]),
            lambda: runtime.generate("stay"),
            lambda: runtime.astream("stay"),
            lambda: runtime.tokenize("stay"),
            lambda: runtime.chat().send("stay"),
            lambda: edgespec.load(model_files / "target.gguf"),  # would wait for threads that stayed behind
        ]
        child = os.fork()
        if child == 0:
            signal.alarm(int(PATIENCE))
            try:
                for attempt in attempts:
                    with pytest.raises(edgespec.UsageError, match="forked"):
                        attempt()
                runtime.close()  # frees nothing here
                os._exit(0 if runtime.target._context else 1)  # type: ignore[attr-defined]
            finally:
                os._exit(2)
        assert os.waitpid(child, 0)[1] == 0
        assert answer.run().tokens


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_runtime_is_not_copied_nor_sent_to_another_process(
    runtime: edgespec.Runtime, copied: Callable[[object], object]
) -> None:
    with pytest.raises(edgespec.UsageError, match="cannot be copied or pickled"):
        copied(runtime)


def test_drafters_of_another_target_are_refused(runtime: edgespec.Runtime, model_files: Path) -> None:
    with edgespec.load(model_files / "target.gguf", draft="ngram", n_ctx=256) as other:
        assert runtime.generate_as(other, "stay", max_tokens=3).tokens
    with (
        edgespec.load(model_files / "draft.gguf", draft="ngram", n_ctx=256) as other,
        pytest.raises(edgespec.UsageError, match="drafts for draft"),
    ):
        runtime.generate_as(other, "stay", max_tokens=3)
