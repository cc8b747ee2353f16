"""Both passes of an MLP on a tile of samples, each of them one call.

All layers in one call, because behind a product, whose data fill the caches, the interpreter takes some six
microseconds for a call: at 128 samples, a tenth of a step.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel
from .block_product import PANEL, ROWS
from .layer_products import (
    input_gradients,
    layer_outputs,
    mask_gradients,
    masked_input_gradients,
    weight_gradients,
)
from .panels import pack, unpack

INPUTS: Final = 0
OUTPUTS: Final = 1
WEIGHT: Final = 2
BIAS: Final = 3
"""Columns of a table of layers: numbers of inputs and outputs, and where weight and bias begin."""


@kernel
def mlp_outputs(
    inputs_MK: NDArray[np.float32],
    layers_L4: NDArray[np.int64],
    parameters: NDArray[np.float32],
    activations: NDArray[np.float32],
    part: NDArray[np.float32],
    outputs_MN: NDArray[np.float32],
) -> None:
    """Pass samples through all layers, each followed by ReLU.

    Args:
        inputs_MK: (num_samples, inputs of the first layer), contiguous.
        layers_L4: the table of layers; a weight is stored inputs by outputs.
        parameters: flat.
        activations: panels of the inputs of each layer, then of the outputs of the last, written.
        part: `PART_FLOATS`, workspace.
        outputs_MN: (num_samples, outputs of the last layer), contiguous, written.

    Error:
        That of `layer_outputs`, for each layer.
    """
    num_stored = -(-inputs_MK.shape[0] // ROWS) * ROWS
    pack(inputs_MK, num_stored, activations)
    rest = activations
    for layer in range(layers_L4.shape[0]):
        num_inputs, num_outputs, weight, bias = layers_L4[layer]
        weight_KN = parameters[weight : weight + num_inputs * num_outputs].reshape(num_inputs, num_outputs)
        behind = rest[_panel_floats(num_stored, num_inputs) :]
        layer_outputs(rest, num_stored, weight_KN, parameters[bias : bias + num_outputs], part, behind)
        rest = behind
    unpack(rest, num_stored, outputs_MN)


@kernel
def mlp_gradients(
    grad_MN: NDArray[np.float32],
    layers_L4: NDArray[np.int64],
    parameters: NDArray[np.float32],
    activations: NDArray[np.float32],
    workspace: NDArray[np.float32],
    part: NDArray[np.float32],
    gradients: NDArray[np.float32],
    input_grad_MK: NDArray[np.float32],
) -> None:
    """Write the gradients of all parameters and, where they are wanted, by the inputs.

    Args:
        grad_MN: (num_samples, outputs of the last layer), contiguous; gradient by the outputs.
        layers_L4: the table of layers.
        parameters: flat.
        activations: those that `mlp_outputs` left.
        workspace: twice the panels of the widest activations.
        part: `PART_FLOATS`, workspace.
        gradients: flat, as the parameters; those of these layers are written.
        input_grad_MK: (num_samples, inputs of the first layer), contiguous, written; empty: not wanted.

    Error:
        That of `layer_outputs`, for each product.
    """
    num_samples = grad_MN.shape[0]
    num_stored = -(-num_samples // ROWS) * ROWS
    num_layers = layers_L4.shape[0]
    half = workspace.size // 2
    grads, others = workspace[:half], workspace[half:]
    first = 0
    for layer in range(num_layers):
        first += _panel_floats(num_stored, layers_L4[layer, INPUTS])
    bias, width = layers_L4[num_layers - 1, BIAS], layers_L4[num_layers - 1, OUTPUTS]
    pack(grad_MN, num_stored, grads)
    mask_gradients(grads, activations[first:], num_stored, num_samples, gradients[bias : bias + width])
    # From the last layer to the first: to the weights, then to the inputs and through the ReLU below.
    for layer in range(num_layers - 1, -1, -1):
        num_inputs, num_outputs, weight, bias = layers_L4[layer]
        first -= _panel_floats(num_stored, num_inputs)
        inputs = activations[first:]
        stop = weight + num_inputs * num_outputs
        weight_KN = parameters[weight:stop].reshape(num_inputs, num_outputs)
        weight_grad_KN = gradients[weight:stop].reshape(num_inputs, num_outputs)
        weight_gradients(inputs, grads, num_stored, num_samples, part, weight_grad_KN)
        if layer > 0:
            below = layers_L4[layer - 1, BIAS]
            bias_grad_K = gradients[below : below + num_inputs]
            masked_input_gradients(
                grads, num_stored, weight_KN, part, others, inputs, bias_grad_K, num_samples
            )
        elif input_grad_MK.size > 0:
            input_gradients(grads, num_stored, weight_KN, part, others)
        grads, others = others, grads
    if input_grad_MK.size > 0:
        unpack(grads, num_stored, input_grad_MK)


@kernel
def _panel_floats(num_rows: int, num_columns: int) -> int:
    return -(-num_columns // PANEL) * PANEL * num_rows
