"""What is said of all prompts of a benchmark together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import geometric_mean, mean, median
from typing import Any

import numpy as np

from edgespec.bench.run import Compared, Way
from edgespec.device.memory import peak_memory
from edgespec.errors import UsageError

RESAMPLES = 2000


def summary(
    results: Sequence[Compared], bandwidth: float, reference_is_plain: bool = False
) -> dict[str, Any]:
    """Speed-ups (geometric mean, bootstrap interval, worst prompt), in all and by category, and where the
    time went.

    bandwidth: bytes per second that this machine reads. reference_is_plain: plain decoding is the
    reference already. Raises UsageError where no answer was long enough to be timed.
    """
    timed = [r for r in results if r.timed]
    if not timed:
        raise UsageError("no answer was long enough to be timed; raise --max-tokens")
    against: dict[str, Way] = {"": "plain"}
    if reference_is_plain or all("reference" in r.runs for r in timed):
        against["reference_"] = "plain" if reference_is_plain else "reference"
    found: dict[str, Any] = {"prompts": len(timed), "too_short": len(results) - len(timed)}
    for prefix, way in against.items():
        found |= _against(timed, way, prefix)
    rate = _mean(timed, Compared.bandwidth)
    compared = [r.same_tokens for r in timed if r.same_tokens is not None]
    return found | {
        **_shares(timed),
        "draft_read_seconds": median(r.draft_reads for r in timed),
        "bytes_per_second": rate,
        "plain_bytes_per_second": _mean(timed, lambda r: r.bandwidth("plain")),
        "tokens_per_joule": _mean(timed, Compared.tokens_per_joule),
        "plain_tokens_per_joule": _mean(timed, lambda r: r.tokens_per_joule("plain")),
        "machine_bytes_per_second": bandwidth,
        "bandwidth_share": rate / bandwidth if rate else None,
        "same_tokens": sum(compared) / len(compared) if compared else None,
        "peak_memory": peak_memory(),
        "categories": {name: _category(group, against) for name, group in _grouped(timed).items()},
    }


def _against(results: Sequence[Compared], way: Way, prefix: str) -> dict[str, Any]:
    speedups = [r.speedup(way) for r in results]
    name = prefix or "plain_"
    return {
        f"{prefix}geomean_speedup": geometric_mean(speedups),
        f"{prefix}interval": interval(speedups),
        f"{prefix}worst_speedup": min(speedups),
        f"{prefix}worst_prompt": min(results, key=lambda r: r.speedup(way)).id,
        f"{prefix}end_to_end_geomean_speedup": geometric_mean(r.end_to_end_speedup(way) for r in results),
        f"{name}first_token_seconds": median(r.first_token[way] for r in results),
        f"{name}tokens_per_second": geometric_mean(r.speed(way) for r in results),
    }


def _shares(results: Sequence[Compared]) -> dict[str, float]:
    """How fast, how deep, and on what the time of decoding speculatively was spent."""
    draft, verify = (
        mean(r.of_speculation(share) for r in results)
        for share in (lambda run: run.drafting / run.seconds, lambda run: run.verifying / run.seconds)
    )
    return {
        "tokens_per_second": geometric_mean(r.speed("speculative") for r in results),
        "tokens_per_round": mean(r.of_speculation(lambda run: run.decoded / run.rounds) for r in results),
        "acceptance": mean(r.of_speculation(lambda run: run.accepted / max(run.drafted, 1)) for r in results),
        "draft_share": draft,
        "verify_share": verify,
        "python_share": 1.0 - draft - verify,
    }


def _category(group: Sequence[Compared], against: dict[str, Way]) -> dict[str, Any]:
    found: dict[str, Any] = {"prompts": len(group), **_shares(group)}
    for prefix, way in against.items():
        found |= _against(group, way, prefix)
    return found | {"bytes_per_second": _mean(group, Compared.bandwidth)}


def _grouped(results: Iterable[Compared]) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for result in results:
        groups.setdefault(result.category, []).append(result)
    return groups


def _mean(results: Sequence[Compared], figure: Callable[[Compared], float | None]) -> float | None:
    found = [value for r in results if (value := figure(r)) is not None]
    return mean(found) if found else None


def interval(speedups: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """95% bootstrap interval (Efron 1979) of the geometric mean over prompts; always the same."""
    logs = np.log(np.asarray(speedups))
    picks = np.random.default_rng(0).integers(0, logs.size, (resamples, logs.size))
    low, high = np.quantile(np.exp(logs[picks].mean(axis=1)), [0.025, 0.975])
    return float(low), float(high)


def of_prompt(result: Compared) -> dict[str, Any]:
    """What is said of one prompt, for JSON."""
    figures: dict[str, Any] = {
        "id": result.id,
        "category": result.category,
        "tokens": round(result.of_speculation(lambda run: run.tokens)),
        "same_tokens": result.same_tokens,
    }
    if not result.timed:
        return figures
    figures |= _shares([result])
    for way in result.runs:
        if way != "speculative":
            prefix = "" if way == "plain" else f"{way}_"
            figures |= {
                f"{prefix}speedup": result.speedup(way),
                f"{prefix}end_to_end_speedup": result.end_to_end_speedup(way),
                f"{way}_tokens_per_second": result.speed(way),
                f"{way}_first_token_seconds": result.first_token[way],
            }
    return figures | {
        "draft_read_seconds": result.draft_reads,
        "bytes_per_second": result.bandwidth(),
        "tokens_per_joule": result.tokens_per_joule(),
        "plain_tokens_per_joule": result.tokens_per_joule("plain"),
        "repeats": {way: [run.speed for run in runs] for way, runs in result.runs.items()},
    }
