"""What slows a board down: its supply, its heat, its power mode; and what a user may choose.

Raspberry Pi: `vcgencmd get_throttled` prints a word of bits (raspberrypi.com/documentation, "vcgencmd").
Jetson: `nvpmodel -q` names the power mode, a line of `tegrastats` has the power of its input rail.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from edgespec.device.asking import PATIENCE, ask, text_of
from edgespec.device.cores import compute_threads

SYSTEM = Path("/sys")
MODES = {
    "performance": "a thread per big core",
    "balanced": "half of the big cores",
    "saver": "one core; drafts by look-up in the text, never with a draft model",
}
"""What `--power` may be, and what it does. Threads that a user names count before these."""
_BITS = {
    0: "under-voltage",
    1: "frequency capped",
    2: "throttled",
    3: "at the soft temperature limit",
}
"""of the word of a Raspberry Pi; the same 16 bits further up for since it booted"""
_WORD = Path("devices/platform/soc/soc:firmware/get_throttled")


@dataclass(frozen=True)
class Power:
    """What a board says; empty and None where it does not."""

    now: tuple[str, ...] = ()
    """what slows it down now"""
    since_boot: tuple[str, ...] = ()
    """what did since it booted, and does not now"""
    mode: str | None = None
    watts: float | None = None
    """of the input rail, now"""


def read_power(system: Path = SYSTEM) -> Power:
    """Ask the board; a program is run where there is one to ask."""
    throttled = _throttled(system)
    mode = parse_nvpmodel(ask("nvpmodel", "-q"))
    watts = parse_tegrastats(_first_line("tegrastats", "--interval", "200"))
    return Power(throttled.now, throttled.since_boot, mode, watts)


def read_slowdown(system: Path = SYSTEM) -> tuple[str, ...]:
    """What slows a Raspberry Pi down now: a few milliseconds."""
    return _throttled(system).now


def _throttled(system: Path) -> Power:
    said = ask("vcgencmd", "get_throttled")
    if said.startswith("throttled="):
        return parse_throttled(said)
    # Kernels that have a file for it (those of a Raspberry Pi 5 have none) clear the upper bits every two
    # seconds, and print a warning of their own when it is first read.
    return Power(parse_throttled(text_of(system / _WORD)).now)


def threads_for(mode: str) -> int:
    """Compute threads in one of MODES."""
    cores = compute_threads()
    return {"performance": cores, "balanced": (cores + 1) // 2, "saver": 1}[mode]


def parse_throttled(text: str) -> Power:
    """Of `throttled=0x50005`, or the word alone."""
    try:
        word = int(text.strip().removeprefix("throttled="), 16)
    except ValueError:
        return Power()
    now = tuple(name for bit, name in _BITS.items() if word >> bit & 1)
    before = tuple(name for bit, name in _BITS.items() if word >> (bit + 16) & 1 and name not in now)
    return Power(now, before)


def parse_nvpmodel(text: str) -> str | None:
    """The name of the power mode in what `nvpmodel -q` prints."""
    found = re.search(r"^NV Power Mode:\s*(\S+)", text, re.MULTILINE)
    return found[1] if found else None


def parse_tegrastats(line: str) -> float | None:
    """Watts of the board's input in a line of `tegrastats`: VDD_IN 5121mW/5080mW, older ones without unit."""
    found = re.search(r"\b(?:VDD_IN|POM_5V_IN|VDD_5V_IN) (\d+)(?:mW)?/", line)
    return int(found[1]) / 1000 if found else None


def _first_line(program: str, *arguments: str) -> str:
    """Of a program that goes on printing until it is ended."""
    if shutil.which(program) is None:
        return ""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, timeout=PATIENCE / 2)
        printed = done.stdout
    except subprocess.TimeoutExpired as late:
        printed = late.stdout or b""
    except OSError:
        return ""
    return printed.decode("utf-8", "replace").partition("\n")[0]
