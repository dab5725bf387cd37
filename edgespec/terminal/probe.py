"""`edgespec probe`: this machine, and what may be expected of the models on it."""

from __future__ import annotations

import json
from pathlib import Path

from rich.console import Console
from rich.table import Table

from edgespec.backends.speed import known_seconds
from edgespec.control.bandwidth import known_bandwidth
from edgespec.control.probe import ASSUMED, Probe, Weights, expect
from edgespec.device import energy
from edgespec.device.cores import compute_threads, read_cores
from edgespec.device.memory import available_memory, total_memory
from edgespec.device.power import Power, read_power
from edgespec.device.thermal import read_thermal
from edgespec.errors import ModelError
from edgespec.hub import store
from edgespec.hub.gguf_info import read_info
from edgespec.hub.inventory import take_inventory
from edgespec.hub.sizes import human
from edgespec.pairing import forget_costs
from edgespec.terminal.answer import write_stdout
from edgespec.terminal.notes import note
from edgespec.terminal.tables import print_whole
from edgespec.visible import visible


def probe(refresh: bool, as_json: bool) -> None:
    """Measure what was not measured before, or all to `refresh`, and show. What passes cost is measured when
    a model is loaded."""
    cores = read_cores()
    usable = compute_threads()
    threads = sorted({1, max(1, usable // 2), usable, min(cores.allowed, cores.quota or cores.allowed)})
    bandwidth = known_bandwidth(threads, refresh)
    if refresh:
        forget_costs()
        note("what passes of a model cost is forgotten, and measured anew when it is next loaded")
    found = Probe(
        cores,
        total_memory(),
        available_memory(),
        read_thermal(),
        read_power(),
        energy.describe(),
        bandwidth,
        [expect(model, bandwidth.best) for model in _installed()],
    )
    if as_json:
        write_stdout(json.dumps(found.as_dict()) + "\n")
    else:
        print_whole(lambda console: _show(console, found))


def _installed() -> list[Weights]:
    """Pairs of the catalog on this machine, then other GGUF models."""
    inventory = take_inventory()
    models = []
    for pair in inventory.pairs:
        if pair.on_disk and (target := _weights(pair.pair.name, store.path_of(pair.pair.target))) is not None:
            draft = _weights("draft", store.path_of(pair.draft.file)) if pair.draft else None
            models.append(Weights(target.name, target.bytes_per_token, target.seconds, draft))
    others = (_weights(other.title, other.path) for other in inventory.others if other.path.is_file())
    return [*models, *(other for other in others if other is not None)]


def _weights(name: str, path: Path) -> Weights | None:
    try:
        return Weights(name, read_info(path).bytes_per_token, known_seconds(path, "llama.cpp", None))
    except ModelError:
        return None


def _show(console: Console, found: Probe) -> None:
    c, b, t = found.cores, found.bandwidth, found.thermal
    table = Table(show_header=False, box=None, pad_edge=False)
    usable = f"{c.allowed} of {c.logical} hardware threads usable, {c.physical} cores, {c.big} of them fast"
    table.add_row("processor", visible(c.name) or "unknown")
    table.add_row("cores", usable + (f", time for {c.quota}" if c.quota else ""))
    table.add_row("memory", f"{human(found.memory)}, {human(found.available)} available")
    for n, rate in b.by_threads.items():
        table.add_row(
            "reads" if n == min(b.by_threads) else "", f"{rate / 1e9:.1f} GB/s with {n} thread{'s' * (n > 1)}"
        )
    if not b.bound_by_memory:
        table.add_row("", f"at least: the loop is only {b.headroom:.1f} times faster in the cache")
    table.add_row("", f"measured {b.measured}; --refresh measures again")
    table.add_row("heat", _heat(t.celsius, t.throttled, t.clock))
    if found.power != Power():
        table.add_row("power", visible(in_words(found.power)))
    if found.energy:
        table.add_row("energy", visible(found.energy))
    console.print(table)
    if not found.models:
        console.print("No model is on this machine yet; fetch one: edgespec pull smollm2-135m")
        return
    models = Table(
        "model", "reads per token", "limit", "measured", "share of limit", "expected gain", box=None
    )
    for m in found.models:
        models.add_row(
            visible(m.name),
            human(m.bytes_per_token),
            f"{m.limit:.1f} tok/s",
            f"{m.plain:.1f} tok/s" if m.plain else "",
            f"{m.share:.0%}" if m.share else "",
            "" if m.gain == 1.0 and not m.measured else f"{m.gain:.2f} ×" + ("" if m.measured else " (*)"),
        )
    console.print(models)
    legend = "limit: bandwidth ÷ bytes."
    if any(m.measured or m.gain != 1.0 for m in found.models):
        legend += (
            f" gain: at {ASSUMED:.0%} acceptance (lookup: only where answers copy their prompt) and the best "
            "fixed depth, from costs measured with llama.cpp"
        )
        guessed = any(m.gain != 1.0 and not m.measured for m in found.models)
        legend += "; (*) as if verifying cost no more than a token: run the model once." if guessed else "."
    console.print(legend)


def _heat(celsius: float | None, throttled: int | None, clock: float | None) -> str:
    parts = [
        f"{celsius:.0f} °C" if celsius is not None else "",
        f"clock at {clock:.0%} of its maximum" if clock is not None else "",
        ""
        if throttled is None
        else f"slowed down {throttled} times since boot"
        if throttled
        else "never slowed down",
    ]
    return ", ".join(part for part in parts if part) or "this system does not say"


def in_words(power: Power) -> str:
    """What a board says of its supply."""
    parts = [
        f"slowed down now: {', '.join(power.now)}" if power.now else "",
        f"earlier: {', '.join(power.since_boot)}" if power.since_boot else "",
        f"mode {power.mode}" if power.mode else "",
        f"{power.watts:.1f} W" if power.watts is not None else "",
    ]
    return ", ".join(part for part in parts if part)
