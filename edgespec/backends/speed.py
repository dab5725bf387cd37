"""Which backend runs a model fastest here: measured once, remembered."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from time import perf_counter

from edgespec.backends.base import Backend, Segment
from edgespec.backends.fingerprint import fingerprint
from edgespec.device.cores import compute_threads
from edgespec.hub import store

log = logging.getLogger(__name__)

SIZES = (1, 4, 8)
CONTEXT = 64
REPEATS = 5

Times = dict[str, float]
"""tokens per pass → milliseconds"""


def fastest(
    path: Path, openers: Mapping[str, Callable[[], Backend]], threads: int | None, depth: int
) -> tuple[str, str]:
    """(name of the backend, why in words). Measures T(1), T(4) and T(8) of backends not yet measured
    with this file and number of threads: about a second each, and the time to load them."""
    file = store.home().parent / "state" / "backend_speed.json"
    key = f"{fingerprint(path)[:16]}/{threads or compute_threads()}"
    known = _read(file)
    times: dict[str, Times] = dict(known.get(key, {}))
    for name, opener in openers.items():
        if name not in times:
            log.warning("measuring %s with %s, once", path.name, name)
            backend = opener()
            try:
                times[name] = measure(backend)
            finally:
                backend.close()
    if times != known.get(key):
        known[key] = times
        file.parent.mkdir(parents=True, exist_ok=True)
        partial = file.with_name(file.name + ".partial")
        partial.write_text(json.dumps(known, indent=1), "utf-8")
        partial.replace(file)
    size = str(min(SIZES, key=lambda n: abs(n - depth - 1)))
    best = min(openers, key=lambda name: times[name][size])
    pass_ = "a token" if size == "1" else f"{size} tokens"
    return best, ", ".join(f"{name} takes {times[name][size]:.0f} ms for {pass_}" for name in openers)


def measure(backend: Backend) -> Times:
    """The median milliseconds of passes of each of SIZES tokens behind a short context."""
    sequence = backend.open()
    context = min(CONTEXT, backend.n_ctx - max(SIZES))
    if context < 1:
        backend.close(sequence)
        return {str(n): 0.0 for n in SIZES}
    backend.forward([Segment(sequence, [0] * context, rows=0)])
    seconds: dict[int, list[float]] = {n: [] for n in SIZES}
    for _ in range(REPEATS + 1):
        for n in SIZES:
            started = perf_counter()
            backend.forward([Segment(sequence, [0] * n, rows=n)])
            seconds[n].append(perf_counter() - started)
            backend.rollback(sequence, context)
    backend.close(sequence)
    return {str(n): 1000 * median(times[1:]) for n, times in seconds.items()}


def _read(file: Path) -> dict[str, dict[str, Times]]:
    try:
        known = json.loads(file.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}
