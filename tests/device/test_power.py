"""What boards say of their supply and heat, in the words they use, and what --power does."""

from __future__ import annotations

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


def test_the_word_is_read_from_the_system_where_it_is_a_file(tmp_path: Path) -> None:
    file = tmp_path / "devices/platform/soc/soc:firmware/get_throttled"
    file.parent.mkdir(parents=True)
    file.write_text("0x1\n")
    assert read_power(tmp_path).now == ("under-voltage",)


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
