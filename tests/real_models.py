"""Real models are used where scripts/test has fetched them."""

from __future__ import annotations

import pytest

from edgespec import ModelError
from edgespec.hub.resolve import resolve


def need(name: str) -> str:
    """`name`, if that model is on this machine; otherwise the test is skipped, saying how to get it."""
    try:
        resolve(name)
    except ModelError as error:
        pytest.skip(str(error))
    return name
