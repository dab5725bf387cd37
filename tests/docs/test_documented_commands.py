"""Every command and every Python example in README.md and docs/ runs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from real_models import need

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
SETS_UP = re.compile(r"scripts/(demo|test)\b|pip install")
"""what the test run itself has done already"""
MODELS = re.compile(r"\b(smollm2-135m|qwen2\.5-coder|gemma3-270m)\b")


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def commands() -> list[tuple[str, str]]:
    lines = [
        (page.name, line.split("  #")[0].strip())
        for page in PAGES
        for block in blocks(page, "sh")
        for line in block.splitlines()
    ]
    return [
        (page, line) for page, line in lines if line and not line.startswith("#") and not SETS_UP.search(line)
    ]


def examples() -> list[tuple[str, str]]:
    return [(page.name, block) for page in PAGES for block in blocks(page, "python")]


def need_models(text: str) -> None:
    for name in set(MODELS.findall(text)):
        need(name)


def run(arguments: list[str]) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        arguments, cwd=ROOT, env=environment, input="", capture_output=True, text=True, timeout=300
    )


@pytest.mark.parametrize(("page", "command"), commands())
def test_the_documented_command_runs(page: str, command: str) -> None:
    need_models(command)
    done = run(shlex.split(command))
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(("page", "example"), examples())
def test_the_documented_python_example_runs(page: str, example: str) -> None:
    need_models(example)
    done = run([sys.executable, "-c", example])
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()


def test_the_readme_shows_three_python_examples() -> None:
    assert len(blocks(ROOT / "README.md", "python")) == 3
