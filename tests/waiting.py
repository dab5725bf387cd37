"""Waiting for what another thread or process does: as long as a busy machine may take, and not for ever."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event
from time import sleep
from typing import Any

import pytest

PATIENCE = 120.0
"""seconds; nothing takes as long, but where it hangs"""


def until(true: Callable[[], object]) -> None:
    """Wait for something to become true."""
    for _ in range(int(PATIENCE / 0.01)):
        if true():
            return
        sleep(0.01)
    pytest.fail("it did not happen")


def called(patch: pytest.MonkeyPatch, owner: type, name: str) -> Event:
    """What is set as soon as a method has done its work."""
    done, method = Event(), getattr(owner, name)

    def told(*arguments: Any) -> Any:
        result = method(*arguments)
        done.set()
        return result

    patch.setattr(owner, name, told)
    return done
