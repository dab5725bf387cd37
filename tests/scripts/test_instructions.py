"""Instructions of the kernels, counted by the real program."""

from __future__ import annotations

import platform
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from gguf import GGMLQuantizationType, GGUFWriter
from kernels_here import need_kernels

from edgespec.kernels import library

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "scripts/instructions.py"
needs_single_steps = pytest.mark.skipif(
    (sys.platform, platform.machine()) != ("linux", "x86_64") or shutil.which("g++") is None,
    reason="single steps of x86 programs under Linux, and a compiler for them",
)


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """native_check with the library that is in use."""
    need_kernels()
    built, where = tmp_path_factory.mktemp("native") / "native_check", library.path()
    source = ROOT / "tests/kernels/native_check.cpp"
    include, found_in = f"-I{ROOT / 'edgespec/kernels'}", f"-Wl,-rpath,{where.parent}"
    subprocess.run(["g++", "-std=c++17", include, source, where, found_in, "-o", built], check=True)
    return built


def instructions(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, SCRIPT, *arguments]
    return subprocess.run(command, capture_output=True, text=True)


@needs_single_steps
def test_a_weight_takes_fewer_instructions_per_token_the_more_tokens_share_it(program: Path) -> None:
    done = instructions(program, "--types", "Q4_K")
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^\| (\w+) \| Q4_K \|(.+)\|$", done.stdout, re.MULTILINE)
    assert library.instruction_set() in [*dict(rows), "scalar"]
    for path, cells in rows:
        counts = [float(cell) for cell in cells.split("|")]
        assert sorted(counts) == counts, path  # tokens: 1, 2, 4, 8, 16
        assert 0 < counts[3] / 8 < counts[2] / 4 < counts[0], path


@needs_single_steps
def test_a_program_for_this_processor_is_no_estimate_of_an_arm_board(program: Path) -> None:
    done = instructions(program, "--types", "Q4_0", "--model", "model.gguf")
    assert done.returncode != 0 and "built for Arm" in done.stderr


@pytest.mark.parametrize("tied", [True, False])
def test_an_embedding_is_multiplied_with_only_as_output_head(tmp_path: Path, tied: bool) -> None:
    writer = GGUFWriter(tmp_path / "model.gguf", "llama")
    for name in ["token_embd.weight"] if tied else ["token_embd.weight", "output.weight"]:
        writer.add_tensor(name, np.zeros((16, 18), np.uint8), raw_dtype=GGMLQuantizationType.Q4_0)
    writer.add_tensor("blk.0.attn_norm.weight", np.zeros(32, np.float32))
    writer.add_tensor("blk.0.ffn_up.weight", np.zeros((8, 34), np.uint8), raw_dtype=GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    found = runpy.run_path(str(SCRIPT))["matrices"](str(tmp_path / "model.gguf"))
    assert found == {"Q4_0": (16 * 32, 16 * 18), "Q8_0": (8 * 32, 8 * 34)}
