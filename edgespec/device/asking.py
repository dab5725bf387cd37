"""Asking the system: a file's text, or what a program prints; "" where there is none."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

PATIENCE = 2.0
"""seconds a program may take to answer"""


def text_of(file: Path) -> str:
    """Without white space at its ends."""
    try:
        return file.read_text().strip()
    except OSError:
        return ""


def ask(program: str, *arguments: str) -> str:
    """What it prints."""
    if shutil.which(program) is None:
        return ""
    try:
        done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout
