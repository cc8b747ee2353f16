"""The slow tier of rows that a row store keeps on disk.

The store needs the plan of the whole run, so it is set once that is made, before the first step. Rows that no
batch has used are stored nowhere: their initial values are a function of (seed, table, id).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..rows.backends import MAX_ROWS
from ..rows.kernels import fill_initial
from ..rows.step_plan import Moves
from ..rows.tiers import FileTier, InitialValues, Layout, Tier
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
        if self._store is None:
            return 0, 0
        traffic = self._store.traffic
        return traffic.block_bytes * traffic.reads, traffic.block_bytes * traffic.writes

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
        assert self._initial is not None
        tables_N, ids_N = self.layout.rows_at(wanted_U)
        self._initial.write(tables_N, ids_N, torch.from_numpy(weights_UD), np.arange(wanted_U.size))
        self.store.pick(wanted_U, weights_UD)

    def rows_of_table(self, table: int, *, state: bool) -> torch.Tensor:
        """Return all rows of a table in this tier, together in memory; valid after the last step."""
        width = (self.state_SW if state else self.weights_SD).shape[1]
        parts = [torch.empty(0, width), *self.parts_of_table(table, state=state)]
        return torch.cat(parts)

    def parts_of_table(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the rows of a table in id order, part by part."""
        assert self._initial is not None
        own = self.layout.slots_of_table(table)
        if own.start == own.stop:
            return
        # A range holds rows of one table, and those of others are passed by.
        bounds = self.store.sizes.range_first
        for number in np.flatnonzero((own.start <= bounds[:-1]) & (bounds[1:] <= own.stop)).tolist():
            # A part at a time: its initial values first, then over them what training has changed.
            parts = self.store.parts_of_range(number)
            for first, stop in parts:
                weights_ND = torch.empty(stop - first, self.weights_SD.shape[1])
                state_NW = torch.zeros(stop - first, self.state_SW.shape[1])
                first_id = int(self.layout.first_F[table]) + first - own.start
                stream = self._initial.streams_F[table]
                bound = self._initial.bounds_F[table]
                fill_initial(stream, first_id, bound, weights_ND.numpy())
                parts.add(first, weights_ND.numpy(), state_NW.numpy())
                yield state_NW if state else weights_ND


class SpillMover:
    """Moves rows between the slots of a fast tier and a store."""

    def __init__(self, fast: Tier, slow: SpilledTier) -> None:
        self._fast = fast
        self._slow = slow

    def write_back(self, moves: Moves) -> None:
        if moves.num_rows == 0:
            return
        assert moves.fetches_N is not None, "the plan says what is fetched next"
        # Copies, because mapped arrays may be read-only, which the kernel would be compiled for once more.
        rows_N = np.array(moves.rows_N)
        next_fetches_N = np.array(moves.fetches_N)
        fast = self._fast
        if fast.device.type == "cpu":
            weights_SD = fast.weights_SD.numpy()
            state_SW = fast.state_SW.numpy()
            self._slow.store.put(rows_N, next_fetches_N, weights_SD, state_SW, moves.slots_N)
            return
        # From a GPU in parts: each is gathered on the device and copied to the host.
        for part in _parts(moves):
            slots_N = torch.from_numpy(moves.slots_N[part]).to(fast.device)
            weights_ND = fast.weights_SD.index_select(0, slots_N).cpu().numpy()
            state_NW = fast.state_SW.index_select(0, slots_N).cpu().numpy()
            order_N = np.arange(slots_N.numel())
            self._slow.store.put(rows_N[part], next_fetches_N[part], weights_ND, state_NW, order_N)

    def fetch(self, moves: Moves) -> None:
        if moves.num_rows == 0:
            return
        assert moves.fetches_N is not None, "the plan numbers the fetches"
        fast = self._fast
        # On the host the store fills the slots itself.
        if fast.device.type == "cpu":
            weights_SD = fast.weights_SD.numpy()
            state_SW = fast.state_SW.numpy()
            self._slow.store.take(moves.fetches_N, weights_SD, state_SW, moves.slots_N)
            return
        # To a GPU in parts: each is filled on the host and scattered on the device.
        for part in _parts(moves):
            slots_N = torch.from_numpy(moves.slots_N[part]).to(fast.device)
            weights_ND = torch.empty(slots_N.numel(), fast.weights_SD.shape[1])
            state_NW = torch.empty(slots_N.numel(), fast.state_SW.shape[1])
            order_N = np.arange(slots_N.numel())
            self._slow.store.take(moves.fetches_N[part], weights_ND.numpy(), state_NW.numpy(), order_N)
            fast.weights_SD.index_copy_(0, slots_N, weights_ND.to(fast.device))
            fast.state_SW.index_copy_(0, slots_N, state_NW.to(fast.device))


def _parts(moves: Moves) -> Iterator[slice]:
    """Yield the moves in parts that bound the memory of a copy."""
    for first in range(0, moves.num_rows, MAX_ROWS):
        yield slice(first, first + MAX_ROWS)
