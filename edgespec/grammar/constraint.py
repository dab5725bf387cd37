"""The form an answer must have, checked before anything is generated.

llguidance (https://github.com/guidance-ai/llguidance) understands all three kinds. What it cannot
enforce in a JSON schema it refuses, and so do we: nothing in a schema is left out silently.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import ModuleType
from typing import Any

from edgespec.errors import BackendError, UsageError
from edgespec.visible import check_unicode

SPELLING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""JSON is written in one way, as Python's json.dumps does: so keys and punctuation are forced, and no
model loses itself in blanks. A schema can ask for others under "x-guidance"."""
LONGEST = 1 << 17
"""bytes that may be forced at once: llguidance loses its way in more"""
TRIES, LOOKED_AT = 300, 1 << 24
"""parts of a refused schema that are looked at to find the one to blame, and about how many bytes in all"""

_DATA = {"const", "enum", "default", "examples", "required", "type"}
"""keywords of a schema that hold no schemas"""
_NAMED = {"properties", "patternProperties", "$defs", "definitions"}
"""keywords that hold schemas by name"""
_SHARED = {"$schema", "$defs", "definitions"}
"""keywords of a schema that its parts refer to"""
_PATTERNS = re.compile(r'"pattern": *"(?:[^"\\]|\\.)*"')
_REPEATS = re.compile(r"(?<!\\)\{(?:\d+,)?(\d{6,})")
_CODES = re.compile(r"\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|.)", re.DOTALL)
_OPTIONS = re.compile(r"(?m)^[ \t]*[?!]?[\w-]+\s*\[[^\]]*?\b(max_tokens|stop|temperature)\s*=")
_PLACE = re.compile(r"^(?:at )?(\d+)\((\d+)\): ")
_IN_REGEX = re.compile(r"regex parse error:\n    (?P<regex>.*)\n    (?P<before> *)\^+\nerror: (?P<why>.*)")


@dataclass(frozen=True)
class Constraint:
    """A form that can be enforced on any vocabulary. Make one with the functions below."""

    kind: str
    """the option it was given as: json_schema, regex or grammar"""
    source: str
    """as llguidance takes it"""
    free: bool = False
    """it allows any text, of which parts have a form: an answer may end anywhere else, and its thoughts are
    allowed for"""


def json_schema(schema: Mapping[str, Any] | bool) -> Constraint:
    """JSON of this schema (draft 2020-12, or the one that its "$schema" names).

    Raises UsageError with the place of what is wrong or cannot be enforced.
    """
    if not isinstance(schema, Mapping | bool):
        raise UsageError(f"json_schema is a {type(schema).__name__}; it must be an object: a JSON schema")
    whole = dict(schema) if isinstance(schema, Mapping) else {} if schema else {"enum": []}
    try:
        source = _from_schema(whole)
    except (TypeError, ValueError, RecursionError) as error:
        raise UsageError(f"json_schema is no JSON schema: {error}") from error
    _check_patterns(source)
    if why := _refusal(source):
        definitions = {name: value for name, value in whole.items() if name in _SHARED}
        tries = iter(range(min(TRIES, LOOKED_AT // len(source))))
        blamed = _blame(whole, definitions, why, tries)
        place = "/".join(["#", *blamed]) if blamed else "the top"
        raise UsageError(f"json_schema cannot be enforced, at {place}: {why}")
    return Constraint("json_schema", source)


def enforceable(schema: Mapping[str, Any]) -> bool:
    """Whether `json_schema` would take it. Raises BackendError without llguidance."""
    try:
        source = _from_schema(schema)
        _check_patterns(source)
    except (TypeError, ValueError, RecursionError):
        return False
    return not _refusal(source)


def regex(pattern: str) -> Constraint:
    """Text that this regular expression matches as a whole; in the syntax of Rust's regex crate, without
    lookaround and backreferences. Raises UsageError with the place of what is wrong."""
    if not isinstance(pattern, str):
        raise UsageError(f"regex is {pattern!r}; it must be text")
    check_unicode("regex", pattern)
    _check_repeats("regex", pattern)
    source = str(llguidance().LLMatcher.grammar_from_regex(pattern))
    if why := _refusal(source):
        why = why.partition("\n   1 | start:")[0]  # our own wrapping of it
        if "lookarounds not supported" in why:  # a look-ahead is refused in other words
            why = "\\b, and ^ or $ in its midst, cannot be enforced; the whole answer is matched without them"
        raise UsageError(f"regex is not usable: {_in_words(_PLACE.sub('', why))}")
    return Constraint("regex", source)


def grammar(text: str) -> Constraint:
    """Text of a grammar in llguidance's dialect of Lark, whose first rule is `start`, or in llama.cpp's
    GBNF (`root ::= …`). Raises UsageError with the line of what is wrong."""
    if not isinstance(text, str):
        raise UsageError(f"grammar is {text!r}; it must be text: Lark or GBNF")
    check_unicode("grammar", text)
    _check_patterns(text)
    if found := _OPTIONS.search(text):  # llguidance cannot take drafted tokens back with the first two
        raise UsageError(
            f"grammar sets {found[1]} for a rule, which cannot be honoured here; leave it out (for stop, "
            "there is suffix)"
        )
    matcher = llguidance().LLMatcher
    from llguidance.gbnf_to_lark import gbnf_to_lark

    try:
        lark = gbnf_to_lark(_decoded(text)) if re.search(r"(?m)^\s*[\w-]+\s*::=", text) else text
    except Exception as error:  # the package raises bare exceptions
        raise UsageError(f"grammar is not valid GBNF: {error}") from error
    source = str(matcher.grammar_from_lark(lark))
    if why := _refusal(source):
        raise UsageError(f"grammar is not usable: {_in_words(why)}")
    return Constraint("grammar", source)


def llguidance() -> ModuleType:
    """The package, if it is there. Raises BackendError."""
    try:
        import llguidance
    except ImportError as error:
        raise BackendError(
            "structured output needs the package llguidance: pip install 'edgespec[grammar]'"
        ) from error
    return llguidance


def _decoded(gbnf: str) -> str:
    r"""With characters in place of their codes: llguidance leaves out zeros of these, so that "\U0001F600"
    would be two other characters, and "\u00e9ab" one."""

    def character(escape: re.Match[str]) -> str:
        digits = escape[1] or escape[2]
        if not digits:
            return escape[0]
        code = int(digits, 16)
        if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
            raise ValueError(f"{escape[0]} is no character")
        plain = code >= 0xA0 or chr(code).isalnum()  # others may have a meaning
        return chr(code) if plain else f"\\x{code:02x}"

    return _CODES.sub(character, gbnf)


def _check_patterns(schema: str) -> None:
    """schema: JSON, or a grammar with such in it."""
    _check_repeats("a pattern in json_schema", "".join(_PATTERNS.findall(schema)))


def _check_repeats(what: str, pattern: str) -> None:
    """llguidance takes seconds for what it cannot enforce in the end."""
    if found := _REPEATS.search(pattern):
        raise UsageError(f"{what} repeats something {found[1]} times; at most 99999 can be enforced")


def _from_schema(schema: Mapping[str, Any]) -> str:
    text = json.dumps(schema, allow_nan=False)
    return str(llguidance().LLMatcher.grammar_from_json_schema(text, defaults=SPELLING))


@lru_cache(maxsize=32)  # programs that call models send the same tools with every turn
def _refusal(source: str) -> str:
    """Why llguidance refuses a grammar, or that no text has it; empty if it does not."""
    return _why_refused(source)


def _why_refused(source: str) -> str:
    package = llguidance()
    refused, messages = package.LLMatcher.validate_grammar_with_warnings(source)
    if refused:
        return str(messages[0]).strip()
    matcher = package.LLMatcher(_bytewise(), source, log_level=0)
    if len(matcher.compute_ff_bytes()) > LONGEST:
        return f"it wants more than {LONGEST} characters that leave no choice"
    if not matcher.is_error():  # it may need tokens of a model
        matcher.compute_bitmask()
    return "no text has this form" if matcher.get_error().startswith("NoExtensionBias") else ""


@lru_cache(maxsize=1)
def _bytewise() -> Any:
    """A vocabulary that can spell everything."""
    return llguidance().LLTokenizer("byte")


def _blame(schema: Any, definitions: Mapping[str, Any], why: str, tries: Iterator[int]) -> list[str]:
    """The path to the innermost part of a schema that alone is refused for the same reason."""
    for path, part in _parts(schema):
        if next(tries, None) is None:
            return []
        if _why_refused(_from_schema({**definitions, **part})) == why:
            return [*path, *_blame(part, definitions, why, tries)]
    return []


def _parts(schema: Mapping[str, Any]) -> Iterator[tuple[list[str], Mapping[str, Any]]]:
    """The schemas right inside a schema, with their paths."""
    for keyword, value in schema.items():
        if keyword in _DATA:
            continue
        if keyword in _NAMED and isinstance(value, Mapping):
            inner = [([keyword, str(name)], part) for name, part in value.items()]
        elif isinstance(value, list):
            inner = [([keyword, str(i)], part) for i, part in enumerate(value)]
        else:
            inner = [([keyword], value)]
        yield from ((path, part) for path, part in inner if isinstance(part, Mapping))


def _in_words(why: str) -> str:
    if found := _IN_REGEX.search(why):
        why = f"{found['why']}, at character {len(found['before']) + 1} of {found['regex']}"
    return _PLACE.sub(r"line \1, column \2: ", why)
