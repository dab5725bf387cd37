"""Products of packed matrices: every instruction set to the same bits, and right."""

from __future__ import annotations

import numpy as np
import pytest
from ggml_rows import random_rows, weights

from edgespec.convert.tiles import TILES, pack

from .native import multiply, paths

TOKENS = [*range(1, 18), 31, 64, 65]


def activations(tokens: int, inputs: int, seed: int = 0) -> np.ndarray:
    x = np.random.default_rng(seed).standard_normal((tokens, inputs)).astype(np.float32)
    x[0, :32] = 0
    return x


def exact_activations(tokens: int, inputs: int) -> np.ndarray:
    """Those that int8 holds exactly: integers up to 127 times a power of two, for each block of 32."""
    rng = np.random.default_rng(0)
    x = rng.integers(-127, 128, (tokens, inputs // 32, 32)).astype(np.float32)
    x[..., 0] = 127
    x *= 2.0 ** rng.integers(-8, 0, (tokens, inputs // 32, 1))
    return x.reshape(tokens, inputs)


def of_scalar(
    type_: str, tiles: np.ndarray, outputs: int, x: np.ndarray, bias: np.ndarray | None
) -> np.ndarray:
    """The reference: the portable code, each token alone."""
    rows = [multiply("scalar", type_, tiles, outputs, x[m : m + 1], bias) for m in range(len(x))]
    return np.concatenate([row for row in rows if row is not None])


@pytest.mark.parametrize("outputs", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("type_", TILES)
def test_all_instruction_sets_and_all_numbers_of_tokens_give_the_same_bits(type_: str, outputs: int) -> None:
    for groups in (1, 3):
        inputs = groups * TILES[type_].inputs
        tiles = pack(random_rows(type_, outputs, groups, seed=outputs), TILES[type_])
        x = activations(TOKENS[-1], inputs)
        bias = activations(1, 64)[0, 33 : 33 + outputs] if outputs < 17 else None
        wanted = of_scalar(type_, tiles, outputs, x, bias)
        for path in paths():
            for tokens in TOKENS:
                y = multiply(path, type_, tiles, outputs, x[:tokens], bias)
                assert y is not None and np.array_equal(y, wanted[:tokens]), (path, tokens, groups)


@pytest.mark.parametrize("type_", TILES)
def test_products_of_what_int8_holds_are_exact_but_for_sums(type_: str) -> None:
    rows = random_rows(type_, 40, 4, seed=1)
    tiles, w = pack(rows, TILES[type_]), weights(rows, type_).astype(np.float64)
    x = exact_activations(3, w.shape[1])
    magnitudes = np.abs(x) @ np.abs(w).T
    for path in paths():
        y = multiply(path, type_, tiles, 40, x)
        assert y is not None
        assert (np.abs(y - x @ w.T) <= 1e-6 * magnitudes).all(), path


@pytest.mark.parametrize("type_", TILES)
def test_activations_lose_no_more_than_int8_does(type_: str) -> None:
    rows = random_rows(type_, 256, 4, seed=2)
    tiles, w = pack(rows, TILES[type_]), weights(rows, type_).astype(np.float64)
    x = activations(8, w.shape[1])
    y, exact = multiply(paths()[-1], type_, tiles, 256, x), x @ w.T
    assert y is not None
    lost = np.sqrt(np.mean((y - exact) ** 2) / np.mean(exact**2))
    assert lost < (1e-6 if type_ == "F16" else 0.01)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("type_", ["Q4_K", "Q6_K", "F16"])
def test_what_is_no_number_does_not_become_one(type_: str, value: float) -> None:
    rows = random_rows(type_, 16, 2, seed=3)
    x = activations(2, 2 * TILES[type_].inputs)
    x[1, 5] = value
    for path in paths():
        y = multiply(path, type_, pack(rows, TILES[type_]), 16, x)
        assert y is not None and np.isfinite(y[0]).all() and not np.isfinite(y[1]).any(), path


@pytest.mark.parametrize("scale", [1e-38, 1e-30, 1e-20, 1e20])
def test_activations_of_any_size_give_the_same_bits(scale: float) -> None:
    tiles = pack(random_rows("Q4_0", 16, 2, seed=4) & 0x9F, TILES["Q4_0"])
    x = activations(3, 64) * np.float32(scale)
    wanted = of_scalar("Q4_0", tiles, 16, x, None)
    for path in paths():
        y = multiply(path, "Q4_0", tiles, 16, x)
        assert y is not None and np.array_equal(y, wanted), path


def test_what_is_no_matrix_is_refused() -> None:
    tiles = np.zeros(TILES["Q4_K"].bytes(16, 512), np.uint8)
    assert multiply("scalar", "Q4_K", tiles, 16, np.zeros((1, 288), np.float32)) is None
    assert multiply("pentium", "Q4_K", tiles, 16, np.zeros((1, 512), np.float32)) is None
