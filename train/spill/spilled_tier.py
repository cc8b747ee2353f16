"""The slow tier of rows that a row store keeps on disk.

The store needs the plan of the whole run, so it is set once that is made, before the first step. Rows that no
batch has used are stored nowhere: their initial values are a function of (seed, table, id).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..rows.step_plan import Moves
from ..rows.tiers import FileTier, InitialValues, Layout
from ..threads import WorkThreads
from .row_store import RowStore


class SpilledTier(FileTier):
    """Rows in a store."""

    def __init__(self, layout: Layout, embedding_dim: int, state_width: int) -> None:
        super().__init__(layout, embedding_dim, state_width)
        self._store: RowStore | None = None
        self._initial: InitialValues | None = None
        self._restored_U = np.empty(0, np.int64)
        self._next_fetches_U = self._restored_U

    @property
    def store(self) -> RowStore:
        assert self._store is not None, "the plan of the run comes first"
        return self._store

    @property
    def file_bytes(self) -> tuple[int, int]:
        return (0, 0) if self._store is None else self._store.file_bytes

    def stored_rows(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
        return iter(()) if self._store is None else self._store.newest()

    def open(self, store: RowStore, restored_U: NDArray[np.int64], next_fetches_U: NDArray[np.int64]) -> None:
        """Keep the rows in ``store`` from now on.

        Args:
            restored_U: rows, ascending, that `refill` is going to put there.
            next_fetches_U: number of the next fetch of each, -1 where there is none.
        """
        self._store = store
        self._restored_U = restored_U
        self._next_fetches_U = next_fetches_U

    def refill(
        self, rows_N: NDArray[np.int64], weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]
    ) -> None:
        """Put restored rows where their next fetches will find them."""
        if self._store is None:  # a width without cold rows
            return
        next_fetches_N = np.array(self._next_fetches_U[np.searchsorted(self._restored_U, rows_N)])
        order_N = np.arange(rows_N.size)
        self._store.put(rows_N, next_fetches_N, weights_ND, state_NW, order_N)

    def put(
        self,
        moves: Moves,
        weights_SD: NDArray[np.float32],
        state_SW: NDArray[np.float32],
        slots_N: NDArray[np.int64],
    ) -> None:
        if moves.num_rows:
            assert moves.fetches_N is not None, "the plan says what is fetched next"
            # Copies, because mapped arrays may be read-only: the kernel would be compiled for them once more.
            numbers = (np.array(moves.rows_N), np.array(moves.fetches_N))
            self.store.put(*numbers, weights_SD, state_SW, slots_N)

    def take(
        self,
        moves: Moves,
        weights_SD: NDArray[np.float32],
        state_SW: NDArray[np.float32],
        slots_N: NDArray[np.int64],
    ) -> None:
        if moves.num_rows:
            assert moves.fetches_N is not None, "the plan numbers the fetches"
            self.store.take(moves.fetches_N, weights_SD, state_SW, slots_N)

    def finish(self) -> None:
        """Give memory back after the last step."""
        if self._store is not None:
            self._store.finish()

    @property
    def most_read(self) -> int:
        return 0 if self._store is None else self._store.most_read

    def initialize(self, initial: InitialValues, threads: WorkThreads | None = None) -> None:
        """Remember how rows get their initial values."""
        self._initial = initial

    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Write initial values, and over them what is stored."""
        self._fill_initial(wanted_U, weights_UD)
        self.store.pick(wanted_U, weights_UD)

    def _fill_initial(self, rows_N: NDArray[np.int64], weights_ND: NDArray[np.float32]) -> None:
        assert self._initial is not None
        weights = torch.from_numpy(weights_ND)
        self._initial.write(*self.layout.rows_at(rows_N), weights, np.arange(rows_N.size))

    def rows_of_table(self, table: int, *, state: bool) -> torch.Tensor:
        """Return all rows of a table in this tier, together in memory; valid after the last step."""
        width = (self.state_SW if state else self.weights_SD).shape[1]
        parts = [torch.empty(0, width), *self.parts_of_table(table, state=state)]
        return torch.cat(parts)

    def parts_of_table(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the rows of a table in id order, part by part."""
        own = self.layout.slots_of_table(table)
        if own.start == own.stop:
            return
        # A range holds rows of one table, and those of others are passed by.
        bounds = self.store.sizes.range_first
        for number in np.flatnonzero((own.start <= bounds[:-1]) & (bounds[1:] <= own.stop)).tolist():
            for weights_ND, state_NW in self.store.parts_of_range(number, self._fill_initial_from):
                yield torch.from_numpy(state_NW if state else weights_ND)

    def _fill_initial_from(self, first: int, weights_ND: NDArray[np.float32]) -> None:
        self._fill_initial(np.arange(first, first + weights_ND.shape[0]), weights_ND)
