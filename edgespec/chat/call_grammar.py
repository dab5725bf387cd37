"""Grammars, in llguidance's Lark, of answers that call functions.

An answer that must be a call is one from its first token. One that may be is free text, and held from where
`CallReader` begins to take it for a call: then every call that is read has arguments of its schema.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

from edgespec.chat.tools import END, TAG, CallForm
from edgespec.errors import UsageError
from edgespec.grammar.constraint import SPELLING, enforceable

Functions: TypeAlias = Mapping[str, Mapping[str, Any]]
"""by name, the JSON schema of their arguments"""

_BLANKS = r"[\s\x1c-\x1f]*"
"""what str.isspace() and str.lstrip() mean by white space"""
_OBJECT: Mapping[str, Any] = {"type": "object", "x-guidance": SPELLING}


def must_call(form: CallForm, functions: Functions, several: bool) -> str:
    """Answers that call one of these functions, or several in a row."""
    calls = _calls("arguments" if form == "tags" else "parameters", functions)
    call = _one_of("call", functions)
    if form == "bare":
        return "\n".join([f"start: {call}", *calls])
    more = ' ("\\n" tagged)*' if several else ""
    tagged = f"tagged: {_quoted(TAG + chr(10))} ({call}) {_quoted(chr(10) + END)}"
    return "\n".join([f"start: tagged{more}", tagged, *calls])


def may_call(functions: Functions, thinks: bool) -> str:
    """Answers that say anything, in which whatever opens a call goes on as one. thinks: they may begin with
    thoughts, in which nothing is a call."""
    rules = [
        "start: thoughts? part* TEXT? | UNFINISHED" if thinks else "start: part* TEXT?",
        f"part: tagged | {_one_of('untagged', functions)}",
        f"tagged: up_to_tag SPACE? ({_one_of('call', functions)}) SPACE? {_quoted(END)}",
        "up_to_tag[lazy]: UP_TO_TAG",
        "UP_TO_TAG: ANY TAG & ~(OTHER ANY)",
        "TEXT: ANY & ~(ANY TAG ANY) & ~(OTHER ANY)",
        f"OTHER: {_untagged(functions)}" + (" | THINK" if thinks else ""),
        f"TAG: {_quoted(TAG)}",
        "ANY: /(?s:.*)/",
        r"SPACE: /[ \t\r\n]{1,20}/",
        *_calls("arguments", functions),
    ]
    for i, (name, schema) in enumerate(functions.items()):
        rules.append(f'untagged{i}: opening{i} SPACE? %json {_spelled(schema)} SPACE? "}}"')
        rules.append(f"opening{i}[lazy]: {_untagged([name])}")
    if thinks:
        rules.append(f"THINK: /{_BLANKS}<think>/")
        rules.append('THOUGHTS: THINK ANY "</think>"')
        rules.append("thoughts[lazy]: THOUGHTS")
        rules.append("UNFINISHED: THINK ANY & ~(THOUGHTS ANY)")
    return "\n".join(rules)


def can_hold(schema: Mapping[str, Any]) -> bool:
    """Whether calls can be held to this schema of a function's arguments. Raises BackendError without
    llguidance."""
    try:
        return enforceable(_held(schema))
    except UsageError:
        return False


def _calls(key: str, functions: Functions) -> list[str]:
    opening = f'{{{{"name": "{{}}", "{key}": '
    return [
        f'call{i}: {_quoted(opening.format(name))} %json {_spelled(schema)} "}}"'
        for i, (name, schema) in enumerate(functions.items())
    ]


def _one_of(rule: str, functions: Functions) -> str:
    return " | ".join(f"{rule}{i}" for i in range(len(functions)))


def _untagged(names: Iterable[str]) -> str:
    """How calls without tags begin, up to their arguments, as a regular expression. A fence and a type may
    come first, and white space anywhere."""
    type_, name, between, parameters = map(_spaced, ('"type":"function",', '"name":"', '","', "parameters"))
    opening = f"({_spaced('```')}({_spaced('json')})?)?{_spaced('{')}({type_})?{name}"
    called = "|".join(map(_spaced, names))
    return f"/{_BLANKS}{opening}({called}){between}({_spaced('arguments')}|{parameters}){_spaced(chr(34))}:/"


def _spaced(text: str) -> str:
    return "".join(re.escape(character) + _BLANKS for character in text)


def _quoted(text: str) -> str:
    return json.dumps(text)


def _spelled(schema: Mapping[str, Any]) -> str:
    return json.dumps(_held(schema))


def _held(schema: Mapping[str, Any]) -> dict[str, Any]:
    """What arguments are held to: objects of the schema, in one spelling. Raises UsageError without any."""
    types = schema.get("type", "object")
    if types != "object" and not (isinstance(types, list) and "object" in types):
        raise UsageError(f"arguments are an object, and their schema wants the type {types!r}")
    return {"type": "object", **schema, **_OBJECT}
