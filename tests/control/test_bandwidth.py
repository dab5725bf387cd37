"""The bandwidth probe and what follows from it. No figure is asserted: those depend on the machine."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from edgespec.control.bandwidth import (
    FILE,
    Bandwidth,
    _last_level_cache,
    known_bandwidth,
    measure_bandwidth,
)
from edgespec.control.probe import Weights, expect
from edgespec.device.cores import machine
from edgespec.hub import state

TODAY = "2026-11-29"
KEPT = {"by_threads": {"1": 10e9, "2": 18e9}, "in_cache": 40e9, "buffer": 1 << 28, "measured": "2020-02-29"}
"""as no machine will measure itself"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of its own, and little memory free: the buffers are small."""
    monkeypatch.setenv("EDGESPEC_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("edgespec.control.bandwidth.available_memory", lambda: 0)


def known(*threads: int, refresh: bool = False) -> Bandwidth:
    return known_bandwidth(threads, refresh, window=0.01)


@pytest.mark.usefixtures("home")
def test_what_was_measured_is_remembered_with_its_day() -> None:
    found = known(1, 2)
    assert known(1, 2) == found
    state.write(FILE, {machine(): KEPT})
    assert known(1, 2) == Bandwidth({1: 10e9, 2: 18e9}, 40e9, 1 << 28, "2020-02-29")
    assert known(2).by_threads == {2: 18e9}


@pytest.mark.usefixtures("home")
def test_refresh_measures_again_and_remembers_that() -> None:
    state.write(FILE, {machine(): KEPT, "another machine": KEPT})
    found = known(1, 2, refresh=True)
    assert found.measured > KEPT["measured"]
    assert known(1, 2) == found
    assert state.read(FILE)["another machine"] == KEPT


@pytest.mark.usefixtures("home")
def test_another_number_of_threads_is_measured_with_those_known() -> None:
    state.write(FILE, {machine(): KEPT})
    found = known(1, 3)
    assert list(found.by_threads) == [1, 3]
    assert found.measured > KEPT["measured"]
    assert known(1, 2, 3).measured == found.measured
    assert set(state.read(FILE)[machine()]["by_threads"]) == {"1", "2", "3"}


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(
    "change",
    [
        {"by_threads": {"1": 0.0, "2": 18e9}},
        {"by_threads": {"1": float("nan"), "2": 18e9}},
        {"by_threads": {"1": 1e308, "2": 18e9}},
        {"by_threads": {"one": 10e9, "1": 10e9, "2": 18e9}},
        {"by_threads": [10e9, 18e9]},
        {"in_cache": "fast"},
        {"buffer": None},
        {"measured": "yesterday"},
        {"measured": 20200229},
        {"of_another_version": 1},
    ],
)
def test_damaged_or_foreign_state_is_measured_anew(change: Mapping[str, Any]) -> None:
    state.write(FILE, {machine(): KEPT | change})
    found = known(1, 2)
    assert min(found.by_threads.values()) > 0
    assert found.measured > KEPT["measured"]
    assert known(1, 2) == found  # and replaced


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("kept", [None, [], "fast", 1, {}, {"by_threads": {"1": 10e9}}])
def test_state_without_a_measurement_is_measured(kept: object) -> None:
    state.write(FILE, {machine(): kept})
    found = known(1)
    assert known(1) == found


def test_every_number_of_threads_is_measured_once() -> None:
    found = measure_bandwidth([2, 1, 1], window=0.01)
    assert list(found.by_threads) == [1, 2]
    assert min(found.by_threads.values()) > 0
    assert found.best == max(found.by_threads.values())
    assert found.buffer >= 8 << 20


def test_a_loop_that_is_no_faster_in_the_cache_was_not_bound_by_memory() -> None:
    assert Bandwidth({1: 10e9, 2: 18e9}, 40e9, 1 << 28, TODAY).bound_by_memory
    assert not Bandwidth({1: 10e9}, 11e9, 1 << 28, TODAY).bound_by_memory


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


def test_lookup_promises_what_verifying_alone_allows() -> None:
    """At depth k it yields 1 + a + … + a^k tokens for a pass of k + 1, up to depth 8."""
    flat, steep = {1: 0.02, 9: 0.02}, {1: 0.02, 2: 0.04, 8: 0.16}
    assert expect(Weights("flat", 10**9, flat), 40e9).gain == pytest.approx((1 - 0.8**9) / (1 - 0.8))
    cliff = {1: 0.02, 2: 0.02, 3: 0.06, 9: 0.18}
    assert expect(Weights("cliff", 10**9, cliff), 40e9).gain == pytest.approx(1 + 0.8)
    assert expect(Weights("steep", 10**9, steep), 40e9).gain == 1.0
    assert expect(Weights("steep", 10**9, steep), 40e9).measured


def test_a_draft_promises_what_the_measured_costs_allow() -> None:
    flat, steep = {1: 0.02, 8: 0.02}, {1: 0.02, 2: 0.04, 8: 0.16}
    draft = Weights("draft", 100_000_000, {1: 0.002})
    assert expect(Weights("flat", 10**9, flat, draft), 40e9).gain > 2.4
    assert expect(Weights("steep", 10**9, steep, draft), 40e9).gain == 1.0
    assert not expect(Weights("new", 10**9, None, draft), 40e9).measured
