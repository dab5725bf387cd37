"""Energy, in the forms that systems have for it; no file here was recorded on a board."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from edgespec.decoding.rounds import Stats
from edgespec.device import energy
from edgespec.device.energy import Counters, Sensor, describe, find_meter, parse_pmic

Put = Callable[[str, object], Path]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a file of the system."""

    def write(name: str, text: object) -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")
        return file

    return write


@pytest.fixture
def rapl(put: Put) -> Put:
    """A package of 1 J with its cores and memory, and the platform, as in the kernel's documentation
    (Documentation/power/powercap/powercap.rst)."""
    zones = {"": "package-0", ":0": "core", ":1": "dram"}
    for number, name in zones.items():
        zone = f"class/powercap/intel-rapl:0{number}"
        put(f"{zone}/name", name)
        put(f"{zone}/energy_uj", 1_000_000)
        put(f"{zone}/max_energy_range_uj", 262_143_328_850)
    put("class/powercap/intel-rapl:1/name", "psys")
    put("class/powercap/intel-rapl:1/energy_uj", 9_000_000)
    put("class/powercap/intel-rapl-mmio:0/name", "package-0")
    put("class/powercap/intel-rapl-mmio:0/energy_uj", 1_000_000)
    return put


def test_a_system_that_says_nothing_has_no_meter(tmp_path: Path) -> None:
    assert find_meter(tmp_path) is None
    assert describe(tmp_path) is None


def test_package_and_memory_are_counted_once(tmp_path: Path, rapl: Put) -> None:
    found = find_meter(tmp_path)
    assert found is not None
    stop = found.start()
    rapl("class/powercap/intel-rapl:0/energy_uj", 3_500_000)
    rapl("class/powercap/intel-rapl:0:0/energy_uj", 2_000_000)  # cores, which the package has in it
    rapl("class/powercap/intel-rapl:0:1/energy_uj", 1_250_000)
    rapl("class/powercap/intel-rapl:1/energy_uj", 19_000_000)
    rapl("class/powercap/intel-rapl-mmio:0/energy_uj", 3_500_000)  # the same counter, by another way
    assert stop() == pytest.approx(2.75)


def test_a_counter_begins_again_at_its_end(tmp_path: Path, rapl: Put) -> None:
    package = rapl("class/powercap/intel-rapl:0/energy_uj", 262_143_000_000).parent
    stop = Counters([package]).start()
    rapl("class/powercap/intel-rapl:0/energy_uj", 671_150)
    assert stop() == pytest.approx(1.0)


def test_a_counter_that_began_again_nobody_knows_where_says_nothing(rapl: Put) -> None:
    package = rapl("class/powercap/intel-rapl:0/energy_uj", 262_143_000_000).parent
    (package / "max_energy_range_uj").unlink()
    stop = Counters([package]).start()
    rapl("class/powercap/intel-rapl:0/energy_uj", 671_150)
    assert stop() is None


def test_counters_that_may_not_be_read_are_said_to_be_and_not_used(tmp_path: Path, rapl: Put) -> None:
    file = rapl("class/powercap/intel-rapl:0/energy_uj", 0)
    file.unlink()
    file.mkdir()  # as a test may run as root, whom no permission stops
    assert find_meter(tmp_path) is None
    assert "only root may read" in (describe(tmp_path) or "")


def test_counters_that_vanish_meanwhile_say_nothing(tmp_path: Path, rapl: Put) -> None:
    found = find_meter(tmp_path)
    assert found is not None
    stop = found.start()
    (tmp_path / "class/powercap/intel-rapl:0/energy_uj").unlink()
    assert stop() is None


def test_a_jetsons_input_is_volts_times_amperes(tmp_path: Path, put: Put) -> None:
    """Files of the kernel's ina3221 (Documentation/hwmon/ina3221.rst): millivolts and milliamperes; the rails
    have the names of NVIDIA's Jetson Linux Developer Guide ("Power Monitor")."""
    sensor = "bus/i2c/drivers/ina3221/1-0040/hwmon/hwmon3"
    for n, (name, volts, amperes) in enumerate([("VDD_CPU_GPU_CV", 19_600, 40), ("VDD_IN", 19_632, 256)], 1):
        put(f"{sensor}/in{n}_label", name)
        put(f"{sensor}/in{n}_input", volts)
        put(f"{sensor}/curr{n}_input", amperes)
    found = find_meter(tmp_path)
    assert isinstance(found, Sensor)
    assert found.watts() == pytest.approx(5.025792)
    assert found.source == "VDD_IN, the board's input"


def test_a_raspberry_pis_rails_are_added_up() -> None:
    """`vcgencmd pmic_read_adc`, described at raspberrypi.com/documentation ("vcgencmd"), prints lines of this
    form; the numbers are made up."""
    text = (
        " 3V7_WL_SW_A current(0)=0.10000000A\n   3V3_SYS_A current(1)=0.50000000A\n"
        "VDD_CORE_A current(7)=2.00000000A\n 3V7_WL_SW_V volt(8)=3.70000000V\n"
        "   3V3_SYS_V volt(9)=3.30000000V\n  VDD_CORE_V volt(15)=0.75000000V\n"
        "     EXT5V_V volt(24)=5.15000000V\n      BATT_V volt(25)=0.00000000V\n"
    )
    assert parse_pmic(text) == pytest.approx(0.37 + 1.65 + 1.5)
    assert parse_pmic('error=1 error_msg="Command not registered"') is None
    assert parse_pmic("") is None


def test_power_is_sampled_for_as_long_as_it_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_SHORTEST", 0.01)
    readings = iter([4.0, 6.0])
    seen = []

    def watts() -> float | None:
        seen.append(next(readings, None))
        return seen[-1]

    began = time.perf_counter()
    stop = Sensor("a board", watts).start()
    while len(seen) < 3:
        time.sleep(0.01)
    joules = stop()
    assert joules is not None
    assert 0.0 < joules <= 5.0 * (time.perf_counter() - began)


def test_a_span_without_a_reading_says_nothing() -> None:
    assert Sensor("a board", lambda: 5.0).start()() is None


def test_pauses_are_a_thousand_times_as_long_as_readings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(energy, "_SHORTEST", 0.001)
    seen = []

    def slow() -> float:
        seen.append(5.0)
        time.sleep(0.05)
        return 5.0

    stop = Sensor("a board", slow).start()
    while not seen:
        time.sleep(0.01)
    time.sleep(0.3)
    stop()
    assert len(seen) == 1


def test_a_report_has_tokens_per_joule_where_energy_was_measured() -> None:
    stats = Stats(decode_tokens=30, decode_seconds=1.0, joules=12.0)
    assert "2.5 tokens per joule" in stats.line()
    assert stats.as_dict()["tokens_per_joule"] == 2.5
    assert "joule" not in Stats(decode_tokens=30, decode_seconds=1.0).line()
