"""Run a suite of prompts plainly and speculatively, one after the other in one process, so that drift of the
machine cancels; and sum up what came of it."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

import numpy as np

from edgespec.decoding.rounds import Stats
from edgespec.errors import UsageError
from edgespec.runtime import GenerateOptions, Runtime
from edgespec.runtime import Prompt as Asked

RESAMPLES = 2000


@dataclass(frozen=True)
class Prompt:
    """A line of a suite: of a conversation the first turn is asked."""

    id: str
    category: str
    text: str


@dataclass(frozen=True)
class Compared:
    """A prompt, decoded plainly and speculatively. Tokens per second; medians of the repeats."""

    id: str
    category: str
    tokens: int
    plain: float
    speculative: float
    plain_end_to_end: float
    speculative_end_to_end: float
    tokens_per_round: float
    acceptance: float
    draft_share: float
    """of decoding time"""
    verify_share: float
    same_tokens: bool
    """as plain decoding, greedy or with a seed"""
    depths: Mapping[int, int]
    """rounds by tokens drafted"""

    @property
    def speedup(self) -> float:
        """Decode speed against plain decoding on the same backend."""
        return self.speculative / self.plain


def read_suite(path: Path) -> list[Prompt]:
    """Lines of JSON with `turns`, or `prompt`, and where known `id` and `category`."""
    prompts = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            text = found["turns"][0] if "turns" in found else found["prompt"]
        except (ValueError, KeyError, TypeError, IndexError):
            raise UsageError(
                f'line {number} of {path.name} is no prompt; write {{"prompt": "…"}} or {{"turns": ["…"]}}'
            ) from None
        name = str(found.get("id", number))
        prompts.append(Prompt(name, str(found.get("category", "all")), str(text)))
    if not prompts:
        raise UsageError(f"{path.name} has no prompts")
    return prompts


def compare(runtime: Runtime, prompt: Prompt, options: GenerateOptions, repeats: int) -> Compared:
    """Decode one prompt `repeats` times each way, in turn; first an answer of two tokens that does not
    count, so that neither way is the one that reads the prompt and warms the caches."""
    asked: Asked = [{"role": "user", "content": prompt.text}] if runtime.has_chat_template else prompt.text
    ways = {"plain": runtime.generate_plain, "speculative": runtime.generate}
    stats: dict[str, list[Stats]] = {way: [] for way in ways}
    texts = {}
    short: GenerateOptions = {**options, "max_tokens": 2}
    reading = runtime.generate_plain(asked, **short).stats.prompt_seconds
    for repeat in range(repeats):
        for way, generate in list(ways.items())[:: -1 if repeat % 2 else 1]:
            answer = generate(asked, **options)
            stats[way].append(answer.stats)
            texts[way] = answer.tokens

    def middle(way: str, value: Callable[[Stats], float]) -> float:
        return median(map(value, stats[way]))

    def end_to_end(way: str) -> float:
        """With the reading of the prompt, which only the first run of all had to do; the draft model's
        reading too, where the first run that drafted did it."""
        drafts = max(s.draft_prompt_seconds for s in stats[way])
        return middle(way, lambda s: s.tokens / (reading + drafts + s.decode_seconds))

    return Compared(
        prompt.id,
        prompt.category,
        len(texts["speculative"]),
        middle("plain", lambda s: s.tokens_per_second),
        middle("speculative", lambda s: s.tokens_per_second),
        end_to_end("plain"),
        end_to_end("speculative"),
        middle("speculative", lambda s: s.accepted_per_round + 1),
        middle("speculative", lambda s: s.acceptance),
        middle("speculative", lambda s: s.draft_seconds / max(s.decode_seconds, 1e-9)),
        middle("speculative", lambda s: s.verify_seconds / max(s.decode_seconds, 1e-9)),
        texts["plain"] == texts["speculative"],
        stats["speculative"][-1].depths,
    )


def summary(results: Sequence[Compared]) -> dict[str, Any]:
    """What is said of all prompts: geometric mean, worst one, a bootstrap interval, categories."""
    timed = [r for r in results if r.plain > 0 and r.speculative > 0]
    if not timed:
        raise UsageError("no answer was long enough to be timed; raise --max-tokens")
    speedups = [r.speedup for r in timed]
    low, high = interval(speedups)
    return {
        "against": "plain decoding on the same backend, decode only",
        "prompts": len(timed),
        "geomean_speedup": geometric_mean(speedups),
        "interval": [low, high],
        "worst_speedup": min(speedups),
        "worst_prompt": min(timed, key=lambda r: r.speedup).id,
        "end_to_end_geomean_speedup": geometric_mean(
            r.speculative_end_to_end / r.plain_end_to_end for r in timed
        ),
        "same_tokens": sum(r.same_tokens for r in timed) / len(timed),
        "peak_memory": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "categories": {name: _category(group) for name, group in _grouped(timed).items()},
    }


def _category(group: Sequence[Compared]) -> dict[str, float]:
    return {
        "prompts": len(group),
        "geomean_speedup": geometric_mean(r.speedup for r in group),
        "worst_speedup": min(r.speedup for r in group),
        "plain_tokens_per_second": geometric_mean(r.plain for r in group),
        "tokens_per_second": geometric_mean(r.speculative for r in group),
        "tokens_per_round": sum(r.tokens_per_round for r in group) / len(group),
        "acceptance": sum(r.acceptance for r in group) / len(group),
    }


def _grouped(results: Iterable[Compared]) -> dict[str, list[Compared]]:
    groups: dict[str, list[Compared]] = {}
    for result in results:
        groups.setdefault(result.category, []).append(result)
    return groups


def interval(speedups: Sequence[float], resamples: int = RESAMPLES) -> tuple[float, float]:
    """95% bootstrap interval (Efron 1979) of the geometric mean over prompts; always the same."""
    logs = np.log(np.asarray(speedups))
    picks = np.random.default_rng(0).integers(0, logs.size, (resamples, logs.size))
    low, high = np.quantile(np.exp(logs[picks].mean(axis=1)), [0.025, 0.975])
    return float(low), float(high)


def as_lines(results: Iterable[Compared]) -> str:
    """For a file that an interrupted run goes on from."""
    return "".join(json.dumps(asdict(result)) + "\n" for result in results)


def from_lines(text: str) -> list[Compared]:
    """What `as_lines` wrote; a line cut short is left out, and its prompt decoded again."""
    return [result for line in text.splitlines() if (result := _from_line(line)) is not None]


def _from_line(line: str) -> Compared | None:
    try:
        fields = json.loads(line)
        fields["depths"] = {int(k): n for k, n in fields["depths"].items()}
        return Compared(**fields)
    except (ValueError, TypeError, KeyError):
        return None
