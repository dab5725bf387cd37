"""`edgespec serve` as users start and end it."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import sleep
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from waiting import PATIENCE, until

import edgespec
from edgespec.server.serve import _bind, _raise_connections, _Server
from edgespec.terminal.serve import serve

COMMAND = [sys.executable, "-m", "edgespec", "serve"]
READY = re.compile(r"serving .* at (http://\S+)/v1")


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "EDGESPEC_API_KEY"}
    return kept | {"PYTHONUTF8": "1", **variables}


@contextmanager
def serving(*words: object, **variables: str) -> Iterator[tuple[subprocess.Popen[str], httpx.Client]]:
    """The process, once it serves, and a client."""
    with subprocess.Popen(
        [*COMMAND, *map(str, words), "--port", "0", "--threads", "1", "--draft", "ngram", "--depth", "2"],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(**variables),
    ) as process:
        try:
            assert process.stderr
            said = process.stderr.readline()
            found = READY.search(said)
            assert found, said + process.stderr.read()
            with httpx.Client(base_url=found[1], timeout=PATIENCE, trust_env=False) as client:
                yield process, client
        finally:
            process.kill()


def refused(*words: object) -> str:
    """What a command that is used wrongly says."""
    ended = subprocess.run(
        [*COMMAND, *map(str, words)], capture_output=True, text=True, env=environment(), timeout=PATIENCE
    )
    assert ended.returncode == 2
    assert ended.stderr.count("\n") == 1
    return ended.stderr


@pytest.mark.parametrize("ending", [signal.SIGTERM, signal.SIGINT])
def test_told_to_end_it_finishes_the_answer(model_files: Path, ending: signal.Signals) -> None:
    with serving(model_files / "target.gguf") as (process, client):
        assert client.get("/v1/models").json()["data"][0]["id"] == "target"
        body = {"prompt": "stay", "stream": True, "max_tokens": 200, "temperature": 0}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(ending)
            *_, last = [line for line in lines if line]
        assert last == "data: [DONE]"
        assert process.wait(PATIENCE) in (-ending, 128 + ending)
        assert process.stderr and "Traceback" not in process.stderr.read()


def test_an_answer_that_takes_too_long_is_cut_off_with_an_error(endless_file: Path) -> None:
    with serving(endless_file, "--grace", "0", "--ctx", 1 << 14) as (process, client):
        body = {"prompt": "stay", "stream": True, "max_tokens": 16_000}
        with client.stream("POST", "/v1/completions", json=body) as response:
            lines = response.iter_lines()
            next(lines)
            process.send_signal(signal.SIGTERM)
            *_, last = [line for line in lines if line]
        assert "shutting_down" in last
        assert process.wait(PATIENCE) == -signal.SIGTERM


def test_told_twice_it_ends_at_once(endless_file: Path) -> None:
    with serving(endless_file, "--grace", "3600", "--ctx", 1 << 14) as (process, client):

        def listens() -> bool:
            try:
                return client.get("/health").is_success
            except httpx.HTTPError:
                return False

        body = {"prompt": "stay", "stream": True, "max_tokens": 16_000}
        with client.stream("POST", "/v1/completions", json=body) as response:
            next(response.iter_lines())
            process.send_signal(signal.SIGINT)
            until(lambda: not listens())
            process.send_signal(signal.SIGINT)
            assert process.wait(PATIENCE) in (-signal.SIGINT, 128 + signal.SIGINT)
        assert process.stderr and "Traceback" not in process.stderr.read()


def test_more_connections_than_there_may_be_are_told_of_in_one_line(model_files: Path) -> None:
    soft, hard = limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, hard - 1), hard))  # which the server inherits
    with serving(model_files / "target.gguf") as (process, client), ExitStack() as idle:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert resource.prlimit(process.pid, resource.RLIMIT_NOFILE) == (hard, hard)
        resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (200, hard))
        address = (client.base_url.host, client.base_url.port)
        for _ in range(300):
            idle.enter_context(socket.create_connection(address, PATIENCE))
        assert process.stderr and "too many connections" in process.stderr.readline()
        idle.close()
        assert client.get("/health").is_success
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == -signal.SIGTERM
        assert process.stderr.read() == ""


def test_a_mac_is_asked_for_as_many_connections_as_it_grants(monkeypatch: pytest.MonkeyPatch) -> None:
    infinity = (1 << 63) - 1
    taken: list[tuple[int, int]] = []
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: taken.append(limits))
    for soft in (256, 20_000):
        monkeypatch.setattr(resource, "getrlimit", lambda _, soft=soft: (soft, infinity))
        _raise_connections()
    assert taken == [(10_240, infinity), (20_000, infinity)]


def test_of_a_client_that_went_away_nothing_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """On Windows that is an exception in a callback of the event loop."""
    server: Any = SimpleNamespace(_told=0.0)
    loop = asyncio.new_event_loop()
    went = {"message": "Exception in callback", "exception": ConnectionResetError("[WinError 10054]")}
    _Server._trouble(server, loop, went)
    loop.close()
    assert caplog.records == []


def test_the_key_may_come_from_the_environment(model_files: Path) -> None:
    with serving(model_files / "target.gguf", "--name", "mine", EDGESPEC_API_KEY="sesame") as (_, client):
        assert client.get("/v1/models").status_code == 401
        listed = client.get("/v1/models", headers={"Authorization": "Bearer sesame"}).json()
        assert listed["data"][0]["id"] == "mine"


def test_an_address_others_can_reach_needs_a_key_or_a_decision(model_files: Path) -> None:
    assert "--api-key" in refused(model_files / "target.gguf", "--host", "0.0.0.0")
    with serving(model_files / "target.gguf", "--host", "0.0.0.0", "--no-key") as (_, client):
        assert client.get("/v1/models", headers={"Host": "raspberrypi.local"}).status_code == 200


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--api-key", "sesame", "--no-key"), "--no-key"),
        (("--api-key", " sesame"), "the API key"),
        (("--cors-origin", "*"), "--cors-origin"),
        (("--cors-origin", "localhost:3000"), "--cors-origin"),
        (("--cors-origin", "http://localhost/app"), "--cors-origin"),
        (("--cors-origin", "http://LocalHost:3000"), "--cors-origin"),
        (("--cors-origin", "https://app.example:443"), "--cors-origin"),
        (("--name", ""), "--name"),
        (("--host", "a..b", "--no-key"), "cannot listen on a..b"),
        (("--cache-disk", 1), "--cache-disk"),
        (("--grace", "nan"), "--grace"),
        (("--idle-unload", "inf"), "--idle-unload"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(
    model_files: Path, options: tuple[str, ...], named: str
) -> None:
    assert named in refused(model_files / "target.gguf", "--port", 0, *options)


def test_a_connection_outlives_the_time_that_clients_keep_it(model_files: Path) -> None:
    with serving(model_files / "target.gguf") as (_, client):
        stays = client.get("/health").extensions["network_stream"].get_extra_info("socket")
        sleep(6)  # httpx and OpenAI's client keep connections for five seconds
        stays.setblocking(False)
        with pytest.raises(BlockingIOError):
            stays.recv(1)  # it would be the end of it


def test_a_conversation_goes_on_behind_a_restart(model_files: Path, tmp_path: Path) -> None:
    body = {"messages": [{"role": "user", "content": "stay " * 100}], "temperature": 0, "max_tokens": 8}
    processed = []
    for _ in range(2):
        with serving(model_files / "target.gguf", "--cache-dir", tmp_path / "caches") as (process, client):
            answer = client.post("/v1/chat/completions", json=body).json()
            usage = answer["usage"]
            processed.append(usage["prompt_tokens"] - usage["prompt_tokens_details"]["cached_tokens"])
            body["messages"] += [answer["choices"][0]["message"], {"role": "user", "content": "tim"}]
            process.terminate()
            process.wait(PATIENCE)
    first, second = processed
    assert second < 0.15 * first


def test_a_foreign_name_is_refused(model_files: Path) -> None:
    with serving(model_files / "target.gguf") as (_, client):
        assert client.get("/v1/models", headers={"Host": "evil.example"}).status_code == 403


def test_a_port_that_is_taken_is_said_before_anything_is_loaded(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = refused(tmp_path / "missing.gguf", "--port", taken.getsockname()[1])
    assert "cannot listen on 127.0.0.1" in said


def test_a_port_that_was_taken_while_the_models_were_loaded_is_said(
    model_files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        other.bind(("127.0.0.1", 0))

        def slowly(*words: Any, **options: Any) -> edgespec.Runtime:
            other.listen()
            return edgespec.load(*words, **options)

        monkeypatch.setattr("edgespec.server.serve.load", slowly)
        with pytest.raises(edgespec.UsageError, match=r"cannot listen on 127\.0\.0\.1"):
            serve(str(model_files / "target.gguf"), {"draft": "none"}, {"port": other.getsockname()[1]})


def test_windows_is_not_asked_to_reuse_an_address_where_that_lets_several_servers_have_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys, "platform", "win32")
    with _bind("127.0.0.1", 0) as listening:
        assert listening.getsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR) == 0


def test_a_model_that_is_not_there_is_said() -> None:
    assert "no-such-model" in refused("no-such-model", "--port", "0")


def test_without_the_servers_libraries_it_is_said_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "edgespec.server.serve", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(edgespec.UsageError, match=r"needs uvicorn.*edgespec\[server\]"):
        serve("target.gguf", {}, {})
