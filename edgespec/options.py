"""What may be asked of a runtime: prompts, and the options of an answer."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields
from typing import Any, TypeAlias, TypedDict

import numpy as np

from edgespec.chat.templates import Message
from edgespec.decoding.engine import Request
from edgespec.decoding.rounds import Round
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.stopping import Token
from edgespec.errors import UsageError
from edgespec.grammar.constraint import Constraint, grammar, json_schema, regex

Prompt: TypeAlias = str | Sequence[Message] | Sequence[int]
"""plain text to continue; messages for the model's chat template; or token ids"""


class SamplingOptions(TypedDict, total=False):
    """Keyword arguments of `Runtime.generate` that shape the distribution; see `SamplerSettings`."""

    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    presence_penalty: float
    frequency_penalty: float
    penalty_window: int
    logit_bias: Mapping[int, float]


class GenerateOptions(SamplingOptions, total=False):
    """Keyword arguments of `Runtime.generate`; see `Request`."""

    max_tokens: int | None
    stop: str | Sequence[str] | None
    json_schema: Mapping[str, Any] | bool | None
    regex: str | None
    grammar: str | Constraint | None
    seed: int | None
    logprobs: int | None
    on_prompt: Callable[[int, int], None]
    on_round: Callable[[Round], None]
    on_token: Callable[[Token], None]


_SAMPLING = {f.name for f in fields(SamplerSettings)}
_FORMS: Mapping[str, Callable[[Any], Constraint]] = {
    "json_schema": json_schema,
    "regex": regex,
    "grammar": grammar,
}
_REQUEST = {f.name for f in fields(Request)} - {"sampling", "constraint"}


def request_of(options: Mapping[str, Any]) -> Request:
    """Sort keyword options into sampler settings and the rest."""
    known = _SAMPLING | _REQUEST | _FORMS.keys()
    for name in options:
        if name not in known:
            close = difflib.get_close_matches(name, known, 1)
            raise UsageError(
                f"there is no option {name!r}" + (f"; did you mean {close[0]!r}?" if close else "")
            )
    sampling = SamplerSettings(**{k: as_python(v) for k, v in options.items() if k in _SAMPLING})
    rest = {k: as_python(v) for k, v in options.items() if k in _REQUEST}
    stop = rest.get("stop")
    if not isinstance(stop, Iterable | None):
        raise UsageError(f"stop is {stop!r}; it must be strings")
    rest["stop"] = () if stop is None else (stop,) if isinstance(stop, str) else tuple(stop)
    return Request(sampling, constraint=form(options), **rest)


def as_python(value: Any) -> Any:
    """A number of numpy's as Python's, and those in a dictionary: they come out of sweeps."""
    if isinstance(value, Mapping):
        return {as_python(key): as_python(item) for key, item in value.items()}
    return value.item() if isinstance(value, np.generic) else value


def form(options: Mapping[str, Any]) -> Constraint | None:
    """The form that the output must have by these options of `generate`, if any. Raises UsageError."""
    given = [name for name in _FORMS if options.get(name) is not None]
    if len(given) > 1:
        raise UsageError(
            f"{given[0]} and {given[1]} are both given; an answer has one form, so leave one out"
        )
    if not given:
        return None
    value = options[given[0]]
    return value if isinstance(value, Constraint) else _FORMS[given[0]](value)
