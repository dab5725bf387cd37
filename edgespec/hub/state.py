"""Small JSON files that edgespec keeps for itself: measurements and what was learned.

They only save time: a file that is missing, damaged or cannot be written is no error, and no folder for them
is none.
"""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from pathlib import Path
from threading import get_ident
from typing import Any

from edgespec.errors import UsageError
from edgespec.hub import store

log = logging.getLogger(__name__)


def read(name: str) -> dict[str, Any]:
    """The object in a file; empty if there is none."""
    try:
        found = json.loads(_path(name).read_text("utf-8"))
    except (OSError, UsageError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def write(name: str, found: dict[str, Any]) -> None:
    """Replace a file, whole or not at all, though another process or thread may be writing it, too."""
    partial = None
    try:
        file = _path(name)
        partial = file.with_name(f"{file.name}.{os.getpid()}-{get_ident()}.partial")
        file.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(found), "utf-8")
        partial.replace(file)
    except (OSError, UsageError) as error:
        log.debug("%s is not kept: %s", name, error)
        if partial is not None:
            with suppress(OSError):
                partial.unlink()


def _path(name: str) -> Path:
    return store.home().parent / "state" / name
