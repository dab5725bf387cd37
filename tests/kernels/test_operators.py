"""Our operators inside ONNX Runtime: rows that do not depend on what else is computed, and refusals."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import numpy as np
import pytest
from ggml_rows import random_rows, weights

from edgespec.convert.tiles import TILES, pack
from edgespec.kernels import library

from .native import PATHS, multiply, operator, paths

OUTPUTS = 16 * 30 + 3
GROUPS = {32: 32, 256: 4}


def matrix(type_: str) -> tuple[np.ndarray, int]:
    """Large enough to be divided among threads: its ggml bytes, and its inputs."""
    tiles = TILES[type_]
    return random_rows(type_, OUTPUTS, GROUPS[tiles.inputs], seed=5), tiles.inputs * GROUPS[tiles.inputs]


@pytest.mark.parametrize("type_", TILES)
def test_a_row_is_the_same_alone_and_among_others_with_any_number_of_threads(type_: str) -> None:
    rows, inputs = matrix(type_)
    tiles = pack(rows, TILES[type_])
    rng = np.random.default_rng(6)
    x = rng.standard_normal((130, inputs)).astype(np.float32)
    bias = rng.standard_normal(OUTPUTS).astype(np.float32)
    wanted = multiply("scalar", type_, tiles, OUTPUTS, x[:17], bias)
    for threads in (1, 2):
        session = operator("MatMul", type_, OUTPUTS, inputs, tiles, bias, threads)
        alone = np.concatenate([session.run(None, {"x": x[m : m + 1]})[0] for m in range(len(x))])
        assert np.array_equal(alone[:17], wanted)
        for tokens in (*range(2, 18), 63, 64, 65, 130):
            (y,) = session.run(None, {"x": x[None, :tokens]})
            assert y.shape == (1, tokens, OUTPUTS)
            assert np.array_equal(y[0], alone[:tokens]), (threads, tokens)


def test_no_tokens_give_no_rows() -> None:
    rows, inputs = matrix("Q4_K")
    session = operator("MatMul", "Q4_K", OUTPUTS, inputs, pack(rows, TILES["Q4_K"]))
    assert session.run(None, {"x": np.zeros((1, 0, inputs), np.float32)})[0].shape == (1, 0, OUTPUTS)


@pytest.mark.parametrize("type_", TILES)
def test_rows_are_looked_up_as_ggml_computes_them(type_: str) -> None:
    rows, inputs = matrix(type_)
    session = operator("Gather", type_, OUTPUTS, inputs, pack(rows, TILES[type_]))
    ids = np.array([[0, 17, OUTPUTS - 1, 17]])
    (y,) = session.run(None, {"x": ids})
    assert np.array_equal(y.view(np.uint32), weights(rows, type_)[ids].view(np.uint32))


@pytest.mark.parametrize("id_", [-1, OUTPUTS, 1 << 40])
def test_an_id_that_is_no_row_is_refused(id_: int) -> None:
    rows, inputs = matrix("Q8_0")
    session = operator("Gather", "Q8_0", OUTPUTS, inputs, pack(rows, TILES["Q8_0"]))
    with pytest.raises(Exception, match="an id that is no row"):
        session.run(None, {"x": np.array([id_])})


def test_activations_of_a_wrong_width_are_refused() -> None:
    rows, inputs = matrix("Q8_0")
    session = operator("MatMul", "Q8_0", OUTPUTS, inputs, pack(rows, TILES["Q8_0"]))
    for shape in ([1, inputs - 32], [1, inputs + 32], []):
        with pytest.raises(Exception, match="the last dimension of X is not K"):
            session.run(None, {"x": np.zeros(shape, np.float32)})


@pytest.mark.parametrize("op", ["MatMul", "Gather"])
@pytest.mark.parametrize("change", [-1, 1, None])
def test_weights_of_a_wrong_size_are_refused(op: str, change: int | None) -> None:
    rows, inputs = matrix("Q4_0")
    tiles = pack(rows, TILES["Q4_0"])
    wrong = np.resize(tiles, tiles.size + change if change else 0)
    session = operator(op, "Q4_0", OUTPUTS, inputs, wrong)
    x = np.zeros(1, np.int64) if op == "Gather" else np.zeros((1, inputs), np.float32)
    with pytest.raises(Exception, match="packed weights of a wrong size"):
        session.run(None, {"x": x})


def test_a_bias_of_a_wrong_size_is_refused() -> None:
    rows, inputs = matrix("Q4_0")
    tiles = pack(rows, TILES["Q4_0"])
    session = operator("MatMul", "Q4_0", OUTPUTS, inputs, tiles, np.zeros(OUTPUTS - 1, np.float32))
    with pytest.raises(Exception, match="the bias is not of size N"):
        session.run(None, {"x": np.zeros((1, inputs), np.float32)})


@pytest.mark.parametrize(
    ("type_", "outputs", "inputs"),
    [
        (99, 16, 256),
        (-1, 16, 256),
        ("Q4_K", 16, 128),
        ("Q4_0", 0, 32),
        ("Q4_0", -16, 32),
        ("Q4_0", 16, 0),
        ("Q4_0", 16, -32),
        ("Q4_0", 1 << 40, 32),
        ("Q4_0", 16, 1 << 40),
    ],
)
@pytest.mark.parametrize("op", ["MatMul", "Gather"])
def test_sizes_that_describe_no_matrix_are_refused(
    op: str, type_: str | int, outputs: int, inputs: int
) -> None:
    with pytest.raises(Exception, match="do not describe a packed matrix"):
        operator(op, type_, outputs, inputs, np.zeros(288, np.uint8))


def test_a_runtime_that_is_too_old_is_told_so() -> None:
    """One whose table is to be had for version 1 only, with the function that makes a status."""
    messages: list[bytes] = []

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)
    def create_status(code: int, message: bytes) -> int:
        messages.append(message)
        return 1

    table = (ctypes.c_void_p * 1)(ctypes.cast(create_status, ctypes.c_void_p))

    @ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_uint32)
    def get(version: int) -> int | None:
        return ctypes.addressof(table) if version == 1 else None

    base = (ctypes.c_void_p * 2)(ctypes.cast(get, ctypes.c_void_p), None)
    register = ctypes.CDLL(str(library.path())).RegisterCustomOps
    register.restype = ctypes.c_void_p
    assert register(None, base) == 1
    assert messages == [b"edgespec's operators need ONNX Runtime 1.17 or newer"]


def in_a_process(code: str, path: str) -> str:
    """What Python code prints where EDGESPEC_ISA names a path."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"EDGESPEC_ISA": path},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_path_can_be_chosen() -> None:
    code = "from edgespec.kernels import library; print(library.instruction_set())"
    assert in_a_process(code, "") == library.instruction_set()
    for path in paths():
        assert in_a_process(code, path) == path


def test_a_path_that_cannot_run_here_is_refused() -> None:
    code = "from edgespec.kernels import library; print(library.unavailable())"
    foreign = next(path for path in reversed(PATHS) if path not in paths())
    for path in ("pentium", foreign):
        said = f"EDGESPEC_ISA is {path}; this processor has "
        choices = in_a_process(code, path).removeprefix(said)
        assert sorted(choices.split()) == sorted(paths())
