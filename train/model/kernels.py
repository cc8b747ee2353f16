"""Products of the dense step, kernels between them (biases, ReLU, cross layers), and the loss.

Each kernel is one pass over a tile of samples. T samples of a tile, N outputs of a layer, P the same with
padding. A NaN stays a NaN in all of them, so that a diverging run is noticed. bfloat16 numbers come as their
bits, the upper half of a float32.

Matrices are multiplied by torch, or by oneDNN where measured to be faster. Torch multiplies float32 with MKL,
whose kernels for AVX-512 run on Intel's processors alone; on AMD's it uses AVX2. oneDNN, which is a part of
torch, uses AVX-512 on both. `_linear_pointwise` is the one operator that reaches it in float32; it is
private, so a torch without it multiplies with MKL. Its fused ReLU is not used: it turns NaN into 0, and a
diverging run must be noticed.

Rates of one thread in GF/s, `torch.mm` / oneDNN, torch 2.13, minima of CPU time measured in turns; of the
outputs, the gradient of the inputs and the gradient of the weights:

| samples, inputs, outputs | EPYC of family 26 (Zen 5) | EPYC of family 25 (Zen 4) |
| --- | --- | --- |
| 512, 368, 512 | 107 / 233, 107 / 238, 109 / 208 | 104 / 109, 104 / 111, 103 / 103 |
| 512, 512, 256 | 111 / 238, 108 / 238, 105 / 222 | 103 / 111, 104 / 110, 96 / 100* |
| 512, 256, 64 | 106 / 210, 107 / 212, 93 / 180 | 97 / 100, 99 / 100, 89 / 70* |
| 512, 512, 16 | 90 / 156, 97 / 169, 51 / 108 | 77 / 86, 81 / 81, 38 / 35* |
| 512, 32, 512 | 103 / 141, 97 / 184, 94 / 149 | not measured |
| 512, 64, 16 | 86 / 67, 86 / 74, 78 / 49 | 75 / 37, 75 / 42, 64 / 22* |
| 32, 512, 512 | not measured | 87 / 85, 89 / 87, 92 / 77 |

oneDNN copies its left matrix where that is transposed, as for the gradient of the weights, but not its right
one. So the narrower of both is on the left, and the product may be transposed: without that the 222 of the
second line are 187, and the 180 of the third 128. Those with a star were measured before.

On an Intel Xeon with AVX-512 all products of a step take 23.9 CPU microseconds a sample with MKL and 32.9
with oneDNN. In bfloat16 `torch.mm` itself calls oneDNN.

With weights, several labels or missing ones, the loss of a batch is a sum over its samples and labels,

    sum over samples i and labels l of  v_l w_i loss(z_il, y_il)   where sample i has label l,

with the loss weight v of a label and the weight w of a sample. As the plain loss, its gradient is divided by
the nominal batch size: by no sum of weights and no number of labels, which would depend on how a batch is
cut. So a weight of 2 counts as two samples, one of 0 as none, and a missing label as a weight of 0.

Shapes: T samples of a tile, B of a batch, L labels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.functional import binary_cross_entropy_with_logits

from ...pipeline.schema.schema import LABEL, WEIGHT
from ...stats.kernel import kernel
from ..data.batch import Batch
from .gradients import ParameterViews

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
    weight_T: NDArray[np.float32],
    scale: np.float32,
    grad_T: NDArray[np.float32],
) -> float:
    """Return the weighted sum of the log loss and its scaled gradient.

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
        # Both forms of the sigmoid with an exponent that is not positive, so that none overflows.
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


_LINEAR = getattr(getattr(torch.ops.mkldnn, "_linear_pointwise", None), "default", None)
"""oneDNN's linear layer, ``x w' + b``; None where torch has none."""
Library = Literal["torch", "oneDNN"]
_FASTER_WITH_ONEDNN = frozenset({"AuthenticAMD", "avx512f"})
_LEAST_WEIGHTS = 8192
"""Fewest weights of a layer that oneDNN multiplies."""


def choose_library(features: frozenset[str], dtype: str) -> Library:
    """Return the library that multiplies large layers on a CPU.

    A function of its arguments alone, so that resumed runs, ranks and placements agree.

    Args:
        features: `cpu_features` of this machine.
        dtype: ``fp32`` or ``bf16``.
    """
    is_faster = dtype == "fp32" and features >= _FASTER_WITH_ONEDNN
    return "oneDNN" if is_faster and _LINEAR is not None else "torch"


def is_large(num_inputs: int, num_outputs: int) -> bool:
    """Return whether a layer is large enough for oneDNN."""
    return num_inputs * num_outputs >= _LEAST_WEIGHTS


def multiply(
    left_MK: torch.Tensor,
    right_KN: torch.Tensor,
    out_MN: torch.Tensor,
    *,
    by_onednn: bool,
    is_added: bool = False,
) -> torch.Tensor:
    """Return the product: in ``out_MN``, or by oneDNN in new memory, perhaps transposed.

    oneDNN takes a thousand times as long where a matrix has gaps between its rows or columns, so torch
    multiplies such matrices.

    Args:
        is_added: add it to what is in ``out_MN``, and return that.
    """
    has_gaps = not (
        (left_MK.is_contiguous() or left_MK.t().is_contiguous())
        and (right_KN.is_contiguous() or right_KN.t().is_contiguous())
    )
    if by_onednn and not has_gaps:
        assert _LINEAR is not None
        # The left matrix is copied where it is transposed: the narrower one goes there.
        if left_MK.is_contiguous() or left_MK.shape[0] <= right_KN.shape[1]:
            product_MN: torch.Tensor = _LINEAR(left_MK, right_KN.t(), None, "none", [], "")
        else:
            product_MN = _LINEAR(right_KN.t(), left_MK, None, "none", [], "").t()
        return out_MN.add_(product_MN) if is_added else product_MN
    if is_added:
        return torch.addmm(out_MN, left_MK, right_KN, out=out_MN)
    return torch.mm(left_MK, right_KN, out=out_MN)


def keep_freed_memory() -> None:
    """Let products reuse memory, where the C library is glibc.

    oneDNN returns each product in new memory, and so does autograd. glibc gives freed memory back to the
    system above twice the largest block that was mapped alone and freed, and heeds blocks of up to 32 MiB.
    Without one of that size a step waits for thousands of page faults: 12 % of its CPU time at 2,048 samples
    and dim 16.
    """
    torch.empty(31 << 20, dtype=torch.uint8, device="cpu")


@dataclass(frozen=True, slots=True)
class StepWeights:
    """The parameters of a model as the tiles of a step read them."""

    values: ParameterViews
    """Parameters by name, float32."""
    rounded: ParameterViews | None
    """The same in bfloat16, whose matrices are multiplied; None: products are in float32."""
    library: Library
    """Multiplies large layers."""
    most_samples: int
    """Samples of the largest tile."""

    @property
    def dtype(self) -> torch.dtype:
        """Type of the products."""
        return torch.float32 if self.rounded is None else torch.bfloat16


class Matrix:
    """A weight and the products with it, in the number type of the step.

    Args:
        name: of the weight.
        weights: those of the model.
        num_inputs: that are used; None: as many as are stored.
    """

    def __init__(self, name: str, weights: StepWeights, num_inputs: int | None = None) -> None:
        stored = weights.values if weights.rounded is None else weights.rounded
        self._name = name
        self.weight_KN = stored[name][:num_inputs]
        # A view for the backward pass: it is multiplied without a copy.
        self._weight_NK = self.weight_KN.t()
        self._by_onednn = weights.library == "oneDNN" and is_large(*self.weight_KN.shape)
        # Products in bfloat16 are kept apart, because the gradients themselves are float32.
        self._product_KN = None if weights.rounded is None else torch.empty_like(self.weight_KN)

    def outputs(self, inputs_TK: torch.Tensor, out_TN: torch.Tensor) -> torch.Tensor:
        """Return the product of inputs; see `multiply`."""
        return multiply(inputs_TK, self.weight_KN, out_TN, by_onednn=self._by_onednn)

    def input_gradient(
        self, grad_TN: torch.Tensor, out_TK: torch.Tensor, *, is_added: bool = False
    ) -> torch.Tensor:
        """Return the gradient by the inputs; see `multiply`."""
        return multiply(grad_TN, self._weight_NK, out_TK, by_onednn=self._by_onednn, is_added=is_added)

    def write_gradient(
        self, inputs_TK: torch.Tensor, grad_TN: torch.Tensor, gradients: ParameterViews
    ) -> None:
        """Write the gradient of the weight."""
        target_KN = gradients[self._name]
        if target_KN.shape[0] != inputs_TK.shape[1]:
            target_KN = target_KN[: inputs_TK.shape[1]]
        out_KN = target_KN if self._product_KN is None else self._product_KN
        found_KN = multiply(inputs_TK.t(), grad_TN, out_KN, by_onednn=self._by_onednn)
        if found_KN is not target_KN:
            target_KN.copy_(found_KN)


LossOfSamples = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Losses of samples from logits, labels and weights, each (B,), or (B, L) for several labels."""


@dataclass(frozen=True, slots=True)
class Targets:
    """What the logits of some samples are held against; (B,) for one label, (B, L) for several."""

    labels: torch.Tensor
    """float32; 0 where one is missing."""
    weights: torch.Tensor
    """float32; loss weight of the label times weight of the sample, 0 where the label is missing."""
    own_loss: LossOfSamples | None = None
    """Loss of the user; None: the log loss."""

    def __getitem__(self, samples: slice) -> Targets:
        return Targets(self.labels[samples], self.weights[samples], self.own_loss)

    @property
    def shape(self) -> torch.Size:
        return self.labels.shape

    def to(self, device: torch.device) -> Targets:
        """Return them on a device."""
        return Targets(self.labels.to(device), self.weights.to(device), self.own_loss)

    def loss_sum(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the summed loss of the logits, with a graph."""
        if self.own_loss is not None:
            return self.own_loss(logits, self.labels, self.weights).sum()
        return binary_cross_entropy_with_logits(logits, self.labels, self.weights, reduction="sum")

    def write_gradients(self, logits: torch.Tensor, scale: float, grads: torch.Tensor) -> float:
        """Write the gradients by the logits, times ``scale``; return the summed loss.

        Args:
            logits: (T,), or (T, L) for several labels.
            scale: one over the nominal batch size.
            grads: of the shape of the logits, written.
        """
        if self.own_loss is None:
            arrays = [each.reshape(-1).numpy() for each in (logits, self.labels, self.weights, grads)]
            loss: float = logistic_loss(*arrays[:3], np.float32(scale), arrays[3])
            return loss
        with torch.enable_grad():
            leaf = logits.clone().requires_grad_()
            loss_sum = self.loss_sum(leaf)
            (found,) = torch.autograd.grad(loss_sum * scale, [leaf])
        grads.copy_(found)
        return loss_sum.item()


@dataclass(frozen=True, slots=True)
class Objective:
    """The labels of a run, what each counts, and the loss."""

    columns: tuple[str, ...]
    """Columns of batches with the labels, in the order of the logits."""
    loss_weights: tuple[float, ...]
    """Weight of each label."""
    own_loss: LossOfSamples | None = None
    """Loss of the user; None: the log loss."""

    def targets(self, batch: Batch) -> Targets:
        """Return the labels and weights of a batch, on the host."""
        found = [
            batch.label_B.cpu() if name == LABEL else _on_host(batch.of_samples[name])
            for name in self.columns
        ]
        label_BL = torch.stack(found, dim=1)
        is_there_BL = ~label_BL.isnan()
        weight_BL = is_there_BL * torch.tensor(self.loss_weights, dtype=torch.float32, device="cpu")
        if WEIGHT in batch.of_samples:
            weight_BL *= _on_host(batch.of_samples[WEIGHT]).unsqueeze(1)
        label_BL = label_BL.where(is_there_BL, 0.0)
        if len(self.columns) == 1:
            return Targets(label_BL.squeeze(1), weight_BL.squeeze(1), self.own_loss)
        return Targets(label_BL, weight_BL, self.own_loss)


def _on_host(values: Any) -> torch.Tensor:
    """Return labels or weights, an array or a tensor of any device, as float32 of the host."""
    return torch.as_tensor(values, dtype=torch.float32, device="cpu")
