"""The lists of a batch that kernels read: tensors of the device, as they are sent and as they are decoded.

Every tensor has room for the largest batch, so that addresses and shapes are the same in all steps; what lies
behind the end of a batch is anything and is never used. The ends themselves are numbers on the device, so
that no step waits for one. B samples, F tables, N lookups (one of each table in a sample), U distinct rows, L
rows with a long list, C distinct rows that do not live on the fast tier, S slots.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ...stats.batch_rows import LONG_LOOKUPS
from ..rows.initial_values import InitialValues
from ..rows.row_kernels import BLOCK_SAMPLES
from ..rows.tiers import Layout


class BatchLists(NamedTuple):
    """The lookups of a batch by row one feature a table.

    Lists of all tables lie one behind the other, and offsets say where those of a table begin.
    """

    num_samples_1: torch.Tensor
    """int32; samples of this batch, at most B."""
    order_N: torch.Tensor
    """uint16 or int32; sample of each lookup, ascending in a row."""
    order_offsets_F1: torch.Tensor
    """int32; ``num_samples`` times the number of the table."""
    rows_U: torch.Tensor
    """int32; ids of the distinct rows, ascending in a table."""
    row_offsets_F1: torch.Tensor
    """int32; of ``rows`` and ``starts``."""
    starts_U: torch.Tensor
    """uint16 or int32; where the lookups of each row begin among those of its table."""
    long_rows_L: torch.Tensor
    """int32; positions among the rows of a table of those with more than `LONG_LOOKUPS` lookups."""
    long_offsets_F1: torch.Tensor
    """int32."""
    staged_C: torch.Tensor
    """int32; slot of each distinct row that does not live on the fast tier, in the order of ``rows``; -1
    where it has none, and no kernel touches it."""
    staged_offsets_F1: torch.Tensor
    """int32; such rows are the last ones of their table, because ids are ranks."""


class SlotLayout(NamedTuple):
    """Where the rows are that live on the fast tier: `Layout` on the device."""

    first_F: torch.Tensor
    """int32; first id of each table that lives there."""
    base_F: torch.Tensor
    """int32; slot of that id."""

    @classmethod
    def of(cls, layout: Layout, device: torch.device) -> SlotLayout:
        """Copy a layout to the device.

        Raises:
            ValueError: slots beyond 32 bits.
        """
        # Kernels take slots and ids of 32 bits, which halves what they read.
        if layout.num_own_slots >= 1 << 31:
            raise ValueError(f"{layout.num_own_slots} slots, want less than {1 << 31}")
        return cls(
            torch.from_numpy(layout.first_F).to(torch.int32).to(device),
            torch.from_numpy(layout.base_F).to(torch.int32).to(device),
        )


class DecodedBatch(NamedTuple):
    """The lists that `decode_batch` writes, and the other kernels read."""

    slots_BF: torch.Tensor
    """int32; slot of each lookup, -1 where its row has none."""
    slots_U: torch.Tensor
    """int32; slot of each distinct row, likewise."""
    starts_U1: torch.Tensor
    """int32; where the lookups of each row begin in ``order``, and the end of the last."""
    long_rows_L: torch.Tensor
    """int32; positions among all distinct rows of those with a long list."""


@dataclass(frozen=True, slots=True)
class BatchRoom:
    """The largest batch that kernels have room for."""

    num_samples: int
    num_tables: int
    num_rows: int
    """Distinct rows."""
    num_long: int
    """Rows with more than `LONG_LOOKUPS` lookups."""
    num_staged: int
    """Distinct rows that do not live on the fast tier."""

    def __post_init__(self) -> None:
        if self.num_lookups >= 1 << 31:
            raise ValueError(
                f"{self.num_samples} samples of {self.num_tables} tables, want less than {1 << 31}"
            )

    @classmethod
    def of_any_batch(cls, num_samples: int, num_tables: int) -> BatchRoom:
        """The room for whatever lookups so many samples have."""
        lookups = num_samples * num_tables
        return cls(num_samples, num_tables, lookups, lookups // (LONG_LOOKUPS + 1), lookups)

    @property
    def num_lookups(self) -> int:
        """One of each table in a sample."""
        return self.num_samples * self.num_tables

    @property
    def number_dtype(self) -> torch.dtype:
        """Type of numbers within a table, as they are stored."""
        return torch.uint16 if self.num_samples <= 1 << 16 else torch.int32

    def new_lists(self, device: torch.device) -> BatchLists:
        """Allocate lists."""
        # Zeros: lists of no lookups, until a batch is copied over them.
        offsets = self.num_tables + 1
        numbers = self.number_dtype
        return BatchLists(
            num_samples_1=_integers(1, device),
            order_N=torch.zeros(self.num_lookups, dtype=numbers, device=device),
            order_offsets_F1=_integers(offsets, device),
            rows_U=_integers(self.num_rows, device),
            row_offsets_F1=_integers(offsets, device),
            starts_U=torch.zeros(self.num_rows, dtype=numbers, device=device),
            long_rows_L=_integers(self.num_long, device),
            long_offsets_F1=_integers(offsets, device),
            staged_C=_integers(self.num_staged, device),
            staged_offsets_F1=_integers(offsets, device),
        )

    def new_decoded(self, device: torch.device) -> DecodedBatch:
        """Allocate what is decoded from lists."""
        # One more start than there are rows, for the end of the last row's lookups.
        return DecodedBatch(
            slots_BF=_integers(self.num_samples * self.num_tables, device).view(self.num_samples, -1),
            slots_U=_integers(self.num_rows, device),
            starts_U1=_integers(self.num_rows + 1, device),
            long_rows_L=_integers(self.num_long, device),
        )

    def new_partials(self, embedding_dim: int, device: torch.device) -> torch.Tensor:
        """Allocate (L, K, D) float32, the sums of rows with long lists in each of K blocks of samples."""
        num_blocks = -(-self.num_samples // BLOCK_SAMPLES)
        return torch.empty(self.num_long, num_blocks, embedding_dim, device=device)


class RowTensors(NamedTuple):
    """Rows with their optimizer state; on the device, or on the host in pinned memory."""

    weights_SD: torch.Tensor
    """float32."""
    state_SW: torch.Tensor
    """float32; W is 0 where the optimizer keeps none."""


class RowMoves(NamedTuple):
    """Rows that go from one place to another: those behind the end are not touched.

    Where the lists begin is read on the device, so that lists of any step may lie in the same memory, and
    their moves be recorded.
    """

    place_3: torch.Tensor
    """int32; how many, and where they begin in ``sources`` and in ``targets``."""
    sources_N: torch.Tensor
    """int32; rows of the source."""
    targets_N: torch.Tensor
    """int32; rows of the target, none twice."""


class SeedTables(NamedTuple):
    """Where the initial values of rows come from: `InitialValues` and the layout of the tier they live on."""

    first_F: torch.Tensor
    """int32; first id of each table on the tier."""
    base_F: torch.Tensor
    """int32; slot of that id."""
    streams_F: torch.Tensor
    """int64, the bits of uint64; hash of (seed, table)."""
    bounds_F: torch.Tensor
    """float32; values of the table lie in (-bound, bound)."""

    @classmethod
    def of(cls, layout: Layout, initial: InitialValues, device: torch.device) -> SeedTables:
        """Copy both to the device.

        Raises:
            ValueError: slots beyond 32 bits.
        """
        slots = SlotLayout.of(layout, device)
        streams_F = torch.from_numpy(initial.streams_F.view(np.int64)).to(device)
        return cls(*slots, streams_F, torch.from_numpy(initial.bounds_F).to(device))


class StepNumbers(NamedTuple):
    """The numbers of one step of rows, on the device."""

    rates_T: torch.Tensor
    """float32; `RowOptimizer.step_rates`."""
    root_scales_T: torch.Tensor
    """float32; `RowOptimizer.root_scales`."""


def _integers(count: int, device: torch.device) -> torch.Tensor:
    return torch.zeros(count, dtype=torch.int32, device=device)
