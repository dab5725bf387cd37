"""Forms of an answer on the closed-form model: what is refused, and when an answer is complete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import edgespec
from edgespec.grammar.constraint import _bytewise, _refusal, enforceable, grammar, json_schema, llguidance

PROMPT = "stay"


@pytest.fixture(scope="module")
def runtime(model_files: Path) -> Iterator[edgespec.Runtime]:
    with edgespec.load(model_files / "target.gguf", draft="rules", n_ctx=256, threads=1) as loaded:
        yield loaded


@pytest.mark.parametrize("max_tokens", [None, 4])
def test_an_answer_ends_as_soon_as_it_has_its_form(runtime: edgespec.Runtime, max_tokens: int | None) -> None:
    for generate in (runtime.generate, runtime.generate_plain):
        answer = generate(PROMPT, regex="tims?im", max_tokens=max_tokens, logit_bias={7: -50.0})
        assert answer.finish_reason == ("stop" if answer.text in ("timim", "timsim") else "length")
    assert runtime.generate(PROMPT, regex="mim", max_tokens=3).finish_reason == "stop"
    assert runtime.generate_plain(PROMPT, regex="mim", max_tokens=3).finish_reason == "stop"


def test_what_is_forced_is_drafted_and_accepted(runtime: edgespec.Runtime) -> None:
    answer = runtime.generate(PROMPT, regex="mimi nina")
    assert answer.text == "mimi nina"
    assert answer.stats.rounds == 1
    assert answer.stats.accepted == answer.stats.drafted == len(answer.tokens) - 1
    assert runtime.generate_plain(PROMPT, regex="mimi nina").stats.drafted == 0


def test_an_answer_that_is_cut_off_is_the_beginning_of_a_form(runtime: edgespec.Runtime) -> None:
    answer = runtime.generate(PROMPT, regex="mimi nina", max_tokens=4)
    assert (answer.text, answer.finish_reason) == ("mimi", "length")


def test_a_stop_string_goes_first(runtime: edgespec.Runtime) -> None:
    answer = runtime.generate(PROMPT, regex="mimi nina", stop=" ")
    assert (answer.text, answer.stopped_by) == ("mimi", " ")


def test_anchors_around_a_regular_expression_change_nothing(runtime: edgespec.Runtime) -> None:
    assert runtime.generate(PROMPT, regex="^mimi nina$").text == "mimi nina"


def test_grammars_come_in_two_languages(runtime: edgespec.Runtime) -> None:
    for text in ('start: "mi" end\nend: "na" | "nu"', 'root ::= "mi" end\nend ::= "na" | "nu"'):
        assert runtime.generate(PROMPT, grammar=text).text in ("mina", "minu")


@pytest.mark.parametrize(
    ("gbnf", "text"),
    [
        (r'root ::= "\u00e9ab\u0041"', "éabA"),
        (r'root ::= "\U0001F600!"', "😀!"),
        (r"root ::= [\U0001F600] [\u0416]", "😀Ж"),
        (r'root ::= "\\u00e9ab"', r"\u00e9ab"),
    ],
)
def test_codes_in_a_grammar_stand_for_their_characters(gbnf: str, text: str) -> None:
    matcher = llguidance().LLMatcher(_bytewise(), grammar(gbnf).source, log_level=0)
    assert matcher.compute_ff_bytes().decode() == text


def test_a_bias_against_all_that_is_allowed_is_refused(runtime: edgespec.Runtime) -> None:
    with pytest.raises(edgespec.UsageError, match="no token that the grammar allows"):
        runtime.generate(PROMPT, regex="a", logit_bias={0: -float("inf")})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"regex": "a("}, r"regex is not usable: unclosed group, at character 2 of a\("),
        ({"regex": "a(?=b)"}, "look-ahead"),
        ({"regex": r"a\b"}, r"regex is not usable: \\b, and .* the whole answer is matched without them"),
        ({"regex": "a^b"}, r"\^ or \$ in its midst, cannot be enforced"),
        ({"regex": 3}, "regex is 3; it must be text"),
        ({"regex": "a\udcff"}, "regex is not valid Unicode at character 2"),
        ({"grammar": "\udcff"}, "grammar is not valid Unicode at character 1"),
        ({"grammar": "start: a\n"}, "grammar is not usable: line 1, column 8: unknown name"),
        ({"grammar": 'root ::= "a\n'}, "grammar is not valid GBNF: .* line"),
        ({"grammar": "start: <nobody>"}, "grammar is not usable with this model: .*unknown special token"),
        ({"json_schema": [1]}, "json_schema is a list"),
        ({"json_schema": {"enum": [float("nan")]}}, "json_schema is no JSON schema"),
        ({"json_schema": {"properties": {"a": {"not": {}}}}}, "at #/properties/a: Unimplemented"),
        ({"json_schema": {"type": "object"}}, "cannot be spelled with this model's tokens"),
        ({"json_schema": {"$ref": "#"}}, "at the top: no text has this form"),
        ({"regex": "a{1,1000000}"}, "regex repeats something 1000000 times"),
        ({"grammar": 'start: %json {"pattern": "a{1000000}"}'}, "repeats something 1000000 times"),
        ({"grammar": r'root ::= "\ud83d"'}, "grammar is not valid GBNF: .* is no character"),
        ({"grammar": 'start: a "i"\na[lazy, stop="m"]: /m*/'}, "grammar sets stop for a rule"),
        ({"grammar": 'start: a "i"\na[max_tokens=3]: /m*/'}, "grammar sets max_tokens for a rule"),
        ({"grammar": "start: a\n?a[temperature=0.7]: /m*/"}, "grammar sets temperature for a rule"),
        ({"grammar": "start: /a{200000}/"}, "wants more than 131072 characters"),
        ({"json_schema": {}, "regex": "a"}, "json_schema and regex are both given"),
    ],
)
def test_a_form_that_cannot_be_had_is_refused(
    runtime: edgespec.Runtime, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(edgespec.UsageError, match=message):
        runtime.generate(PROMPT, **options)


@pytest.mark.parametrize("refused", [{"not": {}}, {"pattern": "a{1000000}"}, {"enum": [float("nan")]}])
def test_what_is_enforceable_is_what_is_taken_as_a_form(refused: dict[str, Any]) -> None:
    for schema in (refused, {"properties": {"a": refused}}):
        assert not enforceable(schema)
        with pytest.raises(edgespec.UsageError):
            json_schema(schema)
    assert enforceable({"pattern": "a{1000}"})


def test_the_search_for_the_part_to_blame_forgets_no_other_form() -> None:
    good: dict[str, Any] = {"properties": {"a": {"type": "null"}}}
    known: dict[str, Any] = {f"p{i}": {"const": i} for i in range(40)}  # more than are kept
    json_schema(good)
    with pytest.raises(edgespec.UsageError, match="at #/properties/z: Unimplemented"):
        json_schema({"properties": {**known, "z": {"not": {}}}})
    hits = _refusal.cache_info().hits
    json_schema(good)
    assert _refusal.cache_info().hits == hits + 1


@pytest.mark.parametrize("form", [{"regex": "a"}, {"json_schema": {}}, {"grammar": 'start: "a"'}])
def test_without_the_package_it_says_how_to_get_it(
    runtime: edgespec.Runtime, monkeypatch: pytest.MonkeyPatch, form: dict[str, Any]
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with pytest.raises(edgespec.BackendError, match=r"pip install 'edgespec\[grammar\]'"):
        runtime.generate(PROMPT, **form)
