"""What computing takes in energy, where the machine says.

- RAPL: counters of the processor's packages and of memory. /sys/class/powercap/intel-rapl:*/energy_uj counts
  microjoules up to max_energy_range_uj and begins again (kernel.org, "Power Capping Framework"); AMD's
  processors are there, too. Since Linux 5.10 only root may read it, unless it is opened to others.
- Jetson: an INA3221 at the input, whose voltage (mV) and current (mA) are files (kernel.org, "ina3221").
- Raspberry Pi 5: `vcgencmd pmic_read_adc` prints volts and amperes of each rail of its power controller.

The last two say how much power is drawn now, so they are read in between; a pause a thousand times as long
follows each reading. What they say is of the whole board, whoever uses it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from threading import Event, Thread
from time import perf_counter
from typing import Protocol, TypeAlias

from edgespec.device.asking import ask, text_of

SYSTEM = Path("/sys")
_INPUTS = ("VDD_IN", "POM_5V_IN", "VDD_5V_IN")
"""labels of a Jetson's input rail"""
_SHORTEST = 0.1
"""seconds between two readings, and before the first: sensors show an average of some time"""
_SHARE = 1000
"""a pause is as many times as long as the reading before it"""

Stop: TypeAlias = Callable[[], "float | None"]
"""ends a measurement: joules, or None where nothing could be read"""


class Meter(Protocol):
    """Measures the energy that a span of time takes."""

    @property
    def source(self) -> str:
        """What it measures, in words."""
        ...

    def start(self) -> Stop:
        """Begin to measure; what is returned ends it."""
        ...


@cache
def meter() -> Meter | None:
    """This machine's, if it has one that we may read."""
    return find_meter()


def find_meter(system: Path = SYSTEM) -> Meter | None:
    """Look for one that can be read."""
    if (zones := _zones(system)) and (counters := Counters(zones)).read() is not None:
        return counters
    sensors = [
        Sensor(f"{text_of(label)}, the board's input", partial(_rail_watts, label))
        for label in sorted(system.glob("bus/i2c/drivers/ina3221/*/hwmon/hwmon*/in*_label"))
        if text_of(label) in _INPUTS
    ]
    sensors.append(Sensor("the rails of the board's power controller", _pmic_watts))
    return next((sensor for sensor in sensors if sensor.watts() is not None), None)


def describe(system: Path = SYSTEM) -> str | None:
    """In words: what measures energy here, or what keeps us from reading it; None where there is nothing."""
    if (found := find_meter(system)) is not None:
        return found.source
    if _zones(system):
        zones = f"{system}/class/powercap/intel-rapl:*/energy_uj"
        return f"RAPL, which only root may read here (sudo chmod a+r {zones}, until the next boot)"
    return None


@dataclass(frozen=True)
class Counters:
    """RAPL's."""

    zones: Sequence[Path]
    source: str = "RAPL: processor and memory"

    def start(self) -> Stop:
        before = self.read()

        def stop() -> float | None:
            after = self.read()
            if before is None or after is None:
                return None
            spent = 0
            for then, now, zone in zip(before, after, self.zones, strict=True):
                began_again_at = 0 if now >= then else _range(zone)
                if began_again_at is None:
                    return None
                spent += now - then + began_again_at
            return spent / 1e6

        return stop

    def read(self) -> list[int] | None:
        """Microjoules of each zone; None where they may not be read."""
        try:
            return [int((zone / "energy_uj").read_text()) for zone in self.zones]
        except (OSError, ValueError):
            return None


@dataclass(frozen=True)
class Sensor:
    """Of power: mean watts over a span, times its seconds."""

    source: str
    watts: Callable[[], float | None]

    def start(self) -> Stop:
        begun, over, seen = perf_counter(), Event(), list[float]()

        def watch() -> None:
            pause = _SHORTEST
            while not over.wait(pause):
                started = perf_counter()
                if (watts := self.watts()) is None:
                    return
                seen.append(watts)
                pause = max(_SHORTEST, _SHARE * (perf_counter() - started))

        Thread(target=watch, name="edgespec-energy", daemon=True).start()

        def stop() -> float | None:
            over.set()
            return sum(seen) / len(seen) * (perf_counter() - begun) if seen else None

        return stop


def parse_pmic(text: str) -> float | None:
    """Watts of all rails in what `vcgencmd pmic_read_adc` prints, such as `VDD_CORE_A current(7)=0.72A` and
    `VDD_CORE_V volt(15)=0.72V`. The input has a voltage only; what the regulators lose is not in it."""
    amperes, volts = (
        {rail: float(value) for rail, value in re.findall(rf"(\w+)_{unit} \w+\(\d+\)=([\d.]+){unit}", text)}
        for unit in "AV"
    )
    rails = amperes.keys() & volts.keys()
    return sum(amperes[rail] * volts[rail] for rail in rails) if rails else None


def _pmic_watts() -> float | None:
    return parse_pmic(ask("vcgencmd", "pmic_read_adc"))


def _rail_watts(label: Path) -> float | None:
    number = label.name[len("in") : -len("_label")]
    volts, amperes = (text_of(label.with_name(f"{kind}{number}_input")) for kind in ("in", "curr"))
    return int(volts) * int(amperes) / 1e6 if volts.isdigit() and amperes.isdigit() else None


def _zones(system: Path) -> list[Path]:
    """Packages with their memory, each counted once: cores are part of a package, and `psys` holds all."""
    found = sorted(system.glob("class/powercap/intel-rapl:*"))
    return [
        zone for zone in found if (name := text_of(zone / "name")).startswith("package-") or name == "dram"
    ]


def _range(zone: Path) -> int | None:
    """At how many microjoules a counter begins again; None where that may not be read."""
    most = text_of(zone / "max_energy_range_uj")
    return int(most) if most.isdigit() else None
