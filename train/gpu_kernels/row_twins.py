"""Kernels over rows with torch, on any device: what each Triton kernel is held against, and used instead of.

They give the bits of the host's own kernels on the CPU. They wait for the numbers of a batch, so a step with
one of them cannot be recorded. Shapes as in `batch_lists`; P = B * F.
"""

from __future__ import annotations

import torch

from ..rows.initial_values import initial_values_with_torch
from ..rows.row_backends import segment_sums
from ..rows.row_kernels import BLOCK_SAMPLES
from ..rows.row_optimizers import RowOptimizer
from ..rows.row_steps import step_with_torch
from .batch_lists import BatchLists, DecodedBatch, RowMoves, RowTensors, SeedTables, SlotLayout, StepNumbers


def decode_batch(lists: BatchLists, layout: SlotLayout, decoded: DecodedBatch) -> None:
    """Write the slot of every distinct row and of every lookup, and number lookups over all tables.

    Args:
        lists: of a batch.
        layout: where rows of the fast tier are.
        decoded: written as far as the batch goes; samples behind it get -1.
    """
    # The table of each distinct row; rows lie table after table.
    num_samples = int(lists.num_samples_1)
    num_rows = int(lists.row_offsets_F1[-1])
    num_tables = layout.base_F.numel()
    row_offsets = lists.row_offsets_F1.long()
    tables_U = _tables_of(torch.arange(num_rows, device=row_offsets.device), row_offsets)
    # Numbers within a table become numbers over all tables.
    starts_U = lists.starts_U[:num_rows].long() + lists.order_offsets_F1.long()[tables_U]
    decoded.starts_U1[:num_rows] = starts_U.int()
    decoded.starts_U1[num_rows] = lists.order_offsets_F1[-1]
    # Positions within a table become positions among all rows.
    long_rows = torch.arange(int(lists.long_offsets_F1[-1]), device=row_offsets.device)
    tables_L = _tables_of(long_rows, lists.long_offsets_F1.long())
    decoded.long_rows_L[: long_rows.numel()] = (
        lists.long_rows_L[: long_rows.numel()] + lists.row_offsets_F1[:-1][tables_L]
    )

    # The last rows of a table are the ones that do not live here.
    slots_U = layout.base_F[tables_U] + lists.rows_U[:num_rows] - layout.first_F[tables_U]
    num_staged = lists.staged_offsets_F1.diff().long()
    first_staged = row_offsets[1:] - num_staged
    number_U = torch.arange(num_rows, device=row_offsets.device)
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
    """Copy the row of each lookup; zeros for a slot of -1 and for samples behind the batch.

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
    """Sum the gradients of every distinct row: within blocks of samples, then over the blocks, in order.

    Args:
        lists: of a batch.
        decoded: the same.
        grad_BFD: float32; gradient of each lookup.
        partials_LKD: float32, workspace of `BatchRoom.new_partials`.
        sums_UD: float32, written as far as there are rows.

    Error:
        The bits of `row_kernels.sum_gradients`.
    """
    # The row of each lookup, and the block of samples that it lies in.
    num_samples = int(lists.num_samples_1)
    num_rows = int(lists.row_offsets_F1[-1])
    num_tables = grad_BFD.shape[1]
    lookups_U = decoded.starts_U1[: num_rows + 1].diff().long()
    rows_N = torch.arange(num_rows, device=lookups_U.device).repeat_interleave(lookups_U)
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
    """Sum the gradients of every distinct row, and take one optimizer step on those that have a slot.

    Args:
        lists: of a batch.
        decoded: the same.
        grad_BFD: float32; gradient of each lookup.
        partials_LKD: float32, workspace of `BatchRoom.new_partials`.
        optimizer: that of the rows.
        numbers: those of the step.
        rows: updated.

    Error:
        The bits of `row_kernels.sum_gradients` and `row_steps.step_with_numba`.
    """
    sums_UD = torch.empty(decoded.slots_U.numel(), grad_BFD.shape[2], device=grad_BFD.device)
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
    """Take one optimizer step on the first ``count_1`` of some rows, none twice, that have a slot."""
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
    tables_N = torch.arange(num_tables, device=order_N.device).repeat_interleave(num_samples)
    return order_N * num_tables + tables_N


def _tables_of(numbers: torch.Tensor, offsets_F1: torch.Tensor) -> torch.Tensor:
    """The table of each entry of lists that lie one behind the other."""
    return torch.searchsorted(offsets_F1, numbers, right=True) - 1


def is_sample(num_samples: int, num_samples_1: torch.Tensor) -> torch.Tensor:
    return torch.arange(num_samples, device=num_samples_1.device) < num_samples_1
