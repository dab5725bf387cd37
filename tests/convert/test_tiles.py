"""Tiles hold exactly the weights of the blocks they were made from."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest
from ggml_rows import random_rows, weights
from hypothesis import given, settings
from hypothesis import strategies as st

from edgespec.convert.tiles import TILES, finite, pack, tiles_for, whole_tiles

from .tile_reader import read_tiles

HEADER = Path(__file__).parents[2] / "edgespec" / "kernels" / "tile_formats.h"


@pytest.mark.parametrize("type_", TILES)
@settings(max_examples=25)
@given(rows=st.integers(1, 40), groups=st.integers(1, 3), seed=st.integers(0, 1 << 30))
def test_tiles_hold_the_weights_bit_for_bit(type_: str, rows: int, groups: int, seed: int) -> None:
    data, tiles = random_rows(type_, rows, groups, seed), TILES[type_]
    packed = pack(data, tiles)
    inputs = groups * tiles.inputs
    assert packed.dtype == np.uint8 and packed.shape == (tiles.bytes(rows, inputs),)
    found, wanted = read_tiles(packed, type_, rows, inputs), weights(data, type_)
    assert np.array_equal(found.view(np.uint32), wanted.view(np.uint32))


@given(cuts=st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_pieces_become_whole_tiles(cuts: list[int]) -> None:
    rows = [random_rows("Q4_0", n, 2, seed) for seed, n in enumerate(cuts)]
    pieces = list(whole_tiles(rows))
    assert all(len(piece) % 16 == 0 for piece in pieces[:-1]) and all(map(len, pieces))
    assert np.array_equal(np.concatenate([*pieces, rows[0][:0]]), np.concatenate(rows))


@pytest.mark.parametrize("type_", TILES)
def test_a_group_is_as_large_as_the_kernels_say(type_: str) -> None:
    text = HEADER.read_text("utf-8").replace("using GroupIQ4_NL = GroupQ4_0;", "sizeof(GroupIQ4_NL) == 288")
    found = re.search(rf"sizeof\(Group{type_}\) == (\d+)", text)
    assert found and int(found[1]) == TILES[type_].group_bytes


@pytest.mark.parametrize("type_", TILES)
def test_scales_that_are_no_numbers_are_found(type_: str) -> None:
    data = random_rows(type_, 3, 2, seed=1)
    assert finite(data, TILES[type_])
    at = next(field.begin for field in TILES[type_].fields if field.item == 2)
    data[1, -1, at : at + 2] = np.array([np.inf], "<f2").view(np.uint8)
    assert not finite(data, TILES[type_])


def test_rows_that_do_not_fit_are_not_tiled() -> None:
    assert tiles_for("F16", 48) is None and tiles_for("F32", 64) is None and tiles_for("Q2_K", 256) is None
    assert tiles_for("F16", 64) == TILES["F16"]
