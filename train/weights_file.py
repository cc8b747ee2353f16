"""Weights as safetensors, written and read one tensor at a time: a model may be larger than memory.

The safetensors library writes all of them at once, and reads through a map of the file: one that another
program cuts short kills the process, and a name that is not UTF-8 is refused. The format is 8 bytes of
length, a JSON header and the tensors one after the other; here in the order of their names, so the bytes
depend on names and values alone.

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

from ..pipeline.errors import HotsetError, first_line

_ALIGNMENT = 8
_DTYPE = "F32"
_LENGTH_BYTES = 8
_MOST_HEADER_BYTES = 100_000_000
"""A longer header is refused, as the library refuses it."""
_METADATA = "__metadata__"
"""Key of the header that names no tensor."""
_MOST_READ = 1 << 30
"""Bytes that are read at a time: Linux reads at most 2 GiB."""


class Weights(Mapping[str, torch.Tensor]):
    """Host tensors by name, each built when it is asked for.

    Args:
        shapes: shape of each tensor.
        tensor_of: builds one.
        parts_of: builds one in parts of its first dimension, for those that are larger than memory.
        rows_of: builds some rows of one, from the first to before the last.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        tensor_of: Callable[[str], torch.Tensor],
        parts_of: Callable[[str], Iterator[torch.Tensor]] | None = None,
        rows_of: Callable[[str, int, int], torch.Tensor] | None = None,
    ) -> None:
        self.shapes = shapes
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

    @property
    def num_bytes(self) -> int:
        """Bytes of all tensors as float32, without the header."""
        return sum(4 * math.prod(shape) for shape in self.shapes.values())

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Weights:
        """Wrap tensors that exist already."""
        return cls({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._tensor_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def open_weights(path: Path) -> Weights:
    """The tensors of a file, each read when it is asked for.

    Raises:
        HotsetError: damaged, cut short since it was opened, or of tensors that are not float32.
    """
    try:
        file = _TensorFile(path)
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error

    def tensor_of(name: str) -> torch.Tensor:
        shape = file.shapes[name]
        return torch.from_numpy(file.read(name, 0, math.prod(shape)).reshape(shape))

    def rows_of(name: str, first: int, stop: int) -> torch.Tensor:
        num_rows, *rest = file.shapes[name]
        first, stop, _ = slice(first, stop).indices(num_rows)
        row_size = math.prod(rest)
        values = file.read(name, first * row_size, max(stop - first, 0) * row_size)
        return torch.from_numpy(values.reshape(-1, *rest) if row_size else values.reshape(0, *rest))

    return Weights(file.shapes, tensor_of, rows_of=rows_of)


class _TensorFile:
    """A file of float32 tensors, whose header was checked against its size."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        weakref.finalize(self, os.close, self._descriptor)
        num_bytes = os.fstat(self._descriptor).st_size
        length = int.from_bytes(self._read_at(0, _LENGTH_BYTES).tobytes(), "little")
        if length > min(num_bytes - _LENGTH_BYTES, _MOST_HEADER_BYTES):
            raise ValueError(f"its header of {length} bytes does not fit")
        text = self._read_at(_LENGTH_BYTES, length).tobytes()
        self._first_byte = _LENGTH_BYTES + length
        self._starts, self.shapes = _read_header(text, num_bytes - self._first_byte)

    def read(self, name: str, first: int, count: int) -> NDArray[np.float32]:
        """Read some values of a tensor, which are in its bounds."""
        position = self._first_byte + self._starts[name] + 4 * first
        try:
            return self._read_at(position, 4 * count).view(np.float32)
        except (OSError, ValueError) as error:
            raise HotsetError(f"{self._path} cannot be read: {first_line(error)}") from error

    def _read_at(self, position: int, num_bytes: int) -> NDArray[np.uint8]:
        found = np.empty(num_bytes, np.uint8)
        num_read = 0
        while num_read < num_bytes:
            window = found[num_read : num_read + _MOST_READ]
            count = os.preadv(self._descriptor, [window.data], position + num_read)
            if count == 0:
                raise ValueError(f"it ends after {position + num_read} bytes")
            num_read += count
        return found


def _read_header(text: bytes, num_bytes: int) -> tuple[dict[str, int], dict[str, tuple[int, ...]]]:
    """Return the first byte and the shape of each tensor of a header.

    Args:
        text: the header, JSON.
        num_bytes: bytes of all tensors, which must fill them without gaps.

    Raises:
        ValueError: the header is no such description of float32 tensors.
    """
    header = json.loads(text, object_pairs_hook=_refuse_repeated_keys)
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    tensors = {name: found for name, found in header.items() if name != _METADATA}
    starts = {}
    shapes = {}
    end_of = {}
    for name, found in tensors.items():
        if not isinstance(found, dict) or found.keys() != {"dtype", "shape", "data_offsets"}:
            raise ValueError(f"its header does not describe {name}")
        if found["dtype"] != _DTYPE:
            raise ValueError(f"{name} holds {found['dtype']}, want {_DTYPE}")
        shape, offsets = found["shape"], found["data_offsets"]
        numbers = [*shape, *offsets] if isinstance(shape, list) and isinstance(offsets, list) else [None]
        if any(type(number) is not int or not 0 <= number < 1 << 63 for number in numbers):
            raise ValueError(f"its header does not describe {name}")
        if len(offsets) != 2 or offsets[1] - offsets[0] != 4 * math.prod(shape):
            raise ValueError(f"its header gives {name} another size than its shape {shape} takes")
        starts[name], end_of[name] = offsets
        shapes[name] = tuple(shape)
    # Tensors follow each other without a gap, so none lies in another or beyond the end.
    end = 0
    for name in sorted(starts, key=lambda each: (starts[each], end_of[each])):
        if starts[name] != end:
            raise ValueError(f"{name} does not follow the tensor before it")
        end = end_of[name]
    if end != num_bytes:
        raise ValueError(f"it holds {num_bytes} bytes of tensors, its header says {end}")
    return starts, shapes


def _refuse_repeated_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("its header has a key twice")
    return found


def write_weights(path: Path, weights: Weights) -> None:
    """Write float32 tensors to ``path``, overwriting it."""
    shapes = weights.shapes
    # Offsets follow from the shapes, so the header can be written before the first tensor is built.
    header = {}
    end = 0
    for name in sorted(shapes):
        start = end
        end = start + 4 * math.prod(shapes[name])
        header[name] = {"dtype": _DTYPE, "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(shapes):
            wanted = tuple(shapes[name])
            num_rows = 0
            for part in weights.parts(name):
                tensor = part.detach().contiguous()
                if tensor.dtype != torch.float32 or tuple(tensor.shape[1:]) != wanted[1:]:
                    raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, want float32 {wanted}")
                num_rows += tensor.shape[0] if wanted else 0
                file.write(tensor.numpy().data)
            if wanted and num_rows != wanted[0]:
                raise ValueError(f"{name} has {num_rows} rows, want float32 {wanted}")
