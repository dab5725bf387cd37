"""Suites: the prompts of a benchmark, one line of JSON each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from edgespec.errors import UsageError
from edgespec.objects import each_once
from edgespec.visible import check_unicode


@dataclass(frozen=True)
class Prompt:
    """A line of a suite: of a conversation the first turn is asked."""

    id: str
    category: str
    text: str


def read_suite(path: Path) -> list[Prompt]:
    """Lines of JSON with `turns`, or `prompt`, and where known `id` and `category`; other fields are left
    alone. Raises UsageError for lines that are no prompts, or ambiguous, and for two of one id."""
    prompts: dict[str, Prompt] = {}
    try:
        lines = path.read_text("utf-8-sig").split("\n")  # not splitlines: JSON may hold U+2028
    except UnicodeDecodeError as error:
        raise UsageError(f"{path.name} is not UTF-8 text (byte {error.start})") from None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = _prompt(line, number)
        except UsageError as error:
            raise UsageError(f"line {number} of {path.name}: {error}") from None
        if prompt.id in prompts:
            raise UsageError(
                f"line {number} of {path.name}: a line before has the id {prompt.id!r}, too; rename it"
            )
        prompts[prompt.id] = prompt
    if not prompts:
        raise UsageError(f"{path.name} has no prompts")
    return list(prompts.values())


def _prompt(line: str, number: int) -> Prompt:
    """Raises UsageError that says what is wrong with the line."""
    none = UsageError('this is no prompt; write {"prompt": "…"} or {"turns": ["…"]}')
    try:
        found = json.loads(line, object_pairs_hook=each_once)
        turns = found["turns"] if "turns" in found else [found["prompt"]]
        text = turns[0] if isinstance(turns, list) else None
    except UsageError:
        raise
    except (ValueError, KeyError, TypeError, IndexError, RecursionError):
        raise none from None
    if not (isinstance(text, str) and text):
        raise none
    if "turns" in found and "prompt" in found:
        raise UsageError("it has turns and prompt, and one is asked; leave the other out")
    names = {"id": found.get("id", number), "category": found.get("category", "all")}
    for field, name in names.items():
        if name is None:
            raise UsageError(f"its {field} is null; name one, or leave it out")
    prompt = Prompt(str(names["id"]), str(names["category"]), text)
    for field, content in (("id", prompt.id), ("category", prompt.category), ("text", prompt.text)):
        check_unicode(f"its {field}", content)  # JSON can name half a character
    return prompt
