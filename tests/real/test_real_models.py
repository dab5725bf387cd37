"""Real quantized models: speculative greedy text is plain text, but for measured near-ties."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from real_models import need

import edgespec
from edgespec.backends.llama_cpp import LlamaCpp
from edgespec.bench.equality import Equality, compare, measure_margins
from edgespec.hub.resolve import resolve

PROMPTS = [
    json.loads(line)["turns"][0]
    for line in (Path(__file__).parents[1] / "data/prompts.jsonl").read_text("utf-8").splitlines()
]


def equality(pair: str, draft: str | None, depth: int, tokens: int) -> Equality:
    with edgespec.load(pair, depth=0) as plain:
        prompts = [plain.tokenize([{"role": "user", "content": text}]) for text in PROMPTS]
        texts = [plain.generate(prompt, max_tokens=tokens) for prompt in prompts]
    with closing(LlamaCpp(resolve(pair).path)) as target:
        cache = target.open()
        margins = [
            measure_margins(target, cache, prompt, text.tokens, depth + 1)
            for prompt, text in zip(prompts, texts, strict=True)
        ]
    result = Equality(float(np.percentile(np.concatenate([m.moved for m in margins]), 99)))
    with edgespec.load(pair, draft=draft, depth=depth) as speculative:
        for prompt, text, margin in zip(prompts, texts, margins, strict=True):
            compare(prompt, text, margin, lambda p, n: speculative.generate(p, max_tokens=n), result)
    return result


def test_lookup_drafts_do_not_change_what_smollm2_says() -> None:
    result = equality(need("smollm2-135m"), "ngram", depth=4, tokens=64)
    assert result.tokens > 100
    assert result.bugs == []


@pytest.mark.coder
def test_the_small_coder_does_not_change_what_the_large_one_says() -> None:
    result = equality(need("qwen2.5-coder"), None, depth=4, tokens=48)
    assert result.tokens > 100
    assert result.bugs == []


@pytest.mark.coder
def test_a_draft_with_another_vocabulary_is_refused_naming_the_first_differing_id() -> None:
    draft = need("smollm2-135m")
    with pytest.raises(edgespec.IncompatiblePair) as refusal:
        edgespec.load(need("qwen2.5-coder"), draft=draft)
    assert "token 0 is '!' in the target and '<|endoftext|>' in the draft" in str(refusal.value)
    assert "Qwen2.5-Coder-0.5B" in str(refusal.value)


@pytest.fixture(scope="module")
def smollm2() -> Iterator[edgespec.Runtime]:
    with edgespec.load(need("smollm2-135m"), draft="ngram") as runtime:
        yield runtime


def test_the_second_turn_of_a_chat_processes_only_what_is_new(smollm2: edgespec.Runtime) -> None:
    chat = smollm2.chat(system="Answer in one sentence. " * 20)
    first = chat.send("What is a lighthouse?", max_tokens=20)
    second = chat.send("Who works there?", max_tokens=20)
    assert first.stats.prompt_tokens > 100
    new = second.stats.prompt_tokens - second.stats.cached_tokens
    assert second.stats.cached_tokens >= first.stats.prompt_tokens
    assert new < 60


def test_text_is_what_the_tokens_decode_to(smollm2: edgespec.Runtime) -> None:
    answer = smollm2.generate("Emoji: 🙂🙃, Zürich, 東京, Ω. Again: Emoji: 🙂🙃, Zürich, 東", max_tokens=24)
    pieces = b"".join(smollm2.target.tokenizer.piece(token) for token in answer.tokens)
    assert answer.text == pieces.decode("utf-8", "replace")
