"""From a body to a request, or to a refusal that names the first field that is wrong."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails, from_json

from edgespec.server.errors import ApiError
from edgespec.server.tool_fields import Strict
from edgespec.visible import shorten

Body = TypeVar("Body", bound=Strict)


def read(body: bytes) -> dict[str, Any]:
    """The JSON object that a body is. Raises ApiError."""
    if body.startswith(BOM_UTF8):
        why = "it begins with a byte order mark; send UTF-8 without one"
        raise ApiError(400, f"the body is not valid JSON: {why}", code="invalid_json")
    try:
        given = from_json(body)
        json.loads(body, object_pairs_hook=_refuse_repeated)  # it also takes fewer digits of a number
    except ValueError as error:
        raise ApiError(400, f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(given, dict):
        raise ApiError(400, "the body must be a JSON object", code="invalid_json")
    return given


def check(model: type[Body], given: dict[str, Any]) -> Body:
    """The request that an object holds. Raises ApiError that names the first wrong field."""
    for name in given:
        if name not in model.model_fields:
            raise _unknown(shorten(name))
    try:
        return model.model_validate(given)
    except ValidationError as error:
        raise _as_api_error(error.errors(include_url=False, include_input=False), given) from None


def _refuse_repeated(pairs: list[tuple[str, Any]]) -> None:
    """Of a key that stands twice in an object, parsers take one value or the other."""
    if len({key for key, _ in pairs}) < len(pairs):
        seen = Counter(key for key, _ in pairs)
        name = shorten(next(key for key in seen if seen[key] > 1))
        raise ApiError(400, f"{name}: the body has it twice in one object", code="invalid_json", param=name)


def _as_api_error(errors: Sequence[ErrorDetails], given: Mapping[str, Any]) -> ApiError:
    """The first of Pydantic's errors. A value that may be of several types has an error for each: those
    that got furthest into it are told together."""
    first = errors[0]
    places = [(_place(given, e), e) for e in errors[:100] if e["loc"][:1] == first["loc"][:1]]
    deepest = max((place for place, _ in places), key=lambda place: place.count("."))
    told = [e for place, e in places if place == deepest]
    kind = told[0]["type"]
    if kind == "extra_forbidden":
        return _unknown(shorten(deepest))
    message = "; or: ".join(dict.fromkeys(map(_in_words, told)))
    return ApiError(400, f"{deepest}: {message}", code=_CODES.get(kind, "invalid_value"), param=deepest)


def _unknown(name: str) -> ApiError:
    return ApiError(400, f"{name}: there is no such field here", code="unknown_field", param=name)


def _in_words(error: ErrorDetails) -> str:
    return _WORDS.get(error["type"]) or error["msg"].replace(" after validation", "")


_WORDS = {
    "model_type": "Input should be an object",
    "list_type": "Input should be an array",
    "too_short": "Input should not be empty",
}
_CODES = {"unsupported": "unsupported", "missing": "missing"}


def _place(given: Mapping[str, Any], error: ErrorDetails) -> str:
    """Where in the body the wrong value is. Pydantic's own path also names the types it tried: those
    parts are in no body."""
    if "field" in error.get("ctx", {}):
        return str(error["ctx"]["field"])
    path: list[str] = []
    here: Any = given
    for part in error["loc"]:
        if isinstance(here, dict):
            found = part in here
        else:
            found = isinstance(here, list) and isinstance(part, int) and part < len(here)
        if found:
            path.append(str(part))
            here = here[part]
    if error["type"] == "missing":
        path.append(str(error["loc"][-1]))
    return ".".join(path)
