"""Temperature and throttling, where the system exposes them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

SYSTEM = Path("/sys")


@dataclass(frozen=True)
class Thermal:
    """None where the system does not say."""

    celsius: float | None
    """of the hottest zone"""
    throttled: int | None
    """times a core was slowed down for heat since boot (x86; power.py has what a Raspberry Pi says)"""
    clock: float | None
    """of the first core, as a share of its maximum"""


def read_thermal(system: Path = SYSTEM) -> Thermal:
    """What can be read now."""
    zones = [_number(f) for f in system.glob("class/thermal/thermal_zone*/temp")]
    degrees = [z / 1000 for z in zones if z is not None and 0 < z < 150_000]
    counts = [_number(f) for f in system.glob("devices/system/cpu/cpu*/thermal_throttle/core_throttle_count")]
    counted = [int(c) for c in counts if c is not None]
    frequency = system / "devices/system/cpu/cpu0/cpufreq"
    now, most = _number(frequency / "scaling_cur_freq"), _number(frequency / "cpuinfo_max_freq")
    return Thermal(
        celsius=max(degrees, default=None),
        throttled=max(counted, default=None),
        clock=now / most if now and most else None,
    )


def _number(file: Path) -> float | None:
    try:
        return float(file.read_text())
    except (OSError, ValueError):
        return None
