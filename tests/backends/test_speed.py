"""What passes cost here is measured once per model, runtime and number of threads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.backends import speed
from edgespec.backends.base import Sequence
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.backends.loading import Settings
from edgespec.control.controller import Controller

from .hand_made import write_lora


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "edgespec"))
    return tmp_path / "edgespec"


def test_it_is_measured_once_and_remembered(
    target: LlamaCpp, model_files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(speed, "NOTICED", 0.0)
    file = model_files / "target.gguf"
    assert speed.known_seconds(file, "llama.cpp", 1) is None
    found = speed.pass_seconds(file, "llama.cpp", target, 1)
    assert set(found) == set(speed.SIZES)
    assert all(seconds > 0.0 for seconds in found.values())
    assert speed.pass_seconds(file, "llama.cpp", target, 1) == found
    assert speed.known_seconds(file, "llama.cpp", 1) == found
    assert caplog.messages == ["measuring what passes of target.gguf cost here, once"]
    assert speed.known_seconds(file, "llama.cpp", 2) is None
    assert speed.known_seconds(file, "onnx", 1) is None
    assert speed.known_seconds(file, "llama.cpp", 1, "kv=q8_0") is None
    assert speed.known_seconds(model_files / "draft.gguf", "llama.cpp", 1) is None


def test_what_is_measured_again_under_other_conditions_names_them(
    target: LlamaCpp, model_files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Word for word what was said before, it would seem not to have been measured once."""
    monkeypatch.setattr(speed, "NOTICED", 0.0)
    conditions = Settings(kv_type="q8_0", sequences=4).conditions
    speed.pass_seconds(model_files / "target.gguf", "llama.cpp", target, 1, conditions)
    [said] = caplog.messages
    assert said == "measuring what passes of target.gguf cost here, once (kv=q8_0, up to 4 answers at a time)"


def test_another_build_of_llama_cpp_is_measured_anew(
    target: LlamaCpp, model_files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for a GPU, say: --backend auto would go by the times of the one that was replaced for ever."""
    file = model_files / "target.gguf"
    speed.pass_seconds(file, "llama.cpp", target, 1)
    places = {speed.key(file, "llama.cpp", 1)}
    for name in ("for the CPU", "for a GPU"):
        (folder := tmp_path / name).mkdir()
        (folder / "libggml-cpu.so").touch()
        (folder / "of-others.so").write_text(name)
        monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(folder))
        if name == "for a GPU":
            (folder / "libggml-cuda.so").touch()
        assert speed.known_seconds(file, "llama.cpp", 1) is None
        places.add(speed.key(file, "llama.cpp", 1))
    assert len(places) == 3


def test_a_busy_moment_while_a_single_token_is_timed_does_not_make_drafts_look_cheap(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    times = {"1": 30.0, "2": 21.0, "3": 22.0, "4": 24.0, "5": 25.0, "8": 31.0}
    monkeypatch.setattr(speed, "measure", lambda *_: times)
    with edgespec.load(model_files / "target.gguf", draft="ngram", threads=1, n_ctx=128) as runtime:
        assert isinstance(runtime.policy, Controller)
        assert runtime.policy.target.seconds(1) == 0.021
        assert runtime.policy.target.seconds(8) == 0.031


def test_nothing_is_said_where_nobody_would_notice(
    target: LlamaCpp, model_files: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(speed, "NOTICED", float("inf"))
    speed.pass_seconds(model_files / "target.gguf", "llama.cpp", target, 1)
    assert caplog.messages == []


def test_what_was_measured_with_other_sizes_is_measured_again(
    target: LlamaCpp, model_files: Path, home: Path
) -> None:
    file = model_files / "target.gguf"
    speed.pass_seconds(file, "llama.cpp", target, 1)
    [kept] = home.rglob(speed.FILE)
    found = json.loads(kept.read_text("utf-8"))
    [times] = [by_runtime["llama.cpp"] for by_runtime in found.values()]
    del times["3"]
    kept.write_text(json.dumps(found), "utf-8")
    assert speed.known_seconds(file, "llama.cpp", 1) is None
    assert 3 in speed.pass_seconds(file, "llama.cpp", target, 1)


def test_a_context_without_room_to_measure_leaves_nothing_to_go_by(
    target: LlamaCpp, model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the model would be taken to cost nothing for ever."""
    file = model_files / "target.gguf"
    with monkeypatch.context() as patch:
        patch.setattr(target, "n_ctx", 8)
        assert set(speed.pass_seconds(file, "llama.cpp", target, 1).values()) == {0.0}
    assert speed.known_seconds(file, "llama.cpp", 1) is None
    assert speed.pass_seconds(file, "llama.cpp", target, 1)[1] > 0.0


@pytest.mark.parametrize("damage", ["x", None, -1.0, 0.0, float("inf"), float("nan")])
def test_damaged_times_are_measured_again(
    target: LlamaCpp, model_files: Path, home: Path, damage: object
) -> None:
    file = model_files / "target.gguf"
    speed.pass_seconds(file, "llama.cpp", target, 1)
    [kept] = home.rglob(speed.FILE)
    found = json.loads(kept.read_text("utf-8"))
    for by_runtime in found.values():
        by_runtime["llama.cpp"]["3"] = damage
    kept.write_text(json.dumps(found), "utf-8")
    assert speed.known_seconds(file, "llama.cpp", 1) is None
    assert speed.pass_seconds(file, "llama.cpp", target, 1)[3] > 0.0
    kept.write_text(json.dumps(dict.fromkeys(found, 3)), "utf-8")
    assert speed.pass_seconds(file, "llama.cpp", target, 1)[3] > 0.0


def test_whatever_changes_the_cost_of_passes_is_measured_apart(tmp_path: Path) -> None:
    adapters = [tmp_path / name for name in ("one.gguf", "other.gguf")]
    for adapter in adapters:
        adapter.write_text(adapter.name)
    options: list[dict[str, Any]] = [
        {},
        {"kv_type": "q8_0"},
        {"kv_type": "f32"},
        {"provider": "cuda"},
        {"gpu_layers": 0},
        {"low_memory": True},
        {"strict": True},
        {"sequences": 4},
        {"lora": (adapters[0],)},
        {"lora": (adapters[1],)},
        {"lora": tuple(adapters)},
    ]
    assert len({Settings(**chosen).conditions for chosen in options}) == len(options)
    assert Settings().conditions == Settings(n_ctx=512, mmap=False).conditions == ""


def test_what_is_learned_with_an_adapter_is_kept_apart_and_the_draft_is_not_measured_again(
    model_files: Path, tmp_path: Path, home: Path
) -> None:
    adapter = write_lora(tmp_path / "lora.gguf")
    options: dict[str, Any] = {"draft": model_files / "draft.gguf", "threads": 1, "n_ctx": 128}
    for lora in ((), (adapter,)):
        with edgespec.load(model_files / "target.gguf", lora=lora, **options) as runtime:
            runtime.generate("stay", max_tokens=4)
    [learned], [measured] = home.rglob("controller.json"), home.rglob(speed.FILE)
    assert len(json.loads(learned.read_text("utf-8"))) == 2
    assert len(json.loads(measured.read_text("utf-8"))) == 3  # the target twice, the draft once


class Slow:
    """A model whose passes take 0.3 s each of a clock that only they move, and one of them an hour."""

    n_ctx = 128

    def __init__(self, stopped: int) -> None:
        self.now = 0.0
        self._passes, self._stopped = 0, stopped

    def open(self) -> Sequence:
        return Sequence(0)

    def forward(self, segments: object) -> None:
        self._passes += 1
        self.now += 3600.0 if self._passes == self._stopped else 0.3

    def rollback(self, sequence: Sequence, length: int) -> None:
        pass

    def close(self, sequence: Sequence) -> None:
        pass


@pytest.mark.parametrize("stopped", [3, 10, 13])
def test_a_stop_while_a_slow_device_is_measured_is_not_kept_as_what_passes_cost(
    monkeypatch: pytest.MonkeyPatch, stopped: int
) -> None:
    """There is time for two sweeps over all sizes, behind the pass that fills the context."""
    model: Any = Slow(stopped)
    monkeypatch.setattr(speed, "perf_counter", lambda: model.now)
    assert speed.measure(model) == pytest.approx({str(n): 300.0 for n in speed.SIZES})
