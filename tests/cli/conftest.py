"""Run the command line as users do: in a process of its own, on closed-form models."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from closed_form import CHAT_TEMPLATE, NGram, write_gguf
from closed_form.ngram import NEVER
from real_models import need_module
from waiting import PATIENCE

COMMAND = [sys.executable, "-m", "edgespec"]
MEASURING = re.compile("^edgespec: measuring what passes of .* cost here, once.*\n", re.MULTILINE)
"""said where that takes a while, which for models this small depends on how busy the machine is"""


@dataclass(frozen=True)
class Ended:
    """What a command left behind."""

    code: int
    out: str
    err: str
    """without MEASURING"""

    @property
    def json(self) -> Any:
        return json.loads(self.out)


Edgespec = Callable[..., Ended]


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Of a user with no models, no history, no colours asked for, and output that is buffered as usual."""
    left_out = ("NO_COLOR", "FORCE_COLOR", "OLLAMA_MODELS", "PYTHONUNBUFFERED")
    kept = {name: value for name, value in os.environ.items() if name not in left_out}
    return kept | {
        "HOME": str(tmp_path),
        "EDGESPEC_HOME": str(tmp_path / "edgespec"),
        "XDG_STATE_HOME": str(tmp_path / "state"),
        "PYTHONUTF8": "1",
        "COLUMNS": "200",
    }


@pytest.fixture
def edgespec(environment: dict[str, str]) -> Edgespec:
    """Run a command to its end: `edgespec("run", file, "stay", stdin="…", FORCE_COLOR="1")`. With one
    compute thread: models this small lose time with more."""

    def run(*words: object, stdin: str | bytes = b"", **variables: str) -> Ended:
        threads = ["--threads", "1"] if words[0] in ("run", "chat", "explain") else []
        ended = subprocess.run(
            [*COMMAND, *map(str, words), *threads],
            input=stdin.encode() if isinstance(stdin, str) else stdin,
            capture_output=True,
            env=environment | variables,
            timeout=PATIENCE,
        )
        return Ended(ended.returncode, ended.stdout.decode(), MEASURING.sub("", ended.stderr.decode()))

    return run


@pytest.fixture(scope="session")
def endless(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with a chat template that never ends its text, and room for seconds of it."""
    need_module("llama_cpp")
    file = tmp_path_factory.mktemp("endless") / "endless.gguf"
    return write_gguf(
        NGram.random(0, end=NEVER), file, chat_template=CHAT_TEMPLATE, context_length=1 << 16, name="endless"
    )


@pytest.fixture
def pair(model_files: Path) -> list[object]:
    """Words that name the target with its draft; the prompt comes next."""
    return [model_files / "target.gguf", "--draft", model_files / "draft.gguf"]
