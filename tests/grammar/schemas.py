"""Random JSON schemas of what people ask for: objects in objects, arrays, enums, constants, patterns, ranges,
alternatives, and properties that may be missing."""

from __future__ import annotations

import random
from typing import Any

NAMES = ("name", "age", "city", "tags", "price", "id", "kind", "active", "notes", "größe", "owner name")
WORDS = ("red", "green", "blue", "ok", "not found", "N/A", "ñandú", 'a "quoted" word', "tab\there")
PATTERNS = ("^[A-Z]{2}-[0-9]{3}$", "^(yes|no)$", "^[a-z]+@[a-z]+\\.org$", "^\\d{4}-\\d{2}$", "[0-9]+$")


def random_schema(seed: int) -> dict[str, Any]:
    """The schema of this number; an object, as APIs demand."""
    return _object(random.Random(seed), depth=2)


def _object(rng: random.Random, depth: int) -> dict[str, Any]:
    names = rng.sample(NAMES, rng.randint(1, 3))
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: _any(rng, depth - 1) for name in names},
        "required": [name for name in names if rng.random() < 0.7],
    }
    if rng.random() < 0.8:
        schema["additionalProperties"] = False
    return schema


def _any(rng: random.Random, depth: int) -> dict[str, Any]:
    simple = (_string, _pattern, _number, _integer, _boolean, _enum, _const)
    deep = (_object, _array, _alternatives)
    return rng.choice(simple + deep if depth > 0 else simple)(rng, depth)


def _string(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "minLength": rng.randint(0, 2), "maxLength": rng.randint(3, 15)}


def _pattern(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "string", "pattern": rng.choice(PATTERNS)}


def _number(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": "number", "minimum": rng.randint(-9, 0), "exclusiveMaximum": rng.choice([1, 2.5, 100])}


def _integer(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(-20, 20)
    bounds = {"type": "integer", "minimum": least, "maximum": least + rng.choice([1, 7, 500])}
    return bounds | ({"multipleOf": 3} if bounds["maximum"] - least >= 7 and rng.random() < 0.3 else {})


def _boolean(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"type": rng.choice(["boolean", "null"])}


def _enum(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"enum": rng.sample([*WORDS, 1, 2.5, None, True], rng.randint(1, 4))}


def _const(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"const": rng.choice([*WORDS, 42, {"a": [1, None]}, []])}


def _array(rng: random.Random, depth: int) -> dict[str, Any]:
    least = rng.randint(0, 2)
    return {"type": "array", "items": _any(rng, depth - 1), "minItems": least, "maxItems": least + 2}


def _alternatives(rng: random.Random, depth: int) -> dict[str, Any]:
    return {"anyOf": [_any(rng, depth - 1) for _ in range(2)]}
