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
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # not splitlines: JSON may hold U+2028
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 text (byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            found = json.loads(line)
            turns = found["turns"] if "turns" in found else [found["prompt"]]
            if not (isinstance(turns, list) and isinstance(turns[0], str) and turns[0]):
                raise ValueError
        except (ValueError, KeyError, TypeError, IndexError, RecursionError):
            raise UsageError(
                f'line {number} of {path.name} is no prompt; write {{"prompt": "…"}} or {{"turns": ["…"]}}'
            ) from None
        name = str(found.get("id", number))
        if name in prompts:
            raise UsageError(f"line {number} of {path.name} has the id {name!r} of a line before; rename it")
        prompts[name] = Prompt(name, str(found.get("category", "all")), turns[0])
    if not prompts:
        raise UsageError(f"{path.name} has no prompts")
    return list(prompts.values())
