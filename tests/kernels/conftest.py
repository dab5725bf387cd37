"""These tests need the library; where scripts/test has installed edgespec, its absence is a failure."""

from __future__ import annotations

import pytest
from kernels_here import need_kernels


@pytest.fixture(autouse=True, scope="session")
def kernels() -> None:
    need_kernels()
