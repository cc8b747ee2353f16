"""Lookups and updates of rows, once with Numba for the host and once with torch for any device.

Both do the same float32 operations in the same order, so on the CPU they give the same bits (a test holds
them against each other); the Numba one needs no sort and is several times faster there. On the GPU
nothing waits for the host: sizes that depend on ids are never read back.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batches.distinct_rows import find_distinct
from ..data.batch import BatchIds
from . import row_kernels
from .row_kernels import BLOCK_SAMPLES
from .row_optimizers import RowOptimizer
from .row_steps import TorchStep, step_with_numba
from .tiers import Tier

_HOST = torch.device("cpu")


@dataclass(frozen=True, slots=True)
class SlotLookups:
    """Lookups that one tier serves."""

    positions_N: NDArray[np.int64]
    """Where the vector of each is written, or where its gradient is read (that of its bag), ascending."""
    slots_N: NDArray[np.int64]
    """The slot each reads."""


class RowBackend(Protocol):
    """The work of the executor on one device."""

    def look_up(self, weights_SD: torch.Tensor, lookups: SlotLookups, vectors_PD: torch.Tensor) -> None:
        """Write each lookup's row of ``weights_SD`` to its position of ``vectors_PD``."""

    def pool(self, vectors_ND: torch.Tensor, ids: BatchIds, pooled_PD: torch.Tensor) -> None:
        """Sum the vectors of each bag in the order of its lookups."""

    def update(self, tier: Tier, lookups: SlotLookups, grad_PD: torch.Tensor, num_features: int) -> None:
        """Sum the gradients of each row looked up and take one optimizer step on it."""

    def sum_by_row(
        self,
        positions_N: NDArray[np.int64],
        inverse_N: NDArray[np.int32],
        num_distinct: int,
        grad_PD: torch.Tensor,
        num_features: int,
    ) -> torch.Tensor:
        """(num_distinct, D): summed gradient of each distinct row."""

    def apply(self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor) -> None:
        """Take one optimizer step on distinct rows whose gradients are summed already."""


class NumbaRows:
    """The host's back end: one pass over the lookups, rows found by hashing."""

    def __init__(self, optimizer: RowOptimizer) -> None:
        self._optimizer = optimizer

    def look_up(self, weights_SD: torch.Tensor, lookups: SlotLookups, vectors_PD: torch.Tensor) -> None:
        row_kernels.look_up(weights_SD.numpy(), lookups.slots_N, lookups.positions_N, vectors_PD.numpy())

    def pool(self, vectors_ND: torch.Tensor, ids: BatchIds, pooled_PD: torch.Tensor) -> None:
        assert ids.bags_N is not None
        row_kernels.pool_bags(vectors_ND.numpy(), ids.bags_N, pooled_PD.numpy())

    def update(self, tier: Tier, lookups: SlotLookups, grad_PD: torch.Tensor, num_features: int) -> None:
        slots_U, inverse_N = find_distinct(lookups.slots_N)
        sums_UD = self.sum_by_row(lookups.positions_N, inverse_N, slots_U.size, grad_PD, num_features)
        self.apply(tier, slots_U, sums_UD)

    def sum_by_row(
        self,
        positions_N: NDArray[np.int64],
        inverse_N: NDArray[np.int32],
        num_distinct: int,
        grad_PD: torch.Tensor,
        num_features: int,
    ) -> torch.Tensor:
        sums_UD = torch.empty(num_distinct, grad_PD.shape[1])
        row_kernels.sum_gradients(
            grad_PD.numpy(),
            positions_N,
            inverse_N,
            BLOCK_SAMPLES * num_features,
            torch.empty_like(sums_UD).numpy(),
            np.empty(num_distinct, np.int64),
            sums_UD.numpy(),
        )
        return sums_UD

    def apply(self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor) -> None:
        step_with_numba(
            self._optimizer, tier.weights_SD.numpy(), tier.state_SW.numpy(), slots_U, sums_UD.numpy()
        )


class TorchRows:
    """Any device's back end: a stable sort by row, then two levels of segment sums."""

    def __init__(self, optimizer: RowOptimizer, device: torch.device = _HOST) -> None:
        self._step = TorchStep(optimizer, device)

    def look_up(self, weights_SD: torch.Tensor, lookups: SlotLookups, vectors_PD: torch.Tensor) -> None:
        slots_N, positions_N = self._on(weights_SD.device, lookups.slots_N, lookups.positions_N)
        vectors_PD.index_copy_(0, positions_N, weights_SD.index_select(0, slots_N))

    def pool(self, vectors_ND: torch.Tensor, ids: BatchIds, pooled_PD: torch.Tensor) -> None:
        assert ids.bags_N is not None
        (lengths_P,) = self._on(vectors_ND.device, np.bincount(ids.bags_N, minlength=ids.num_bags))
        pooled_PD.copy_(_serial_sums(vectors_ND, lengths_P))

    def update(self, tier: Tier, lookups: SlotLookups, grad_PD: torch.Tensor, num_features: int) -> None:
        slots_N, positions_N = self._on(tier.device, lookups.slots_N, lookups.positions_N)
        # Stable, so that the lookups of a row stay in sample order.
        order = torch.argsort(slots_N, stable=True)
        slots_N = slots_N[order]
        positions_N = positions_N[order]
        sums_RD, rows_N = _segment_sums(slots_N, positions_N, grad_PD, BLOCK_SAMPLES * num_features)
        # Lookups of one row compute and write the same values, so no count of rows is needed here.
        self._step(tier.weights_SD, tier.state_SW, slots_N, sums_RD.index_select(0, rows_N))

    def sum_by_row(
        self,
        positions_N: NDArray[np.int64],
        inverse_N: NDArray[np.int32],
        num_distinct: int,
        grad_PD: torch.Tensor,
        num_features: int,
    ) -> torch.Tensor:
        inverse, positions = self._on(grad_PD.device, inverse_N, positions_N)
        rows_N, order = torch.sort(inverse, stable=True)
        sums_RD, _ = _segment_sums(rows_N, positions[order], grad_PD, BLOCK_SAMPLES * num_features)
        # Sorted by distinct row, so row i of the sums is distinct row i.
        return sums_RD[:num_distinct]

    def apply(self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor) -> None:
        (slots,) = self._on(tier.device, slots_U)
        self._step(tier.weights_SD, tier.state_SW, slots, sums_UD)

    @staticmethod
    def _on(device: torch.device, *arrays: NDArray[np.int64] | NDArray[np.int32]) -> list[torch.Tensor]:
        return [torch.from_numpy(array).to(device) for array in arrays]


def backend_of(device: torch.device, optimizer: RowOptimizer) -> RowBackend:
    """Numba on the host, torch elsewhere."""
    return NumbaRows(optimizer) if device.type == "cpu" else TorchRows(optimizer, device)


def _segment_sums(
    rows_N: torch.Tensor, positions_N: torch.Tensor, grad_PD: torch.Tensor, block_positions: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sum gradients within (row, block) and then within rows, each serially in sample order.

    Args:
        rows_N: (N,) int64 or int32, ascending.
        positions_N: (N,) int64, ascending within a row.
        grad_PD: (P, D) float32.
        block_positions: positions that a block of samples spans.

    Returns:
        (N, D) sums, one per distinct row, zero behind the last; (N,) the position of each lookup's row there.
    """
    # Where a new row begins, and where a new block of samples begins within a row.
    blocks_N = positions_N // block_positions
    starts_row = _differs_from_previous(rows_N)
    starts_block = starts_row | _differs_from_previous(blocks_N)
    row_of_lookup = starts_row.cumsum(0) - 1
    block_of_lookup = starts_block.cumsum(0) - 1
    # Lengths of the segments, found by counting: no size depends on ids, so nothing is read back from a GPU.
    lookups_in_block = torch.zeros_like(row_of_lookup).index_add_(
        0, block_of_lookup, torch.ones_like(row_of_lookup)
    )
    blocks_in_row = torch.zeros_like(row_of_lookup).index_add_(0, row_of_lookup, starts_block.long())
    # The same two levels as `row_kernels.sum_gradients`.
    sums_BD = _serial_sums(grad_PD.index_select(0, positions_N), lookups_in_block)
    return _serial_sums(sums_BD, blocks_in_row), row_of_lookup


def _serial_sums(values_ND: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    # On matrices segment_reduce adds one row after the other, on the CPU and on the GPU: a fixed order.
    return torch.segment_reduce(values_ND, "sum", lengths=lengths, axis=0, unsafe=True, initial=0.0)


def _differs_from_previous(values_N: torch.Tensor) -> torch.Tensor:
    differs = torch.ones_like(values_N, dtype=torch.bool)
    differs[1:] = values_N[1:] != values_N[:-1]
    return differs
