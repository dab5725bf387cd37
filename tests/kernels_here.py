"""Tests of our kernels need the built library. scripts/test builds it, so there its absence is a failure."""

from __future__ import annotations

import os

import pytest
from real_models import required

from edgespec.kernels import library


def need_kernels() -> None:
    """Skip the test if our operators do not work here, or fail it if they must."""
    why = library.unavailable()
    if why is not None:
        if required() or os.environ.get("EDGESPEC_KERNELS"):
            pytest.fail(why, pytrace=False)
        pytest.skip(why)
