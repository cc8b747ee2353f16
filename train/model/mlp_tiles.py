"""Forward and backward pass of an MLP, or of one product, on a tile of samples, without a graph.

One object holds the activations of one tile and is used by one thread at a time. Layers are products into
memory that is kept, and fused kernels for what lies between them. In bfloat16 inputs, weights and gradients
are rounded before each product, which sums in float32 and rounds its result once, and the gradients of
weights are widened at once, so that all sums over tiles are in float32.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ..dense.linear import Library, is_wide, multiply
from .dense_kernels import add_bias_relu, add_bias_relu_bf16, mask_by_relu, mask_by_relu_bf16
from .flat_parameters import ParameterViews


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer followed by ReLU, by the names of its parameters."""

    weight: str
    bias: str
    num_inputs: int
    """Numbers of a sample that it is given; the weight may be stored with more, all zero."""
    num_outputs: int


class MlpTiles(Protocol):
    """The layers of one MLP on the tile at hand."""

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        """Return the (T, N) outputs of the last layer; its memory is used again by the next tile."""

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        """Write the gradients of all parameters.

        Args:
            grad_TN: gradient by the outputs of the last forward pass, overwritten.
            gradients: where the gradient of each parameter goes, by name.
            to_inputs: whether the (T, K) gradient by the inputs is wanted.
        """


class ProductTiles(Protocol):
    """The product of the tile at hand with one weight."""

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        """Write the product.

        Args:
            inputs_TK: float32, as wide as the weight is stored.
            outputs_TN: float32, perhaps wider than the product; what is beyond is left as it is.
        """

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        """Write the gradient of the weight.

        Args:
            inputs_TK: those of the last forward pass.
            grad_TN: gradient by its outputs, as wide.
            gradients: where the gradient of each parameter goes, by name.
            input_grad_TK: gradient by the inputs, written.
            is_added: whether it is added to what is there.
        """


@dataclass(frozen=True, slots=True)
class _LayerMemory:
    """One layer's outputs and the gradient by its inputs, for tiles of one number of samples."""

    outputs_TN: torch.Tensor
    outputs_NT: torch.Tensor
    outputs: NDArray[np.float32]
    input_grad_TK: torch.Tensor


class Fp32Mlp:
    """An MLP in float32.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name, as `FlatParameters` stores them.
        most_samples: samples of the largest tile.
        library: multiplies wide layers.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        weights: Mapping[str, torch.Tensor],
        most_samples: int,
        library: Library,
    ) -> None:
        self._layers = layers
        self._by_onednn = [
            library == "oneDNN" and is_wide(layer.num_inputs, layer.num_outputs) for layer in layers
        ]
        self._weights_KN = [weights[layer.weight][: layer.num_inputs] for layer in layers]
        # Transposed views for the backward pass: they are multiplied without a copy.
        self._weights_NK = [weight_KN.t() for weight_KN in self._weights_KN]
        self._biases_N = [weights[layer.bias].numpy() for layer in layers]
        # Memory for the largest tile, of which smaller tiles use the front.
        self._outputs = [torch.empty(most_samples, layer.num_outputs) for layer in layers]
        self._input_grads = [torch.empty(most_samples, layer.num_inputs) for layer in layers]
        self._memory = self._memory_for(most_samples)
        self._num_samples = most_samples
        self._inputs_TK = torch.empty(0)
        self._inputs_KT = self._inputs_TK

    def _memory_for(self, num_samples: int) -> list[_LayerMemory]:
        return [
            _LayerMemory(
                outputs[:num_samples],
                outputs[:num_samples].t(),
                outputs[:num_samples].numpy(),
                input_grads[:num_samples],
            )
            for outputs, input_grads in zip(self._outputs, self._input_grads, strict=True)
        ]

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        if inputs_TK is not self._inputs_TK:
            self._inputs_TK = inputs_TK
            self._inputs_KT = inputs_TK.t()
        # Views are made again where the number of samples changes: each costs as much as a small product.
        if inputs_TK.shape[0] != self._num_samples:
            self._num_samples = inputs_TK.shape[0]
            self._memory = self._memory_for(self._num_samples)
        for number, memory in enumerate(self._memory):
            product_TN = multiply(
                inputs_TK, self._weights_KN[number], memory.outputs_TN, by_onednn=self._by_onednn[number]
            )
            add_bias_relu(product_TN.numpy(), self._biases_N[number], memory.outputs)
            inputs_TK = memory.outputs_TN
        return inputs_TK

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        # From the last layer to the first: through the ReLU, then to the weights, then to the inputs.
        for number in reversed(range(len(self._layers))):
            layer, memory, by_onednn = self._layers[number], self._memory[number], self._by_onednn[number]
            mask_by_relu(grad_TN.numpy(), memory.outputs, gradients.arrays[layer.bias])
            inputs_KT = self._memory[number - 1].outputs_NT if number else self._inputs_KT
            target_KN = gradients[layer.weight]
            if target_KN.shape[0] != layer.num_inputs:
                target_KN = target_KN[: layer.num_inputs]
            weight_grad_KN = multiply(inputs_KT, grad_TN, target_KN, by_onednn=by_onednn)
            if weight_grad_KN is not target_KN:
                target_KN.copy_(weight_grad_KN)
            # Nothing below the first layer needs a gradient where its inputs are data.
            if number == 0 and not to_inputs:
                return None
            grad_TN = multiply(grad_TN, self._weights_NK[number], memory.input_grad_TK, by_onednn=by_onednn)
        return grad_TN


class Bf16Mlp:
    """An MLP whose products are in bfloat16; inputs, outputs and their gradients are given in float32.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name, as `FlatParameters` stores them; of these the biases are used.
        rounded: the same in bfloat16; of these the matrices are used.
        most_samples: samples of the largest tile.
    """

    def __init__(
        self,
        layers: Sequence[Layer],
        weights: Mapping[str, torch.Tensor],
        rounded: Mapping[str, torch.Tensor],
        most_samples: int,
    ) -> None:
        def buffers(widths: Sequence[int]) -> list[torch.Tensor]:
            return [torch.empty(most_samples, width, dtype=torch.bfloat16) for width in widths]

        self._layers = layers
        self._weights_KN = [rounded[layer.weight][: layer.num_inputs] for layer in layers]
        self._biases_N = [weights[layer.bias].numpy() for layer in layers]
        self._activations = buffers([layers[0].num_inputs, *(layer.num_outputs for layer in layers)])
        self._gradients = buffers([layers[0].num_inputs, *(layer.num_outputs for layer in layers)])
        # Products in bf16 are kept apart, because the gradients themselves are float32.
        self._weight_grads = [torch.empty_like(weight_KN) for weight_KN in self._weights_KN]
        self._rows_N = [np.empty(layer.num_outputs, np.uint32) for layer in layers]
        self._outputs = torch.empty(most_samples, layers[-1].num_outputs)
        self._input_grads = torch.empty(most_samples, layers[0].num_inputs)

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        num_samples = inputs_TK.shape[0]
        # Rounded once on the way in; between layers the numbers stay in bf16.
        current_TK = self._activations[0][:num_samples]
        current_TK.copy_(inputs_TK)
        for number, weight_KN in enumerate(self._weights_KN):
            outputs_TN = self._activations[number + 1][:num_samples]
            torch.mm(current_TK, weight_KN, out=outputs_TN)
            add_bias_relu_bf16(_bits(outputs_TN), self._biases_N[number], self._rows_N[number])
            current_TK = outputs_TN
        outputs = self._outputs[:num_samples]
        outputs.copy_(current_TK)
        return outputs

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        num_samples = grad_TN.shape[0]
        current_TN = self._gradients[-1][:num_samples]
        current_TN.copy_(grad_TN)
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            mask_by_relu_bf16(
                _bits(current_TN),
                _bits(self._activations[number + 1][:num_samples]),
                gradients.arrays[layer.bias],
                self._rows_N[number],
            )
            weight_grad_KN = self._weight_grads[number]
            torch.mm(self._activations[number][:num_samples].t(), current_TN, out=weight_grad_KN)
            gradients[layer.weight][: layer.num_inputs].copy_(weight_grad_KN)
            if number == 0 and not to_inputs:
                return None
            input_grad_TK = self._gradients[number][:num_samples]
            torch.mm(current_TN, self._weights_KN[number].t(), out=input_grad_TK)
            current_TN = input_grad_TK
        input_grads = self._input_grads[:num_samples]
        input_grads.copy_(current_TN)
        return input_grads


class Fp32Product:
    """A product in float32.

    Args:
        name: of the weight.
        weights: parameters by name, as `FlatParameters` stores them.
        library: multiplies wide layers.
    """

    def __init__(self, name: str, weights: Mapping[str, torch.Tensor], library: Library) -> None:
        self._name = name
        self._weight_KN = weights[name]
        self._weight_NK = self._weight_KN.t()
        self._num_outputs = self._weight_KN.shape[1]
        self._by_onednn = library == "oneDNN" and is_wide(*self._weight_KN.shape)

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        target_TN = outputs_TN[:, : self._num_outputs]
        product_TN = multiply(inputs_TK, self._weight_KN, target_TN, by_onednn=self._by_onednn)
        if product_TN is not target_TN:
            target_TN.copy_(product_TN)

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        used_TN = grad_TN[:, : self._num_outputs]
        target_KN = gradients[self._name]
        weight_grad_KN = multiply(inputs_TK.t(), used_TN, target_KN, by_onednn=self._by_onednn)
        if weight_grad_KN is not target_KN:
            target_KN.copy_(weight_grad_KN)
        found_TK = multiply(
            used_TN, self._weight_NK, input_grad_TK, by_onednn=self._by_onednn, is_added=is_added
        )
        if found_TK is not input_grad_TK:
            input_grad_TK.copy_(found_TK)


class Bf16Product:
    """A product in bfloat16 of what is given, and left, in float32.

    Args:
        name: of the weight.
        rounded: parameters by name in bfloat16, as `FlatParameters` stores them.
        most_samples: samples of the largest tile.
    """

    def __init__(self, name: str, rounded: Mapping[str, torch.Tensor], most_samples: int) -> None:
        self._name = name
        self._weight_KN = rounded[name]
        num_inputs, num_outputs = self._weight_KN.shape

        def buffer(width: int) -> torch.Tensor:
            return torch.empty(most_samples, width, dtype=torch.bfloat16)

        # The rounded inputs are kept for the gradient of the weight.
        self._inputs, self._input_grads = buffer(num_inputs), buffer(num_inputs)
        self._outputs, self._grads = buffer(num_outputs), buffer(num_outputs)
        self._weight_grad_KN = torch.empty_like(self._weight_KN)

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        num_samples = inputs_TK.shape[0]
        rounded_TK = self._inputs[:num_samples]
        rounded_TK.copy_(inputs_TK)
        product_TN = self._outputs[:num_samples]
        torch.mm(rounded_TK, self._weight_KN, out=product_TN)
        outputs_TN[:, : product_TN.shape[1]].copy_(product_TN)

    def backward(
        self,
        inputs_TK: torch.Tensor,
        grad_TN: torch.Tensor,
        gradients: ParameterViews,
        input_grad_TK: torch.Tensor,
        *,
        is_added: bool,
    ) -> None:
        num_samples = inputs_TK.shape[0]
        rounded_TN = self._grads[:num_samples]
        rounded_TN.copy_(grad_TN[:, : rounded_TN.shape[1]])
        torch.mm(self._inputs[:num_samples].t(), rounded_TN, out=self._weight_grad_KN)
        gradients[self._name].copy_(self._weight_grad_KN)
        product_TK = self._input_grads[:num_samples]
        torch.mm(rounded_TN, self._weight_KN.t(), out=product_TK)
        if is_added:
            input_grad_TK.add_(product_TK)
        else:
            input_grad_TK.copy_(product_TK)


def mlp_layers(name: str, widths: Sequence[int]) -> list[Layer]:
    """Name the layers of an MLP as models do: every other of its modules is a ReLU."""
    return [
        Layer(f"{name}.{2 * number}.weight", f"{name}.{2 * number}.bias", inputs, outputs)
        for number, (inputs, outputs) in enumerate(pairwise(widths))
    ]


def _bits(values: torch.Tensor) -> NDArray[np.uint16]:
    bits: NDArray[np.uint16] = values.view(torch.uint16).numpy()
    return bits
