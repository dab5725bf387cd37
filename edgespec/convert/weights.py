"""Every tensor of a GGUF model, re-expressed and written to the external data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import numpy as np
from onnx import TensorProto

from edgespec.convert import repack, tiles
from edgespec.convert.blocks import Bytes
from edgespec.convert.external_data import ExternalData, viewed
from edgespec.convert.repack import Format
from edgespec.convert.rope import rope_tables
from edgespec.convert.source import Source
from edgespec.convert.storage import Form, Storage, exact
from edgespec.convert.tiles import Tiles

SPARE_POSITIONS = 64
"""Rotary tables are this much longer than the context, for rows that only fill up a pass."""


@dataclass(frozen=True)
class Matrix:
    """A matrix [outputs, inputs] in the external data."""

    outputs: int
    inputs: int
    form: Form
    data: TensorProto
    """tiles: uint8 [bytes]; float32 [outputs, inputs]; else codes"""
    scales: TensorProto | None = None
    zero_points: TensorProto | None = None
    bias: TensorProto | None = None


@dataclass
class Weights:
    """What the graphs refer to."""

    vectors: dict[str, TensorProto] = field(default_factory=dict)
    """norms, float32, by GGUF name without `.weight`"""
    matrices: dict[str, Matrix] = field(default_factory=dict)
    """by GGUF name without `.weight`; `blk.N.attn_qkv` where the three share a format"""
    ropes: list[tuple[TensorProto, TensorProto]] = field(default_factory=list)
    """cosines and sines of each layer; layers that turn alike share them"""
    became: Counter[tuple[str, str, bool]] = field(default_factory=Counter)
    """(ggml type, what it became, whether exactly) → number of weights"""


def write_weights(
    source: Source, out: ExternalData, storage: Storage, advance: Callable[[int], None]
) -> Weights:
    """Convert all tensors. `advance(bytes)` is told how much of the source is done."""
    return _Writer(source, out, storage, advance).run()


class _Writer:
    def __init__(
        self, source: Source, out: ExternalData, storage: Storage, advance: Callable[[int], None]
    ) -> None:
        self.source, self.out, self.storage, self.advance = source, out, storage, advance
        self.weights = Weights()

    def run(self) -> Weights:
        d = self.source.decoder
        self._matrix("token_embd", ["token_embd"])
        if not d.tied:
            self._matrix("output", ["output"])
        self._vector("output_norm")
        self._ropes()
        for i in range(d.layers):
            block = f"blk.{i}"
            qkv = [f"{block}.attn_{part}" for part in "qkv"]
            if not d.head_norms and self._alike(qkv):
                self._matrix(f"{block}.attn_qkv", qkv)
            else:
                for name in qkv:
                    self._matrix(name, [name])
            for part in ("attn_output", "ffn_gate", "ffn_up", "ffn_down"):
                self._matrix(f"{block}.{part}", [f"{block}.{part}"])
            for part in ("attn_norm", "ffn_norm"):
                self._vector(f"{block}.{part}")
            if d.head_norms:
                self._vector(f"{block}.attn_q_norm")
                self._vector(f"{block}.attn_k_norm")
            if d.post_norms:
                self._vector(f"{block}.post_attention_norm")
                self._vector(f"{block}.post_ffw_norm")
        return self.weights

    def _alike(self, names: list[str]) -> bool:
        """Whether the matrices can be one: same format, and either all with a bias or none."""
        forms = {self._form(name) for name in names}
        return len(forms) == 1 and len({f"{name}.bias" in self.source for name in names}) == 1

    def _form(self, name: str) -> Form:
        tensor = self.source.tensors[f"{name}.weight"]
        return self.storage.form(name, tensor.type, tensor.shape[0])

    def _vector(self, name: str) -> None:
        full = f"{name}.weight"
        self.weights.vectors[name] = self.out.add(name, self.source.vector(full))
        self.advance(self.source.tensors[full].bytes)
        self._count(full, None)

    def _ropes(self) -> None:
        d = self.source.decoder
        divisors = self.source.vector("rope_freqs.weight") if "rope_freqs.weight" in self.source else None
        made: dict[object, tuple[TensorProto, TensorProto]] = {}
        for rope in d.ropes:
            if rope not in made:
                cos, sin = rope_tables(rope, d.context + SPARE_POSITIONS, divisors)
                n = len(made)
                made[rope] = self.out.add(f"rope.{n}.cos", cos), self.out.add(f"rope.{n}.sin", sin)
            self.weights.ropes.append(made[rope])

    def _matrix(self, name: str, parts: list[str]) -> None:
        """Write matrices of one form below each other, as one."""
        tensors = [self.source.tensors[f"{part}.weight"] for part in parts]
        outputs, inputs = sum(t.elements // t.shape[0] for t in tensors), tensors[0].shape[0]
        bias = None
        if f"{parts[0]}.bias" in self.source:
            vectors = [self.source.vector(f"{part}.bias") for part in parts]
            bias = self.out.add(f"{name}.bias", np.concatenate(vectors))
        form = self._form(parts[0])
        if isinstance(form, Tiles):
            matrix = Matrix(outputs, inputs, form, self._tiled(name, parts, outputs, inputs, form), bias=bias)
        elif form is not None:
            data, scales, zeros = self._quantized(name, parts, outputs, inputs, form)
            matrix = Matrix(outputs, inputs, form, data, scales, zeros, bias)
        else:
            matrix = Matrix(outputs, inputs, None, self._float(name, parts, outputs, inputs), bias=bias)
        self.weights.matrices[name] = matrix

    def _tiled(self, name: str, parts: list[str], outputs: int, inputs: int, form: Tiles) -> TensorProto:
        data = self.out.reserve(f"{name}.tiles", np.uint8, (form.bytes(outputs, inputs),))
        at = 0
        for rows in tiles.whole_tiles(self._ggml_rows(parts, form)):
            packed = tiles.pack(rows, form)
            self.out.write(data, at, packed)
            at += len(packed)
        return data

    def _ggml_rows(self, parts: list[str], form: Tiles) -> Iterator[Bytes]:
        """Pieces of matrices below each other, in ggml's blocks of the type that the tiles take."""
        for part in parts:
            full = f"{part}.weight"
            if exact(self.source.type_of(full), form):
                pieces = self.source.rows(full, form)
            else:
                pieces = (tiles.requantized(values, form) for _, values in self.source.floats(full))
            for rows in pieces:
                yield rows
                self._advance(full, len(rows))
            self._count(full, form)

    def _quantized(
        self, name: str, parts: list[str], outputs: int, inputs: int, form: Format
    ) -> tuple[TensorProto, TensorProto, TensorProto | None]:
        n = inputs // form.block
        data = self.out.reserve(f"{name}.codes", np.uint8, (outputs, n, form.block * form.bits // 8))
        scales = self.out.reserve(f"{name}.scales", np.float32, (outputs, n))
        zeros = None
        if form.zero_points:
            zeros = self.out.reserve(f"{name}.zeros", np.uint8, (outputs, (n * form.bits + 7) // 8))
        first = 0
        for part in parts:
            full = f"{part}.weight"
            for row, blocks in self.source.blocks(full):
                packed = repack.pack(blocks, form)
                self.out.write(data, first + row, packed.data)
                self.out.write(scales, first + row, packed.scales)
                if zeros is not None and packed.zero_points is not None:
                    self.out.write(zeros, first + row, packed.zero_points)
                self._advance(full, len(blocks.quants))
            first += self._rows(full)
            self._count(full, form)
        return data, scales, zeros

    def _float(self, name: str, parts: list[str], outputs: int, inputs: int) -> TensorProto:
        data = self.out.reserve(f"{name}.floats", np.float32, (outputs, inputs))
        first = 0
        for part in parts:
            full = f"{part}.weight"
            for row, values in self.source.floats(full):
                self.out.write(data, first + row, values)
                self._advance(full, len(values))
            first += self._rows(full)
            self._count(full, None)
        return data

    def _rows(self, full: str) -> int:
        tensor = self.source.tensors[full]
        return tensor.elements // tensor.shape[0]

    def _advance(self, full: str, rows: int) -> None:
        self.advance(self.source.tensors[full].bytes * rows // self._rows(full))

    def _count(self, full: str, form: Form) -> None:
        tensor = self.source.tensors[full]
        became = "float32" if form is None else str(form)
        self.weights.became[tensor.type, became, exact(tensor.type, form)] += tensor.elements


def as_rows(matrix: Matrix) -> tuple[TensorProto, TensorProto | None, TensorProto | None]:
    """A quantized matrix's codes as [outputs, bytes], scales and zero points: what a gather of rows reads."""
    assert isinstance(matrix.form, Format)
    width = matrix.inputs * matrix.form.bits // 8
    return (
        viewed(matrix.data, f"{matrix.data.name}.rows", (matrix.outputs, width)),
        matrix.scales,
        matrix.zero_points,
    )
