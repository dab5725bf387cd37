"""A machine of its own for every test: store, caches, home folder; a Hub that is local."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from fake_hub import FakeHub
from gguf import GGUFWriter
from huggingface_hub import constants
from recorder import Recorder

from edgespec.hub import catalog

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def progress() -> Recorder:
    return Recorder()


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's home folder, empty; nothing of the real one is seen."""
    home = tmp_path / "home"
    home.mkdir()
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "EDGESPEC_OFFLINE", "OLLAMA_MODELS", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "edgespec"))
    monkeypatch.setenv("HF_HOME", str(home / "hf"))  # for child processes
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")  # nobody listens there
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(home / "hf" / "hub"))
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(home / "hf" / "token"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    return home


@pytest.fixture
def store_root(tmp_path: Path) -> Path:
    return tmp_path / "edgespec" / "models"


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    server = FakeHub()
    server.start()
    monkeypatch.setenv("HF_ENDPOINT", server.url)
    yield server
    server.stop()


@pytest.fixture
def use_catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """Replace the catalog for this test."""

    def use(text: str) -> None:
        path = tmp_path / "catalog.toml"
        path.write_text(text)
        monkeypatch.setattr(catalog, "catalog_path", lambda: path)
        catalog.load_catalog.cache_clear()

    yield use
    catalog.load_catalog.cache_clear()


@pytest.fixture
def start_cli() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `edgespec pull …` as a process of its own."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", "from edgespec.cli.pull import pull; pull()", *arguments],
            cwd=REPOSITORY,
            env={**os.environ, "COLUMNS": "200"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def write_gguf(tmp_path: Path) -> Callable[..., Path]:
    """Write a small real GGUF model."""

    def write(path: Path | str = "model.gguf", *, tied: bool = False, experts: int = 0, **keys: int) -> Path:
        path = tmp_path / path
        path.parent.mkdir(parents=True, exist_ok=True)
        writer = GGUFWriter(path, "llama")
        writer.add_name("Tiny")
        writer.add_license("mit")
        writer.add_context_length(64)
        writer.add_embedding_length(32)
        writer.add_block_count(2)
        writer.add_head_count(4)
        writer.add_head_count_kv(2)
        for key, value in keys.items():
            writer.add_uint32(f"llama.{key}", value)
        if experts:
            writer.add_expert_count(experts)
            writer.add_expert_used_count(1)
            writer.add_tensor("blk.0.ffn_up_exps.weight", np.ones((experts, 8, 32), np.float32))
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("default")
        writer.add_token_list(["<s>", "</s>", "ü", *(f"t{i}" for i in range(5))])
        writer.add_token_types([3, 3] + [1] * 6)
        writer.add_bos_token_id(0)
        writer.add_eos_token_id(1)
        writer.add_chat_template("{{ messages }}\nsecond line")
        writer.add_tensor("token_embd.weight", np.ones((8, 32), np.float16))
        writer.add_tensor("blk.0.attn_q.weight", np.ones((32, 32), np.float32))
        if not tied:
            writer.add_tensor("output.weight", np.ones((8, 32), np.float16))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    return write
