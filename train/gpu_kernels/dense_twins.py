"""Kernels around the dense layers with torch, on any device: dots, last layer, ReLU and optimizer step.

B samples, F tables, D embedding_dim, V = F + 1 vectors that interact (F without a bottom MLP), P inputs of
the top MLP, rounded up as the kernels of matrix products want them, N outputs of a layer.
"""

from __future__ import annotations

import torch

from ..model.dlrm import pair_positions
from ..rows.row_steps import exact_sqrt
from .dense_rule import DenseRule
from .row_twins import gathered_rows, is_sample

LOSS_BLOCK = 256
"""Samples whose losses are added at a time."""
BIAS_BLOCK = 128
"""Samples whose gradients of a bias are added at a time."""


def gather_dots(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    inputs_BP: torch.Tensor,
) -> None:
    """Write the inputs of the top MLP: the bottom MLP's output, the dots of all pairs, and zeros.

    Args:
        weights_SD: float32.
        slots_BF: int32; -1: a vector of zeros.
        num_samples_1: int32; samples behind the batch become zeros.
        bottom_BD: of the type of ``inputs``; None: rows interact alone.
        inputs_BP: float32, float16 or bfloat16, written. Vectors are rounded to this type before their
            products, which are added in float32.

    Error:
        Of a dot at most ``D * 2**-24`` of the sum of magnitudes, besides the rounding of its factors.
    """
    # All pairs of vectors are multiplied, and the distinct ones picked.
    vectors_BVD = _vectors(weights_SD, slots_BF, num_samples_1, bottom_BD, inputs_BP.dtype)
    pairs_P, _ = pair_positions(vectors_BVD.shape[1])
    dots_BVV = torch.bmm(vectors_BVD, vectors_BVD.transpose(1, 2))
    dots_BP = dots_BVV.flatten(1).index_select(1, pairs_P.to(weights_SD.device))
    # What rounds the number of inputs up stays zero.
    inputs_BP.zero_()
    num_passed = 0
    if bottom_BD is not None:
        num_passed = bottom_BD.shape[1]
        inputs_BP[:, :num_passed] = vectors_BVD[:, 0]
    inputs_BP[:, num_passed : num_passed + dots_BP.shape[1]] = dots_BP


def gather_dots_backward(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    grad_BP: torch.Tensor,
    grad_BFD: torch.Tensor,
    bottom_grad_BD: torch.Tensor | None,
) -> None:
    """Write the gradients of the vectors by those of the top MLP's inputs; rows are gathered again.

    Args:
        weights_SD: float32.
        slots_BF: int32.
        num_samples_1: int32.
        bottom_BD: that of `gather_dots`.
        grad_BP: of the same type.
        grad_BFD: float32, written; anything for samples behind the batch.
        bottom_grad_BD: as ``bottom``, written; zeros for samples behind the batch.
    """
    vectors_BVD = _vectors(weights_SD, slots_BF, num_samples_1, bottom_BD, grad_BP.dtype).float()
    num_samples, num_vectors, dim = vectors_BVD.shape
    # The gradients of the dots lie behind those of the bottom MLP's output.
    num_passed = 0 if bottom_BD is None else dim
    pairs_P, mirror_VV = pair_positions(num_vectors)
    grads = grad_BP[:, num_passed : num_passed + pairs_P.numel()].float()
    # Each entry of the symmetric matrix gathers the gradient of its pair, the diagonal the zero appended.
    padded = torch.nn.functional.pad(grads, (0, 1))
    grad_BVV = padded.index_select(1, mirror_VV.to(grads.device)).view(num_samples, num_vectors, num_vectors)
    vector_grads_BVD = torch.bmm(grad_BVV, vectors_BVD)
    if bottom_grad_BD is None:
        grad_BFD.copy_(vector_grads_BVD)
        return
    # The first vector is the bottom MLP's output, which is an input of the top MLP, too.
    grad_BFD.copy_(vector_grads_BVD[:, 1:])
    total_BD = vector_grads_BVD[:, 0] + grad_BP[:, :dim].float()
    is_live = is_sample(num_samples, num_samples_1).unsqueeze(1)
    bottom_grad_BD.copy_(torch.where(is_live, total_BD, 0.0))


def last_layer(
    hidden_BN: torch.Tensor,
    weights_M: torch.Tensor,
    label_B: torch.Tensor,
    num_samples_1: torch.Tensor,
    scale: float,
    hidden_grad_BN: torch.Tensor,
    partials_KM: torch.Tensor,
    losses_K: torch.Tensor,
    grad_M: torch.Tensor,
    loss_1: torch.Tensor,
) -> None:
    """Pass the last layer, which has one output, forward to the log loss and backward.

    Args:
        hidden_BN: any float type; its inputs.
        weights_M: float32; M = N + 1 numbers, the bias last.
        label_B: any type, each 0 or 1.
        num_samples_1: int32.
        scale: one over the nominal batch size; the gradient of a logit is ``(sigmoid(z) - y) * scale``.
        hidden_grad_BN: as ``hidden``, written; zeros behind the batch.
        partials_KM: (ceil(B / `LOSS_BLOCK`), M) float32, workspace.
        losses_K: as many float64, workspace.
        grad_M: float32, written.
        loss_1: float64, written; nats, summed over the samples.

    Error:
        Logits and gradients are float32, losses are computed and added in float64. Sums are those of
        `LOSS_BLOCK` samples, then of the blocks, in an order that depends on the shape alone.
    """
    # Forward: one logit for each sample, none of those behind the batch.
    is_live = is_sample(hidden_BN.shape[0], num_samples_1)
    hidden = torch.where(is_live.unsqueeze(1), hidden_BN, 0.0).float()
    logits = hidden @ weights_M[:-1] + weights_M[-1]
    wide = logits.double()
    labels = torch.where(is_live, label_B, 0)
    # An exponent that is not positive, so that none overflows.
    small = torch.exp(-wide.abs())
    losses = wide.clamp(min=0) - wide * labels + torch.log1p(small)
    loss_1.copy_(torch.where(is_live, losses, 0.0).sum())
    # Backward: the sigmoid less the label, divided by the nominal batch size.
    small_32 = small.float()
    chances = torch.where(logits >= 0, torch.ones_like(small_32), small_32) / (1 + small_32)
    grad_B = torch.where(is_live, (chances - labels.float()) * scale, 0.0)
    hidden_grad_BN.copy_(grad_B.unsqueeze(1) * weights_M[:-1])
    grad_M[:-1] = grad_B @ hidden
    grad_M[-1] = grad_B.sum()


def relu_backward(
    grad_BN: torch.Tensor, outputs_BN: torch.Tensor, partials_KN: torch.Tensor, bias_grad_N: torch.Tensor
) -> None:
    """Set gradients to zero where ReLU was, in place, and sum them by column for the bias.

    Args:
        grad_BN: any float type; gradient by the layer's outputs, then by its sums. Zeros behind the batch.
        outputs_BN: of the same type; what ReLU left.
        partials_KN: (ceil(B / `BIAS_BLOCK`), N) float32, workspace.
        bias_grad_N: float32, written.

    Error:
        Sums of `BIAS_BLOCK` samples, then of the blocks, in float32, in an order that depends on the shape
        alone. The mask is exact.
    """
    grad_BN.masked_fill_(outputs_BN <= 0, 0)
    bias_grad_N.copy_(grad_BN.float().sum(0))


def step_dense(
    rule: DenseRule,
    rates_2: torch.Tensor,
    weights_N: torch.Tensor,
    grad_N: torch.Tensor,
    states_KN: torch.Tensor,
    rounded_N: torch.Tensor | None,
) -> None:
    """Take one optimizer step on all dense parameters, which are one vector.

    Args:
        rule: the optimizer.
        rates_2: float32; `DenseRule.rates` of the step.
        weights_N: float32, updated.
        grad_N: float32.
        states_KN: (`DenseRule.num_states`, N) float32, updated.
        rounded_N: bfloat16, written, the weights rounded to nearest; None: not wanted.

    Error:
        Every operation is rounded on its own, as `row_steps` does.
    """
    rate, root_scale = rates_2[0], rates_2[1]
    if rule.decay:
        grad_N = grad_N + weights_N * rule.decay
    if rule.name == "sgd":
        weights_N.sub_(grad_N * rate)
    elif rule.name == "adagrad":
        states_KN[0] += grad_N * grad_N
        weights_N.sub_(grad_N * rate / (exact_sqrt(states_KN[0]) + rule.eps))
    else:
        keep, take = rule.keep, rule.take
        states_KN[0] = states_KN[0] * keep[0] + grad_N * take[0]
        states_KN[1] = states_KN[1] * keep[1] + grad_N * grad_N * take[1]
        weights_N.sub_(states_KN[0] * rate / (exact_sqrt(states_KN[1]) / root_scale + rule.eps))
    if rounded_N is not None:
        rounded_N.copy_(weights_N)


def _vectors(
    weights_SD: torch.Tensor,
    slots_BF: torch.Tensor,
    num_samples_1: torch.Tensor,
    bottom_BD: torch.Tensor | None,
    dtype: torch.dtype,
) -> torch.Tensor:
    """(B, V, D) vectors that interact, zeros behind the batch."""
    rows_BFD = gathered_rows(weights_SD, slots_BF, num_samples_1).to(dtype)
    if bottom_BD is None:
        return rows_BFD
    is_live = is_sample(slots_BF.shape[0], num_samples_1).unsqueeze(1)
    bottom = torch.where(is_live, bottom_BD, 0.0).to(dtype)
    return torch.cat([bottom.unsqueeze(1), rows_BFD], dim=1)
