"""Where rows live: the fast and the slow tier, each one tensor of weights and one of optimizer state.

A tier holds a range of ids of every table, table after table, so the slot of a row it holds is a base
plus the id; further slots behind them stage rows that live elsewhere. Weights and state of a slot always
move together. Tables of another row width have tiers of their own.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow, locate_distinct_rows, locate_rows
from ...stats.batch_work import locate_bags
from ..data.batch import BatchIds
from ..work_threads import WorkThreads
from .initial_values import InitialValues
from .mapped_rows import HostMemory

_ROWS_AT_ONCE = 1 << 16
"""Rows that are initialized in one piece of work."""


@dataclass(frozen=True, slots=True)
class Layout:
    """The rows that a tier holds permanently, and their slots."""

    first_F: NDArray[np.int64]
    """First id of each table held."""
    last_F: NDArray[np.int64]
    """One past the last id held; equal to ``first_F`` where a table has no row here."""
    base_F: NDArray[np.int64]
    """Slot of the row ``first_F``."""
    num_own_slots: int
    """Slots of all these rows together; staging slots follow them."""

    @classmethod
    def of(cls, first: Sequence[int], last: Sequence[int]) -> Layout:
        """Lay out ids ``first[f]`` to ``last[f]`` of each table f, one table after the other."""
        first_F = np.array(first, np.int64)
        last_F = np.array(last, np.int64)
        counts = last_F - first_F
        if counts.size and counts.min() < 0:
            raise ValueError("a table's range of ids ends before it begins")
        base_F = np.concatenate([[0], np.cumsum(counts)])[:-1].astype(np.int64)
        return cls(first_F, last_F, base_F, int(counts.sum()))

    @property
    def num_tables(self) -> int:
        return int(self.first_F.size)

    def num_rows(self, table: int) -> int:
        """Rows of a table that are held."""
        return int(self.last_F[table] - self.first_F[table])

    def slots_of_table(self, table: int) -> slice:
        """The slots of a table's rows, in id order."""
        base = int(self.base_F[table])
        return slice(base, base + self.num_rows(table))

    def locate(self, ids: BatchIds) -> tuple[NDArray[np.int64], int]:
        """The slot of every lookup in sample order, -1 where its row is not here; how many are not."""
        slots_N = np.empty(ids.ids_N.size, np.int64)
        bags_N = ids.bags_of_features
        if bags_N is None:
            ids_BF = ids.ids_N.reshape(ids.num_samples, ids.num_features)
            num_absent = locate_rows(ids_BF, self.first_F, self.last_F, self.base_F, slots_N)
        else:
            args = (self.first_F, self.last_F, self.base_F, slots_N)
            num_absent = locate_bags(ids.ids_N, bags_N, *args)
        return slots_N, num_absent

    def slots_of(self, lookups: LookupsByRow) -> tuple[NDArray[np.int64], int]:
        """The slot of every distinct row of a batch, -1 where it is not here; how many are not."""
        slots_U = np.empty(lookups.num_rows, np.int64)
        ranges = (self.first_F, self.last_F, self.base_F)
        num_absent = locate_distinct_rows(lookups.rows_U, lookups.first_F1, *ranges, slots_U)
        return slots_U, num_absent

    def slots_of_rows(self, tables_N: NDArray[np.int64], ids_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """The slot of each row, named by table and id; -1 where it is not here."""
        first_N = self.first_F[tables_N]
        is_here_N = (first_N <= ids_N) & (ids_N < self.last_F[tables_N])
        return np.where(is_here_N, self.base_F[tables_N] + ids_N - first_N, -1)

    def rows_at(self, slots_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Table and id of the rows that live in ``slots_N``."""
        # Of several tables with one base all but the last are empty.
        tables_N = np.searchsorted(self.base_F, slots_N, side="right") - 1
        return tables_N, slots_N - self.base_F[tables_N] + self.first_F[tables_N]


class Tier:
    """Rows in slots on one device."""

    def __init__(
        self,
        layout: Layout,
        embedding_dim: int,
        state_width: int,
        *,
        num_staging: int = 0,
        device: str = "cpu",
        host: HostMemory | None = None,
    ) -> None:
        self.layout = layout
        self.num_slots = layout.num_own_slots + num_staging
        self.device = torch.device(device)
        # Rows of a limited host may lie in a file of their own.
        if host is None:
            self.weights_SD = torch.empty(self.num_slots, embedding_dim, device=self.device)
            self.state_SW = torch.zeros(self.num_slots, state_width, device=self.device)
        else:
            self.weights_SD = host.rows(self.num_slots, embedding_dim)
            self.state_SW = host.rows(self.num_slots, state_width)

    @property
    def row_bytes(self) -> int:
        """Bytes of a row with its state."""
        return 4 * (self.weights_SD.shape[1] + self.state_SW.shape[1])

    def slots_of(self, rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        """Positions in ``weights_SD`` of rows that live here, which are named by their slots."""
        return rows_N

    def rows_of_table(self, table: int, *, state: bool) -> torch.Tensor:
        """(num_rows, D) weights of a table's rows that live here, or their (num_rows, W) optimizer state."""
        rows = self.state_SW if state else self.weights_SD
        return rows[self.layout.slots_of_table(table)]

    def initialize(self, initial: InitialValues, threads: WorkThreads | None = None) -> None:
        """Give every row that lives here its initial values; the host's threads share those on the host."""
        # Parts of tables, whose values depend on the number of the row alone.
        parts = [
            (table, first, min(first + _ROWS_AT_ONCE, self.layout.num_rows(table)))
            for table in range(self.layout.num_tables)
            for first in range(0, self.layout.num_rows(table), _ROWS_AT_ONCE)
        ]

        def fill(part: int, _worker: int) -> None:
            table, first, stop = parts[part]
            base = self.layout.slots_of_table(table).start
            rows = self.weights_SD[base + first : base + stop]
            number = int(self.layout.first_F[table]) + first
            # The kernel writes to the host; a GPU computes the values where they will lie.
            if rows.device.type == "cpu":
                initial.fill(table, number, rows.numpy())
            else:
                tables_N = np.full(stop - first, table)
                slots_N = np.arange(base + first, base + stop)
                initial.write(tables_N, number + np.arange(stop - first), self.weights_SD, slots_N)

        if self.device.type == "cpu":
            (threads or WorkThreads(1)).run(fill, len(parts))
            return
        for part in range(len(parts)):
            fill(part, 0)


class FileTier(Tier, ABC):
    """A slow tier whose rows are in a file: only those that evaluation reads now have slots.

    Args:
        layout: the rows that live here, numbered by the slots they would have.
        embedding_dim: width of the rows.
        state_width: width of their optimizer state.
    """

    def __init__(self, layout: Layout, embedding_dim: int, state_width: int) -> None:
        nothing = Layout(layout.first_F, layout.first_F, layout.base_F, 0)
        super().__init__(nothing, embedding_dim, state_width)
        self.layout = layout
        self._read_U = np.empty(0, np.int64)

    @property
    @abstractmethod
    def most_read(self) -> int:
        """Distinct rows that evaluation may read at a time."""

    @abstractmethod
    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Write the newest weights of rows, in ascending order, as far as they are in no slot elsewhere."""

    def read(
        self,
        wanted_U: NDArray[np.int64],
        fast: Tier,
        resident_N: NDArray[np.int64],
        slots_N: NDArray[np.int64],
    ) -> None:
        """Read the newest weights of some rows; nothing moves.

        Args:
            wanted_U: the rows, ascending; none: give the memory back.
            fast: the tier where some of them may be.
            resident_N: rows that are there.
            slots_N: slot of each.
        """
        self._read_U = wanted_U
        self.weights_SD = torch.empty(wanted_U.size, self.weights_SD.shape[1])
        if wanted_U.size == 0:
            return
        self.fill(wanted_U, self.weights_SD.numpy())
        # Rows in slots are newer there.
        positions_N = np.minimum(np.searchsorted(wanted_U, resident_N), wanted_U.size - 1)
        is_wanted_N = wanted_U[positions_N] == resident_N
        held = torch.from_numpy(slots_N[is_wanted_N]).to(fast.device)
        self.weights_SD[torch.from_numpy(positions_N[is_wanted_N])] = fast.weights_SD[held].to("cpu")

    def slots_of(self, rows_N: NDArray[np.int64]) -> NDArray[np.int64]:
        slots_N = np.searchsorted(self._read_U, rows_N)
        assert slots_N.max(initial=-1) < self._read_U.size and np.array_equal(self._read_U[slots_N], rows_N)
        return slots_N.astype(np.int64)
