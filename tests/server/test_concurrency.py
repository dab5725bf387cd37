"""Several requests at once: they share passes, and each is answered as if it were alone."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from waiting import PATIENCE, until

from .conftest import Server, loader, served

TEXT = "/v1/completions"
GREEDY = {"temperature": 0}
SAMPLED = {"temperature": 0.8, "seed": 5}


@pytest.fixture(scope="module")
def several(converted: Path) -> Iterator[Server]:
    """Three at once, on a row-invariant backend, with a draft model."""
    options = {"draft": converted / "draft.gguf", "backend": "onnx", "n_ctx": 512, "parallel": 3}
    with served(loader(converted / "target.gguf", **options), queue=64) as server:
        yield server


def prompt(words: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    return " ".join(rng.choice(["stay", "my", "user", "sister", "art", "mate", "yes"], words))


def test_a_short_answer_does_not_wait_for_a_long_one(endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=4096, parallel=2)) as server:
        ended: list[str] = []

        def ask(name: str, tokens: int) -> None:
            server.complete("stay", temperature=0, max_tokens=tokens)
            ended.append(name)

        server.gate.open.clear()
        with ThreadPoolExecutor(2) as pool:
            long = pool.submit(ask, "long", 2000)
            assert server.gate.reached.wait(PATIENCE)
            short = pool.submit(ask, "short", 5)
            until(lambda: server.turns.waiting == 1)
            server.gate.open.set()
            long.result()
            short.result()
        assert ended == ["short", "long"]


def test_a_long_prompt_does_not_hold_up_the_others(endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=8192, parallel=2)) as server:
        told: list[str] = []
        prompts = {"long": "stay " * 1500, "short": "stay"}

        def stream(name: str, tokens: int) -> None:
            body = {"prompt": prompts[name], "temperature": 0, "max_tokens": tokens, "stream": True}
            with server.http.stream("POST", TEXT, json=body) as response:
                told.extend(name for line in response.iter_lines() if line.startswith("data: {"))

        with ThreadPoolExecutor(2) as pool:
            server.gate.open.clear()
            short = pool.submit(stream, "short", 400)
            assert server.gate.reached.wait(PATIENCE)
            long = pool.submit(stream, "long", 1)
            until(lambda: server.turns.waiting == 1)
            before = len(told)
            server.gate.open.set()
            short.result()
            long.result()
        assert told.index("long") - before > 20, "about fifty pieces of its prompt, a round between any two"


def test_answers_that_share_passes_are_what_each_would_be_alone(several: Server) -> None:
    asked: list[dict[str, Any]] = [
        {
            "prompt": prompt(3 + 9 * i, i),
            "max_tokens": 10 + 7 * i,
            **(SAMPLED if i % 3 == 2 else {"temperature": 0}),
        }
        for i in range(9)
    ]
    alone = [several.complete(**body)["choices"] for body in asked]
    with ThreadPoolExecutor(9) as pool:
        together = list(pool.map(lambda body: several.complete(**body)["choices"], asked * 2))
    assert together == alone * 2
    value = several.gate.registry.get_sample_value
    assert value("edgespec_pass_answers_bucket", {"le": "2.0"}) < value("edgespec_pass_answers_count")
    assert several.http.get("/v1/edgespec/stats").json()["answering"] == 0


def test_the_next_turn_of_a_long_conversation_goes_on_where_the_last_one_ended(
    endless_file: Path,
) -> None:
    """2,000 tokens, with other conversations in between: more of them than there are caches at once."""
    with served(loader(endless_file, n_ctx=4096, parallel=2, cache_memory=64 << 20)) as server:

        def processed(*texts: str) -> int:
            usage = server.chat(*texts, temperature=0, max_tokens=8)["usage"]
            return int(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])

        history = prompt(600, 1)
        first = processed(history)
        assert first >= 2000
        answer = server.chat(history, temperature=0, max_tokens=8)["choices"][0]["message"]["content"]
        for other in range(2, 6):
            processed(prompt(100, other))
        assert processed(history, answer, "my user stays") < 0.15 * first
        caches = server.http.get("/v1/edgespec/stats").json()
        assert 0 < caches["caches"]["bytes"] <= caches["cache_memory"] == 64 << 20
        metrics = server.http.get("/metrics").text
        assert f"edgespec_cache_bytes {float(caches['caches']['bytes'])}" in metrics


def test_the_draft_reads_a_conversations_next_turn_from_where_it_was(
    converted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {"draft": converted / "draft.gguf", "backend": "onnx", "n_ctx": 1024, "parallel": 1}
    with served(loader(converted / "target.gguf", **options, cache_memory=64 << 20)) as server:
        fed: list[int] = []
        runtime = server.turns._runtime
        assert runtime is not None
        draft: Any = runtime.drafters[0]
        forward = draft.backend.forward
        monkeypatch.setattr(
            draft.backend, "forward", lambda s: (fed.append(sum(len(x.tokens) for x in s)), forward(s))[1]
        )

        def drafted(text: str) -> int:
            fed.clear()
            server.complete(text, temperature=0, max_tokens=12)
            return sum(fed)

        one = prompt(200, 1)
        first = drafted(one)
        drafted(prompt(100, 2))
        assert first > 500
        assert drafted(one + " my") < 0.15 * first
