"""Greedy and seeded speculation give what plain decoding gives, whatever is asked and whoever drafts.

llama.cpp's logits differ in the last digits between a token alone and a token in a batch. So a
divergence is excused if the two tokens' scores (log p, penalties, temperature, noise), computed from
the tables, differ by less than NEAR_TIE; such cases are counted, and there may hardly be any.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pair import TARGET, VOCABULARY, load, model_path

from edgespec.backends.base import Backend
from edgespec.control.policy import FixedDepth
from edgespec.decoding.engine import Request
from edgespec.decoding.generation import Engine
from edgespec.decoding.sampling import SamplerSettings
from edgespec.decoding.stopping import Token
from edgespec.decoding.verify import gumbel
from edgespec.drafters.draft_model import DraftModel
from edgespec.drafters.ngram import NGram

from .expected import logits, penalised
from .policies import Controlled, Erratic

NEAR_TIE = 1e-4
N_CTX = 64
EXAMPLES = 300

DRAFTERS = ("draft", "ngram", "hopeless", "short context", "itself", "guessing", "several")


@dataclass
class Engines:
    """One engine per drafter, and one without, on the same target."""

    speculative: dict[str, Engine]
    plain: Engine
    near_ties: int = 0
    drafted: int = 0
    accepted: int = 0


@pytest.fixture(scope="module", params=["llama.cpp", "onnx"])
def engines(request: pytest.FixtureRequest) -> Iterator[Engines]:
    """On ONNX Runtime the target is strict: no near-tie is excused."""
    runtime: str = request.param
    folder = request.getfixturevalue("model_files" if runtime == "llama.cpp" else "converted")

    def model(name: str, n_ctx: int = N_CTX, **options: Any) -> Backend:
        backend: Backend = load(model_path(folder, name, runtime), n_ctx=n_ctx, **options)
        return backend

    strict = {"strict": True} if runtime == "onnx" else {}
    target = model("target", **strict)
    drafters = {
        "draft": DraftModel(model("draft")),
        "ngram": NGram(longest=3, shortest=1),
        "hopeless": DraftModel(model("hopeless")),
        "short context": DraftModel(model("draft", N_CTX // 4)),
        "itself": DraftModel(model("target")),
        "guessing": DraftModel(model("draft"), NGram(longest=3, shortest=1)),
    }
    found = Engines(
        {name: Engine(target, [drafter], FixedDepth(4)) for name, drafter in drafters.items()}
        | {
            "several": Engine(
                target, [drafters["guessing"], drafters["ngram"], drafters["hopeless"]], FixedDepth(4)
            )
        },
        Engine(target, (), FixedDepth(0)),
    )
    yield found
    print(f"{found.accepted} of {found.drafted} drafts accepted, {found.near_ties} near-ties")
    for drafter in drafters.values():
        drafter.close()
    target.close()
    assert found.near_ties <= (0 if strict else 2)
    assert found.accepted > EXAMPLES
    assert found.drafted - found.accepted > EXAMPLES


tokens = st.integers(0, len(VOCABULARY) - 1)
prompts = st.lists(tokens, max_size=20).map(lambda text: [VOCABULARY.bos, *text])
samplers = st.fixed_dictionaries(
    {"temperature": st.sampled_from([0.0, 0.0, 0.3, 0.8, 1.0, 1.5])},
    optional={
        "top_k": st.integers(1, 30),
        "top_p": st.floats(0.05, 1.0),
        "min_p": st.floats(0.0, 0.5),
        "repetition_penalty": st.floats(0.8, 2.0),
        "presence_penalty": st.floats(-1.0, 2.0),
        "frequency_penalty": st.floats(-1.0, 2.0),
        "penalty_window": st.integers(0, 20),
        "logit_bias": st.dictionaries(tokens, st.floats(-5.0, 5.0) | st.just(float("-inf")), max_size=3),
    },
)
stops = st.lists(st.text("aeimnrstuy \né€\ufffd", min_size=1, max_size=4), max_size=3)


@settings(
    max_examples=EXAMPLES,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    prompt=prompts,
    options=samplers,
    stop=stops,
    seed=st.integers(0, 2**64),
    depth=st.integers(0, 12),
    max_tokens=st.integers(1, 60) | st.none(),
    drafter=st.sampled_from(DRAFTERS),
    policy=st.sampled_from(["fixed", "flat", "steep", "erratic"]),
)
def test_speculation_gives_what_plain_decoding_gives(
    engines: Engines,
    prompt: list[int],
    options: dict[str, Any],
    stop: list[str],
    seed: int,
    depth: int,
    max_tokens: int | None,
    drafter: str,
    policy: str,
) -> None:
    request = Request(SamplerSettings(**options), max_tokens=max_tokens, stop=stop, seed=seed, logprobs=2)
    engine = engines.speculative[drafter]
    if policy == "fixed":
        engine.policy = FixedDepth(depth)
    elif policy == "erratic":
        engine.policy = Erratic(seed)
    else:
        engine.policy = Controlled(engine.drafters, policy)
    speculative = engine.generate(prompt, request)
    found = list(speculative)
    plain = engines.plain.generate(prompt, request)
    wanted = list(plain)
    engines.drafted += speculative.stats.drafted
    engines.accepted += speculative.stats.accepted

    assert speculative.stats.draft_failure is None
    if (place := divergence(speculative.tokens, plain.tokens)) is not None:
        a, b = speculative.tokens[place], plain.tokens[place]
        history = [*prompt, *plain.tokens[:place]]
        assert margin(history, options, seed, a, b) < NEAR_TIE, (history, a, b)
        engines.near_ties += 1
        return
    assert speculative.tokens == plain.tokens
    assert speculative.text == plain.text
    assert speculative.finish_reason == plain.finish_reason
    assert speculative.stopped_by == plain.stopped_by
    assert [token.text for token in found] == [token.text for token in wanted]
    assert [token.id for token in found] == speculative.tokens
    for a, b in zip(found, wanted, strict=True):
        assert_same_logprobs(a, b)
    assert_logprobs_are_the_tables(found, prompt)


def divergence(a: Sequence[int], b: Sequence[int]) -> int | None:
    """The first place where both have a token, and not the same."""
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), None)


def margin(history: Sequence[int], options: Mapping[str, Any], seed: int, a: int, b: int) -> float:
    """By how much the scores of tokens `a` and `b` differ, in exact arithmetic."""
    scores = penalised(logits(TARGET, history), history, options)
    if temperature := options["temperature"]:
        scores = scores / temperature + gumbel(seed, len(history), np.arange(len(scores)))
    return abs(float(scores[a] - scores[b]))


def assert_same_logprobs(a: Token, b: Token) -> None:
    assert a.logprob == pytest.approx(b.logprob, abs=1e-3)
    assert [token for token, _ in a.top_logprobs] == [token for token, _ in b.top_logprobs]
    for (_, x), (_, y) in zip(a.top_logprobs, b.top_logprobs, strict=True):
        assert x == pytest.approx(y, abs=1e-3)


def assert_logprobs_are_the_tables(found: Sequence[Token], prompt: Sequence[int]) -> None:
    """Of the raw distribution, whatever the sampler chain did to it."""
    history = list(prompt)
    for token in found:
        log_p = TARGET.log_p(history)
        assert token.logprob == pytest.approx(log_p[token.id], abs=1e-3)
        best = np.argsort(-log_p)[:2].tolist()
        assert [id for id, _ in token.top_logprobs] == best
        assert [value for _, value in token.top_logprobs] == pytest.approx(log_p[best].tolist(), abs=1e-3)
        history.append(token.id)
