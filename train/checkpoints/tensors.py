"""Safetensors files of a checkpoint, hashed on writing and checked on reading.

The safetensors library joins all tensors to one string before it writes them; here they are written one after
the other, during training, so that only the copy of the changed rows takes memory.

The dense layers and their optimizers are stored as named tensors, whatever number of optimizers they are
split between:

    model.NAME           parameter or buffer of the model
    optimizer.NAME KEY   state of the optimizer of parameter NAME, by torch's name (exp_avg, step, ...)

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.checksum import HashedFile, checksum_of_written
from ..execution.row_parts import RowsPart

_ALIGNMENT = 8
_DTYPES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "int16": "I16",
    "int32": "I32",
    "int64": "I64",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}
_PART = {"tables": "I32", "ids": "I32", "weights": "F32", "state": "F32"}
"""Tensors of a part of all rows."""


def write_arrays(path: Path, arrays: Mapping[str, NDArray[Any]]) -> tuple[int, str]:
    """Write arrays by name; return the bytes of the file and its checksum.

    Raises:
        OSError: the disk is full or does not work.
    """
    # The header comes first: offsets follow from the sizes alone.
    header: dict[str, Any] = {}
    end = 0
    for name in sorted(arrays):
        array = arrays[name]
        offsets = [end, end + array.nbytes]
        header[name] = {
            "dtype": _DTYPES[array.dtype.name],
            "shape": list(array.shape),
            "data_offsets": offsets,
        }
        end += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # Blanks after the header align the values, as the format of safetensors allows.
    text += b" " * (-len(text) % _ALIGNMENT)
    with HashedFile(path) as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(arrays):
            if arrays[name].nbytes:
                file.write(np.ascontiguousarray(arrays[name]).reshape(-1).view(np.uint8))
    return checksum_of_written(path)


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, str]:
    """Write host tensors of any NumPy type, as `write_arrays` does."""
    return write_arrays(path, {name: tensor.numpy() for name, tensor in tensors.items()})


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read all tensors of a file; raises HotsetError where it is damaged."""
    from safetensors import SafetensorError, safe_open  # a machine that only measures may lack it

    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise HotsetError(f"{path} is damaged: {first_line(error)}") from error


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
    from safetensors import SafetensorError, safe_open  # a machine that only measures may lack it

    try:
        with safe_open(path, framework="np") as file:
            found = {name: file.get_slice(name).get_dtype() for name in file.keys()}
            if found != _PART:
                raise ValueError(f"it holds {found}")
            tables_N, ids_N, weights_ND, state_NW = (file.get_tensor(name) for name in _PART)
        _refuse_nonsense(tables_N, ids_N, weights_ND, state_NW, num_rows, widths)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
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
