"""Caches that llama.cpp saved: what goes on from them, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from pair import load

from edgespec.backends.base import Segment
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.errors import BackendError

from .hand_made import write_lora
from .texts import TOLERANCE, log_p, table, text


def test_a_saved_cache_goes_on_where_it_was(own: LlamaCpp, tmp_path: Path) -> None:
    tokens = text(30, 11)
    first, second = own.open(), own.open()
    own.forward([Segment(first, tokens, rows=0)])
    own.save(first, tmp_path / "cache")
    own.forward([Segment(second, text(9, 12), rows=0)])
    own.restore(second, tmp_path / "cache")
    assert second.tokens == tokens
    found = own.forward([Segment(second, [3, 4], rows=2)])
    assert np.abs(log_p(found) - table([*tokens, 3, 4], 2)).max() < TOLERANCE
    assert [f.name for f in tmp_path.iterdir()] == ["cache"]


def save_cache(backend: LlamaCpp, length: int, file: Path) -> None:
    """Of a text of that length; the backend is closed."""
    cache = backend.open()
    backend.forward([Segment(cache, text(length, 0), rows=0)])
    backend.save(cache, file)
    backend.close()


def assert_refused_and_usable(backend: LlamaCpp, file: Path, message: str) -> None:
    cache = backend.open()
    backend.forward([Segment(cache, text(9, 13), rows=0)])
    with pytest.raises(BackendError, match=message):
        backend.restore(cache, file)
    tokens = text(12, 14)
    backend.rollback(cache, 0)
    found = backend.forward([Segment(cache, tokens, rows=3)])
    assert np.abs(log_p(found) - table(tokens, 3)).max() < TOLERANCE
    backend.close(cache)


def test_a_cache_of_another_model_is_refused(own: LlamaCpp, model_files: Path, tmp_path: Path) -> None:
    save_cache(load(model_files / "draft.gguf"), 9, tmp_path / "cache")
    assert_refused_and_usable(
        own, tmp_path / "cache", r"saved with another model or adapter than target\.gguf"
    )


def test_a_cache_made_under_an_adapter_is_refused_without_it(
    own: LlamaCpp, model_files: Path, tmp_path: Path
) -> None:
    adapted = load(model_files / "target.gguf", lora=(write_lora(tmp_path / "lora.gguf"),))
    save_cache(adapted, 9, tmp_path / "cache")
    assert_refused_and_usable(own, tmp_path / "cache", "saved with another model")


def test_a_cache_with_other_settings_is_refused(own: LlamaCpp, model_files: Path, tmp_path: Path) -> None:
    save_cache(load(model_files / "target.gguf", kv_type="f32"), 9, tmp_path / "cache")
    assert_refused_and_usable(own, tmp_path / "cache", "saved with other settings or does not fit")


def test_a_cache_longer_than_the_context_is_refused(own: LlamaCpp, model_files: Path, tmp_path: Path) -> None:
    save_cache(load(model_files / "target.gguf", n_ctx=512), 400, tmp_path / "cache")
    assert_refused_and_usable(own, tmp_path / "cache", "saved with other settings or does not fit")


def test_damaged_caches_are_refused(own: LlamaCpp, tmp_path: Path) -> None:
    cache, file = own.open(), tmp_path / "cache"
    own.forward([Segment(cache, text(20, 15), rows=0)])
    own.save(cache, file)
    own.close(cache)
    whole = file.read_bytes()
    header, _, data = whole.partition(b"\n")
    flipped, other = bytearray(data), json.loads(header)
    flipped[len(flipped) // 2] ^= 1
    other["tokens"][3] = 1 + other["tokens"][3] % 5
    for damaged in (
        whole[: len(whole) // 2],
        whole[:-1],
        whole + b"x",
        header + b"\n",
        header[:10],
        b"",
        b"\x00\xff" * 500,
        b"{}\n",
        b"[]\n" + data,
        header + b"\n" + bytes(flipped),
        json.dumps(other).encode() + b"\n" + data,
    ):
        file.write_bytes(damaged)
        assert_refused_and_usable(own, file, r"is damaged|is not a saved cache")


def test_a_cache_that_is_not_there_is_told(own: LlamaCpp, tmp_path: Path) -> None:
    assert_refused_and_usable(own, tmp_path / "none", "none cannot be read: No such file")
