"""Chromium, once for all tests; and what the server's tests serve."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from real_models import need_module, required
from server.conftest import Server, endless_file, library, loader, served, tiny

need_module("selenium")

from edgespec.server.page import FOLDER  # noqa: E402

from .browser import ChatPage, programs, start  # noqa: E402
from .scripted import THINKS, write_scripted  # noqa: E402

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

__all__ = ["endless_file", "library", "tiny"]

THOUGHT, SAID = "let me see", 'Hi **you** <img src=x onerror="window.hacked=1">'
CODE = "\n\n```python\ndef f(x): return 1\n```\n\n"
SCRIPT = ("<think>", THOUGHT, "</think>", SAID, CODE, "[click](javascript:hacked=2)")


@pytest.fixture(scope="session")
def chrome() -> Iterator[Chrome]:
    found = programs()
    if found is None:
        missing = (
            "Chromium and its driver are not installed; on Debian: apt-get install chromium chromium-driver"
        )
        if "chromium" in required() or os.environ.get("CI", "").lower() in ("1", "true"):
            pytest.fail(missing, pytrace=False)
        pytest.skip(missing)
    browser = start(*found)
    yield browser
    browser.quit()


@pytest.fixture(scope="session")
def scripted(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server whose model thinks, and then answers with Markdown, code and an attack."""
    file = write_scripted(tmp_path_factory.mktemp("scripted") / "scripted.gguf", *SCRIPT)
    with served(loader(file, chat_template=THINKS)) as server:
        yield server


@pytest.fixture
def endless(endless_file: Path) -> Iterator[Server]:
    """A server whose answers do not end while a browser looks at them, and whose queue has room for two."""
    with served(loader(endless_file, n_ctx=1 << 14), queue=2) as server:
        server.gate.pause = 0.002
        yield server


@pytest.fixture(params=["desktop", "phone"])
def size(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def page(chrome: Chrome, tiny: Server, size: str) -> ChatPage:
    """The page of the closed-form target with its draft."""
    return ChatPage.of(chrome, tiny.url, size)


@pytest.fixture
def desk(chrome: Chrome, tiny: Server) -> ChatPage:
    """The same, on a desktop only."""
    return ChatPage.of(chrome, tiny.url)


@pytest.fixture
def endless_page(chrome: Chrome, endless: Server, size: str) -> ChatPage:
    """The page of a model whose answers do not end."""
    return ChatPage.of(chrome, endless.url, size)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A copy of the page's files."""
    return Path(shutil.copytree(FOLDER, tmp_path / "page"))
