"""Whoever drafts, JSON of random schemas is valid whenever it is complete, and greedy speculation says token
by token what plain decoding says. The first schemas of many: all 200 are tried by
PYTHONPATH=.:tests python -m tests.grammar.test_random_schemas MODEL [--draft DRAFT], which takes a while."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest
from real_models import need, need_module

import edgespec

from .schemas import random_schema

jsonschema = need_module("jsonschema")

PROMPT = [{"role": "user", "content": "Make up an example, as JSON."}]
LOADED: Mapping[str, Mapping[str, Any]] = {
    "none": {"draft": "none"},
    "ngram": {"draft": "ngram", "depth": 4},
    "rules": {"draft": "rules"},
}


def check(runtimes: Mapping[str, edgespec.Runtime], seed: int, exact: bool) -> Counter[str]:
    """Answer with the schema of this number by all drafters. exact: the backend is row-invariant."""
    schema, seen = random_schema(seed), Counter[str]()
    answers = {
        name: runtime.generate(PROMPT, json_schema=schema, max_tokens=60)
        for name, runtime in runtimes.items()
    }
    for name, answer in answers.items():
        assert answer.finish_reason in ("stop", "length")
        assert answer.stats.draft_failure is None
        seen[f"{name}: {answer.finish_reason}"] += 1
        seen[f"{name}: rounds"] += answer.stats.rounds
        seen[f"{name}: accepted"] += answer.stats.accepted
        if answer.finish_reason == "stop":
            jsonschema.validate(json.loads(answer.text), schema)
        if exact:
            assert answer.tokens == answers["none"].tokens, (seed, name)
            assert answer.finish_reason == answers["none"].finish_reason
        elif answer.tokens != answers["none"].tokens:
            seen[f"{name}: differs"] += 1
    return seen


@pytest.fixture(scope="module")
def runtimes() -> Iterator[Mapping[str, edgespec.Runtime]]:
    model = need("smollm2-135m")
    loaded = {**LOADED, "itself": {"draft": model, "depth": 4}}
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(edgespec.load(model, n_ctx=512, **options))
            for name, options in loaded.items()
        }


@pytest.mark.parametrize("seed", range(4))
def test_json_is_valid_whoever_drafts(runtimes: Mapping[str, edgespec.Runtime], seed: int) -> None:
    check(runtimes, seed, exact=False)


def main() -> None:
    words = ArgumentParser()
    words.add_argument("model")
    words.add_argument("first", type=int, nargs="?", default=0)
    words.add_argument("end", type=int, nargs="?", default=200)
    words.add_argument("--draft", help="a draft model, in place of the other drafters")
    given = words.parse_args()
    loaded = LOADED
    if given.draft:
        loaded = {"none": LOADED["none"], "model": {"draft": given.draft, "depth": 4}}
    with ExitStack() as opened:
        runtimes = {
            name: opened.enter_context(
                edgespec.load(given.model, backend="onnx", n_ctx=512, threads=1, **drafting)
            )
            for name, drafting in loaded.items()
        }
        exact = runtimes["none"].target.capabilities.row_invariant
        seen = Counter[str]()
        for seed in range(given.first, given.end):
            seen += check(runtimes, seed, exact)
            print(seed + 1, dict(seen), flush=True)


if __name__ == "__main__":
    main()
