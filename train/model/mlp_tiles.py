"""Forward and backward pass of an MLP, or of one product, on a tile of samples, without a graph.

One object holds the activations of one tile and is used by one thread at a time. Layers are products into
memory that is kept, and fused kernels for what lies between them. In float32 the products are torch's own, or
ours on processors where these are quicker. In bfloat16 inputs, weights and gradients are rounded before each
product, which sums in float32 and rounds its result once, and the gradients of weights are widened at once,
so that all sums over tiles are in float32.
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

from ...stats.products.mlp_passes import mlp_gradients, mlp_outputs
from ...stats.products.panels import PART_FLOATS, num_panel_floats, num_stored_rows
from ...stats.simd import aligned_zeros
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
    input_grads: NDArray[np.float32]

    @classmethod
    def of(cls, outputs_TN: torch.Tensor, input_grad_TK: torch.Tensor) -> _LayerMemory:
        return cls(outputs_TN, outputs_TN.t(), outputs_TN.numpy(), input_grad_TK, input_grad_TK.numpy())


class Fp32Mlp:
    """An MLP in float32.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name, as `FlatParameters` stores them.
        most_samples: samples of the largest tile.
    """

    def __init__(
        self, layers: Sequence[Layer], weights: Mapping[str, torch.Tensor], most_samples: int
    ) -> None:
        self._layers = layers
        self._weights_KN = [weights[layer.weight][: layer.num_inputs] for layer in layers]
        # Transposed views for the backward pass: torch multiplies them without a copy.
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
            _LayerMemory.of(outputs[:num_samples], input_grads[:num_samples])
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
        for weight_KN, bias_N, memory in zip(self._weights_KN, self._biases_N, self._memory, strict=True):
            torch.mm(inputs_TK, weight_KN, out=memory.outputs_TN)
            add_bias_relu(memory.outputs, bias_N)
            inputs_TK = memory.outputs_TN
        return inputs_TK

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        grads = grad_TN.numpy()
        # From the last layer to the first: through the ReLU, then to the weights, then to the inputs.
        for number in reversed(range(len(self._layers))):
            layer = self._layers[number]
            memory = self._memory[number]
            mask_by_relu(grads, memory.outputs, gradients.array(layer.bias))
            inputs_KT = self._memory[number - 1].outputs_NT if number else self._inputs_KT
            torch.mm(inputs_KT, grad_TN, out=gradients.front(layer.weight, layer.num_inputs))
            # Nothing below the first layer needs a gradient where its inputs are data.
            if number == 0 and not to_inputs:
                return None
            torch.mm(grad_TN, self._weights_NK[number], out=memory.input_grad_TK)
            grad_TN, grads = memory.input_grad_TK, memory.input_grads
        return grad_TN


class PackedMlp:
    """An MLP in float32 by products of our own.

    Each pass is one call of a kernel, which leaves the activations in panels and reads the weights where they
    are.

    Args:
        layers: from the inputs to the outputs, at least one.
        weights: parameters by name.
        most_samples: samples of the largest tile.
    """

    def __init__(self, layers: Sequence[Layer], weights: ParameterViews, most_samples: int) -> None:
        self._parameters = weights.vector
        self._layers_L4 = np.array(
            [
                (each.num_inputs, each.num_outputs, weights.start(each.weight), weights.start(each.bias))
                for each in layers
            ],
            np.int64,
        )
        # Memory for the largest tile, of which smaller tiles use the front.
        widths = [layers[0].num_inputs, *(layer.num_outputs for layer in layers)]
        floats = [num_panel_floats(num_stored_rows(most_samples), width) for width in widths]
        self._activations = aligned_zeros(sum(floats))
        self._workspace = aligned_zeros(2 * max(floats))
        self._part = aligned_zeros(2 * PART_FLOATS)
        self._outputs = torch.empty(most_samples, widths[-1])
        self._input_grads = torch.empty(most_samples, widths[0])
        self._not_wanted = self._input_grads[:0].numpy()
        self._make_views(most_samples)

    def _make_views(self, num_samples: int) -> None:
        self._outputs_TN = self._outputs[:num_samples]
        self._output_array = self._outputs_TN.numpy()
        self._input_grad_TK = self._input_grads[:num_samples]
        self._input_grad_array = self._input_grad_TK.numpy()

    def forward(self, inputs_TK: torch.Tensor) -> torch.Tensor:
        # Views are made again where the number of samples changes.
        if inputs_TK.shape[0] != self._outputs_TN.shape[0]:
            self._make_views(inputs_TK.shape[0])
        mlp_outputs(
            inputs_TK.numpy(),
            self._layers_L4,
            self._parameters,
            self._activations,
            self._part,
            self._output_array,
        )
        return self._outputs_TN

    def backward(
        self, grad_TN: torch.Tensor, gradients: ParameterViews, *, to_inputs: bool
    ) -> torch.Tensor | None:
        mlp_gradients(
            grad_TN.numpy(),
            self._layers_L4,
            self._parameters,
            self._activations,
            self._workspace,
            self._part,
            gradients.vector,
            self._input_grad_array if to_inputs else self._not_wanted,
        )
        return self._input_grad_TK if to_inputs else None


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
                gradients.array(layer.bias),
                self._rows_N[number],
            )
            weight_grad_KN = self._weight_grads[number]
            torch.mm(self._activations[number][:num_samples].t(), current_TN, out=weight_grad_KN)
            gradients.front(layer.weight, layer.num_inputs).copy_(weight_grad_KN)
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
    """

    def __init__(self, name: str, weights: Mapping[str, torch.Tensor]) -> None:
        self._name = name
        self._weight_KN = weights[name]
        self._weight_NK = self._weight_KN.t()
        self._num_outputs = self._weight_KN.shape[1]

    def forward(self, inputs_TK: torch.Tensor, outputs_TN: torch.Tensor) -> None:
        torch.mm(inputs_TK, self._weight_KN, out=outputs_TN[:, : self._num_outputs])

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
        torch.mm(inputs_TK.t(), used_TN, out=gradients[self._name])
        if is_added:
            torch.addmm(input_grad_TK, used_TN, self._weight_NK, out=input_grad_TK)
        else:
            torch.mm(used_TN, self._weight_NK, out=input_grad_TK)


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
