"""Batches for kernels of a GPU: lists as they are stored, poison behind their ends, and what is in them."""

# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from hotset.stats.batch_rows import (
    LONG_LOOKUPS,
    LookupsByRow,
    PackedLookups,
    group_lookups,
    of_matrix,
    pack_lookups,
)
from hotset.train.gpu.packed_batch import (
    BatchLists,
    BatchRoom,
    DecodedBatch,
    RowTensors,
    SlotLayout,
    StepNumbers,
)
from hotset.train.gpu.twins import kernel_of
from hotset.train.rows.backends import RowOptimizer
from hotset.train.rows.tiers import Layout

POISON = 0x7F7F7F7F
"""An integer that lies outside of everything, and of whose bits a float32 of 3e38 is made."""


GUARD = 7.0
"""Room before rows: where a kernel writes that takes a slot of -1 for one."""


@dataclass(frozen=True, slots=True)
class DrawnBatch:
    """A batch for kernels, and the same for the kernels of the host."""

    lists: BatchLists
    decoded: DecodedBatch
    layout: SlotLayout
    ids_BF: NDArray[np.int32]
    slots_BF: NDArray[np.int32]
    """Wanted slot of each lookup, without padding."""
    by_row: LookupsByRow
    """Lookups by position."""
    slots_U: NDArray[np.int64]
    """Wanted slot of each distinct row."""
    num_slots: int
    room: BatchRoom


def draw_batch(
    ids_BF: NDArray[np.int32],
    num_hot: NDArray[np.int64],
    rng: np.random.Generator,
    *,
    num_padding: int = 0,
    absent_share: float = 0.1,
    device: torch.device | None = None,
) -> DrawnBatch:
    """Make the batch of these ids: rows below ``num_hot`` live on the fast tier, the others are staged.

    Of the staged rows ``absent_share`` have no slot.
    """
    device = device or torch.device("cpu")
    num_samples, num_tables = ids_BF.shape
    num_rows = np.maximum(ids_BF.max(axis=0, initial=0).astype(np.int64) + 1, num_hot)
    layout = Layout.of([0] * num_tables, num_hot.tolist())
    by_row = group_lookups(of_matrix(ids_BF.reshape(-1), num_rows))
    slots_U, num_staged = layout.slots_of(by_row)
    is_staged = slots_U < 0
    staged = rng.permutation(num_staged).astype(np.int32) + np.int32(layout.num_own_slots)
    staged[rng.random(num_staged) < absent_share] = -1
    slots_U[is_staged] = staged

    num_long = int(np.count_nonzero(by_row.counts_U > LONG_LOOKUPS))
    num_long += 2 * (num_long > 0)
    room = BatchRoom(num_samples + num_padding, num_tables, by_row.num_rows + 5, num_long, num_staged + 3)
    lists = _stored_lists(by_row, num_samples, layout, room)
    _fill(lists.staged_C, staged)
    decoded = DecodedBatch(*map(poisoned, room.new_decoded(device)))
    slots_N = np.empty(by_row.order_N.size, np.int32)
    slots_N[by_row.order_N] = np.repeat(slots_U, by_row.counts_U)
    return DrawnBatch(
        BatchLists(*(each.to(device) for each in lists)),
        decoded,
        SlotLayout.of(layout, device),
        ids_BF,
        slots_N.reshape(num_samples, num_tables),
        by_row,
        slots_U,
        layout.num_own_slots + num_staged,
        room,
    )


def draw_ids(num_samples: int, num_tables: int, num_rows: int, rng: np.random.Generator) -> NDArray[np.int32]:
    """Draw (B, F) ids, few of them often."""
    ids = np.minimum(rng.zipf(1.3, (num_samples, num_tables)) - 1, num_rows - 1)
    return ids.astype(np.int32)


def draw_rows(
    optimizer: RowOptimizer, num_slots: int, dim: int, rng: np.random.Generator, device: torch.device
) -> RowTensors:
    """Draw rows and a state such as their optimizer leaves; before the first lies `GUARD`."""
    weights = rng.normal(size=(num_slots, dim)).astype(np.float32)
    state = np.square(rng.normal(size=(num_slots, optimizer.state_width(dim)))).astype(np.float32)
    if optimizer.name == "adam":
        # The corrections for bias end after 172 and 18,010 steps.
        state[:, -1] = rng.choice([0, 1, 170, 400, 30_000], num_slots)
    return RowTensors(*(_guarded(torch.from_numpy(values).to(device)) for values in (weights, state)))


def is_guarded(rows: RowTensors) -> bool:
    """Whether nothing was written before the rows."""
    return all(bool((each._base[0] == GUARD).all()) for each in rows if each._base is not None)


def _guarded(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.full_like(values[:1], GUARD), values])[1:]


def numbers_of(optimizer: RowOptimizer, device: torch.device) -> StepNumbers:
    """The numbers of a step at the optimizer's own rate."""
    rates = torch.from_numpy(optimizer.step_rates(optimizer.lr)).to(device)
    return StepNumbers(rates, torch.from_numpy(optimizer.root_scales).to(device))


def poisoned(tensor: torch.Tensor) -> torch.Tensor:
    """Fill a tensor with what no kernel may use, and return it."""
    return tensor.fill_(float("nan")) if tensor.is_floating_point() else tensor.fill_(POISON & 0x7F7F)


def _stored_lists(by_row: LookupsByRow, num_samples: int, layout: Layout, room: BatchRoom) -> BatchLists:
    """Return the lists of a batch on the host, but for the slots of staged rows."""
    lists = BatchLists(*map(poisoned, room.new_lists(torch.device("cpu"))))
    places = PackedLookups(*(getattr(lists, name).numpy() for name in PackedLookups._fields))
    pack_lookups(by_row, num_samples, layout.first_F, layout.last_F, places)
    _fill(lists.num_samples_1, np.array([num_samples]))
    _fill(lists.order_offsets_F1, np.arange(layout.num_tables + 1) * num_samples)
    _fill(lists.rows_U, by_row.rows_U)
    _fill(lists.row_offsets_F1, by_row.first_F1)
    return lists


def _fill(tensor: torch.Tensor, values: NDArray[np.generic]) -> None:
    tensor[: values.size] = torch.from_numpy(values.astype(np.int64)).to(tensor.dtype)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Kernels by name, and what they are called with on their device."""

    engine: str
    device: torch.device
    rng: np.random.Generator

    def run(self, name: str, *arguments: Any) -> None:
        """Call one kernel."""
        kernel_of(name, self.engine)(*arguments)

    def normal(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Draw numbers."""
        values = self.rng.normal(size=shape).astype(np.float32)
        return torch.from_numpy(values).to(self.device).to(dtype)

    def empty(self, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        """Return a tensor of poison."""
        return poisoned(torch.empty(shape, dtype=dtype, device=self.device))

    def count(self, number: int) -> torch.Tensor:
        """Return a number that is read on the device."""
        return torch.tensor([number], dtype=torch.int32, device=self.device)

    def batch(self, ids_BF: NDArray[np.int32], num_hot: list[int], **fields: Any) -> DrawnBatch:
        """Draw the batch of these ids, and decode it."""
        batch = draw_batch(ids_BF, np.array(num_hot), self.rng, device=self.device, **fields)
        self.run("decode_batch", batch.lists, batch.layout, batch.decoded)
        return batch

    def rows(self, optimizer: RowOptimizer, num_slots: int, dim: int) -> RowTensors:
        """Draw rows and a state."""
        return draw_rows(optimizer, num_slots, dim, self.rng, self.device)

    def gradients(self, batch: DrawnBatch, dim: int) -> torch.Tensor:
        """Draw gradients of a batch, and poison behind them."""
        grad_BFD = self.empty(batch.room.num_samples, batch.room.num_tables, dim)
        grad_BFD[: batch.ids_BF.shape[0]] = self.normal(*batch.ids_BF.shape, dim)
        return grad_BFD

    def step(
        self, batch: DrawnBatch, grad_BFD: torch.Tensor, optimizer: RowOptimizer, rows: RowTensors
    ) -> None:
        """Sum the gradients of each row and take a step at the optimizer's own rate."""
        partials = poisoned(batch.room.new_partials(grad_BFD.shape[-1], self.device))
        numbers = numbers_of(optimizer, self.device)
        arguments = (batch.lists, batch.decoded, grad_BFD, partials, optimizer, numbers, rows)
        self.run("sum_and_step", *arguments)
