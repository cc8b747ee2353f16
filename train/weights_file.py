"""Writes weights as safetensors, one tensor in memory at a time: a model may be larger than that.

The library wants all of them at once. The format is 8 bytes of length, a JSON header and the tensors one
after the other; here in the order of their names, so the bytes depend on names and values alone.

Source:
    https://github.com/huggingface/safetensors, README, section "Format".
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import torch

_ALIGNMENT = 8


class Weights(Mapping[str, torch.Tensor]):
    """Host tensors by name, each put together when it is asked for.

    Args:
        shapes: of each.
        tensor_of: makes one.
    """

    def __init__(
        self, shapes: Mapping[str, tuple[int, ...]], tensor_of: Callable[[str], torch.Tensor]
    ) -> None:
        self.shapes = shapes
        self._tensor_of = tensor_of

    @classmethod
    def of(cls, tensors: Mapping[str, torch.Tensor]) -> Weights:
        """Tensors there are already."""
        return cls({name: tuple(tensor.shape) for name, tensor in tensors.items()}, tensors.__getitem__)

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.shapes:
            raise KeyError(name)
        return self._tensor_of(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.shapes)

    def __len__(self) -> int:
        return len(self.shapes)


def write_weights(path: Path, weights: Weights) -> None:
    """Write float32 tensors to ``path``, which is overwritten."""
    shapes = weights.shapes
    header, end = {}, 0
    for name in sorted(shapes):
        start, end = end, end + 4 * math.prod(shapes[name])
        header[name] = {"dtype": "F32", "shape": list(shapes[name]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _ALIGNMENT)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in sorted(shapes):
            tensor = weights[name].detach().contiguous()
            if tensor.dtype != torch.float32 or tuple(tensor.shape) != tuple(shapes[name]):
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, want float32 {shapes[name]}"
                )
            file.write(tensor.numpy().data)
