"""Suites: the prompts of a benchmark, one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import UsageError


@dataclass(frozen=True)
class Prompt:
    """A line of a suite: of a conversation the first turn is asked."""

    id: str
    category: str
    text: str


def read_suite(path: Path) -> list[Prompt]:
    """Lines of JSON with `turns`, or `prompt`, and where known `id` and `category`. Raises UsageError for
    lines that are no prompts, and for two of one id."""
    prompts: dict[str, Prompt] = {}
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
        if name in prompts:
            raise UsageError(f"line {number} of {path.name} has the id {name!r} of a line before; rename it")
        prompts[name] = Prompt(name, str(found.get("category", "all")), str(text))
    if not prompts:
        raise UsageError(f"{path.name} has no prompts")
    return list(prompts.values())
