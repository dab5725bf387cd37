"""How fast this machine reads memory: the limit of plain decoding, which reads all weights per token.

The loop must be bound by memory, not by arithmetic: the same loop over a buffer that fits into a core's own
cache tells (`headroom`). Weights are read once per pass, so the buffer is larger than the last-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from threading import Barrier, Thread
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from edgespec.device.cores import machine
from edgespec.device.memory import available_memory
from edgespec.hub import state

FILE = "bandwidth.json"
CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
CHUNK = 4 << 20
"""bytes read between two looks at the clock"""
IN_CACHE = 128 << 10
"""bytes that any core's second-level cache holds"""
WINDOW = 0.25
"""seconds per number of threads"""
ABSURD = 1e15
"""bytes per second, or bytes, that nobody measured"""

Buffer = NDArray[np.int32]


@dataclass(frozen=True)
class Bandwidth:
    """Sustained read bandwidth in bytes per second."""

    by_threads: dict[int, float]
    in_cache: float
    """of one thread, over a buffer in its own cache: what the loop's arithmetic would allow"""
    buffer: int
    """bytes"""
    measured: str
    """on this day, as 2026-11-29"""

    @property
    def best(self) -> float:
        return max(self.by_threads.values())

    @property
    def headroom(self) -> float:
        """How many times faster the loop is where memory is no limit. Near 1, arithmetic was the limit and
        the bandwidth is only known to be at least this."""
        return self.in_cache / self.by_threads[min(self.by_threads)]

    @property
    def bound_by_memory(self) -> bool:
        return self.headroom >= 1.5


def known_bandwidth(threads: Sequence[int], refresh: bool = False, window: float = WINDOW) -> Bandwidth:
    """With each number of threads, as measured on this kind of machine before. Measured, and remembered,
    where that was never done with all of them, or to `refresh`."""
    kept = _recall(state.read(FILE).get(machine()))
    if refresh or kept is None or not set(threads) <= kept.by_threads.keys():
        # Those known, too: figures of one day can be compared.
        kept = measure_bandwidth([*threads, *(kept.by_threads if kept else ())], window)
        state.write(FILE, state.read(FILE) | {machine(): asdict(kept)})
    return replace(kept, by_threads={n: kept.by_threads[n] for n in sorted(set(threads))})


def _recall(found: Any) -> Bandwidth | None:
    """What was kept; None if it is damaged, or another version's."""
    try:
        kept = Bandwidth(**found)
        by_threads = {int(n): float(rate) for n, rate in kept.by_threads.items()}
        kept = replace(kept, by_threads=by_threads, measured=date.fromisoformat(kept.measured).isoformat())
        sound = all(0.0 < x < ABSURD for x in (*by_threads.values(), kept.in_cache, kept.buffer))
    except (TypeError, ValueError, AttributeError):
        return None
    return kept if sound else None


def measure_bandwidth(threads: Sequence[int], window: float = WINDOW) -> Bandwidth:
    """Read with each number of threads for `window` seconds. Takes under 2 s and a buffer of 256 to
    512 MiB, less where little memory is free."""
    size = min(max(256 << 20, 2 * _last_level_cache()), 512 << 20, available_memory() // 4)
    size = max(size, 8 << 20)
    buffer = np.ones(size // 4, np.int32)  # written, so that every page is really there
    in_cache = _rate([buffer[: IN_CACHE // 4]], window / 4)
    by_threads = {n: _rate(np.array_split(buffer, n), window) for n in sorted(set(threads))}
    return Bandwidth(by_threads, in_cache, size, date.today().isoformat())


def _rate(parts: Sequence[Buffer], window: float) -> float:
    """Bytes per second of one thread per part, each reading its own over and over: by numpy's maximum, which
    needs no GIL and uses the widest vector instructions. Loops in C, with prefetching or several streams,
    read 0.7 to 0.95 times as fast in one thread where that was measured (Zen 5), 0.75 to 1.1 times in two."""
    done, ready = [0] * len(parts), Barrier(len(parts) + 1)

    def work(i: int) -> None:
        part = parts[i]
        chunks = np.array_split(part, max(1, part.nbytes // CHUNK))
        ready.wait()
        end = perf_counter() + window
        while True:
            for chunk in chunks:
                np.maximum.reduce(chunk)
                done[i] += chunk.nbytes
                if perf_counter() >= end:
                    return

    workers = [Thread(target=work, args=(i,)) for i in range(len(parts))]
    for worker in workers:
        worker.start()
    ready.wait()
    started = perf_counter()
    for worker in workers:
        worker.join()
    return sum(done) / (perf_counter() - started)


def _last_level_cache(folder: Path = CACHE) -> int:
    """Bytes; 0 where the system does not say."""
    sizes = [0]
    for file in folder.glob("index*/size"):
        text = file.read_text().strip()
        unit = {"K": 1 << 10, "M": 1 << 20}.get(text[-1:], 0)
        if unit and text[:-1].isdigit():
            sizes.append(int(text[:-1]) * unit)
    return max(sizes)
