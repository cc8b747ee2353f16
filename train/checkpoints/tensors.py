"""Safetensors files, written one tensor after the other and checked on reading.

The safetensors library joins all tensors to one string before it writes them, and reads through a map of the
file: one that another program cuts short kills the process. Here a tensor is written and read at a time, so
that a model may be larger than memory. The format is 8 bytes of length, a JSON header and the tensors one
after the other; here in the order of their names, so the bytes depend on names and values alone.

The dense layers of a checkpoint and their optimizers are stored as named tensors, whatever number of
optimizers they are split between:

    model.NAME           parameter or buffer of the model
    optimizer.NAME KEY   state of the optimizer of parameter NAME, by torch's name (exp_avg, step, ...)

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
import os
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.manifest import HashedFile, checksum_of_written
from ..execution.row_parts import RowsPart

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
_PART = {"tables": "int32", "ids": "int32", "weights": "float32", "state": "float32"}
"""Tensors of a part of all rows, and their types."""


def header_of(described: Mapping[str, tuple[str, Sequence[int]]]) -> bytes:
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


class TensorFile:
    """An open file of tensors, whose header was checked against its size.

    Raises:
        OSError: it cannot be read.
        ValueError: the header is no description of the tensors, which fill the file without gaps.
    """

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

    def array(self, name: str) -> NDArray[Any]:
        """Read a tensor; raises HotsetError where the file was cut short meanwhile."""
        shape = self.shapes[name]
        return self.values(name, 0, math.prod(shape)).reshape(shape)

    def values(self, name: str, first: int, count: int) -> NDArray[Any]:
        """Read some values of a tensor, which are in its bounds, as `array` does."""
        dtype = self.dtypes[name]
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
        text: the header, JSON.
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


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, str]:
    """Write arrays by name; return the bytes of the file and its checksum.

    Raises:
        OSError: the disk is full or does not work.
    """
    with HashedFile(path) as file:
        file.write(header_of({name: (array.dtype.name, array.shape) for name, array in arrays.items()}))
        for name in sorted(arrays):
            if arrays[name].nbytes:
                file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8))
    return checksum_of_written(path)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write host tensors of any NumPy type, as `write_arrays` does."""
    return write_arrays(path, {name: tensor.numpy() for name, tensor in tensors.items()})


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a file; raises HotsetError where it is damaged."""
    try:
        file = TensorFile(path)
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    return {name: torch.from_numpy(file.array(name)) for name in file.shapes}


def write_part(path: Path, part: RowsPart) -> tuple[int, str]:
    """Write a part of all rows, as `write_arrays` does."""
    arrays = {"tables": part.tables_N, "ids": part.ids_N, "weights": part.weights_ND, "state": part.state_NW}
    return write_arrays(path, arrays)


def read_part(path: Path, num_rows: list[int], widths: list[tuple[int, int]]) -> RowsPart:
    """Read a part of all rows, whose tables and ids index what there is.

    Args:
        num_rows: of each table.
        widths: floats of a row of each table, and of its state.

    Raises:
        HotsetError: it is damaged, or of other tables.
    """
    try:
        file = TensorFile(path)
        found = {name: dtype.name for name, dtype in file.dtypes.items()}
        if found != _PART:
            raise ValueError(f"it holds {found}")
        tables_N, ids_N, weights_ND, state_NW = map(file.array, _PART)
        _refuse_nonsense(tables_N, ids_N, weights_ND, state_NW, num_rows, widths)
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    return RowsPart(tables_N, ids_N, weights_ND, state_NW)


def _refuse_nonsense(
    tables_N: NDArray[np.int32],
    ids_N: NDArray[np.int32],
    weights_ND: NDArray[np.float32],
    state_NW: NDArray[np.float32],
    num_rows: list[int],
    widths: list[tuple[int, int]],
) -> None:
    """Raise ValueError unless rows are of one dim, distinct and in the tables."""
    # Check each array alone before arrays are compared.
    count = tables_N.size
    if tables_N.shape != (count,) or ids_N.shape != (count,):
        raise ValueError(f"tables and ids have the shapes {tables_N.shape} and {ids_N.shape}")
    if count == 0:
        return
    least, most = int(tables_N.min()), int(tables_N.max())
    if least < 0 or most >= len(num_rows):
        raise ValueError(f"a row of table {least if least < 0 else most}, there are {len(num_rows)}")
    # A file holds rows of one width, that of its first row's table.
    width = widths[least]
    if len({widths[table] for table in np.unique(tables_N)}) > 1:
        raise ValueError("rows of several widths")
    if weights_ND.shape != (count, width[0]) or state_NW.shape != (count, width[1]):
        shapes = f"{weights_ND.shape} and {state_NW.shape}"
        raise ValueError(f"rows of the shapes {shapes}, want {count} of {width[0]} and {width[1]} floats")
    # Every row is one of its table, once, and a number: what is read goes to the tiers unchecked.
    is_stray_N = (ids_N < 0) | (ids_N >= np.array(num_rows)[tables_N])
    if is_stray_N.any():
        stray = int(np.flatnonzero(is_stray_N)[0])
        table = int(tables_N[stray])
        raise ValueError(f"id {ids_N[stray]} in table {table} of {num_rows[table]} rows")
    if np.unique(tables_N.astype(np.int64) << 32 | ids_N).size != count:
        raise ValueError("it has a row twice")
    if not (np.isfinite(weights_ND).all() and np.isfinite(state_NW).all()):
        raise ValueError("it holds values that are not finite")


_MODEL = "model."
_OPTIMIZER = "optimizer."
_SEPARATOR = " "


def dense_state(
    model: torch.nn.Module, optimizers: Sequence[torch.optim.Optimizer]
) -> dict[str, torch.Tensor]:
    """Copy the state of the model and its optimizers to the host."""
    found = {f"{_MODEL}{name}": tensor for name, tensor in model.state_dict().items()}
    state_of = _states(optimizers)
    for name, parameter in model.named_parameters():
        for key, value in state_of.get(parameter, {}).items():
            found[f"{_OPTIMIZER}{name}{_SEPARATOR}{key}"] = torch.as_tensor(value)
    # Copies in the usual layout: training continues while they are written.
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def is_optimizer_state(name: str) -> bool:
    """Return whether a tensor of `tensors` is one of an optimizer."""
    return name.startswith(_OPTIMIZER)


def restore_dense(
    model: torch.nn.Module,
    optimizers: Sequence[torch.optim.Optimizer],
    tensors: Mapping[str, torch.Tensor],
    where: str,
) -> None:
    """Set the model and its optimizers to a state that `tensors` returned.

    Args:
        where: the checkpoint, for messages.

    Raises:
        HotsetError: the state is that of another model, or damaged.
    """
    # The shapes are compared first: torch's own error would name neither the file nor the tensor wanted.
    wanted = model.state_dict()
    own = {name.removeprefix(_MODEL): tensor for name, tensor in tensors.items() if name.startswith(_MODEL)}
    for name in sorted(wanted.keys() | own.keys()):
        refuse_other_shape(where, name, own.get(name), wanted.get(name))
    model.load_state_dict(own)
    # The state of an optimizer is stored by the name of its parameter, whichever optimizer steps it today.
    owner = {parameter: optimizer for optimizer in optimizers for parameter in _parameters(optimizer)}
    parameters = dict(model.named_parameters())
    for name, tensor in tensors.items():
        if not name.startswith(_OPTIMIZER):
            continue
        of, _, key = name.removeprefix(_OPTIMIZER).partition(_SEPARATOR)
        parameter = parameters.get(of)
        if parameter is None or parameter not in owner or tensor.shape not in (parameter.shape, ()):
            raise HotsetError(
                f"{where} is damaged: {name} of shape {tuple(tensor.shape)} is not of its model"
            )
        owner[parameter].state[parameter][key] = _placed(tensor, parameter)


def refuse_other_shape(
    where: str, name: str, found: torch.Tensor | None, wanted: torch.Tensor | None
) -> None:
    """Raise HotsetError unless a model tensor has its shape, type and finite values."""
    if found is None or _said(found) != _said(wanted):
        raise HotsetError(
            f"the model of {where} is another: dense layer {name} is {_said(found)}, want {_said(wanted)}",
            hint="give the model that the run was begun with",
        )
    if not torch.isfinite(found).all():
        raise HotsetError(f"{where} is damaged: dense layer {name} holds values that are not finite")


def _said(tensor: torch.Tensor | None) -> str:
    return (
        "missing"
        if tensor is None
        else f"{tuple(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"
    )


def _states(optimizers: Sequence[torch.optim.Optimizer]) -> dict[torch.Tensor, dict[str, torch.Tensor]]:
    return {parameter: state for optimizer in optimizers for parameter, state in optimizer.state.items()}


def _parameters(optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def _placed(tensor: torch.Tensor, parameter: torch.Tensor) -> torch.Tensor:
    """Copy a tensor to where the optimizer keeps it.

    It is laid out like the parameter; a count of steps is on the host.
    """
    if tensor.shape != parameter.shape:
        return tensor.clone()
    placed = torch.zeros_like(parameter, memory_format=torch.preserve_format, dtype=tensor.dtype)
    return placed.copy_(tensor)
