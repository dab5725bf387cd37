"""Real models, and the runtimes that run them, are used where scripts/test has fetched them.

What it has fetched stands in EDGESPEC_REQUIRE_MODELS; that these are missing is then a failure, so
that a run that tests nothing is not taken for one that found nothing. Others are then not used, so that it
tests the same wherever it runs.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import pytest

from edgespec import ModelError
from edgespec.hub.resolve import resolve


def required() -> list[str]:
    """The models that must be there, with their drafts."""
    return os.environ.get("EDGESPEC_REQUIRE_MODELS", "").split()


def need(name: str) -> str:
    """`name`, if that model is on this machine; otherwise the test is skipped, saying how to get it."""
    wanted = any(name.startswith(fetched) for fetched in required())
    if required() and not wanted:
        pytest.skip(f"{name} was not fetched for this run")
    try:
        resolve(name)
    except ModelError as error:
        if wanted:
            pytest.fail(f"{name} was fetched for this run: {error}", pytrace=False)
        pytest.skip(str(error))
    return name


def need_module(name: str) -> Any:
    """An optional module; where it is missing the test is skipped, but not if models must be there."""
    return importlib.import_module(name) if required() else pytest.importorskip(name)
