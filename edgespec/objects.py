"""Objects of JSON without ambiguity."""

from __future__ import annotations

from typing import Any

from edgespec.errors import UsageError


def each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An `object_pairs_hook`. Of two values of one name parsers would drop one: raises UsageError."""
    names = [name for name, _ in pairs]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"{twice!r} stands twice in one object")
    return dict(pairs)
