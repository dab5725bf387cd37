"""Traces: what a target said and what its drafters would have proposed, place by place.

With a trace and a cost curve any policy can be judged without models (replay.py). One line of JSON per
prompt. Prompt lookup needs no record: it is run again on the recorded text.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from edgespec.errors import UsageError


class Guess(NamedTuple):
    """A draft model's greedy proposal for one place."""

    token: int
    confidence: float
    """q's maximum at temperature 1"""
    entropy: float
    """of q at temperature 1, in nats"""


@dataclass(frozen=True)
class Trace:
    """One prompt, its greedy text, and the draft model's proposals; `model` is empty without one."""

    id: str
    category: str
    prompt: Sequence[int]
    text: Sequence[int]
    model: Sequence[Guess] = ()
    """for each place of `text`, behind the text before it"""
    astray: Sequence[Sequence[Guess]] = ()
    """for each place whose proposal is wrong: what would have been drafted behind the wrong token"""

    def drafts(self, place: int) -> Iterable[Guess]:
        """What the draft model proposes from `place` on, one behind the other: true to the text up to
        its first mistake, then what follows from that mistake."""
        for t in range(place, len(self.model)):
            yield self.model[t]
            if self.model[t].token != self.text[t]:
                yield from self.astray[t]
                return


def save(traces: Iterable[Trace], path: Path) -> None:
    """As JSON lines, compressed."""
    with gzip.open(path, "wt", encoding="utf-8") as file:
        for trace in traces:
            file.write(json.dumps(pack(trace), separators=(",", ":")) + "\n")


_DAMAGE = (OSError, EOFError, zlib.error, ValueError, LookupError, TypeError, AttributeError, RecursionError)


def load(path: Path) -> list[Trace]:
    """The traces of a file that `save` wrote. Raises UsageError for another."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") as file:
            found = [unpack(json.loads(line)) for line in file]
    except _DAMAGE as error:
        raise UsageError(f"{path.name} holds no recorded traces, or is damaged ({error})") from error
    if not found:
        raise UsageError(f"{path.name} holds no recorded traces")
    return found


def pack(trace: Trace) -> dict[str, object]:
    """For JSON."""
    return {
        "id": trace.id,
        "category": trace.category,
        "prompt": list(trace.prompt),
        "text": list(trace.text),
        "model": [_rounded(guess) for guess in trace.model],
        "astray": {t: [_rounded(g)[1:] for g in path] for t, path in enumerate(trace.astray) if path},
    }


def _rounded(guess: Guess) -> list[float]:
    return [guess.token, round(guess.confidence, 3), round(guess.entropy, 2)]


def unpack(found: dict[str, object]) -> Trace:
    """What `pack` made."""
    astray: dict[str, list[list[float]]] = found.pop("astray")  # type: ignore[assignment]
    model: list[list[float]] = found.pop("model")  # type: ignore[assignment]
    return Trace(
        **found,  # type: ignore[arg-type]
        model=[Guess(int(token), confidence, entropy) for token, confidence, entropy in model],
        astray=[[Guess(-1, *pair) for pair in astray.get(str(t), ())] for t in range(len(model))],
    )
