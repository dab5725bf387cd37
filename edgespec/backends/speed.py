"""What passes of a model cost here, by backend: measured once, remembered.

Two questions are answered from it: which backend runs a model fastest (`--backend auto`), and what the
cost model starts from (control/cost.py).
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median_low
from time import perf_counter

from edgespec.backends.base import Backend, Segment
from edgespec.backends.fingerprint import identity
from edgespec.backends.llama_library import build
from edgespec.convert.folder import folder_for, is_converted
from edgespec.device.cores import compute_threads, machine
from edgespec.hub import state

log = logging.getLogger(__name__)

FILE = "backend_speed.json"
SIZES = (1, 2, 3, 4, 5, 8)
CONTEXT = 64
REPEATS = 5
ENOUGH = 2.0
"""seconds after which no further repeat begins: with the one under way, 3 s on a slow device"""
NOTICED = 0.2
"""seconds of one sweep over SIZES, of which there are several"""

Times = dict[str, float]
"""tokens per pass → milliseconds"""


def fastest(
    path: Path,
    openers: Mapping[str, Callable[[], Backend]],
    threads: int | None,
    depth: int,
    conditions: str = "",
) -> tuple[str, str]:
    """(name of the backend, why in words). Measures backends not yet measured with this file, number of
    threads and `conditions` (what else passes depend on): a few seconds each, and the time to load them."""
    times: dict[str, Times] = {}
    for name, opener in openers.items():
        known = _known(path, name, threads, conditions)
        if known is None:
            log.warning("measuring %s with %s, once%s", path.name, name, _in_words(conditions))
            backend = opener()
            try:
                known = _measure_once(path, name, backend, threads, conditions, lambda: None)
            finally:
                backend.close()
        times[name] = known
    size = str(min(SIZES, key=lambda n: abs(n - depth - 1)))
    best = min(openers, key=lambda name: times[name][size])
    pass_ = "a token" if size == "1" else f"{size} tokens"
    return best, ", ".join(f"{name} takes {times[name][size]:.0f} ms for {pass_}" for name in openers)


def pass_seconds(
    path: Path, name: str, backend: Backend, threads: int | None, conditions: str = ""
) -> dict[int, float]:
    """Seconds by tokens per pass of a loaded model; `path` is what it was loaded from, `name` its runtime.
    Measured where that was never done, which takes up to 3 s."""

    def announce() -> None:
        log.warning("measuring what passes of %s cost here, once%s", path.name, _in_words(conditions))

    times = _known(path, name, threads, conditions) or _measure_once(
        path, name, backend, threads, conditions, announce
    )
    return _seconds(times)


def known_seconds(
    path: Path, name: str, threads: int | None, conditions: str = ""
) -> dict[int, float] | None:
    """As `pass_seconds`, where that was measured before."""
    times = _known(path, name, threads, conditions)
    return None if times is None else _seconds(times)


def _in_words(conditions: str) -> str:
    """To stand behind "once": under other conditions the same model is measured again."""
    named = re.sub(r"\bsequences=(\d+)", r"up to \1 answers at a time", conditions.replace(" ", ", "))
    return f" ({named})" if named else ""


def _seconds(times: Times) -> dict[int, float]:
    return {int(n): milliseconds / 1000 for n, milliseconds in times.items()}


def _measure_once(
    path: Path,
    name: str,
    backend: Backend,
    threads: int | None,
    conditions: str,
    announce: Callable[[], None],
) -> Times:
    times = measure(backend, announce)
    known, place = state.read(FILE), key(path, name, threads, conditions)
    others = known.get(place)
    known[place] = (others if isinstance(others, dict) else {}) | {name: times}
    state.write(FILE, known)
    return times


def _known(path: Path, name: str, threads: int | None, conditions: str) -> Times | None:
    """What was measured with all SIZES, where there was room for that, and is not damaged."""
    by_name = state.read(FILE).get(key(path, name, threads, conditions))
    times = by_name.get(name) if isinstance(by_name, dict) else None
    if not isinstance(times, dict) or not {str(n) for n in SIZES} <= times.keys():
        return None
    sound = all(n.isdigit() and isinstance(t, (int, float)) and 0.0 < t < math.inf for n, t in times.items())
    return times if sound else None


def key(path: Path, name: str, threads: int | None, conditions: str = "") -> str:
    """What times of passes are kept by: the device, the model, the threads. Of llama.cpp with its build,
    which may be one for a GPU: it reads the file itself. Of ONNX Runtime with the conversions of a GGUF
    file: made anew, or for other operators, they take another time."""
    made = [build()] if name == "llama.cpp" else []
    if name == "onnx" and path.is_file():
        folders = (folder_for(path), folder_for(path, portable=True))
        made = [identity(folder) for folder in folders if is_converted(folder)]
    usual = [machine(), identity(path), *made, str(threads or compute_threads())]
    return "/".join([*usual, conditions] if conditions else usual)


def measure(backend: Backend, announce: Callable[[], None] = lambda: None) -> Times:
    """The median milliseconds of passes of each of SIZES tokens behind a short context, 0 where it has no
    room. `announce` is called if that takes a time to be noticed."""
    sequence = backend.open()
    context = min(CONTEXT, backend.n_ctx - max(SIZES))
    if context < 1:
        backend.close(sequence)
        return {str(n): 0.0 for n in SIZES}
    backend.forward([Segment(sequence, [0] * context, rows=0)])
    seconds: dict[int, list[float]] = {n: [] for n in SIZES}
    begun = perf_counter()
    for repeat in range(REPEATS + 1):
        if repeat > 1 and perf_counter() - begun > ENOUGH:
            break
        if repeat == 1 and perf_counter() - begun > NOTICED:
            announce()
        for n in SIZES:
            started = perf_counter()
            backend.forward([Segment(sequence, [0] * n, rows=n)])
            seconds[n].append(perf_counter() - started)
            backend.rollback(sequence, context)
    backend.close(sequence)
    return {str(n): 1000 * _typical(times) for n, times in seconds.items()}


def _typical(times: list[float]) -> float:
    """The median of all but the first, which also reads the weights from the disk. A slow device has time
    for one or two more: then the shortest, so that one in which it was busy or stopped is not kept."""
    return median_low(times[1:]) if len(times) > 3 else min(times)
