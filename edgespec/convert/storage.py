"""How each matrix of a model is stored: in tiles for our kernels, or for ONNX Runtime's operators."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from edgespec.convert.blocks import BLOCK_TYPES
from edgespec.convert.repack import Format, format_of
from edgespec.convert.tiles import Tiles, tiles_for

SMALL = 4
"""bits that `small` leaves of a weight"""
KEPT = ("token_embd", "output")
"""matrices that `small` leaves alone: errors in the embedding and the head weigh most"""
Form: TypeAlias = Tiles | Format | None
"""of a matrix; None: float32"""


@dataclass(frozen=True)
class Storage:
    """What was asked for."""

    portable: bool
    """standard operators only"""
    small: bool
    """4 bits wherever the source has more"""

    def form(self, name: str, type_: str, inputs: int) -> Form:
        """What a matrix of a ggml type with rows of so many weights becomes; `name` as GGUF has it,
        without `.weight`."""
        small = self.small and name not in KEPT
        if not self.portable:
            tiles = tiles_for(type_, inputs)
            if small and (tiles is None or tiles.bits != SMALL):
                tiles = tiles_for("Q4_0", inputs)
            if tiles is not None:
                return tiles
        return format_of(type_, small) if type_ in BLOCK_TYPES else None


def exact(type_: str, form: Form) -> bool:
    """Whether a matrix of a ggml type keeps its weights bit for bit."""
    if isinstance(form, Tiles):
        return form.type == type_
    return form is None or form.exact


def stored_bytes(form: Form, outputs: int, inputs: int) -> int:
    """Bytes of a matrix."""
    if isinstance(form, Tiles):
        return form.bytes(outputs, inputs)
    if form is None:
        return 4 * outputs * inputs
    per_block = form.block * form.bits / 8 + 4 + (form.bits / 8 if form.zero_points else 0)
    return int(outputs * (inputs // form.block) * per_block)
