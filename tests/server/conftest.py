"""Real servers on free ports: uvicorn in a thread of its own, on closed-form models."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import sleep
from typing import Any

import httpx
import pytest
from closed_form import CHAT_TEMPLATE, NGram, write_gguf
from closed_form.ngram import NEVER
from real_models import need_module
from waiting import PATIENCE, until

import edgespec
from edgespec.decoding.rounds import Round

uvicorn = need_module("uvicorn")
need_module("starlette")

from edgespec.server.app import Limits, application  # noqa: E402
from edgespec.server.metrics import Metrics  # noqa: E402
from edgespec.server.serve import KEEP_ALIVE  # noqa: E402
from edgespec.server.turns import Turns  # noqa: E402


class Gate(Metrics):
    """Metrics that can hold the models' thread between two rounds, for as long as a test likes."""

    pause = 0.0
    """seconds between any two rounds, for those who look at an answer while it comes"""

    def __init__(self) -> None:
        super().__init__()
        self.open = threading.Event()
        self.open.set()
        self.reached = threading.Event()

    def round(self, finished: Round) -> None:
        super().round(finished)
        self.reached.set()
        assert self.open.wait(PATIENCE)
        sleep(self.pause)


@dataclass
class Server:
    """A server that runs, and a client for it."""

    url: str
    turns: Turns
    gate: Gate
    http: httpx.Client
    key: str | None = field(default=None)

    def post(self, path: str, body: dict[str, Any], **more: Any) -> httpx.Response:
        return self.http.post(path, json=body, **more)

    def complete(self, prompt: Any, **fields: Any) -> Any:
        """A text completion, which must succeed."""
        response = self.post("/v1/completions", {"prompt": prompt, **fields})
        assert response.status_code == 200, response.text
        return response.json()

    def chat(self, *texts: str, **fields: Any) -> Any:
        """A chat completion, which must succeed; users and assistants take turns in `texts`."""
        response = self.post("/v1/chat/completions", {"messages": turns(*texts), **fields})
        assert response.status_code == 200, response.text
        return response.json()


def turns(*texts: str) -> list[dict[str, str]]:
    """A conversation."""
    return [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(texts)]


@contextmanager
def served(
    load: Callable[[], edgespec.Runtime],
    *,
    queue: int = 16,
    idle_unload: float | None = None,
    **limits: Any,
) -> Iterator[Server]:
    """Serve what `load` loads, as "tiny"."""
    gate = Gate()
    waiting = Turns(load, gate, queue=queue, idle_unload=idle_unload)
    app = application(waiting, gate, "tiny", Limits(**limits))
    config = uvicorn.Config(
        app, port=0, log_config=None, timeout_keep_alive=KEEP_ALIVE, timeout_graceful_shutdown=5
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started or not thread.is_alive())
        port = server.servers[0].sockets[0].getsockname()[1]
        url = f"http://127.0.0.1:{port}"
        key = limits.get("api_key")
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        with httpx.Client(base_url=url, headers=headers, timeout=PATIENCE, trust_env=False) as client:
            yield Server(url, waiting, gate, client, key)
    finally:
        gate.open.set()
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()
        assert not waiting.loaded


@pytest.fixture(scope="session")
def endless_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that never ends its text."""
    file = tmp_path_factory.mktemp("endless") / "endless.gguf"
    return write_gguf(NGram.random(0, end=NEVER), file, chat_template=CHAT_TEMPLATE, context_length=1 << 14)


def loader(file: Path, **options: Any) -> Callable[[], edgespec.Runtime]:
    """How to load a closed-form model, drafting by lookup."""
    chosen = {"draft": "ngram", "depth": 3, "threads": 1, **options}
    return lambda: edgespec.load(file, **chosen)


@pytest.fixture(scope="session")
def tiny(model_files: Path) -> Iterator[Server]:
    """The closed-form target with its draft, in a context of 256 tokens."""
    with served(loader(model_files / "target.gguf", draft=model_files / "draft.gguf", n_ctx=256)) as server:
        yield server


@pytest.fixture(scope="session")
def library(model_files: Path) -> Iterator[edgespec.Runtime]:
    """The same, without a server."""
    with loader(model_files / "target.gguf", draft=model_files / "draft.gguf", n_ctx=256)() as runtime:
        yield runtime


@pytest.fixture
def endless(endless_file: Path) -> Iterator[Server]:
    """A server whose answers do not end by themselves, and whose queue has room for two."""
    with served(loader(endless_file, n_ctx=2048), queue=2) as server:
        yield server
