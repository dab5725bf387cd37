"""What this machine is and what follows for the models on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from edgespec.control.bandwidth import Bandwidth
from edgespec.control.cost import CostCurve, roofline
from edgespec.device.cores import Cores
from edgespec.device.power import Power
from edgespec.device.thermal import Thermal

ASSUMED = 0.8
"""acceptance assumed in an expected gain"""
DEEPEST = 8


@dataclass(frozen=True)
class Weights:
    """A model as far as the memory is concerned, and what its passes cost where that was measured."""

    name: str
    bytes_per_token: int
    seconds: dict[int, float] | None = None
    """by tokens per pass"""
    draft: Weights | None = None
    """None: it is drafted for by lookup, which costs nothing"""

    def curve(self, bandwidth: float) -> CostCurve:
        """As measured, else as the roofline has it: flat, as if verifying cost no arithmetic."""
        return CostCurve(self.seconds or roofline(self.bytes_per_token, bandwidth))


@dataclass(frozen=True)
class Expectation:
    """Of a model on this machine."""

    name: str
    bytes_per_token: int
    limit: float
    """tokens per second that the memory allows, plainly"""
    plain: float | None
    """as measured"""
    share: float | None
    """of the limit"""
    gain: float
    """times plain, at an acceptance of ASSUMED and the best fixed depth"""
    measured: bool
    """whether the gain rests on measured costs"""


@dataclass(frozen=True)
class Probe:
    """Everything `edgespec probe` shows. Bytes, and bytes per second."""

    cores: Cores
    memory: int
    available: int
    thermal: Thermal
    power: Power
    energy: str | None
    """what measures it, or what keeps us from reading that; None where there is nothing"""
    bandwidth: Bandwidth
    models: Sequence[Expectation]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        found = asdict(self)
        found["bandwidth"] |= {
            "best": self.bandwidth.best,
            "headroom": self.bandwidth.headroom,
            "bound_by_memory": self.bandwidth.bound_by_memory,
        }
        return found


def expect(model: Weights, bandwidth: float) -> Expectation:
    """What to expect of a model where memory is read at `bandwidth` bytes per second."""
    target, limit = model.curve(bandwidth), bandwidth / model.bytes_per_token
    plain = 1.0 / model.seconds[1] if model.seconds else None
    each = model.draft.curve(bandwidth).seconds(1) if model.draft else 0.0
    speeds, tokens = [1.0 / target.seconds(1)], 1.0
    for k in range(1, DEEPEST + 1):
        tokens += ASSUMED**k
        speeds.append(tokens / (k * each + target.seconds(k + 1)))
    return Expectation(
        name=model.name,
        bytes_per_token=model.bytes_per_token,
        limit=limit,
        plain=plain,
        share=plain / limit if plain else None,
        gain=max(speeds) / speeds[0],
        measured=bool(model.seconds and (model.draft is None or model.draft.seconds)),
    )
