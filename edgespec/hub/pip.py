"""pip, run as a program of its own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from edgespec.errors import HubError

_POLL = 0.25  # seconds


class PipFailed(Exception):
    """pip ended with an error."""

    def __init__(self, said: str) -> None:
        lines = [line.strip() for line in said.splitlines() if line.strip()]
        last = next(
            (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else ""
        )
        super().__init__(last or "it gave no reason")
        self.said = said
        """all of it"""


def run(
    arguments: Sequence[str],
    temporary: Path,
    watch: Callable[[], None] = lambda: None,
    environment: Mapping[str, str] | None = None,
) -> None:
    """Run a command of pip quietly, with its temporary files in a folder of the caller: the usual one may be
    on a small disk in memory. `watch` is called while it runs.

    Raises PipFailed, and HubError if this Python has no pip.
    """
    quiet = ["--disable-pip-version-check", "--no-input", "--quiet", "--progress-bar", "off"]
    with subprocess.Popen(
        [sys.executable, "-I", "-m", "pip", arguments[0], *quiet, *arguments[1:]],
        env={**os.environ, **(environment or {}), "TMPDIR": str(temporary)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    ) as pip:
        try:
            stderr = _wait(pip, watch)
        except BaseException:
            pip.kill()
            raise
    if pip.returncode == 0:
        return
    if "No module named pip" in stderr:
        raise HubError(f"This needs pip: run {sys.executable} -m ensurepip.")
    raise PipFailed(stderr)


def _wait(pip: subprocess.Popen[str], watch: Callable[[], None]) -> str:
    """Its stderr."""
    while True:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return pip.communicate(timeout=_POLL)[1]
        watch()
