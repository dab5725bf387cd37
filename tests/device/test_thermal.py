"""Heat, as far as a system exposes it."""

from __future__ import annotations

from pathlib import Path

from edgespec.device.thermal import Thermal, read_thermal


def put(root: Path, **files: str) -> None:
    for name, text in files.items():
        file = root / name.replace("__", "/")
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text + "\n")


def test_a_system_that_says_nothing(tmp_path: Path) -> None:
    assert read_thermal(tmp_path) == Thermal(None, None, None)


def test_the_hottest_zone_counts_and_impossible_readings_do_not(tmp_path: Path) -> None:
    for zone, temperature in enumerate(("45000", "71500", "-273000", "999999")):
        put(tmp_path, **{f"class__thermal__thermal_zone{zone}__temp": temperature})
    assert read_thermal(tmp_path).celsius == 71.5


def test_slow_downs_and_the_clock(tmp_path: Path) -> None:
    cpu = "devices__system__cpu__cpu"
    put(tmp_path, **{f"{cpu}0__thermal_throttle__core_throttle_count": "3"})
    put(tmp_path, **{f"{cpu}1__thermal_throttle__core_throttle_count": "5"})
    put(tmp_path, **{f"{cpu}0__cpufreq__scaling_cur_freq": "900000"})
    put(tmp_path, **{f"{cpu}0__cpufreq__cpuinfo_max_freq": "1800000"})
    assert read_thermal(tmp_path) == Thermal(None, 5, 0.5)
