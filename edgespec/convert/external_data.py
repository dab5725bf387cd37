"""The file beside an ONNX graph that holds its weights, written piece by piece."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

ALIGNMENT = 4096
"""A page, so that ONNX Runtime can map a tensor; small ones are packed more tightly."""
SMALL = 1 << 16


class ExternalData:
    """Reserves places for tensors, fills them in any order, and describes them for graphs."""

    def __init__(self, path: Path) -> None:
        """Creates the file."""
        self.name = path.name
        self._file = path.open("wb")
        self._end = 0

    def reserve(self, name: str, dtype: type[np.generic], shape: tuple[int, ...]) -> TensorProto:
        """A place for a tensor; returns its description, whose data lies in the file."""
        size = int(np.prod(shape, dtype=np.int64)) * np.dtype(dtype).itemsize
        alignment = 64 if size < SMALL else ALIGNMENT
        offset = -(-self._end // alignment) * alignment
        self._end = offset + size
        self._file.truncate(self._end)
        tensor = TensorProto(
            name=name, dims=shape, data_type=helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
        )
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.name), ("offset", offset), ("length", size)):
            tensor.external_data.add(key=key, value=str(value))
        return tensor

    def write(self, tensor: TensorProto, first: int, rows: NDArray[np.generic]) -> None:
        """Fill rows of a reserved tensor, from row `first` on."""
        offset = next(int(entry.value) for entry in tensor.external_data if entry.key == "offset")
        per_row = rows.nbytes // max(1, len(rows))
        self._file.seek(offset + first * per_row)
        self._file.write(np.ascontiguousarray(rows).data)

    def add(self, name: str, array: NDArray[np.generic]) -> TensorProto:
        """Reserve and fill."""
        tensor = self.reserve(name, array.dtype.type, array.shape)
        self.write(tensor, 0, array)
        return tensor

    def close(self) -> None:
        """Flush and close."""
        self._file.close()


def viewed(tensor: TensorProto, name: str, shape: tuple[int, ...]) -> TensorProto:
    """The same bytes in the file under another name and shape."""
    view = onnx.TensorProto()
    view.CopyFrom(tensor)
    view.name = name
    del view.dims[:]
    view.dims.extend(shape)
    return view
