"""Simulation of devices nobody measured: python -m edgespec.bench.devices TRACES prints a table.

Costs of passes are the roofline's, from a device's memory bandwidth and arithmetic peak; what is drafted and
accepted is recorded (traces.py); the controller is the real one. Attention, which grows with the text, and
heat are left out.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from edgespec.bench.replay import Costs, ours, play
from edgespec.bench.traces import Trace, load
from edgespec.control.cost import roofline

REACHED = 1 / 3
"""share of the arithmetic peak that our kernels reach, from T(16) of the 1.5B coder on two Zen 5 cores"""
SUSTAINED = 0.7
"""share of a memory's peak that can be read in the long run, where only the peak is known"""


@dataclass(frozen=True)
class Device:
    """Processor cores only."""

    name: str
    bandwidth: float
    """bytes per second that can be read in the long run"""
    peak: float
    """8-bit operations per second of the big cores: cores × clock × operations a cycle"""


DEVICES = (
    Device("Raspberry Pi 4", 6e9, 4 * 1.8e9 * 16),
    Device("Raspberry Pi 5", 10e9, 4 * 2.4e9 * 64),
    Device("Jetson Orin Nano, its CPU", SUSTAINED * 68e9, 6 * 1.5e9 * 64),
    Device("Snapdragon 8 Gen 3", SUSTAINED * 77e9, 3.3e9 * 128 + 5 * 3.0e9 * 64),
    Device("laptop, 4 cores, DDR4-3200", SUSTAINED * 51.2e9, 4 * 3.5e9 * 64),
)


@dataclass(frozen=True)
class Model:
    """What a pass costs in bytes, and a token in operations."""

    bytes: float
    operations: float

    def points(self, device: Device) -> dict[int, float]:
        return roofline(self.bytes, device.bandwidth, self.operations, REACHED * device.peak)


TARGET, DRAFT = Model(986e6, 2 * 1.54e9), Model(392e6, 2 * 0.49e9)
"""the coder pair of the catalog: 1.5B and 0.5B, both Q4_K_M"""


@dataclass(frozen=True)
class Simulated:
    """Tokens per second over all traces, one behind the other, the draft model's reading of the prompts
    included, and what the controller chose."""

    device: Device
    plain: float
    speculative: float
    depth: float
    """mean number of tokens drafted, over rounds that drafted"""
    drafted: float
    """share of rounds that drafted"""


def simulate(device: Device, traces: Sequence[Trace]) -> Simulated:
    """The coder pair on a device."""
    per_token = [model.operations / (REACHED * device.peak) for model in (TARGET, DRAFT)]
    costs = Costs(TARGET.points(device), DRAFT.points(device), *per_token)
    controller = ours(costs)
    played = [play(trace, controller, costs, keep=True) for trace in traces]
    depths = [len(done.drafted) for each in played for done in each.rounds]
    drafting = [depth for depth in depths if depth]
    return Simulated(
        device,
        plain=1.0 / costs.target(1),
        speculative=sum(each.tokens for each in played)
        / sum(each.seconds + each.reading_seconds for each in played),
        depth=sum(drafting) / max(1, len(drafting)),
        drafted=len(drafting) / len(depths),
    )


def table(traces: Sequence[Trace]) -> str:
    """In Markdown."""
    lines = [
        "| device (simulated) | GB/s | 8-bit GOPS | plain tok/s | drafting | gain | rounds that do | depth |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for device in DEVICES:
        found = simulate(device, traces)
        lines.append(
            f"| {device.name} | {device.bandwidth / 1e9:.0f} | {device.peak / 1e9:.0f} | {found.plain:.1f} "
            f"| {found.speculative:.1f} | {found.speculative / found.plain:.2f} × | {found.drafted:.0%} "
            f"| {found.depth:.1f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(load(Path(sys.argv[1]))))
