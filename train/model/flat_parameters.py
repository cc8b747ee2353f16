"""The parameters of a model as parts of one vector, laid out for the products of a training step.

One vector, because gradients of tiles are added and weights are rounded as vectors. A weight is stored
transposed, inputs by outputs: all three products of a layer then run at the peak of the processor, where the
usual layout costs 10 % of them (AVX-512, 512 samples). The number of inputs is rounded up, with zeros,
because rows of 367 floats that begin nowhere near a cache line cost 20 %; few inputs are left as they are.
The model's own parameters are views of the same memory in the usual shape.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

_ALIGNMENT = 16
"""Floats between the starts of parameters, a cache line."""
_INPUTS_ROUNDED_TO = 8
_FEW_INPUTS = 32
"""With fewer inputs than this, rounding up costs more than it saves."""


def stored_inputs(num_inputs: int) -> int:
    """Return the inputs that a layer is stored with; those beyond ``num_inputs`` are zero."""
    if num_inputs < _FEW_INPUTS:
        return num_inputs
    return -(-num_inputs // _INPUTS_ROUNDED_TO) * _INPUTS_ROUNDED_TO


@dataclass(frozen=True, slots=True)
class _Place:
    shape: torch.Size
    """Shape in the model."""
    stored: tuple[int, ...]
    """Shape in the vector."""
    start: int

    def in_model(self, stored: torch.Tensor) -> torch.Tensor:
        """Return the parameter in the model's shape, as a view of how it is stored."""
        return stored[: self.shape[1]].t() if len(self.shape) == 2 else stored


class ParameterViews(dict[str, torch.Tensor]):
    """Parts of one vector by the names of parameters, each in the shape it is stored in.

    NumPy's arrays of them are made once: behind a product, whose data fill the caches, the interpreter takes
    six microseconds to make one.

    Args:
        vector: contiguous.
        parts: name, first number and shape of each part.
    """

    def __init__(self, vector: torch.Tensor, parts: Iterable[tuple[str, int, Sequence[int]]]) -> None:
        for name, start, shape in parts:
            self[name] = vector[start : start + math.prod(shape)].view(*shape)
        self.arrays: dict[str, NDArray[np.float32]] = {}
        """The parts of a float32 vector as arrays of the same memory."""
        if vector.dtype == torch.float32:
            self.arrays = {name: part.numpy() for name, part in self.items()}


class FlatParameters:
    """One float32 vector that all parameters of a model are moved to; the model keeps using them there.

    Args:
        model: a model on the host.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameters = dict(model.named_parameters())
        self._places: dict[str, _Place] = {}
        # Each parameter gets an aligned place of its own, matrices with room for padded inputs.
        stop = 0
        for name, parameter in self._parameters.items():
            shape = parameter.shape
            stored = (stored_inputs(shape[1]), shape[0]) if len(shape) == 2 else tuple(shape)
            self._places[name] = _Place(shape, stored, stop)
            stop += -(-torch.Size(stored).numel() // _ALIGNMENT) * _ALIGNMENT
        self.size = stop
        """Floats of the vector; those that are no parameter's are zero and stay so."""
        # From here on the model's parameters are views of the vector: whoever steps one steps the other.
        self.vector = torch.zeros(stop)
        views = self.views(self.vector)
        for name, parameter in self._parameters.items():
            view = self._places[name].in_model(views[name])
            view.copy_(parameter.detach())
            parameter.data = view
        self._gradients = ParameterViews(self.vector[:0], ())
        self._in_model: list[torch.Tensor] = []
        """The gradients last set, as they are stored and in the model's shapes."""

    def views(self, vector: torch.Tensor) -> ParameterViews:
        """Return the part of each parameter in ``vector``, by name, in the shape it is stored in."""
        return ParameterViews(
            vector, ((name, place.start, place.stored) for name, place in self._places.items())
        )

    def set_gradients(self, gradients: ParameterViews) -> None:
        """Give each parameter of the model its gradient, without a copy.

        Args:
            gradients: `views` of a vector of gradients.
        """
        # The memory of most steps is that of the step before.
        if gradients is not self._gradients:
            self._gradients = gradients
            self._in_model = [self._places[name].in_model(gradients[name]) for name in self._parameters]
        for parameter, gradient in zip(self._parameters.values(), self._in_model, strict=True):
            parameter.grad = gradient
