"""The weights of a run by name, in safetensors files that are written and read one tensor at a time.

The safetensors library joins all tensors to one string before it writes them, and reads through a map of the
file: one that another program cuts short kills the process. Here a tensor is built, written and read when it
is used, so that a model may be larger than memory. The format is 8 bytes of length, a JSON header and the
tensors one after the other; here in the order of their names, so the bytes depend on names and values alone.

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import stat
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.manifest import HashedFile, checksum_of_written
from ...pipeline.schema.schema import DENSE_PREFIX

_ALIGNMENT = 8
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""A longer header is refused, as the library refuses it."""
_METADATA = "__metadata__"
"""Key of the header that names no tensor."""
_MOST_READ = 1 << 30
"""Bytes that are read at a time: Linux reads at most 2 GiB."""
TYPE_NAMES = {
    "float32": "F32",
    "float64": "F64",
    "float16": "F16",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint8": "U8",
    "bool": "BOOL",
}
"""Number types of tensors as NumPy and torch call them, and as the header does."""
_DTYPES = {text: np.dtype(name) for name, text in TYPE_NAMES.items()}


def _header_of(described: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
    """Return the length and the header of a file, which come before its tensors in the order of their names.

    Args:
        described: type (as in `TYPE_NAMES`) and shape of each tensor.
    """
    header = {}
    end = 0
    for name in sorted(described):
        kind, shape = described[name]
        start = end
        end += np.dtype(kind).itemsize * math.prod(shape)
        header[name] = {"dtype": TYPE_NAMES[kind], "shape": list(shape), "data_offsets": [start, end]}
    # Blanks after the header align the values, as the format allows.
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(_LENGTH_BYTES, "little") + text


Parts = Callable[[], Iterator[torch.Tensor]]
"""Yields a tensor in parts of its first dimension."""


class Weights(Mapping[str, torch.Tensor]):
    """Host tensors by name, each built on access.

    Args:
        shapes: shape of each tensor.
        parts_of: yields one in parts of its first dimension, for those that are larger than memory; None
            where a subclass does.
        dtypes: type of those that are not float32: buffers of dense layers.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        parts_of: Callable[[str], Iterator[torch.Tensor]] | None = None,
        dtypes: Mapping[str, torch.dtype] | None = None,
    ) -> None:
        self.shapes = shapes
        self._dtypes = dtypes or {}
        self._parts_of = parts_of

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        """Return some rows of a tensor, from the first to before the last."""
        return self[name][first:stop]

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        """Yield one tensor in parts, which together have its shape."""
        assert self._parts_of is not None, "a file reads its own"
        return self._parts_of(name)

    def dtype(self, name: str) -> torch.dtype:
        """Return the type of the numbers of a tensor."""
        return self._dtypes.get(name, torch.float32)

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors, without the header."""
        return sum(self.dtype(name).itemsize * math.prod(shape) for name, shape in self.shapes.items())

    @classmethod
    def of_run(
        cls, dense: Mapping[str, torch.Tensor], tables: Mapping[str, tuple[tuple[int, int], Parts]]
    ) -> Weights:
        """Name the dense tensors and tables of a run; tables are read in parts while they are written.

        Args:
            dense: on any device.
            tables: shape of each table, and what yields its rows in id order.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in dense.items()}

        def parts_of(name: str) -> Iterator[torch.Tensor]:
            return iter([dense[name].cpu()]) if name in dense else tables[name][1]()

        own = {name: shape for name, (shape, _) in tables.items()}
        return cls(shapes | own, parts_of, dtypes=dtypes_of(dense))

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        # A tensor in one part is not copied.
        first, *others = self.parts(name)
        return torch.cat([first, *others]) if others else first

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


class TensorFile(Weights):
    """An open file of tensors, whose header was checked against its size; each is read when it is used.

    Raises:
        OSError: it cannot be read.
        ValueError: the header is no description of the tensors, which fill the file without gaps.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        # Not to wait for the writer of a pipe.
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        weakref.finalize(self, os.close, self._descriptor)
        status = os.fstat(self._descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError("it is not a plain file")
        # The length of the header is bounded before it is read: the file may be anything.
        num_bytes = status.st_size
        length = int.from_bytes(self._read_at(0, _LENGTH_BYTES).tobytes(), "little")
        if length > min(num_bytes - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise ValueError(f"its header of {length} bytes does not fit")
        text = self._read_at(_LENGTH_BYTES, length).tobytes()
        self._first_byte = _LENGTH_BYTES + length
        self._starts, shapes, self.types = _read_header(text, num_bytes - self._first_byte)
        dtypes = {name: getattr(torch, dtype.name) for name, dtype in self.types.items()}
        super().__init__(shapes, dtypes=dtypes)

    def parts(self, name: str) -> Iterator[torch.Tensor]:
        return iter([torch.from_numpy(self.array(name))])

    def array(self, name: str) -> NDArray[Any]:
        """Read a tensor; raises HotsetError where the file was cut short meanwhile."""
        shape = self.shapes[name]
        return self._values(name, 0, math.prod(shape)).reshape(shape)

    def rows(self, name: str, first: int, stop: int) -> torch.Tensor:
        num_rows, *rest = self.shapes[name]
        first, stop, _ = slice(first, stop).indices(num_rows)
        row_size = math.prod(rest)
        values = self._values(name, first * row_size, max(stop - first, 0) * row_size)
        return torch.from_numpy(values.reshape(-1, *rest) if row_size else values.reshape(0, *rest))

    def _values(self, name: str, first: int, count: int) -> NDArray[Any]:
        dtype = self.types[name]
        position = self._first_byte + self._starts[name] + dtype.itemsize * first
        try:
            found = self._read_at(position, dtype.itemsize * count)
            # A byte that is neither 0 nor 1 is no truth value, whatever torch takes it for.
            if dtype == np.bool_ and found.max(initial=0) > 1:
                raise ValueError(f"{name} holds a truth value of {found.max()}")
            return found.view(dtype)
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
) -> tuple[dict[str, int], dict[str, tuple[int, ...]], dict[str, np.dtype[Any]]]:
    """Return the first byte, the shape and the type of each tensor of a header.

    Args:
        num_bytes: bytes of all tensors, which must fill them without gaps.

    Raises:
        ValueError: the header is no such description of tensors.
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
        if found["dtype"] not in list(_DTYPES):
            raise ValueError(f"{name} holds {found['dtype']}, want one of {', '.join(_DTYPES)}")
        dtypes[name] = _DTYPES[found["dtype"]]
        # Numbers are checked before anything is computed with them: a bool or a huge one would pass as a
        # size.
        shape = found["shape"]
        offsets = found["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"its header does not describe {name}")
        # The bytes that the offsets span must be those of the shape.
        if len(offsets) != 2 or offsets[1] - offsets[0] != dtypes[name].itemsize * math.prod(shape):
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


def dtypes_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.dtype]:
    """Return the types of those tensors that are not float32.

    Raises:
        HotsetError: one has a type that the file of weights does not hold; that of tables is float32.
    """
    for name, tensor in tensors.items():
        if not name.startswith(DENSE_PREFIX) and tensor.dtype != torch.float32:
            raise HotsetError(f"{name} is {tensor.dtype}, want float32")
        if _type_name(tensor.dtype) not in TYPE_NAMES:
            known = ", ".join(TYPE_NAMES)
            raise HotsetError(f"the buffer {name} is {tensor.dtype}, want one of {known}")
    return {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != torch.float32}


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_weights(path: Path, hint: str | None = None) -> Weights:
    """Return the tensors of a file; each is read when it is used.

    Raises:
        HotsetError: damaged, cut short since it was opened, or of tables that are not float32.
    """
    try:
        file = TensorFile(path)
        for name, dtype in file.types.items():
            if dtype != np.float32 and not name.startswith(DENSE_PREFIX):
                raise ValueError(f"{name} holds {TYPE_NAMES[dtype.name]}, want F32")
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or first_line(error)
        raise HotsetError(f"{path} cannot be read: {reason}", hint=hint) from error
    return file


def write_weights(path: Path, weights: Weights) -> None:
    """Write tensors to ``path``, overwriting it."""
    with open(path, "wb") as file:
        _write(file, weights)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write host tensors by name; return the bytes of the file and its checksum.

    Raises:
        OSError: the disk is full or does not work.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
    dtypes = {name: tensor.dtype for name, tensor in tensors.items()}
    with HashedFile(path) as file:
        _write(file, Weights(shapes, lambda name: iter([tensors[name]]), dtypes=dtypes))
    return checksum_of_written(path)


def _write(file: BinaryIO | HashedFile, weights: Weights) -> None:
    # Offsets follow from the shapes, so the header is written before the first tensor is built.
    described = {name: (_type_name(weights.dtype(name)), shape) for name, shape in weights.shapes.items()}
    file.write(_header_of(described))
    # Parts are written as they come, so that one part of a table is in memory at a time.
    for name in sorted(described):
        wanted = tuple(weights.shapes[name])
        dtype = weights.dtype(name)
        num_rows = 0
        for part in weights.parts(name):
            tensor = part.detach().contiguous()
            if tensor.dtype != dtype or tuple(tensor.shape[1:]) != wanted[1:]:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, want {dtype} {wanted}")
            num_rows += tensor.shape[0] if wanted else 0
            if tensor.numel():
                file.write(tensor.numpy().reshape(-1).view(np.uint8).data)
        if wanted and num_rows != wanted[0]:
            raise ValueError(f"{name} has {num_rows} rows, want {dtype} {wanted}")


def send_weights(weights: Weights) -> None:
    """Send the rows of this rank to rank 0, which calls `write_weights`."""
    for name in sorted(weights.shapes):
        for _ in weights.parts(name):
            pass
