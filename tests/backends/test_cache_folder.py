"""Caches that are saved when models are closed: what the next ones go on from, and what is never read."""

from __future__ import annotations

import logging
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends.cache_folder import Folder
from edgespec.errors import BackendError, UsageError

STORY = "stay " * 150
BACKENDS = ["llama.cpp", "onnx"]


@pytest.fixture(params=BACKENDS)
def options(request: pytest.FixtureRequest, converted: Path, tmp_path: Path) -> dict[str, Any]:
    """How to load the closed-form pair with a folder for its caches."""
    return {
        "pair": converted / "target.gguf",
        "draft": converted / "draft.gguf",
        "backend": request.param,
        "depth": 3,
        "n_ctx": 1024,
        "threads": 1,
        "cache_memory": 64 << 20,
        "cache_dir": tmp_path / "caches",
    }


def said(runtime: edgespec.Runtime, text: str) -> edgespec.Generation:
    return runtime.generate(text, max_tokens=12)


def files(options: dict[str, Any]) -> list[Path]:
    return sorted(file for file in options["cache_dir"].rglob("*") if file.is_file())


def test_the_next_turn_goes_on_behind_a_restart(options: dict[str, Any]) -> None:
    with edgespec.load(**options) as runtime:
        first = said(runtime, STORY)
        said(runtime, "tim " * 100)  # the only sequence is used for something else
        plain = runtime.generate_plain(STORY + first.text + " mi", max_tokens=12)
    with edgespec.load(**options) as runtime:
        fed, draft = [], runtime.drafters[0].backend  # type: ignore[attr-defined]
        forward = draft.forward
        draft.forward = lambda s: (fed.append(sum(len(one.tokens) for one in s)), forward(s))[1]
        second = said(runtime, STORY + first.text + " mi")
        del draft.forward
    assert second.tokens == plain.tokens
    assert second.stats.prompt_tokens - second.stats.cached_tokens < 0.15 * first.stats.prompt_tokens
    assert sum(fed) < 0.15 * first.stats.prompt_tokens + 4 * second.stats.rounds
    assert first.stats.prompt_tokens > 400


def test_only_this_user_can_read_them(options: dict[str, Any]) -> None:
    with edgespec.load(**options) as runtime:
        said(runtime, STORY)
    assert files(options)
    for folder in {parent for file in files(options) for parent in file.parents[:2]}:
        assert folder.stat().st_mode & 0o077 == 0
    options["cache_dir"].chmod(0o755)
    with pytest.raises(UsageError, match="others can read"):
        edgespec.load(**options)


def test_what_is_damaged_is_forgotten_and_computed_anew(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with edgespec.load(**options) as runtime:
        first = said(runtime, STORY)
    damaged = files(options)
    for file in damaged:
        content = bytearray(file.read_bytes())
        content[-100] ^= 1
        file.write_bytes(content)
    (damaged[0].parent / "mine.cache").write_bytes(b"no cache")
    (damaged[0].parent / "yours.cache").write_bytes(b'{"tokens": {}}\n')
    empty = damaged[0].with_stem("0" * 32)
    empty.touch()
    with caplog.at_level(logging.WARNING), edgespec.load(**options) as runtime:
        again = said(runtime, STORY)
        assert again.tokens == first.tokens
        assert again.stats.cached_tokens == 0
    assert all(f"{name}.cache is no saved cache" in caplog.text for name in ("mine", "yours"))
    assert f"{empty} is no saved cache" in caplog.text
    assert not empty.exists()
    assert (empty.parent / "mine.cache").exists()  # what a user keeps there stays
    assert caplog.text.count("it is damaged") == 2  # the target's, and the draft's
    with edgespec.load(**options) as runtime:
        assert said(runtime, STORY).stats.cached_tokens > 0  # what was computed anew was saved


def test_another_model_or_type_of_cache_does_not_read_them(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    with edgespec.load(**options) as runtime:
        said(runtime, STORY)
    other = "f16" if options["backend"] == "onnx" else "f32"
    folder = options["pair"].parent
    with caplog.at_level(logging.WARNING):
        for change in (
            {"kv_type": other},
            {"pair": folder / "hopeless.gguf", "draft": "none", "depth": "auto"},
        ):
            with edgespec.load(**options | change) as runtime:
                assert said(runtime, STORY).stats.cached_tokens == 0
    assert not caplog.text


def test_a_model_file_that_was_written_anew_does_not_read_them(model_files: Path, tmp_path: Path) -> None:
    """What changed may lie where nobody looks."""
    model = Path(shutil.copy(model_files / "target.gguf", tmp_path))
    options: dict[str, Any] = {"draft": "none", "threads": 1, "cache_dir": tmp_path / "caches"}
    for time, cached in ((1, False), (1, True), (2, False)):
        os.utime(model, (time, time))
        with edgespec.load(model, **options) as runtime:
            assert (said(runtime, STORY).stats.cached_tokens > 0) == cached


def test_the_oldest_go_when_the_folder_is_full(options: dict[str, Any]) -> None:
    with edgespec.load(**options) as runtime:
        said(runtime, STORY)
    size = sum(file.stat().st_size for file in files(options))
    with edgespec.load(**options | {"cache_disk": size}) as runtime:
        said(runtime, "tim " * 100)
    assert 0 < sum(file.stat().st_size for file in files(options)) <= size
    with edgespec.load(**options) as runtime:
        assert said(runtime, STORY).stats.cached_tokens == 0
    with edgespec.load(**options | {"cache_disk": 0}) as runtime:
        said(runtime, STORY)
    assert files(options) == []


def test_the_conversation_that_was_used_last_is_the_last_to_go(options: dict[str, Any]) -> None:
    lone = options | {"draft": "none", "depth": "auto"}

    def talk(**more: Any) -> None:
        with edgespec.load(**lone | more) as runtime:
            said(runtime, STORY)
            said(runtime, "tim " * 100)  # in the only sequence, of which the other is a copy by now

    talk()
    sizes = [file.stat().st_size for file in files(options)]
    for file in files(options):
        file.unlink()
    talk(cache_disk=sum(sizes) - 1)
    assert [file.stat().st_size for file in files(options)] == [min(sizes)]
    with edgespec.load(**lone) as runtime:
        assert said(runtime, "tim " * 100).stats.cached_tokens > 0


def test_what_is_larger_than_all_may_be_leaves_the_others(
    options: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    lone = options | {"draft": "none", "depth": "auto"}
    with edgespec.load(**lone) as runtime:
        said(runtime, "tim " * 100)
    [small] = files(options)
    with edgespec.load(**lone | {"cache_disk": small.stat().st_size}) as runtime:
        said(runtime, STORY)
    assert files(options) == [small]
    assert "was not saved" in caplog.text


def test_what_another_process_removed_is_saved_again(options: dict[str, Any]) -> None:
    for _ in range(2):
        with edgespec.load(**options) as runtime:
            said(runtime, STORY)
            for file in files(options):
                file.unlink()
        assert len(files(options)) == 2  # the target's, and the draft's


def test_what_a_process_that_was_killed_had_begun_to_save_is_removed(tmp_path: Path) -> None:
    (shelf := tmp_path / ("a" * 24)).mkdir()
    tmp_path.chmod(0o700)
    saved, begun = shelf / ("b" * 32 + ".cache"), shelf / "123.new.partial"
    for file in (saved, begun):
        file.write_bytes(b"1234")
    Folder(tmp_path, 100, "")
    assert begun.exists()  # somebody may be at it
    for file in (saved, begun):
        os.utime(file, (0, 0))
    Folder(tmp_path, 100, "")
    assert saved.exists() and not begun.exists()


def test_only_files_of_its_own_are_counted_and_removed(tmp_path: Path) -> None:
    (shelf := tmp_path / ("a" * 24)).mkdir()
    tmp_path.chmod(0o700)
    own = [shelf / ("b" * 32 + ".cache"), shelf / "123.new", shelf / "123.new.partial"]
    foreign = [shelf / "mine.cache", tmp_path / "notes.cache", tmp_path / "else" / "mine.cache"]
    foreign[2].parent.mkdir()
    for file in own + foreign:
        file.write_bytes(b"1234")
    Folder(tmp_path, 12, "")
    assert all(file.exists() for file in own + foreign)
    Folder(tmp_path, 0, "")
    assert not any(file.exists() for file in own) and all(file.exists() for file in foreign)


def test_what_is_damaged_and_cannot_be_removed_does_not_stop_an_answer(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with edgespec.load(**options) as runtime:
        first = said(runtime, STORY)
    for file in files(options):
        file.write_bytes(file.read_bytes()[:-1])

    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    with edgespec.load(**options) as runtime:
        monkeypatch.setattr(Path, "unlink", refuse)
        assert said(runtime, STORY).tokens == first.tokens
    assert "cannot be removed" in caplog.text


def test_a_folder_that_cannot_be_had_is_refused(model_files: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="caches cannot be kept in"):
        edgespec.load(model_files / "target.gguf", draft="none", cache_dir=tmp_path / "file" / "caches")


def test_what_cannot_be_written_is_logged_and_leaves_nothing(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with edgespec.load(**options) as runtime:
        said(runtime, STORY)
        monkeypatch.setattr(Path, "replace", full)
    assert "No space left on device" in caplog.text
    assert files(options) == []


def test_what_can_be_neither_written_nor_removed_leaves_the_models_to_be_freed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(30, "Read-only file system")

    runtime = edgespec.load(**options)
    said(runtime, STORY)
    monkeypatch.setattr(Path, "replace", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)
    runtime.close()
    with pytest.raises(BackendError, match="is closed"):
        runtime.target.open()


def test_a_folder_that_cannot_be_reached_any_more_leaves_the_models_to_be_freed(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Such as on a drive of another machine, where every look ends like this."""

    def lost(*_: object, **__: object) -> None:
        raise OSError(107, "Transport endpoint is not connected")

    with edgespec.load(**options) as runtime:
        said(runtime, STORY)
    runtime = edgespec.load(**options)
    said(runtime, "tim " * 100)
    for look in ("exists", "glob", "mkdir"):
        monkeypatch.setattr(Path, look, lost)
    runtime.close()
    assert "was not saved" in caplog.text
    with pytest.raises(BackendError, match="is closed"):
        runtime.target.open()
