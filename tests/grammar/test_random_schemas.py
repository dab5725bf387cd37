"""Whoever drafts, JSON of random schemas is valid whenever it is complete, and greedy speculation says token
by token what plain decoding says. The first schemas of many: all 200 are tried by
python -m tests.grammar.test_random_schemas MODEL, which takes a while."""

from __future__ import annotations

import json
import sys
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
    with ExitStack() as opened:
        yield {
            name: opened.enter_context(edgespec.load(model, n_ctx=512, **options))
            for name, options in LOADED.items()
        }


@pytest.mark.parametrize("seed", range(6))
def test_json_is_valid_whoever_drafts(runtimes: Mapping[str, edgespec.Runtime], seed: int) -> None:
    check(runtimes, seed, exact=False)


def main() -> None:
    model, options = sys.argv[1], {"n_ctx": 512, "threads": 1}
    first, end = [*map(int, sys.argv[2:]), *(0, 200)[len(sys.argv) - 2 :]]
    with ExitStack() as opened:
        runtimes = {
            name: opened.enter_context(edgespec.load(model, backend="onnx", **options, **drafting))
            for name, drafting in LOADED.items()
        }
        seen = Counter[str]()
        for seed in range(first, end):
            seen += check(runtimes, seed, exact=runtimes["none"].target.capabilities.row_invariant)
            print(seed + 1, dict(seen), flush=True)


if __name__ == "__main__":
    main()
