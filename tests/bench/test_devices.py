"""Devices that are simulated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from edgespec.bench.devices import DEVICES, simulate, table
from edgespec.bench.traces import load

ROOT = Path(__file__).parents[2]
TRACES = load(ROOT / "tests/data/traces/coder.jsonl.gz")


def test_the_table_of_the_page_is_what_the_command_prints() -> None:
    assert table(TRACES) in (ROOT / "docs/devices.md").read_text("utf-8")


def test_plain_decoding_follows_the_memory_and_drafting_the_arithmetic_that_is_left() -> None:
    device = DEVICES[1]
    as_it_is = simulate(device, TRACES)
    faster_memory = simulate(replace(device, bandwidth=2 * device.bandwidth), TRACES)
    faster_cores = simulate(replace(device, peak=2 * device.peak), TRACES)
    assert faster_memory.plain == 2 * as_it_is.plain
    assert faster_cores.plain == as_it_is.plain
    assert faster_cores.speculative > as_it_is.speculative
    assert faster_memory.speculative / faster_memory.plain < as_it_is.speculative / as_it_is.plain


def test_no_device_is_slower_with_drafting() -> None:
    for device in DEVICES:
        found = simulate(device, TRACES)
        assert found.speculative > 0.98 * found.plain, device.name
