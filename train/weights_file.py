"""Writes weights as safetensors, one tensor in memory at a time: a model may be larger than that.

The safetensors library wants all of them at once. The format is 8 bytes of length, a JSON header and the
tensors one after the other; here in the order of their names, so the bytes depend on names and values alone.

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ..pipeline.errors import HotsetError, first_line

_ALIGNMENT = 8
_DTYPE = "F32"


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
        HotsetError: damaged, or of tensors that are not float32.
    """
    try:
        file: Any = safe_open(path, framework="pt")
        slices = {name: file.get_slice(name) for name in file.keys()}
        shapes = {name: tuple(found.get_shape()) for name, found in slices.items()}
        other = {name: found.get_dtype() for name, found in slices.items() if found.get_dtype() != _DTYPE}
    except (OSError, SafetensorError, ValueError) as error:
        raise HotsetError(f"{path} cannot be read: {first_line(error)}") from error
    for name, dtype in other.items():
        raise HotsetError(f"{path} is damaged: {name} holds {dtype}, want {_DTYPE}")

    def tensor_of(name: str) -> torch.Tensor:
        tensor: torch.Tensor = file.get_tensor(name)
        return tensor

    def rows_of(name: str, first: int, stop: int) -> torch.Tensor:
        rows: torch.Tensor = slices[name][first:stop]
        return rows

    return Weights(shapes, tensor_of, rows_of=rows_of)


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
