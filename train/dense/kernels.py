"""Kernels of the dense step between its matrix products: biases, ReLU, cross layers, loss.

Each is one pass over a tile of samples. T samples of a tile, N outputs of a layer, P the same with padding. A
NaN stays a NaN in all of them, so that a diverging run is noticed. bfloat16 numbers come as their bits, the
upper half of a float32.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

_ROUND = np.uint32(0x7FFF)
_ONE = np.uint32(1)
_HALF = np.uint32(16)


@kernel
def add_bias_relu(
    product_TN: NDArray[np.float32], bias_N: NDArray[np.float32], outputs_TN: NDArray[np.float32]
) -> None:
    """Write ``max(p + b, 0)``.

    Args:
        product_TN: (num_samples, num_outputs); the layer's product.
        bias_N: (num_outputs,).
        outputs_TN: (num_samples, num_outputs), written; may be the product.
    """
    for sample in range(product_TN.shape[0]):
        product_N = product_TN[sample]
        output_N = outputs_TN[sample]
        for column in range(bias_N.size):
            value = product_N[column] + bias_N[column]
            output_N[column] = np.float32(0) if value <= np.float32(0) else value


@kernel
def mask_by_relu(
    grad_TN: NDArray[np.float32], outputs_TN: NDArray[np.float32], bias_grad_N: NDArray[np.float32]
) -> None:
    """Zero gradients where ReLU was, in place, and sum columns for the bias.

    Args:
        grad_TN: (num_samples, num_outputs); gradient by the layer's outputs, then by its sums.
        outputs_TN: (num_samples, num_outputs); what `add_bias_relu` left.
        bias_grad_N: (num_outputs,), written; summed serially over the samples.
    """
    bias_grad_N[:] = 0
    for sample in range(grad_TN.shape[0]):
        row_N = grad_TN[sample]
        output_N = outputs_TN[sample]
        for column in range(bias_grad_N.size):
            value = np.float32(0) if output_N[column] <= np.float32(0) else row_N[column]
            row_N[column] = value
            bias_grad_N[column] += value


@kernel
def add_bias_relu_bf16(
    outputs_TN: NDArray[np.uint16], bias_N: NDArray[np.float32], row_N: NDArray[np.uint32]
) -> None:
    """Run `add_bias_relu` on bfloat16 bits; float32 sums round to nearest even.

    Args:
        outputs_TN: (num_samples, num_outputs); the layer's product.
        bias_N: (num_outputs,).
        row_N: (num_outputs,), workspace.
    """
    value_N = row_N.view(np.float32)
    for sample in range(outputs_TN.shape[0]):
        bits_N = outputs_TN[sample]
        # Three loops over a row in place of one: each of them becomes vector instructions.
        for column in range(row_N.size):
            row_N[column] = np.uint32(bits_N[column]) << _HALF
        for column in range(row_N.size):
            value = value_N[column] + bias_N[column]
            value_N[column] = np.float32(0) if value <= np.float32(0) else value
        for column in range(row_N.size):
            # Adding just below half of the last place, and one more where that place is odd, rounds ties to
            # even.
            bits = row_N[column]
            bits_N[column] = np.uint16((bits + _ROUND + ((bits >> _HALF) & _ONE)) >> _HALF)


@kernel
def mask_by_relu_bf16(
    grad_TN: NDArray[np.uint16],
    outputs_TN: NDArray[np.uint16],
    bias_grad_N: NDArray[np.float32],
    row_N: NDArray[np.uint32],
) -> None:
    """Run `mask_by_relu` on bfloat16 bits; the bias gradient sums in float32.

    Args:
        grad_TN: (num_samples, num_outputs), in place.
        outputs_TN: (num_samples, num_outputs); zero, positive or NaN.
        bias_grad_N: (num_outputs,), written.
        row_N: (num_outputs,), workspace.
    """
    value_N = row_N.view(np.float32)
    bias_grad_N[:] = 0
    for sample in range(grad_TN.shape[0]):
        bits_N = grad_TN[sample]
        output_N = outputs_TN[sample]
        # Where the output was 0, no gradient passes; the others are widened to be summed.
        for column in range(row_N.size):
            bits = np.uint16(0) if output_N[column] == 0 else bits_N[column]
            bits_N[column] = bits
            row_N[column] = np.uint32(bits) << _HALF
        for column in range(row_N.size):
            bias_grad_N[column] += value_N[column]


@kernel
def cross(
    products_TP: NDArray[np.float32],
    bias_N: NDArray[np.float32],
    first_TP: NDArray[np.float32],
    inputs_TP: NDArray[np.float32],
    outputs_TP: NDArray[np.float32],
) -> None:
    """Compute ``p = p + b`` in place, and ``x' = x0 * p + x``.

    Args:
        products_TP: (num_samples, at least num_outputs); the layer's product.
        bias_N: (num_outputs,).
        first_TP: as ``products``; x0.
        inputs_TP: as ``products``; x.
        outputs_TP: as ``products``, written up to ``num_outputs``; x'.

    Error:
        Each sum and each product is rounded once.

    Source:
        Wang et al., DCN V2, arXiv 2008.13535, equation 1.
    """
    for sample in range(products_TP.shape[0]):
        product_P = products_TP[sample]
        first_P = first_TP[sample]
        input_P = inputs_TP[sample]
        output_P = outputs_TP[sample]
        for column in range(bias_N.size):
            value = product_P[column] + bias_N[column]
            product_P[column] = value
            output_P[column] = first_P[column] * value + input_P[column]


@kernel
def cross_backward(
    grad_TP: NDArray[np.float32],
    first_TP: NDArray[np.float32],
    products_TP: NDArray[np.float32],
    product_grad_TP: NDArray[np.float32],
    first_grad_TP: NDArray[np.float32],
    bias_grad_N: NDArray[np.float32],
) -> None:
    """Write the gradients of a cross layer's product and bias; add x0's.

    Args:
        grad_TP: (num_samples, at least num_outputs); gradient by the layer's outputs.
        first_TP: as ``grad``; x0.
        products_TP: as ``grad``; what `cross` left, with the bias.
        product_grad_TP: as ``grad``, written up to ``num_outputs``.
        first_grad_TP: as ``grad``; added to.
        bias_grad_N: (num_outputs,), written; summed serially over the samples.
    """
    bias_grad_N[:] = 0
    for sample in range(grad_TP.shape[0]):
        grad_P = grad_TP[sample]
        first_P = first_TP[sample]
        product_P = products_TP[sample]
        product_grad_P = product_grad_TP[sample]
        first_grad_P = first_grad_TP[sample]
        for column in range(bias_grad_N.size):
            product_grad_P[column] = grad_P[column] * first_P[column]
            first_grad_P[column] += grad_P[column] * product_P[column]
        # A separate loop: with fewer arrays in each, both are vectorized.
        for column in range(bias_grad_N.size):
            bias_grad_N[column] += product_grad_P[column]


@kernel
def logistic_loss(
    logit_T: NDArray[np.float32],
    label_T: NDArray[np.float32],
    scale: np.float32,
    grad_T: NDArray[np.float32],
) -> float:
    """Return the summed log loss of a tile and its scaled gradient.

    Args:
        logit_T: (num_samples,).
        label_T: (num_samples,), each 0 or 1.
        scale: one over the nominal batch size.
        grad_T: (num_samples,), written; ``(sigmoid(z) - y) * scale``.

    Returns:
        Nats, summed serially in float64.
    """
    loss = 0.0
    for sample in range(logit_T.size):
        logit = logit_T[sample]
        label = label_T[sample]
        # Both forms of the sigmoid with an exponent that is not positive, so that none overflows.
        small = np.exp(-np.abs(logit))
        loss += max(logit, np.float32(0)) - logit * label + np.log1p(small)
        one = np.float32(1)
        chance = one / (one + small) if logit >= np.float32(0) else small / (one + small)
        grad_T[sample] = (chance - label) * scale
    return loss


@kernel
def weighted_logistic_loss(
    logit_T: NDArray[np.float32],
    label_T: NDArray[np.float32],
    weight_T: NDArray[np.float32],
    scale: np.float32,
    grad_T: NDArray[np.float32],
) -> float:
    """Return the weighted sum of the log loss and its scaled gradient.

    With weights of 1 these are the bits of `logistic_loss`.

    Args:
        logit_T: (num_logits,), of samples and labels.
        label_T: (num_logits,), from 0 to 1.
        weight_T: (num_logits,), 0 or more.
        scale: one over the nominal batch size.
        grad_T: (num_logits,), written; ``(sigmoid(z) - y) * w * scale``.

    Returns:
        Nats, summed serially in float64.
    """
    loss = 0.0
    for place in range(logit_T.size):
        logit = logit_T[place]
        label = label_T[place]
        weight = weight_T[place]
        small = np.exp(-np.abs(logit))
        loss += weight * (max(logit, np.float32(0)) - logit * label + np.log1p(small))
        one = np.float32(1)
        chance = one / (one + small) if logit >= np.float32(0) else small / (one + small)
        grad_T[place] = (chance - label) * weight * scale
    return loss


@kernel
def last_layer_gradients(
    grad_T: NDArray[np.float32],
    hidden_TN: NDArray[np.float32],
    weight_N: NDArray[np.float32],
    weight_grad_N: NDArray[np.float32],
    bias_grad_1: NDArray[np.float32],
    hidden_grad_TN: NDArray[np.float32],
) -> None:
    """Write the gradients of a layer with one output.

    Args:
        grad_T: (num_samples,); gradient by the logits.
        hidden_TN: (num_samples, num_inputs); the layer's inputs.
        weight_N: (num_inputs,).
        weight_grad_N: (num_inputs,), written; summed serially over the samples.
        bias_grad_1: (1,), written; likewise.
        hidden_grad_TN: (num_samples, num_inputs), written.
    """
    weight_grad_N[:] = 0
    bias_grad_1[0] = 0
    # A serial sum over the samples of the tile: the tree over tiles keeps the error of long sums small.
    for sample in range(grad_T.size):
        grad = grad_T[sample]
        hidden_N = hidden_TN[sample]
        hidden_grad_N = hidden_grad_TN[sample]
        bias_grad_1[0] += grad
        for column in range(weight_N.size):
            weight_grad_N[column] += grad * hidden_N[column]
        for column in range(weight_N.size):
            hidden_grad_N[column] = grad * weight_N[column]
