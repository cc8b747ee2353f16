"""Torch twins of the Triton kernels, and the choice between them.

The twins give the bits of the host's kernels on the CPU. They wait for the numbers of a batch, so a step with
one of them cannot be recorded. `kernel_of` runs each kernel by Triton or by its twin: a kernel that is broken
on some machine then costs an option and speed, not the run. All write to given tensors and return nothing;
the docstring of a twin says what its kernel does.

The optimizer steps all dense parameters as one vector. The numbers of a step are a tensor of the device, so
that a step that was recorded once runs with any learning rate.

Shapes as in `packed_batch`: B samples, F tables, P = B * F; D embedding_dim, V = F + 1 vectors that interact
(F without a bottom MLP), N outputs of a layer. In the kernels around the dense layers P is the number of
inputs of the top MLP, padded as the kernels of matrix products want them.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ConfigError
from ..model.dlrm import pair_positions
from ..rows.backends import (
    ADAGRAD_EPS,
    ADAM_BETAS,
    ADAM_EPS,
    ADAM_KEEP,
    ADAM_TAKE,
    RowOptimizer,
    exact_sqrt,
    segment_sums,
    step_with_torch,
)
from ..rows.kernels import BLOCK_SAMPLES
from ..rows.tiers import initial_values_with_torch
from .packed_batch import BatchLists, DecodedBatch, RowMoves, RowTensors, SeedTables, SlotLayout, StepNumbers


def decode_batch(lists: BatchLists, layout: SlotLayout, decoded: DecodedBatch) -> None:
    """Write the slots of distinct rows and lookups; number lookups over tables.

    Args:
        lists: of a batch.
        layout: where rows of the fast tier are.
        decoded: written as far as the batch goes; padding samples get -1.
    """
    # The table of each distinct row; rows lie table after table.
    num_samples = int(lists.num_samples_1)
    num_rows = int(lists.row_offsets_F1[-1])
    num_tables = layout.base_F.numel()
    row_offsets = lists.row_offsets_F1.long()
    tables_U = _tables_of(torch.arange(num_rows, device=row_offsets.device, dtype=torch.int64), row_offsets)
    # Numbers within a table become numbers over all tables.
    starts_U = lists.starts_U[:num_rows].long() + lists.order_offsets_F1.long()[tables_U]
    decoded.starts_U1[:num_rows] = starts_U.int()
    decoded.starts_U1[num_rows] = lists.order_offsets_F1[-1]
    # Positions within a table become positions among all rows.
    long_rows = torch.arange(int(lists.long_offsets_F1[-1]), device=row_offsets.device, dtype=torch.int64)
    tables_L = _tables_of(long_rows, lists.long_offsets_F1.long())
    decoded.long_rows_L[: long_rows.numel()] = (
        lists.long_rows_L[: long_rows.numel()] + lists.row_offsets_F1[:-1][tables_L]
    )

    # The last rows of a table are the ones that do not live here.
    slots_U = layout.base_F[tables_U] + lists.rows_U[:num_rows] - layout.first_F[tables_U]
    num_staged = lists.staged_offsets_F1.diff().long()
    first_staged = row_offsets[1:] - num_staged
    number_U = torch.arange(num_rows, device=row_offsets.device, dtype=torch.int64)
    is_staged = number_U >= first_staged[tables_U]
    positions = lists.staged_offsets_F1.long()[tables_U] + number_U - first_staged[tables_U]
    slots_U[is_staged] = lists.staged_C[positions[is_staged]]
    decoded.slots_U[:num_rows] = slots_U

    # The slot of a row is that of all its lookups, put at their places by sample and table.
    lookups_U = decoded.starts_U1[: num_rows + 1].diff().long()
    slots_N = slots_U.repeat_interleave(lookups_U)
    decoded.slots_BF[num_samples:] = -1
    decoded.slots_BF.view(-1)[_positions(lists, num_samples, num_tables)] = slots_N


def gather_rows(
    weights_SD: torch.Tensor, slots_BF: torch.Tensor, num_samples_1: torch.Tensor, vectors_BFD: torch.Tensor
) -> None:
    """Copy the row of each lookup; zeros for slot -1 and padding.

    Args:
        weights_SD: float32.
        slots_BF: int32.
        num_samples_1: int32.
        vectors_BFD: float32, written.
    """
    vectors_BFD.copy_(gathered_rows(weights_SD, slots_BF, num_samples_1))


def gathered_rows(
    weights_SD: torch.Tensor, slots_BF: torch.Tensor, num_samples_1: torch.Tensor
) -> torch.Tensor:
    """Return what `gather_rows` writes."""
    is_live = (slots_BF >= 0) & is_sample(slots_BF.shape[0], num_samples_1).unsqueeze(1)
    slots_P = torch.where(is_live, slots_BF, 0).long().flatten()
    vectors_BFD = weights_SD.index_select(0, slots_P).view(*slots_BF.shape, -1)
    return torch.where(is_live.unsqueeze(2), vectors_BFD, 0.0)


def sum_gradients(
    lists: BatchLists,
    decoded: DecodedBatch,
    grad_BFD: torch.Tensor,
    partials_LKD: torch.Tensor,
    sums_UD: torch.Tensor,
) -> None:
    """Sum the gradients of every distinct row, by blocks of samples.

    Sums are within blocks, then over the blocks, in order.

    Args:
        lists: of a batch.
        decoded: the same.
        grad_BFD: float32; gradient of each lookup.
        partials_LKD: float32, workspace of `BatchRoom.new_partials`.
        sums_UD: float32, written as far as there are rows.

    Error:
        The bits of `kernels.sum_gradients`.
    """
    # The row of each lookup, and its block of samples.
    num_samples = int(lists.num_samples_1)
    num_rows = int(lists.row_offsets_F1[-1])
    num_tables = grad_BFD.shape[1]
    lookups_U = decoded.starts_U1[: num_rows + 1].diff().long()
    rows_N = torch.arange(num_rows, device=lookups_U.device, dtype=torch.int64).repeat_interleave(lookups_U)
    positions_N = _positions(lists, num_samples, num_tables)
    blocks_N = positions_N // (BLOCK_SAMPLES * num_tables)
    sums_ND = segment_sums(rows_N, positions_N, [blocks_N], grad_BFD.flatten(0, 1))
    sums_UD[:num_rows] = sums_ND[:num_rows]


def sum_and_step(
    lists: BatchLists,
    decoded: DecodedBatch,
    grad_BFD: torch.Tensor,
    partials_LKD: torch.Tensor,
    optimizer: RowOptimizer,
    numbers: StepNumbers,
    rows: RowTensors,
) -> None:
    """Sum the gradients of every distinct row, and update those with a slot.

    Args:
        lists: of a batch.
        decoded: the same.
        grad_BFD: float32; gradient of each lookup.
        partials_LKD: float32, workspace of `BatchRoom.new_partials`.
        optimizer: that of the rows.
        numbers: those of the step.
        rows: updated.

    Error:
        The bits of `kernels.sum_gradients` and `backends.step_with_numba`.
    """
    sums_UD = torch.empty(
        decoded.slots_U.numel(), grad_BFD.shape[2], device=grad_BFD.device, dtype=torch.float32
    )
    sum_gradients(lists, decoded, grad_BFD, partials_LKD, sums_UD)
    _step_rows(lists.row_offsets_F1[-1:], decoded.slots_U, sums_UD, optimizer, numbers, rows)


def _step_rows(
    count_1: torch.Tensor,
    slots_U: torch.Tensor,
    sums_UD: torch.Tensor,
    optimizer: RowOptimizer,
    numbers: StepNumbers,
    rows: RowTensors,
) -> None:
    """Take one optimizer step on rows that have a slot.

    The rows are the first ``count_1``, none twice.
    """
    slots = slots_U[: int(count_1)].long()
    is_here = slots >= 0
    step_with_torch(
        optimizer,
        rows.weights_SD,
        rows.state_SW,
        slots[is_here],
        sums_UD[: slots.numel()][is_here],
        numbers.rates_T,
        numbers.root_scales_T,
    )


def move_rows(moves: RowMoves, source: RowTensors, target: RowTensors) -> None:
    """Copy rows with their state, exactly.

    Args:
        moves: which rows, and where to.
        source: where they are; on another device than ``target`` it is read by its lists there.
        target: written.
    """
    # Weights first, then the optimizer state.
    sources_N, targets_N = _lists_of(moves)
    for source_SW, target_SW in zip(source, target, strict=True):
        moved_NW = source_SW.index_select(0, sources_N.to(source_SW.device))
        target_SW.index_copy_(0, targets_N.to(target_SW.device), moved_NW.to(target_SW.device))


def make_rows(moves: RowMoves, seeds: SeedTables, rows: RowTensors) -> None:
    """Write the initial values of rows, and no state: the bits of `InitialValues.write`.

    Args:
        moves: slots of the tier where the rows live, and the rows of ``rows`` that they become.
        seeds: that tier's.
        rows: written.
    """
    homes, targets_N = _lists_of(moves)
    # Of several tables with one base all but the last are empty.
    tables = torch.searchsorted(seeds.base_F.long(), homes, right=True) - 1
    ids = homes - seeds.base_F[tables] + seeds.first_F[tables]
    dim = rows.weights_SD.shape[1]
    values_ND = initial_values_with_torch(seeds.streams_F[tables], ids, seeds.bounds_F[tables], dim)
    rows.weights_SD.index_copy_(0, targets_N, values_ND)
    rows.state_SW.index_fill_(0, targets_N, 0)


def _lists_of(moves: RowMoves) -> tuple[torch.Tensor, torch.Tensor]:
    """(N,) int64, the rows of the source and of the target."""
    count, first_source, first_target = moves.place_3.tolist()
    sources_N = moves.sources_N[first_source : first_source + count]
    targets_N = moves.targets_N[first_target : first_target + count]
    return sources_N.long(), targets_N.long()


def _positions(lists: BatchLists, num_samples: int, num_tables: int) -> torch.Tensor:
    """(N,) int64, ``sample * F + table`` of each lookup in ``order``."""
    order_N = lists.order_N[: num_samples * num_tables].long()
    tables_N = torch.arange(num_tables, device=order_N.device, dtype=torch.int64).repeat_interleave(
        num_samples
    )
    return order_N * num_tables + tables_N


def _tables_of(numbers: torch.Tensor, offsets_F1: torch.Tensor) -> torch.Tensor:
    """Return the table of each entry of concatenated lists."""
    return torch.searchsorted(offsets_F1, numbers, right=True) - 1


def is_sample(num_samples: int, num_samples_1: torch.Tensor) -> torch.Tensor:
    return torch.arange(num_samples, device=num_samples_1.device, dtype=torch.int64) < num_samples_1


Kernel = Callable[..., None]

KERNELS = {
    "decode_batch": "batch_kernels",
    "gather_rows": "batch_kernels",
    "sum_gradients": "row_kernels",
    "sum_and_step": "row_kernels",
    "move_rows": "batch_kernels",
    "make_rows": "batch_kernels",
    "gather_dots": "dense_kernels",
    "gather_dots_backward": "dense_kernels",
    "last_layer": "dense_kernels",
    "relu_backward": "dense_kernels",
    "step_dense": "dense_kernels",
}
"""The module of each kernel in Triton; its twin has the same name in this one."""
ENGINES = ("triton", "torch")


def choose_kernels(device: torch.device, wanted: str = "") -> dict[str, Kernel]:
    """Return every kernel by name: Triton's where installed, else twins.

    Triton runs on a GPU alone.

    Args:
        device: where they run.
        wanted: exceptions, ``ENGINE:KERNEL`` with commas between, such as ``torch:gather_dots``; ``torch``
            alone is all of them. Triton runs on the host, too, with ``TRITON_INTERPRET=1``, for tests.

    Raises:
        ConfigError: no such engine or kernel, or Triton where it cannot run.
    """
    engines = dict.fromkeys(KERNELS, "triton" if device.type == "cuda" and _has_triton() else "torch")
    for word in wanted.split(",") if wanted else ():
        engine, _, name = word.strip().partition(":")
        if engine not in ENGINES or (name and name not in KERNELS):
            names = ", ".join(KERNELS)
            raise ConfigError(
                f"no kernel {word.strip()!r}: want triton or torch, or ENGINE:KERNEL of {names}"
            )
        if engine == "triton" and not (_has_triton() and (device.type == "cuda" or _is_interpreted())):
            raise ConfigError(f"{word.strip()!r} needs a GPU and the package triton; the device is {device}")
        engines |= dict.fromkeys([name] if name else KERNELS, engine)
    return {name: kernel_of(name, engine) for name, engine in engines.items()}


def kernel_of(name: str, engine: str) -> Kernel:
    """Return one kernel; Triton is imported with the first Triton kernel."""
    module = KERNELS[name] if engine == "triton" else "twins"
    kernel: Any = getattr(importlib.import_module(f".{module}", __package__), name)
    return kernel  # type: ignore[no-any-return]


def is_twin(kernel: Callable[..., object]) -> bool:
    """Return whether a kernel waits for the device, as twins do, and so cannot be recorded."""
    # Methods of tensors are of no module.
    return kernel.__module__ == __name__


def _has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


def _is_interpreted() -> bool:
    """Return whether Triton's interpreter runs its kernels, on the host."""
    return os.environ.get("TRITON_INTERPRET") == "1"


DenseOptimizerName = Literal["sgd", "adagrad", "adam"]


@dataclass(frozen=True, slots=True)
class DenseRule:
    """The optimizer of all dense parameters, by torch's formulas.

    The order of operations is that of rows.
    """

    name: DenseOptimizerName
    decay: float = 0.0
    """Share of the weights that is added to their gradient."""

    @property
    def num_states(self) -> int:
        """Return how many numbers of state each weight has."""
        return {"sgd": 0, "adagrad": 1, "adam": 2}[self.name]

    @property
    def eps(self) -> float:
        """The number added to roots, a float32."""
        return float(np.float32(ADAM_EPS if self.name == "adam" else ADAGRAD_EPS))

    @property
    def keep(self) -> tuple[float, float]:
        """Shares of Adam's averages that stay, float32 values."""
        return float(ADAM_KEEP[0]), float(ADAM_KEEP[1])

    @property
    def take(self) -> tuple[float, float]:
        """Shares of the gradient and of its square that are added to them, float32 values."""
        return float(ADAM_TAKE[0]), float(ADAM_TAKE[1])

    def rates(self, rate: float, step: int) -> NDArray[np.float32]:
        """The (2,) numbers of a step: learning rate, and 1; of Adam both corrected for bias.

        Args:
            rate: learning rate.
            step: steps of the run, this one included.
        """
        if self.name != "adam":
            return np.array([rate, 1], np.float32)
        first, second = (1 - beta**step for beta in ADAM_BETAS)
        return np.array([rate / first, math.sqrt(second)], np.float32)


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
    """Write the inputs of the top MLP: bottom output, dots of pairs, zeros.

    Args:
        weights_SD: float32.
        slots_BF: int32; -1: a vector of zeros.
        num_samples_1: int32; padding samples become zeros.
        bottom_BD: of the type of ``inputs``; None: rows interact alone.
        inputs_BP: float32, float16 or bfloat16, written. Vectors are rounded to this type before their
            products, which are added in float32.

    Error:
        A dot is off by at most ``D * 2**-24`` of the sum of magnitudes, in addition to the rounding of its
        factors.
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
    """Write the vectors' gradients from those of the top MLP's inputs.

    Rows are gathered again.

    Args:
        weights_SD: float32.
        slots_BF: int32.
        num_samples_1: int32.
        bottom_BD: that of `gather_dots`.
        grad_BP: of the same type.
        grad_BFD: float32, written; arbitrary for padding samples.
        bottom_grad_BD: as ``bottom``, written; zeros for padding samples.
    """
    vectors_BVD = _vectors(weights_SD, slots_BF, num_samples_1, bottom_BD, grad_BP.dtype).float()
    num_samples, num_vectors, dim = vectors_BVD.shape
    # The gradients of the dots follow those of the bottom MLP's output.
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
    """Run the last layer, of one output, to the loss and backward.

    Args:
        hidden_BN: any float type; its inputs.
        weights_M: float32; M = N + 1 numbers, the bias last.
        label_B: any type, each 0 or 1.
        num_samples_1: int32.
        scale: one over the nominal batch size; the gradient of a logit is ``(sigmoid(z) - y) * scale``.
        hidden_grad_BN: as ``hidden``, written; zeros for padding samples.
        partials_KM: (ceil(B / `LOSS_BLOCK`), M) float32, workspace.
        losses_K: as many float64, workspace.
        grad_M: float32, written.
        loss_1: float64, written; nats, summed over the samples.

    Error:
        Logits and gradients are float32, losses are computed and added in float64. Sums are those of
        `LOSS_BLOCK` samples, then of the blocks, in an order that depends on the shape alone.
    """
    # Forward: one logit for each sample, none for padding.
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
    """Zero gradients where ReLU was, in place, and sum columns for the bias.

    Args:
        grad_BN: any float type; gradient by the layer's outputs, then by its sums. Zeros for padding samples.
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
        Every operation is rounded on its own, as `rows.backends` does.
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
    """Return the (B, V, D) vectors that interact, zeros for padding samples."""
    rows_BFD = gathered_rows(weights_SD, slots_BF, num_samples_1).to(dtype)
    if bottom_BD is None:
        return rows_BFD
    is_live = is_sample(slots_BF.shape[0], num_samples_1).unsqueeze(1)
    bottom = torch.where(is_live, bottom_BD, 0.0).to(dtype)
    return torch.cat([bottom.unsqueeze(1), rows_BFD], dim=1)
