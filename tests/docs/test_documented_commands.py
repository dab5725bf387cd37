"""Every command and every Python example in README.md and docs/ runs."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from real_models import need
from waiting import PATIENCE

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETS_UP = re.compile(r"scripts/(demo|test)\b|pip install")
"""what the test run itself has done already"""
SERVES = "edgespec serve "
PORT = "8000"
"""on the pages"""
MODELS = re.compile(r"\b(smollm2-135m|qwen2\.5-coder|gemma3-270m)\b")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    lines = [
        (page.name, line.split("  #")[0].strip())
        for page in PAGES
        if page.name != "offline.md"  # its commands need each other: tests/bundle runs them in turn
        for block in blocks(page, "sh")
        for line in block.splitlines()
    ]
    pages: dict[str, str] = {}  # what stands on two pages runs once
    for page, line in lines:
        if line and not line.startswith("#") and not SETS_UP.search(line):
            pages.setdefault(line, page)
    return [(page, line) for line, page in pages.items()]


def examples() -> list[tuple[str, str]]:
    return [(page.name, block) for page in PAGES for block in blocks(page, "python")]


def need_models(text: str) -> None:
    for name in set(MODELS.findall(text)):
        need(name)


def environment() -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "EDGESPEC_API_KEY"}
    return kept | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments, cwd=ROOT, env=environment(), input="", capture_output=True, text=True, timeout=300
    )


def words_of(command: str) -> list[str]:
    """What installs on a board only shows what it would do."""
    words = shlex.split(command)
    return [*words, "--dry-run"] if words[0].startswith("scripts/deploy/") else words


def server_of(page: str) -> str | None:
    """The page's command that serves, and does not end by itself, if it has one."""
    return next((line for name, line in commands() if name == page and SERVES in line), None)


@contextmanager
def serving(command: str | None) -> Iterator[str]:
    """While the server that a page starts runs; its port. It is another one than on the page."""
    if command is None:
        yield PORT
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    words = shlex.split(command.replace(PORT, port))
    with subprocess.Popen(words, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) as server:
        assert server.stderr
        try:
            said = next((line for line in server.stderr if f"{port}/v1" in line), None)
            assert said, "it ended instead of serving"
            yield port
            server.send_signal(signal.SIGINT)
            assert server.wait(PATIENCE) == 130
        finally:
            server.kill()


@pytest.mark.parametrize(("page", "command"), commands())
def test_the_documented_command_runs(page: str, command: str) -> None:
    server = server_of(page)
    if command.startswith("llm "):
        pytest.importorskip("llm")  # does not take the oldest of our dependencies
    if command.startswith("curl ") and shutil.which("curl") is None:
        pytest.skip("curl is not installed")
    need_models(f"{server} {command}")
    with serving(server) as port:
        if command == server:
            return
        done = run(words_of(command.replace(PORT, port)))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "example"), examples())
def test_the_documented_python_example_runs(page: str, example: str) -> None:
    server = server_of(page)
    need_models(f"{server} {example}")
    with serving(server) as port:
        done = run([sys.executable, "-c", example.replace(PORT, port)])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_shows_three_python_examples() -> None:
    assert len(blocks(ROOT / "README.md", "python")) == 3


def test_the_documented_voice_assistant_is_interrupted_in_mid_sentence() -> None:
    need("smollm2-135m")
    [example] = [block for _, block in examples() if "friendly assistant" in block]
    done = run([sys.executable, "-c", example])
    (asked, *first), (interrupted, *second) = (said.splitlines() for said in done.stdout.split("\n> ")[1:])
    assert asked == "Tell me everything about lighthouses."
    assert interrupted == "Stop. Who works there?"
    for answer in (" ".join(first), " ".join(second)):
        assert 5 < len(answer.split()) < 100, "of 300 tokens"
