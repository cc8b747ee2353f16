"""The weights of a run by name, written and read one tensor at a time.

A model may be larger than memory, so tensors are built and read when they are used (see
`checkpoints.tensors` for the file).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.schema.schema import DENSE_PREFIX
from ..checkpoints.tensors import TYPE_NAMES, TensorFile, header_of

TableParts = Callable[[], Iterator[torch.Tensor]]
"""Yields the rows of a table in id order, in parts."""


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

    @classmethod
    def of_run(
        cls, dense: Mapping[str, torch.Tensor], tables: Mapping[str, tuple[tuple[int, int], TableParts]]
    ) -> Weights:
        """Name the dense tensors and tables of a run; tables are read in parts while they are written.

        Args:
            dense: on any device.
            tables: shape of each table, and what yields its rows in id order.
        """
        shapes = {name: tuple(tensor.shape) for name, tensor in dense.items()}

        def parts_of(name: str) -> Iterator[torch.Tensor]:
            return iter([dense[name].cpu()]) if name in dense else tables[name][1]()

        # A table in one part is not copied.
        def tensor_of(name: str) -> torch.Tensor:
            first, *others = parts_of(name)
            return torch.cat([first, *others]) if others else first

        own = {name: shape for name, (shape, _) in tables.items()}
        return cls(shapes | own, tensor_of, parts_of, dtypes=dtypes_of(dense))

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
        if _type_name(tensor.dtype) not in TYPE_NAMES:
            known = ", ".join(TYPE_NAMES)
            raise HotsetError(f"the buffer {name} is {tensor.dtype}, want one of {known}")
    return {name: tensor.dtype for name, tensor in tensors.items() if tensor.dtype != torch.float32}


def _type_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def open_weights(path: Path) -> Weights:
    """Return the tensors of a file; each is read when it is used.

    Raises:
        HotsetError: damaged, cut short since it was opened, or of tables that are not float32.
    """
    try:
        file = TensorFile(path)
        for name, dtype in file.dtypes.items():
            if dtype != np.float32 and not name.startswith(DENSE_PREFIX):
                raise ValueError(f"{name} holds {TYPE_NAMES[dtype.name]}, want F32")
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error

    # Nothing is read before it is used: a table may be larger than the memory.
    def tensor_of(name: str) -> torch.Tensor:
        return torch.from_numpy(file.array(name))

    def rows_of(name: str, first: int, stop: int) -> torch.Tensor:
        num_rows, *rest = file.shapes[name]
        first, stop, _ = slice(first, stop).indices(num_rows)
        row_size = math.prod(rest)
        values = file.values(name, first * row_size, max(stop - first, 0) * row_size)
        return torch.from_numpy(values.reshape(-1, *rest) if row_size else values.reshape(0, *rest))

    dtypes = {name: getattr(torch, dtype.name) for name, dtype in file.dtypes.items()}
    return Weights(file.shapes, tensor_of, rows_of=rows_of, dtypes=dtypes)


def write_weights(path: Path, weights: Weights) -> None:
    """Write tensors to ``path``, overwriting it."""
    # Offsets follow from the shapes, so the header is written before the first tensor is built.
    described = {name: (_type_name(weights.dtype(name)), shape) for name, shape in weights.shapes.items()}
    with open(path, "wb") as file:
        file.write(header_of(described))
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
                file.write(tensor.numpy().data)
            if wanted and num_rows != wanted[0]:
                raise ValueError(f"{name} has {num_rows} rows, want {dtype} {wanted}")


def send_weights(weights: Weights) -> None:
    """Send the rows of this rank to rank 0, which calls `write_weights`."""
    for name in sorted(weights.shapes):
        for _ in weights.parts(name):
            pass
