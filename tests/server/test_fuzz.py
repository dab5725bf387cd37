"""Schemathesis throws at a server what its own description allows, and what it does not."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .conftest import loader, served

pytest.importorskip("schemathesis")  # not with the oldest dependencies, which it does not take


def test_the_server_answers_whatever_is_sent_as_it_describes_itself(
    model_files: Path, tmp_path: Path
) -> None:
    with served(loader(model_files / "target.gguf", n_ctx=64, parallel=4), queue=64) as server:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
                *("--max-examples", "10", "--seed", "1", "--workers", "4", "--no-color"),
                *("--phases", "examples,fuzzing", "--request-timeout", "60"),
                # The description cannot say all that is refused: a prompt longer than the context, ids beyond
                # the vocabulary, a model that is not the one served, messages that the template cannot take.
                *("--exclude-checks", "positive_data_acceptance"),
                *("--generation-database", "none"),
            ],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert server.turns.answering == server.turns.waiting == 0
        assert server.complete("stay", max_tokens=3)["choices"]
