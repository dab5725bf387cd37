"""These tests need the library; where scripts/test has installed edgespec, its absence is a failure."""

from __future__ import annotations

import pytest
from real_models import required

from edgespec.kernels import library


@pytest.fixture(autouse=True, scope="session")
def kernels() -> None:
    why = library.unavailable()
    if why and required():
        pytest.fail(why, pytrace=False)
    if why:
        pytest.skip(why)
