"""What fits where memory is short: 2,048 tokens of context, a prompt of 1,000, weights that are mapped, not
copied. Processes that really run say how much they had in memory at most."""

from __future__ import annotations

import subprocess
import sys

import pytest
from real_models import need

from edgespec.hub import store
from edgespec.hub.catalog import RemoteFile, load_catalog

MIB = 1 << 20
PEAK = """
import re, sys, edgespec
path, draft = sys.argv[1:]
depth = 0 if draft == "none" else 4
with edgespec.load(path, draft=draft, depth=depth, n_ctx=2048, low_memory=True) as runtime:
    runtime.generate([token % 1000 for token in range(1000)], max_tokens=16)
print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) << 10)
"""


def file_of(role: str, pair: str) -> str:
    file = getattr(load_catalog().pairs[need(pair)], role)
    assert isinstance(file, RemoteFile)
    return str(store.path_of(file))


def peak(path: str, draft: str = "none") -> int:
    """Bytes."""
    done = subprocess.run(
        [sys.executable, "-c", PEAK, path, draft], capture_output=True, text=True, check=True
    )
    return int(done.stdout)


def test_smollm2_takes_at_most_320_mib() -> None:
    assert peak(file_of("target", "smollm2-135m")) <= 320 * MIB


@pytest.mark.coder
def test_the_small_coder_takes_at_most_750_mib() -> None:
    assert peak(file_of("draft", "qwen2.5-coder")) <= 750 * MIB


@pytest.mark.coder
def test_the_pair_of_coders_takes_at_most_2200_mib() -> None:
    assert peak(file_of("target", "qwen2.5-coder"), file_of("draft", "qwen2.5-coder")) <= 2200 * MIB
