"""What boards say of their supply and heat, in the words they use, and what --power does."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import edgespec
from edgespec.device import power
from edgespec.device.power import (
    Power,
    parse_nvpmodel,
    parse_tegrastats,
    parse_throttled,
    read_power,
    threads_for,
)

# In the form the programs print; not recorded on boards of ours.
ORIN = (
    "05-11-2023 10:12:13 RAM 2517/7620MB (lfb 4x4MB) CPU [3%@1510,0%@1510,off,off] GR3D_FREQ 0%@[305] "
    "CPU@45.9C tj@46.5C VDD_IN 5121mW/5080mW VDD_CPU_GPU_CV 532mW/520mW VDD_SOC 1532mW/1528mW"
)
NANO = "RAM 1903/3964MB (lfb 119x4MB) CPU [2%@102,1%@102] CPU@35.5C POM_5V_IN 1639/1639 POM_5V_GPU 40/40"


@pytest.mark.parametrize(
    ("said", "found"),
    [
        ("throttled=0x0", Power()),
        ("throttled=0x50005", Power(now=("under-voltage", "throttled"))),
        ("throttled=0x50000", Power(since_boot=("under-voltage", "throttled"))),
        ("0xe0008", Power(("at the soft temperature limit",), ("frequency capped", "throttled"))),
        ("VCHI initialization failed", Power()),
        ("", Power()),
    ],
)
def test_a_raspberry_pi_says_what_slows_it_down_now_and_did_before(said: str, found: Power) -> None:
    assert parse_throttled(said) == found


@pytest.fixture
def word(tmp_path: Path) -> Path:
    """The file that the system has for it on a Raspberry Pi before the 5."""
    file = tmp_path / "devices/platform/soc/soc:firmware/get_throttled"
    file.parent.mkdir(parents=True)
    return file


def test_the_systems_own_word_is_of_now_alone(word: Path, tmp_path: Path) -> None:
    word.write_text("40001\n")
    assert read_power(tmp_path) == Power(now=("under-voltage",))


def test_the_firmware_knows_what_was_since_it_booted(
    word: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    word.write_text("0\n")
    program = tmp_path / "bin/vcgencmd"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho throttled=0x50000\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}{os.pathsep}{os.environ['PATH']}")
    assert read_power(tmp_path) == Power(since_boot=("under-voltage", "throttled"))


def test_a_jetson_names_its_mode_and_its_power() -> None:
    assert parse_nvpmodel("NV Fan Mode:quiet\nNV Power Mode: 15W\n0\n") == "15W"
    assert parse_nvpmodel("command not found") is None
    assert parse_tegrastats(ORIN) == 5.121
    assert parse_tegrastats(NANO) == 1.639
    assert parse_tegrastats("RAM 1/2MB") is None


def test_the_modes_take_all_half_and_one_of_the_big_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(power, "compute_threads", lambda: 4)
    assert [threads_for(mode) for mode in power.MODES] == [4, 2, 1]


def test_saving_leaves_the_draft_model_out(model_files: Path) -> None:
    with edgespec.load(model_files / "target.gguf", power="saver") as runtime:
        assert runtime.target.threads == 1
        assert [drafter.name for drafter in runtime.drafters] == ["ngram"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"power": "saver", "threads": 2}, "threads"),
        ({"power": "saver", "draft": "draft.gguf"}, "draft model"),
        ({"power": "turbo"}, "performance, balanced, saver"),
    ],
)
def test_what_contradicts_a_power_mode_is_refused(
    model_files: Path, options: dict[str, object], message: str
) -> None:
    if "draft" in options:
        options = {**options, "draft": model_files / "draft.gguf"}
    with pytest.raises(edgespec.UsageError, match=message):
        edgespec.load(model_files / "target.gguf", **options)  # type: ignore[arg-type]
