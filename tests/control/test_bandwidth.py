"""The bandwidth probe and what follows from it. No figure is asserted: those depend on the machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from edgespec.control.bandwidth import Bandwidth, _last_level_cache, measure_bandwidth
from edgespec.control.probe import Weights, expect


def test_every_number_of_threads_is_measured_once() -> None:
    found = measure_bandwidth([2, 1, 1], window=0.01)
    assert list(found.by_threads) == [1, 2]
    assert min(found.by_threads.values()) > 0
    assert found.best == max(found.by_threads.values())
    assert found.buffer >= 8 << 20


def test_a_loop_that_is_no_faster_in_the_cache_was_not_bound_by_memory() -> None:
    assert Bandwidth({1: 10e9, 2: 18e9}, 40e9, 1 << 28).bound_by_memory
    assert not Bandwidth({1: 10e9}, 11e9, 1 << 28).bound_by_memory


def test_the_largest_cache_is_found(tmp_path: Path) -> None:
    assert _last_level_cache(tmp_path) == 0
    for index, size in enumerate(("48K", "2048K", "32M", "odd")):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert _last_level_cache(tmp_path) == 32 << 20


def test_plain_speed_is_limited_by_bandwidth_over_bytes() -> None:
    found = expect(Weights("model", 1_000_000_000, {1: 0.05, 8: 0.06}), 40e9)
    assert found.limit == pytest.approx(40.0)
    assert found.plain == pytest.approx(20.0)
    assert found.share == pytest.approx(0.5)
    assert found.gain == 1.0


def test_a_draft_promises_what_the_measured_costs_allow() -> None:
    flat, steep = {1: 0.02, 8: 0.02}, {1: 0.02, 2: 0.04, 8: 0.16}
    draft = Weights("draft", 100_000_000, {1: 0.002})
    assert expect(Weights("flat", 10**9, flat, draft), 40e9).gain > 2.4
    assert expect(Weights("steep", 10**9, steep, draft), 40e9).gain == 1.0
    assert not expect(Weights("new", 10**9, None, draft), 40e9).measured
