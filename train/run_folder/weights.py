"""Weights as safetensors, written and read one tensor at a time.

A model may be larger than memory. The safetensors library writes all of them in one call, and reads through a
map of the file: one that another program cuts short kills the process, and a name that is not UTF-8 is
refused. The format is 8 bytes of length, a JSON header and the tensors one after the other; here in the order
of their names, so the bytes depend on names and values alone.

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.schema.schema import DENSE_PREFIX

_ALIGNMENT = 8
_DTYPE = "F32"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""A longer header is refused, as the library refuses it."""
_METADATA = "__metadata__"
"""Key of the header that names no tensor."""
_MOST_READ = 1 << 30
"""Bytes that are read at a time: Linux reads at most 2 GiB."""
_DTYPES = {
    torch.float32: _DTYPE,
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
"""Number types of dense layers: buffers of a module may be of any, all else is float32."""
_NUMPY: dict[torch.dtype, type[np.generic]] = {
    torch.float32: np.float32,
    torch.float64: np.float64,
    torch.int64: np.int64,
    torch.int32: np.int32,
    torch.uint8: np.uint8,
    torch.bool: np.bool_,
}
_KNOWN = {text: dtype for dtype, text in _DTYPES.items()}


class Weights(Mapping[str, torch.Tensor]):
    """Host tensors by name, each built on access.

    Args:
        shapes: shape of each tensor.
        tensor_of: builds one.
        parts_of: builds one in parts of its first dimension, for those that are larger than memory.
        rows_of: builds some rows of one, from the first to before the last.
        dtypes: type of those that are not float32: buffers of dense layers.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        tensor_of: Callable[[str], torch.Tensor],
        parts_of: Callable[[str], Iterator[torch.Tensor]] | None = None,
        rows_of: Callable[[str, int, int], torch.Tensor] | None = None,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self.shapes = shapes
        self._dtypes = dtypes or {}
        self._tensor_of = tensor_of
        self._parts_of = parts_of
        self._rows_of = rows_of

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Return some rows of a tensor."""
        return self[name][first:stop] if self._rows_of is None else self._rows_of(name, first, stop)

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yield one tensor in parts, which together have its shape."""
        if self._parts_of is None:
            yield self[name]
        else:
            yield from self._parts_of(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of the numbers of a tensor."""
        return self._dtypes.get(name, torch.float32)

    def bytes_of(self, name: str) -> int:
        """Return the bytes of a tensor."""
        return self.dtype(name).itemsize * math.prod(self.shapes[name])

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(map(self.bytes_of, self.shapes))

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Weights:
        """Wrap tensors that exist already."""
        shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        return cls(shapes, tensors.__getitem__, dtypes=dtypes_of(tensors))

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._tensor_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def dtypes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.dtype]:
    """Return the types of those tensors that are not float32.

    Raises:
        HotsetError: one has a type that the file of weights does not hold; that of tables is float32.
    """
    for name, tensor in tensors.items():
        if not name.startswith(DENSE_PREFIX) and tensor.dtype != torch.float32:
            raise HotsetError(f"{name} is {tensor.dtype}, want float32")
        if tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            raise HotsetError(f"the buffer {name} is {tensor.dtype}, want one of {known}")
    return {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != torch.float32}


def open_weights(path: Path) -> Weights:
    """Return the tensors of a file; each is read when it is used.

    Raises:
        HotsetError: damaged, cut short since it was opened, or of tables that are not float32.
    """
    try:
        file = _TensorFile(path)
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error

    # Nothing is read before it is used: a table may be larger than the memory.
    def tensor_of(name: str) -> torch.Tensor:
        shape = file.shapes[name]
        return torch.from_numpy(file.read(name, 0, math.prod(shape)).reshape(shape))

    def rows_of(name: str, first: int, stop: int) -> torch.Tensor:
        num_rows, *rest = file.shapes[name]
        first, stop, _ = slice(first, stop).indices(num_rows)
        row_size = math.prod(rest)
        values = file.read(name, first * row_size, max(stop - first, 0) * row_size)
        return torch.from_numpy(values.reshape(-1, *rest) if row_size else values.reshape(0, *rest))

    return Weights(file.shapes, tensor_of, rows_of=rows_of, dtypes=file.dtypes)


class _TensorFile:
    """A file of tensors, whose header was checked against its size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        # The length of the header is bounded before it is read: the file may be anything.
        num_bytes = os.fstat(self._descriptor).st_size
        length = int.from_bytes(self._read_at(0, _LENGTH_BYTES).tobytes(), "little")
        if length > min(num_bytes - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise ValueError(f"its header of {length} bytes does not fit")
        text = self._read_at(_LENGTH_BYTES, length).tobytes()
        self._first_byte = _LENGTH_BYTES + length
        self._starts, self.shapes, self.dtypes = _read_header(text, num_bytes - self._first_byte)

    def read(self, name: str, first: int, count: int) -> NDArray[Any]:
        """Read some values of a tensor, which are in its bounds."""
        dtype = self.dtypes.get(name, torch.float32)
        position = self._first_byte + self._starts[name] + dtype.itemsize * first
        try:
            found = self._read_at(position, dtype.itemsize * count)
            # A byte that is neither 0 nor 1 is no truth value, whatever torch takes it for.
            if dtype == torch.bool and found.max(initial=0) > 1:
                raise ValueError(f"{name} holds a truth value of {found.max()}")
            return found.view(_NUMPY[dtype])
        except (OSError, ValueError) as error:
            raise HotsetError(f"{self._path} cannot be read: {first_line(error)}") from error

    def _read_at(self, position: int, num_bytes: int) -> NDArray[np.uint8]:
        found = np.empty(num_bytes, np.uint8)
        num_read = 0
        while num_read < num_bytes:
            # The system reads 2 GiB at a time at most, and may read less.
            window = found[num_read : num_read + _MOST_READ]
            count = os.preadv(self._descriptor, [window.data], position + num_read)
            if count == 0:
                raise ValueError(f"it ends after {position + num_read} bytes")
            num_read += count
        return found


def _read_header(
    text: bytes, num_bytes: int
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, torch.dtype]]:
    """Return the offset, the shapes and the non-float32 types of a header.

    The offset is the first byte of each tensor.

    Args:
        text: the header, JSON.
        num_bytes: bytes of all tensors, which must fill them without gaps.

    Raises:
        ValueError: the header is no such description of tensors, or tables are not float32.
    """
    header = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    # Keys under this name are for people; the rest must describe a tensor each.
    tensors = {name: found for name, found in header.items() if name != _METADATA}
    starts = {}
    shapes = {}
    dtypes = {}
    end_of = {}
    for name, found in tensors.items():
        if not isinstance(found, dict) or found.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"its header does not describe {name}")
        if found["dtype"] != _DTYPE:
            if not (name.startswith(DENSE_PREFIX) and found["dtype"] in list(_KNOWN)):
                raise ValueError(f"{name} holds {found['dtype']}, want {_DTYPE}")
            dtypes[name] = _KNOWN[found["dtype"]]
        # Numbers are checked before anything is computed with them: a bool or a huge one would pass as a
        # size.
        shape = found["shape"]
        offsets = found["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"its header does not describe {name}")
        # The bytes that the offsets span must be those of the shape.
        itemsize = dtypes.get(name, torch.float32).itemsize
        if len(offsets) != 2 or offsets[1] - offsets[0] != itemsize * math.prod(shape):
            raise ValueError(f"its header gives {name} another size than its shape {shape} takes")
        starts[name], end_of[name] = offsets
        shapes[name] = tuple(shape)
    # Tensors follow each other without a gap, so none overlaps another or goes beyond the end.
    end = 0
    for name in sorted(starts, key=lambda each: (starts[each], end_of[each])):
        if starts[name] != end:
            raise ValueError(f"{name} does not follow the tensor before it")
        end = end_of[name]
    if end != num_bytes:
        raise ValueError(f"it holds {num_bytes} bytes of tensors, its header says {end}")
    return starts, shapes, dtypes


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a key twice")
    return found


def write_weights(path: Path, weights: Weights) -> None:
    """Write tensors to ``path``, overwriting it."""
    shapes = weights.shapes
    # Offsets follow from the shapes, so the header can be written before the first tensor is built.
    header = {}
    end = 0
    for name in sorted(shapes):
        start = end
        end = start + weights.bytes_of(name)
        header[name] = {
            "dtype": _DTYPES[weights.dtype(name)],
            "shape": list(shapes[name]),
            "data_offsets": [start, end],
        }
    # Blanks after the header align the values, as the format allows.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        # Parts are written as they come, so that one part of a table is in memory at a time.
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(shapes):
            wanted = tuple(shapes[name])
            dtype = weights.dtype(name)
            num_rows = 0
            for part in weights.parts(name):
                tensor = part.detach().contiguous()
                if tensor.dtype != dtype or tuple(tensor.shape[1:]) != wanted[1:]:
                    raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, want {dtype} {wanted}")
                num_rows += tensor.shape[0] if wanted else 0
                file.write(tensor.numpy().data)
            if wanted and num_rows != wanted[0]:
                raise ValueError(f"{name} has {num_rows} rows, want {dtype} {wanted}")
