"""Who is answered when: slots are freed by clients that leave, and never held by slow ones."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, until

import edgespec
from edgespec.control.policy import FixedDepth
from edgespec.server import app, exchange
from edgespec.server.metrics import Metrics

from .conftest import Server, loader, served, turns

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
ENDLESS = {"prompt": "stay", "temperature": 0}


@contextmanager
def busy(server: Server) -> Iterator[None]:
    """While the server is held within an answer, between two rounds."""
    gate = server.gate
    gate.reached.clear()
    gate.open.clear()
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(server.complete, "stay", temperature=0, max_tokens=5)
        try:
            assert gate.reached.wait(PATIENCE)
            yield
        finally:
            gate.open.set()
        assert first.result()["usage"]["completion_tokens"] == 5


def leaving(server: Server, path: str, body: dict[str, Any]) -> Callable[[], None]:
    """Ask, over a bare connection; the result hangs up."""
    content = httpx.Request("POST", server.url + path, json=body)
    head = "".join(f"{name}: {value}\r\n" for name, value in content.headers.items())
    address = (content.url.host, content.url.port)
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(address)
    connection.sendall(f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + content.read())
    return connection.close


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (TEXT, ENDLESS | {"max_tokens": 8000}),
        (TEXT, ENDLESS | {"max_tokens": 8000, "stream": True}),
        (TEXT, ENDLESS | {"max_tokens": 8000, "n": 5}),
        (CHAT, {"messages": turns("stay"), "stream": True}),
    ],
)
def test_a_client_that_leaves_frees_its_slot_within_a_round(
    endless: Server, path: str, body: dict[str, Any]
) -> None:
    gate = endless.gate
    gate.open.clear()
    leave = leaving(endless, path, body)
    assert gate.reached.wait(PATIENCE)
    [ticket] = endless.turns._answered
    leave()
    until(lambda: ticket.cancelled)
    rounds = gate.registry.get_sample_value("edgespec_round_depth_count")
    gate.open.set()
    until(lambda: not endless.turns.answering)
    assert gate.registry.get_sample_value("edgespec_round_depth_count") == rounds
    assert gate.registry.get_sample_value("edgespec_answers_total", {"finish_reason": "cancelled"}) == 1
    assert endless.complete("stay", max_tokens=3)["choices"]


def test_a_client_that_leaves_while_it_waits_leaves_the_queue(endless: Server) -> None:
    with busy(endless):
        leave = leaving(endless, TEXT, ENDLESS)
        until(lambda: endless.turns.waiting == 1)
        leave()
        until(lambda: endless.turns.waiting == 0)


def test_a_full_queue_refuses_and_says_when_to_come_back(endless: Server) -> None:
    with busy(endless), ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(endless.complete, "my user", max_tokens=3) for _ in range(2)]
        until(lambda: endless.turns.waiting == 2)
        for stream in (False, True):
            refused = endless.post(TEXT, ENDLESS | {"stream": stream})
            assert refused.status_code == 429
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "queue_full"
        endless.gate.open.set()
        assert all(one.result()["usage"]["completion_tokens"] == 3 for one in waiting)
    assert endless.complete("stay", max_tokens=3)["choices"]


def test_large_schemas_that_take_long_to_make_out_keep_no_others_waiting(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with thousands of optional properties. Those of clients that left are not made out."""
    body: dict[str, Any] = {"messages": turns("stay"), "response_format": "x" * app.LARGE}
    understood, arrived, begun = threading.Event(), [], []

    def slowly(*asked: Any) -> Any:
        if "response_format" in asked[1]:
            begun.append(asked)
            assert understood.wait(PATIENCE)
        return check(*asked)

    async def counted(*asked: Any) -> bytes:
        content = await read_body(*asked)
        arrived.append(content)
        return content

    check, read_body = app.check, app.read_body
    monkeypatch.setattr(app, "check", slowly)
    monkeypatch.setattr(app, "read_body", counted)
    hang_up = [leaving(endless, CHAT, body) for _ in range(50)]
    until(lambda: len(arrived) == len(hang_up))
    try:
        assert endless.complete("stay", max_tokens=3)
        long = endless.complete("stay", max_tokens=3, user="x" * app.LARGE)
        assert long["choices"]  # as a long conversation
        for client in hang_up:
            client()
        told = f'edgespec_requests_total{{path="{CHAT}",status="499"}} {len(hang_up)}.0'
        until(lambda: told in endless.http.get("/metrics").text)
    finally:
        understood.set()
    assert endless.post(CHAT, body).status_code == 400
    assert len(begun) == 2


def test_more_requests_than_are_taken_at_once_are_told_to_come_back(endless_file: Path) -> None:
    with served(loader(endless_file, n_ctx=2048), requests=1) as server:
        with busy(server):
            refused = server.http.get("/v1/models")
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) >= 1
            assert refused.json()["error"]["code"] == "overloaded"
        until(lambda: server.http.get("/v1/models").status_code == 200)


def test_a_client_that_reads_nothing_holds_no_slot_and_is_given_up(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "STALLED_SECONDS", 0.2)
    endless.gate.open.clear()
    endless.gate.reached.clear()
    more = {"max_tokens": 1500, "n": 100, "stream": True, "logprobs": 20}  # than any buffer holds
    leave = leaving(endless, TEXT, ENDLESS | more)
    assert endless.gate.reached.wait(PATIENCE)
    [ticket] = endless.turns._answered
    endless.gate.open.set()
    assert endless.complete("stay", max_tokens=3)["choices"]  # between two of the other's
    until(lambda: ticket.cancelled)
    assert ticket.wishes
    until(lambda: not endless.turns.answering)
    leave()


def test_a_body_that_does_not_come_is_not_waited_for(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "READ_SECONDS", 0.1)
    came = threading.Event()

    def half() -> Iterator[bytes]:
        yield b"{"
        came.wait(PATIENCE)

    def answer() -> httpx.Response:
        headers = {"Content-Type": "application/json"}
        return endless.http.post(TEXT, content=half(), headers=headers)

    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(answer)
        counted = {"path": TEXT, "status": "408"}
        until(lambda: endless.gate.registry.get_sample_value("edgespec_requests_total", counted))
        came.set()
        with suppress(httpx.HTTPError):  # the server may have hung up by now
            assert asked.result().status_code == 408


def test_a_stream_that_has_nothing_to_say_shows_that_it_is_alive(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "QUIET_SECONDS", 0.05)
    endless.gate.open.clear()
    body = ENDLESS | {"max_tokens": 3, "stream": True}
    with endless.http.stream("POST", TEXT, json=body) as response:
        lines = filter(None, response.iter_lines())
        assert [next(lines) for _ in range(5)] == [": working"] * 5
        endless.gate.open.set()
        *_, last = lines
    assert last == "data: [DONE]"


def test_a_request_for_many_answers_lets_others_in_between(endless: Server) -> None:
    ended: list[str] = []

    def ask(name: str, n: int) -> None:
        endless.complete("stay", n=n, max_tokens=3)
        ended.append(name)  # by a thread that may have to wait for its turn: many answers take longer

    gate = endless.gate
    gate.open.clear()
    with ThreadPoolExecutor(2) as pool:
        many: Future[None] = pool.submit(ask, "many", 50)
        assert gate.reached.wait(PATIENCE)
        one: Future[None] = pool.submit(ask, "one", 1)
        until(lambda: endless.turns.waiting == 1)
        gate.open.set()
        many.result()
        one.result()
    assert ended == ["one", "many"]


def test_answers_of_many_clients_are_not_mixed(endless: Server) -> None:
    prompts = ["stay", "my user", "yes", "sister"]
    alone = [endless.complete(p, temperature=0, max_tokens=20)["choices"] for p in prompts]

    def ask(prompt: str) -> Any:
        while (got := endless.post(TEXT, {"prompt": prompt, "temperature": 0, "max_tokens": 20})).is_error:
            assert got.status_code == 429
        return got.json()["choices"]

    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(ask, prompts * 3)) == alone * 3


def test_idle_models_that_come_back_know_what_they_read(model_files: Path, tmp_path: Path) -> None:
    load = loader(model_files / "target.gguf", n_ctx=1024, cache_dir=tmp_path / "caches")
    with served(load, idle_unload=0.1) as server:
        server.complete("stay " * 100, temperature=0)
        until(lambda: not server.turns.loaded)
        usage = server.complete("stay " * 100, temperature=0)["usage"]
        assert usage["prompt_tokens_details"]["cached_tokens"] > 0.85 * usage["prompt_tokens"]


def test_idle_models_leave_memory_and_come_back(model_files: Path) -> None:
    with served(loader(model_files / "target.gguf", n_ctx=64), idle_unload=0.1) as server:
        before = server.complete("stay", temperature=0, max_tokens=5)["choices"]
        until(lambda: not server.turns.loaded)
        assert not server.http.get("/v1/edgespec/stats").json()["loaded"]
        assert server.complete("stay", temperature=0, max_tokens=5)["choices"] == before


def test_models_that_do_not_come_back_are_said_to_be_unavailable(model_files: Path) -> None:
    load = loader(model_files / "target.gguf", n_ctx=64)
    broken = threading.Event()

    def sometimes() -> edgespec.Runtime:
        if broken.is_set():
            raise edgespec.ModelError("the file is gone")
        return load()

    with served(sometimes, idle_unload=0.05) as server:
        until(lambda: not server.turns.loaded)
        broken.set()
        refused = server.post(TEXT, ENDLESS)
        assert refused.status_code == 503
        assert "the file is gone" in refused.json()["error"]["message"]
        assert "retry-after" in refused.headers
        broken.clear()
        assert server.complete("stay", max_tokens=3)["choices"]


def test_a_failure_fails_its_request_only(endless: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise edgespec.BackendError("the pass failed")

    with monkeypatch.context() as patch:
        patch.setattr(endless.gate, "round", fail)
        failed = endless.post(TEXT, ENDLESS)
        assert failed.status_code == 500
        assert "the pass failed" in failed.json()["error"]["message"]
        with endless.http.stream("POST", TEXT, json=ENDLESS | {"stream": True}) as response:
            lines = [line for line in response.iter_lines() if line and not line.startswith(":")]
        assert len(lines) == 1
        assert '"error":{"message":"the pass failed"' in lines[0]
    assert endless.complete("stay", max_tokens=3)["choices"]


def test_whatever_a_turn_raises_fails_its_requests_only(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    runtime = endless.turns._runtime
    assert runtime is not None
    with monkeypatch.context() as patch:
        patch.setattr(runtime, "step", fail)
        assert endless.post(TEXT, ENDLESS).status_code == 500
    assert endless.complete("stay", max_tokens=3)["choices"]


def test_what_cannot_be_counted_or_explained_does_not_end_the_server(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise RuntimeError("a bug")

    monkeypatch.setattr(endless.gate, "answered", fail)
    monkeypatch.setattr(FixedDepth, "explain", fail)
    for _ in range(2):
        assert endless.complete("stay", max_tokens=3)["choices"]


def test_prompts_are_tokenized_while_the_models_compute_for_others(
    endless: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = endless.turns._runtime
    assert runtime is not None
    tokenize, seen = runtime.tokenize, threading.Event()

    def noting(prompt: Any, *more: Any) -> list[int]:
        if prompt == "my user":
            seen.set()
        return tokenize(prompt, *more)

    monkeypatch.setattr(runtime, "tokenize", noting)
    with busy(endless), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(endless.complete, "my user", max_tokens=3)
        assert seen.wait(PATIENCE)
        endless.gate.open.set()
        assert waiting.result()["choices"]


def test_a_server_that_ends_refuses_what_waits(endless: Server) -> None:
    with busy(endless), ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(endless.post, TEXT, ENDLESS)
        until(lambda: endless.turns.waiting == 1)
        endless.turns.refuse()
        assert waiting.result().status_code == 503
        assert endless.post(TEXT, ENDLESS).json()["error"]["code"] == "shutting_down"


def test_a_request_that_is_cancelled_as_the_server_waits_no_longer_is_refused_and_is_no_failure(
    tiny: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a schema that takes longer than the server's grace, say; uvicorn logs failures with tracebacks."""
    begun, on = threading.Event(), threading.Event()

    def slowly(*_: object) -> None:
        begun.set()
        assert on.wait(PATIENCE)

    async def cancelled() -> httpx.Response:
        asgi = httpx.ASGITransport(app.application(tiny.turns, Metrics(), "tiny", app.Limits()))
        async with httpx.AsyncClient(transport=asgi, base_url="http://tiny") as client:
            asking = asyncio.create_task(client.post(TEXT, json=ENDLESS))
            try:
                assert await asyncio.to_thread(begun.wait, PATIENCE)
                asking.cancel()
                return await asking
            finally:
                on.set()

    monkeypatch.setattr(app, "check", slowly)
    refused = asyncio.run(cancelled())
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
