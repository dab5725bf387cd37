"""Reads the header of a GGUF file: its metadata and its list of tensors, never the weights.

The `gguf` package's own reader makes one numpy view per array element, which takes seconds on a
vocabulary of 150,000 tokens, and trusts every length in the file. This one takes the format's
constants from that package, skips through arrays, and checks every length against the file.
"""

from __future__ import annotations

import math
import mmap
import os
import re
import stat
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, overload

from gguf.constants import GGML_QUANT_SIZES, GGUF_DEFAULT_ALIGNMENT, GGMLQuantizationType, GGUFValueType

from edgespec.errors import ModelError

_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
# Far above any real model; a damaged count must not keep us walking through gigabytes of zeros.
_MAX_KEYS = 1 << 16
_MAX_TENSORS = 1 << 20
_MAX_STRINGS = 1 << 24

_SPLIT = re.compile(r"(?P<stem>.+)-(?P<no>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True)
class Tensor:
    """One tensor as the header describes it."""

    name: str
    shape: tuple[int, ...]
    """the fastest-varying dimension first, as GGUF stores it"""
    type: str
    """a ggml type name, such as Q4_K; "unknown (type 99)" for one the gguf package does not know"""
    elements: int
    bytes: int
    """of an unknown type: up to where the next tensor begins"""
    offset: int
    """from the start of the file"""


class Strings(Sequence[str]):
    """An array of strings, decoded one by one when asked for (a vocabulary has 150,000)."""

    def __init__(self, data: bytes, offsets: array[int]) -> None:
        self._data = data
        self._offsets = offsets  # of every string's length field

    def __len__(self) -> int:
        return len(self._offsets)

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._bytes(index).decode("utf-8", "replace")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def repeated(self) -> int | None:
        """The first string that was there before, as C reads strings: up to a zero. Empty ones may repeat."""
        ends = chain(self._offsets[1:], [len(self._data)])
        texts = [
            self._data[start + 8 : end].partition(b"\0")[0]
            for start, end in zip(self._offsets, ends, strict=False)
        ]
        if len({*texts} - {b""}) == len(texts) - texts.count(b""):  # mostly, and every start waits for it
            return None
        seen = {b""}
        for i, text in enumerate(texts):
            if text and text in seen:
                return i
            seen.add(text)
        return None

    def _bytes(self, index: int) -> bytes:
        start = self._offsets[index]
        (length,) = struct.unpack_from("<Q", self._data, start)
        return self._data[start + 8 : start + 8 + length]


@dataclass(frozen=True)
class Header:
    """What a GGUF file says about itself."""

    path: Path
    file_bytes: int
    version: int
    metadata: dict[str, Any]
    """numbers, booleans, str; arrays as tuples of numbers or `Strings`"""
    tensors: tuple[Tensor, ...]
    spans: dict[str, tuple[int, int]]
    """for each key of the metadata, where its entry begins and ends in the file"""


def read_header(path: Path) -> Header:
    """The header of one GGUF file (of one part, if the model is split).

    Raises ModelError when the file is missing, is not a GGUF, or is damaged or cut short.
    """
    try:
        if path.is_dir():
            raise ModelError(f"{path} is not a GGUF model: it is a folder.")
        if not stat.S_ISREG(path.stat().st_mode):  # to open a pipe would wait for its other end
            raise ModelError(f"{path} is not a GGUF model: it is not a regular file.")
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < 24:
                raise ModelError(f"{path} is not a GGUF model: it holds only {size} bytes.")
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
                return _Cursor(path, data).header()
    except (OSError, ValueError) as error:
        raise ModelError(f"{path} cannot be read: {error}.") from error


def split_parts(path: Path) -> list[Path]:
    """All parts of a split model, given any of them; `[path]` for a model in one file."""
    return [path.with_name(name) for name in split_names(path.name)]


def split_names(name: str) -> list[str]:
    """As `split_parts`, for a file name: model-00001-of-00003.gguf names three files."""
    match = _SPLIT.fullmatch(name)
    if not match:
        return [name]
    return [
        f"{match['stem']}-{i:05d}-of-{match['count']}.gguf" for i in range(1, int(match["count"]) + 1)
    ] or [name]


class _Cursor:
    """Walks through the header; every read is checked against the end of the file."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._size = len(data)
        self._at = 0

    def header(self) -> Header:
        if self._data[:4] != b"GGUF":
            raise ModelError(f"{self._path} is not a GGUF model: its first bytes are {self._data[:4]!r}.")
        self._at = 4
        version = self._number("I")
        if version & 0xFFFF == 0:
            raise ModelError(f"{self._path} is a big-endian GGUF; edgespec reads little-endian ones.")
        if version not in (2, 3):
            raise ModelError(f"{self._path} has GGUF version {version}; versions 2 and 3 can be read.")
        n_tensors, n_keys = self._number("Q"), self._number("Q")
        if n_keys > _MAX_KEYS or n_tensors > _MAX_TENSORS:
            raise self._damaged(f"it claims {n_keys} metadata keys and {n_tensors} tensors")
        metadata: dict[str, Any] = {}
        spans: dict[str, tuple[int, int]] = {}
        for _ in range(n_keys):
            begin = self._at
            key = self._string()
            if key in metadata:
                raise self._damaged(f"the key {key!r} appears twice")
            metadata[key] = self._value()
            spans[key] = (begin, self._at)
        infos = [self._tensor_info() for _ in range(n_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1 or alignment & (alignment - 1):
            raise self._damaged(f"its alignment is {alignment}")
        start = -(-self._at // alignment) * alignment
        places = sorted({offset for *_, offset in infos})
        after = dict(zip(places, [*places[1:], max(self._size - start, 0)], strict=False))
        tensors = tuple(self._tensor(start, *info, after[info[3]]) for info in infos)
        if len({tensor.name for tensor in tensors}) < len(tensors):
            raise self._damaged("a tensor appears twice")
        return Header(self._path, self._size, version, metadata, tensors, spans)

    def _damaged(self, why: str) -> ModelError:
        return ModelError(f"{self._path} is damaged or cut short ({why}); fetch it again.")

    def _take(self, n: int) -> int:
        """Move on by n bytes; where they start."""
        start = self._at
        if n > self._size - start:
            raise self._damaged(f"the header runs past the end at byte {self._size}")
        self._at = start + n
        return start

    def _number(self, code: str) -> int:
        (value,) = struct.unpack_from("<" + code, self._data, self._take(struct.calcsize("<" + code)))
        assert isinstance(value, int)
        return value

    def _string(self) -> str:
        length = self._number("Q")
        start = self._take(length)
        return self._data[start : start + length].decode("utf-8", "replace")

    def _type(self) -> GGUFValueType:
        number = self._number("I")
        try:
            return GGUFValueType(number)
        except ValueError:
            raise self._damaged(f"value type {number} does not exist") from None

    def _value(self) -> Any:
        kind = self._type()
        if kind is GGUFValueType.STRING:
            return self._string()
        if kind is not GGUFValueType.ARRAY:
            code = "<" + _SCALARS[kind]
            return struct.unpack_from(code, self._data, self._take(struct.calcsize(code)))[0]
        item, count = self._type(), self._number("Q")
        if item is GGUFValueType.STRING:
            return self._strings(count)
        if item is GGUFValueType.ARRAY:
            raise self._damaged("an array of arrays")
        width = struct.calcsize("<" + _SCALARS[item])
        start = self._take(count * width)  # before any allocation of that size
        return struct.unpack_from(f"<{count}{_SCALARS[item]}", self._data, start)

    def _strings(self, count: int) -> Strings:
        if count > _MAX_STRINGS or count * 8 > self._size - self._at:
            raise self._damaged(f"an array claims {count} strings")
        # The one hot loop (half a million strings in a large vocabulary), hence no method calls.
        begin = at = self._at
        unpack, data, last = struct.Struct("<Q").unpack_from, self._data, self._size - 8
        offsets = array("Q", bytes(8 * count))
        for i in range(count):
            if at > last:
                raise self._damaged("the header runs past the end inside a list of strings")
            offsets[i] = at - begin
            at += 8 + unpack(data, at)[0]
        self._take(at - begin)
        return Strings(data[begin:at], offsets)

    def _tensor_info(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        n_dims = self._number("I")
        if n_dims > 8:
            raise self._damaged(f"tensor {name!r} has {n_dims} dimensions")
        shape = tuple(self._number("Q") for _ in range(n_dims))
        return name, shape, self._number("I"), self._number("Q")

    def _tensor(
        self, start: int, name: str, shape: tuple[int, ...], kind: int, offset: int, next_offset: int
    ) -> Tensor:
        elements = math.prod(shape)
        try:
            type_ = GGMLQuantizationType(kind)
        except ValueError:  # llama.cpp may be newer than the gguf package, and has the last word
            type_name, whole, size = f"unknown (type {kind})", True, max(next_offset - offset, 0)
        else:
            block, block_bytes = GGML_QUANT_SIZES[type_]
            type_name, whole, size = type_.name, elements % block == 0, elements // block * block_bytes
        if not whole or start + offset + size > self._size:
            raise self._damaged(
                f"tensor {name!r} ends at byte {start + offset + size:,}, the file at {self._size:,}"
            )
        return Tensor(name, shape, type_name, elements, size, start + offset)
