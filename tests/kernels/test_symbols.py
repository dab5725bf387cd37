"""Code for one instruction set must not be taken for that of another."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

KERNELS = Path(__file__).parents[2] / "edgespec/kernels"


@pytest.mark.skipif(not all(map(shutil.which, ("cmake", "nm"))), reason="needs cmake and nm")
def test_functions_that_a_linker_may_choose_from_are_of_one_instruction_set(tmp_path: Path) -> None:
    """Without inlining: the functions of headers that every object file has are one in the library, and
    no matter which it must run everywhere."""
    subprocess.run(["cmake", "-S", KERNELS, "-B", tmp_path, "-DCMAKE_BUILD_TYPE=Debug"], check=True)
    subprocess.run(["cmake", "--build", tmp_path, "--parallel", "2"], check=True)
    objects = {path.name[4:].split(".")[0]: path for path in tmp_path.rglob("isa_*.o")}
    assert "scalar" in objects and len(objects) > 1
    for name in objects.keys() - {"scalar"}:
        listed = subprocess.check_output(["nm", "-C", "--defined-only", objects[name]], text=True)
        weak = re.findall(r"^\w+ [WVu] (.+)$", listed, re.MULTILINE)
        assert any("multiply_tile<" in symbol for symbol in weak), name
        assert [symbol for symbol in weak if f"edgespec::{name}::" not in symbol] == []
