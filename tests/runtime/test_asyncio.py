"""`astream` and `agenerate`: the same answers in an event loop, which they never hold up."""

from __future__ import annotations

import asyncio
import gc
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest
from waiting import PATIENCE, called

import edgespec

from .conftest import Gate

GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
PROMPTS = ["stay", "my user", "yes", "sister"]


async def reached(event: Event) -> None:
    assert await asyncio.to_thread(event.wait, PATIENCE)


async def turns_of_the_loop() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_stream_in_an_event_loop_has_the_same_tokens(endless: edgespec.Runtime) -> None:
    options = {**GREEDY, "logprobs": 2, "stop": ["st"]}
    expected = endless.stream("stay", **options)
    tokens = list(expected)

    async def read() -> None:
        answer = endless.astream("stay", **options)
        assert [token async for token in answer] == tokens
        assert (answer.text, answer.tokens) == (expected.text, expected.tokens)
        assert (answer.finish_reason, answer.stopped_by) == (expected.finish_reason, expected.stopped_by)
        assert answer.stats.tokens == len(tokens)
        assert [token async for token in answer] == [], "it is over"

    asyncio.run(read())


def test_tokens_say_where_they_came_from_and_how_probable_they_were(endless: edgespec.Runtime) -> None:
    options: dict[str, Any] = {"seed": 1, "temperature": 0.4, "max_tokens": 200, "logprobs": 0}
    told: list[edgespec.Token] = []
    answer = endless.stream("stay", **options, on_token=told.append)
    assert list(answer) == told
    assert {token.origin for token in told} == {"draft", "bonus", "corrected", "plain"}
    assert all(token.logprob is not None and token.logprob <= 0 for token in told)
    assert "".join(token.text for token in told) == answer.text

    async def again() -> None:
        heard: list[edgespec.Token] = []
        await endless.agenerate("stay", **options, on_token=heard.append)
        assert [(token.id, token.text) for token in heard] == [(token.id, token.text) for token in told]

    asyncio.run(again())


def test_a_token_callback_may_cancel(endless: edgespec.Runtime) -> None:
    def on_token(token: edgespec.Token) -> None:
        if len(answer.tokens) >= 5:
            answer.cancel()

    answer = endless.stream("stay", temperature=0, on_token=on_token)
    assert answer.run().finish_reason == "cancelled"
    assert 5 <= len(answer.tokens) <= 5 + 2 * 4


def test_cancelling_the_task_cancels_the_generation_within_a_round(endless: edgespec.Runtime) -> None:
    async def cancel() -> None:
        gate = Gate()
        task = asyncio.create_task(endless.agenerate("stay", on_round=gate))
        await reached(gate.reached)
        task.cancel()
        await turns_of_the_loop()  # goes on, while the models' thread stands still
        assert not task.done(), "it waits until the models are at rest"
        gate.open.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert gate.rounds == 2
        assert len((await endless.agenerate("stay", **GREEDY)).tokens) == 30

    asyncio.run(cancel())


def test_an_answer_that_its_reader_leaves_ends_within_a_round(endless: edgespec.Runtime) -> None:
    async def forget(gate: Gate) -> None:
        async for _ in endless.astream("stay", on_round=gate):
            break

    async def close(gate: Gate) -> None:
        async with endless.astream("stay", on_round=gate) as answer:
            async for _ in answer:
                break
            asyncio.get_running_loop().call_later(0.01, gate.open.set)
        assert answer.finish_reason == "cancelled"
        assert len(answer.tokens) == 1

    async def cancel(gate: Gate) -> None:
        answer = endless.astream("stay", on_round=gate)
        read = [await answer.__anext__()]
        answer.cancel()
        gate.open.set()
        read += [token async for token in answer]
        assert answer.finish_reason == "cancelled"
        assert [token.id for token in read] == answer.tokens

    for leave in (forget, close, cancel):
        gate = Gate()

        async def left(leave: Any = leave, gate: Gate = gate) -> None:
            await leave(gate)
            gc.collect()
            gate.open.set()
            assert len((await endless.agenerate("stay", **GREEDY)).tokens) == 30
            assert gate.rounds <= 2

        asyncio.run(left())


def test_tasks_that_close_what_another_reads_all_end(endless: edgespec.Runtime) -> None:
    async def ask() -> None:
        gate = Gate()
        answer = endless.astream("stay", on_round=gate)

        async def read() -> list[int]:
            return [token.id async for token in answer]

        reading = asyncio.create_task(read())
        await reached(gate.reached)
        closing = [asyncio.create_task(answer.aclose()) for _ in range(2)]
        await turns_of_the_loop()
        gate.open.set()
        await asyncio.wait_for(asyncio.gather(reading, *closing), PATIENCE)
        assert answer.finish_reason == "cancelled"

    asyncio.run(ask())


def test_a_loop_that_ends_ends_its_generations(endless: edgespec.Runtime) -> None:
    gate = Gate()

    async def start() -> edgespec.AsyncGeneration:
        answer = endless.astream("stay", on_round=gate)
        await answer.__anext__()
        await reached(gate.reached)
        return answer

    answer = asyncio.run(start())
    gate.open.set()
    asyncio.run(endless.agenerate("stay", **GREEDY))  # does not wait for the context to be full
    assert gate.rounds < 10
    assert answer.finish_reason is None


def test_an_answer_that_began_in_another_event_loop_is_not_read_in_this_one_and_can_be_closed(
    endless: edgespec.Runtime,
) -> None:
    async def begin() -> edgespec.AsyncGeneration:
        answer = endless.astream("stay")
        await answer.__anext__()
        return answer

    async def go_on(answer: edgespec.AsyncGeneration) -> None:
        with pytest.raises(edgespec.UsageError, match="in the event loop that it began in; ask anew"):
            await answer.__anext__()
        await asyncio.wait_for(answer.aclose(), PATIENCE)
        assert answer.finish_reason == "cancelled"
        assert len((await endless.agenerate("stay", **GREEDY)).tokens) == 30

    asyncio.run(go_on(asyncio.run(begin())))


def test_tasks_are_answered_one_after_the_other(endless: edgespec.Runtime) -> None:
    expected = [endless.generate(prompt, **GREEDY).text for prompt in PROMPTS]

    async def ask() -> None:
        answers = await asyncio.gather(*(endless.agenerate(prompt, **GREEDY) for prompt in PROMPTS))
        assert [answer.text for answer in answers] == expected

    asyncio.run(ask())


def test_a_task_that_is_cancelled_while_it_waits_never_begins(endless: edgespec.Runtime) -> None:
    async def ask() -> None:
        gate, begun = Gate(), Event()
        first = asyncio.create_task(endless.agenerate("stay", on_round=gate, **GREEDY))
        await reached(gate.reached)
        waiting = endless.astream("stay", on_prompt=lambda done, total: begun.set())
        second = asyncio.create_task(waiting.__anext__())
        await turns_of_the_loop()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        assert [token async for token in waiting] == []
        assert (waiting.finish_reason, waiting.text) == ("cancelled", "")
        gate.open.set()
        assert len((await first).tokens) == 30
        assert not begun.is_set()

    asyncio.run(ask())


def test_what_generate_refuses_is_refused_when_it_is_read(endless: edgespec.Runtime) -> None:
    async def ask() -> None:
        with pytest.raises(edgespec.UsageError, match="temprature"):
            await endless.agenerate("stay", temprature=1)  # type: ignore[call-arg]
        with pytest.raises(edgespec.ContextFull):
            await endless.agenerate("stay " * 5000)
        answer = endless.astream([])
        with pytest.raises(edgespec.UsageError):
            await answer.__anext__()
        assert [token async for token in answer] == []

    asyncio.run(ask())


def test_closing_ends_what_runs_and_refuses_what_waits(
    endless_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = called(monkeypatch, edgespec.Generation, "cancel")

    async def close() -> None:
        gate = Gate()
        async with edgespec.load(endless_file, draft="ngram", depth=3, threads=1, n_ctx=2048) as runtime:
            runs = asyncio.create_task(runtime.agenerate("stay", on_round=gate))
            await reached(gate.reached)
            waits = asyncio.create_task(runtime.agenerate("stay"))
            await turns_of_the_loop()
            closes = asyncio.create_task(runtime.aclose())
            await reached(told)
            gate.open.set()
            await closes
            assert (await runs).finish_reason == "cancelled"
            assert gate.rounds == 2
            with pytest.raises(edgespec.UsageError, match="closed"):
                await waits
            with pytest.raises(edgespec.UsageError, match="closed"):
                await runtime.agenerate("stay")
        runtime.close()
        await runtime.aclose()

    asyncio.run(close())


def test_closing_waits_for_a_tokenizer_in_use(endless_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = edgespec.load(endless_file, draft="ngram", depth=3, threads=1, n_ctx=64)
    encode = runtime.target.tokenizer.encode
    standing, released = Event(), Event()

    def slow(*args: Any, **options: Any) -> list[int]:
        standing.set()
        assert released.wait(PATIENCE)
        return encode(*args, **options)

    monkeypatch.setattr(runtime.target.tokenizer, "encode", slow)
    ids: list[list[int]] = []
    tokenizing = Thread(target=lambda: ids.append(runtime.tokenize("stay")))
    tokenizing.start()
    assert standing.wait(PATIENCE)
    closing = Thread(target=runtime.close)
    closing.start()
    closing.join(0.1)
    assert closing.is_alive()
    released.set()
    closing.join(PATIENCE)
    tokenizing.join(PATIENCE)
    assert ids and ids[0]
    with pytest.raises(edgespec.UsageError, match="closed"):
        runtime.tokenize("stay")


def test_token_ids_are_answered_while_another_thread_tokenizes(
    endless_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with edgespec.load(endless_file, draft="ngram", depth=3, threads=1, n_ctx=64) as runtime:
        encode, ids = runtime.target.tokenizer.encode, runtime.tokenize("stay")
        standing, released = Event(), Event()

        def slow(*args: Any, **options: Any) -> list[int]:
            standing.set()
            assert released.wait(PATIENCE)
            return encode(*args, **options)

        monkeypatch.setattr(runtime.target.tokenizer, "encode", slow)
        tokenizing = Thread(target=runtime.tokenize, args=("stay",))
        tokenizing.start()
        assert standing.wait(PATIENCE)
        assert runtime.generate(ids, max_tokens=3).tokens
        assert tokenizing.is_alive()
        released.set()
        tokenizing.join(PATIENCE)


def test_runtimes_in_one_process_do_not_disturb_each_other(model_files: Path) -> None:
    def load() -> edgespec.Runtime:
        return edgespec.load(
            model_files / "target.gguf", draft=model_files / "draft.gguf", depth=4, threads=1
        )

    options = {"seed": 3, "temperature": 1.0, "max_tokens": 60}
    with load() as first, load() as second:
        expected = {prompt: first.generate(prompt, **options).text for prompt in PROMPTS}

        async def ask() -> None:
            asked = [(runtime, prompt) for prompt in PROMPTS for runtime in (first, second)]
            answers = await asyncio.gather(
                *(runtime.agenerate(prompt, **options) for runtime, prompt in asked)
            )
            assert [a.text for a in answers] == [expected[prompt] for _, prompt in asked]

        asyncio.run(ask())
        found: list[bool] = []

        def use(runtime: edgespec.Runtime) -> None:
            found.extend(runtime.generate(p, **options).text == expected[p] for p in PROMPTS)

        threads = [Thread(target=use, args=(runtime,)) for runtime in (first, second)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert found == [True] * 8
        first.close()
        assert second.generate("stay", **options).text == expected["stay"]
