"""All tables of a model, as a list of table groups.

Most models have one embedding_dim. Tables of another dim form a group with separate tensors and plans; the
model joins their embeddings (`model.Projections`).

The path of a transfer:
    1. `StepSource`, running ahead, plans a batch and hands its transfers, one per group, to `send`.
    2. `send` queues them as one item of the transfer thread, which calls `run_transfers` in time.
    3. `run_transfers` lets each group move its rows.
    4. The loop calls `wait_for_rows` before the lookups of the batch, which waits for that item, and `update`
       at the end, which marks the batch as computed and so frees the items that wait for it.

Evaluation batches whose cold rows are in a spill file are read in groups.

Rows are restored in parts, by table and id. A part does not say where its rows lived, so that it can be
restored under another placement, budget or number of processes. `checkpoints.writer` takes rows out of the
tiers. Shapes: N rows of one table group in a part, D floats of a row, W floats of its state.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import Batch, EmbeddingTable, Lookups, LookupsOfBatch
from ..metrics import Kind
from .step_plan import ChangedRows, GroupStep, PlannedStep, StepPlan, Transfer, Transfers, TransferThread
from .table_group import TableGroup
from .tiers import FileTier, Way

if TYPE_CHECKING:
    from ..device import Event

_PART_BYTES = 8 * 2**20
"""Bytes of rows that are set at a time."""


def batches_read_together(
    numbers: Iterable[int], read: Callable[[int], Lookups], filed: Sequence[tuple[TableGroup, FileTier]]
) -> Iterator[tuple[list[int], list[NDArray[np.int64]]]]:
    """Put evaluation batches together whose distinct cold rows fit in the memory kept for them.

    Yields:
        Batches that are read together, and of each group their rows on the slow tier, ascending.
    """
    # Batches are read together until a table group has no room for another one.
    together: list[int] = []
    wanted = [np.empty(0, np.int64) for _ in filed]
    for number in numbers:
        lookups = read(number)
        own = []
        for group, slow in filed:
            rows_U, _ = slow.layout.slots_of(group.reader.by_row(group.reader.read(lookups)))
            own.append(rows_U[rows_U >= 0])
        joined = [np.union1d(*pair) for pair in zip(wanted, own, strict=True)]
        # A batch that exceeds the memory alone is read alone.
        if together and any(
            rows.size > slow.most_read for rows, (_, slow) in zip(joined, filed, strict=True)
        ):
            yield together, wanted
            together = []
            joined = own
        together.append(number)
        wanted = joined
    if together:
        yield together, wanted


Work = tuple[tuple[Transfer | None, ...], Kind]
"""One transfer per group, and the kind of work they count as."""


class Embeddings:
    """Every row of a model and what moves them."""

    def __init__(self, num_tables: int, groups: Sequence[TableGroup]) -> None:
        self.groups = tuple(groups)
        self.transfers: Transfers[Work] = TransferThread(self.run_transfers)
        """Runs the transfers; a device has others, which are set before the first one is sent."""
        self.hot_copies: Any = None
        """`placements.fae.HotCopies` of the placement ``fae``; None for others."""
        self.earlier_file_bytes = 0, 0
        """Bytes that earlier processes of the run read from spill files, and wrote."""
        self._sent: deque[tuple[int, Sequence[Transfer | None]]] = deque()
        """Items whose batches are not computed."""
        # The group of each table, and the table's position among the tables of that group.
        self._position_of = {
            table: (group, position) for group in self.groups for position, table in enumerate(group.tables)
        }
        assert sorted(self._position_of) == list(range(num_tables))

    def initialize(self) -> None:
        """Give every row its initial values, and compile the kernels of a run."""
        for group in self.groups:
            group.initialize()
            group.warm_up()

    def plan_evaluation(self, number: int, batch: Batch) -> PlannedStep:
        """A step that reads the newest weights and moves no row for good."""
        plans = [group.placement.plan_evaluation(is_stale=group.slow.is_stale) for group in self.groups]
        return self.step(number, batch, plans, [group.read(batch) for group in self.groups])

    def evaluation_steps(
        self,
        numbers: Iterable[int],
        read: Callable[[int], Batch],
        read_lookups: Callable[[int], LookupsOfBatch] | None = None,
    ) -> Iterator[PlannedStep]:
        """Steps of evaluation batches in order; valid inside `rows_written_back`.

        Where cold rows are in a file, those of as many batches as memory has room for are read together.

        Args:
            numbers: of the batches, consecutive ones.
            read: returns a batch.
            read_lookups: returns the lookups of a batch, by which steps are planned; None: `read` does.
        """
        # Where all rows are in memory, batches need no groups.
        filed = [(group, group.slow) for group in self.groups if isinstance(group.slow, FileTier)]
        if not filed:
            for number in numbers:
                yield self.plan_evaluation(number, read(number))
            return
        try:
            # The rows of several batches are read once, before the first of them.
            for together, wanted in batches_read_together(numbers, read_lookups or read, filed):
                for (group, _), wanted_U in zip(filed, wanted, strict=True):
                    group.read_rows(wanted_U)
                for number in together:
                    yield self.plan_evaluation(number, read(number))
        finally:
            for group, _ in filed:
                group.read_rows(np.empty(0, np.int64))

    def step(
        self,
        number: int,
        batch: Batch,
        plans: Sequence[StepPlan],
        read: Sequence[GroupStep],
        item: int | None = None,
    ) -> PlannedStep:
        """Put together a step from the plans and lookups of its groups."""
        parts = tuple(replace(part, plan=plan) for part, plan in zip(read, plans, strict=True))
        return PlannedStep(number, batch, batch.num_samples, parts, item)

    def send(self, transfers: Sequence[Transfer | None], after: int, kind: Kind) -> int:
        """Queue one transfer per table group as one item; return its number."""
        number = self.transfers.put((tuple(transfers), kind), after)
        self._sent.append((number, transfers))
        return number

    def wait_for_rows(self, step: PlannedStep) -> None:
        """Return once the rows of the step are where it needs them."""
        if step.item is not None:
            self.transfers.wait_for(step.item)

    def run_transfers(self, work: Work) -> None:
        """Move the rows of an item, one transfer per table group."""
        transfers, kind = work
        for group, transfer in zip(self.groups, transfers, strict=True):
            if transfer is not None:
                group.load(transfer, kind)

    @contextmanager
    def rows_written_back(self) -> Iterator[None]:
        """Pause transfers with the newest values of staged rows on the slow tier, too.

        For evaluation and checkpoints. Nothing is evicted.
        """
        # Transfers queued before may be done ahead of their batches; that moves rows and changes no value.
        with self.transfers.paused():
            for group in self.groups:
                group.write_back()
            yield

    def look_up(self, step: PlannedStep) -> list[torch.Tensor]:
        """(B, F, D) embeddings of each group."""
        return [group.look_up(part) for group, part in zip(self.groups, step.parts, strict=True)]

    def update(
        self, step: PlannedStep, embeddings: Sequence[torch.Tensor], rate: float | None = None
    ) -> None:
        """Take one optimizer step on every row the batch looked up; ``rate`` as in `TableGroup.update`."""
        for group, part, emb_BFD in zip(self.groups, step.parts, embeddings, strict=True):
            group.update(part, emb_BFD, rate)
        self.mark_updated(step)

    def mark_updated(self, step: PlannedStep, computed: Event | None = None) -> None:
        """Note that the rows of a step are updated, or will be.

        Args:
            computed: event after all work that a device was given for the step, whose other threads call
                `note_transfers`, which marks the rows that the step changed; None: they are marked here.
        """
        for group, part in zip(self.groups, step.parts, strict=True):
            if group.changed is not None:
                group.changed.mark(part.lookups, is_later=computed is not None)
        if step.item is None:
            return
        # The transfers may run that wait for this batch.
        while self._sent and self._sent[0][0] <= step.item:
            self._sent.popleft()
        self.transfers.mark_computed(step.item, computed)

    def note_transfers(self, *, waits: bool = True) -> None:
        """Note and count queued transfers and changed rows: see `StagedRows.catch_up`."""
        for group in self.groups:
            group.staged.catch_up(waits=waits)
            if group.changed is not None:
                group.changed.catch_up(waits=waits)

    def finish(self) -> None:
        """Write every row back after the last step."""
        # The flush is among the transfers drained; what is left is FAE's last switch.
        self.transfers.drain()
        if self.hot_copies is not None:
            self.hot_copies.finish()
        for group in self.groups:
            group.slow.finish()

    def stop(self) -> None:
        """Write every row back where a run ends early; no step may follow."""
        # Items that wait for batches which do not come are forgotten.
        self.transfers.close()
        with self.rows_written_back():
            if self.hot_copies is not None:
                self.hot_copies.finish()

    def rows_by_table(self) -> list[dict[Way, int]]:
        """Rows and vectors of each table moved each way, and rows initialized; evaluation apart."""
        counts: list[dict[Way, int]] = [{}] * len(self._position_of)
        self.note_transfers()
        for table, (group, position) in self._position_of.items():
            rows_F = group.traffic.rows_F
            counts[table] = {way: int(rows[position]) for way, rows in rows_F.items()}
        return counts

    def counts_of_steps(self) -> list[dict[Way, int]]:
        """Return `rows_by_table` but rows initialized ahead, which resumed runs repeat."""
        with self.transfers.paused():
            counts = self.rows_by_table()
            # Transfers are paused, so that what was sent and what was done do not change meanwhile.
            num_done = self.transfers.num_done
            for number, transfers in list(self._sent):
                if number >= num_done:
                    # Steps that have run have earned their count; those sent ahead will be counted again.
                    break
                for group, transfer in zip(self.groups, transfers, strict=True):
                    if transfer is not None and transfer.initialize.rows_N.size:
                        tables_N, _ = group.slow.layout.rows_at(transfer.initialize.rows_N)
                        for position, count in zip(*np.unique(tables_N, return_counts=True), strict=True):
                            counts[group.tables[int(position)]]["made"] -= int(count)
        return counts

    def restore_counts(self, counts: Sequence[Mapping[str, int]]) -> None:
        """Go on from what `rows_by_table` returned in an earlier process."""
        for table, (group, position) in self._position_of.items():
            for way, rows_F in group.traffic.rows_F.items():
                rows_F[position] = counts[table].get(way, 0)

    def table_parts(self, table: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the host weights of one table, or its state, in id order.

        Parts are of bounded size where they are in a file. Valid once every row is written back.
        """
        group, position = self._position_of[table]
        return group.table_parts(position, state=state)

    def parts_of_tables(
        self, tables: Sequence[EmbeddingTable], *, state: bool = False
    ) -> list[Callable[[], Iterator[torch.Tensor]]]:
        """Return what yields the weights or the state of each table of the shards: see `table_parts`."""
        return [partial(self.table_parts, number, state=state) for number in range(len(tables))]

    def parts_by_name(
        self, tables: Sequence[EmbeddingTable]
    ) -> dict[str, tuple[tuple[int, int], Callable[[], Iterator[torch.Tensor]]]]:
        """Return the shape of each table of the shards, and what yields its weights: see `table_parts`."""
        return {
            table.name: ((table.num_rows, table.embedding_dim), parts)
            for table, parts in zip(tables, self.parts_of_tables(tables), strict=True)
        }

    def local_ids(
        self, tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]
    ) -> tuple[NDArray[np.bool_], NDArray[np.int32]]:
        """Return which rows live in this process, and the ids that these have here.

        Args:
            tables_N: (N,); table of each row as numbered in the shards, all of one group.
            ids_N: (N,), its id there.
        """
        return np.ones(ids_N.size, np.bool_), ids_N

    def file_bytes(self) -> tuple[int, int]:
        """Return the bytes that the run has read from spill files, and written to them."""
        counts = [self.earlier_file_bytes, *(group.slow.file_bytes for group in self.groups)]
        return sum(read for read, _ in counts), sum(written for _, written in counts)

    def set_table(self, table: int, weights_ND: torch.Tensor) -> None:
        """Set the weights of every row of one table on the fast tier."""
        group, position = self._position_of[table]
        fast = group.fast
        fast.weights_SD[fast.layout.slots_of_table(position)] = weights_ND

    def set_weights(
        self, read: Callable[[str, int, int], torch.Tensor], tables: Sequence[EmbeddingTable]
    ) -> None:
        """Set all rows of the tables of the shards, wherever they live; optimizer states become zero.

        Args:
            read: returns the rows of the table of a name, from the first to before the last.
        """
        with self.rows_written_back():
            for group in self.groups:
                group.staged.forget()
        # Of each table the rows that live here, by their ids here.
        for group in self.groups:
            most = max(_PART_BYTES // group.fast.row_bytes, 1)
            for position, table in enumerate(group.tables):
                num_rows = tables[table].num_rows
                for first in range(0, num_rows, most):
                    shard_ids_N = np.arange(first, min(first + most, num_rows), dtype=np.int32)
                    is_held_N, ids_N = self.local_ids(np.full_like(shard_ids_N, table), shard_ids_N)
                    found_ND = read(tables[table].name, first, first + shard_ids_N.size)
                    rows_ND = found_ND.numpy()[is_held_N]
                    state_NW = np.zeros((ids_N.size, group.fast.state_SW.shape[1]), np.float32)
                    positions_N = np.full(ids_N.size, position)
                    group.restore(positions_N, ids_N.astype(np.int64), rows_ND, state_NW)

    def table(self, table: int, *, state: bool = False) -> torch.Tensor:
        """Return the host weights or state of one table, in id order.

        Weights are (num_rows, D), state (num_rows, W). Valid once every row is written back.
        """
        first, *others = self.table_parts(table, state=state)
        return torch.cat([first, *others]) if others else first


@dataclass(frozen=True, slots=True)
class RowsPart:
    """Some rows of one group with their state."""

    tables_N: NDArray[np.int32]
    """(N,); table of each row, as numbered in the shards."""
    ids_N: NDArray[np.int32]
    weights_ND: NDArray[np.float32]
    state_NW: NDArray[np.float32]

    @property
    def arrays(self) -> tuple[NDArray[Any], ...]:
        return self.tables_N, self.ids_N, self.weights_ND, self.state_NW

    @property
    def num_bytes(self) -> int:
        return sum(array.nbytes for array in self.arrays)

    def chosen(self, rows: NDArray[np.bool_] | slice) -> RowsPart:
        """Return some of the rows; those of a slice share its memory."""
        return RowsPart(*(array[rows] for array in self.arrays))


RowsSource = Callable[[], Iterable[RowsPart]]
"""Yields parts each time it is called; of a row that is in several, the first has its value."""


def settle(embeddings: Embeddings, *, is_lost: bool) -> None:
    """End the saving of rows: they are saved, or changed as before."""
    for group in embeddings.groups:
        changed_of(group).settle(is_lost=is_lost)


def restore_rows(embeddings: Embeddings, source: RowsSource, *, are_saved: bool) -> None:
    """Set rows in memory before the first step, and mark them used.

    Those of a slow tier in a file are only marked: `refill_stores` puts them there, once there is a plan.

    Args:
        are_saved: whether the rows are in a checkpoint of this run already.
    """
    for group, part in _newest(embeddings, source):
        changed = changed_of(group)
        tables_N = _positions_in(group, part)
        ids_N = part.ids_N.astype(np.int64)
        group.restore(tables_N, ids_N, part.weights_ND, part.state_NW)
        changed.mark_rows(changed.layout.slots_of_rows(tables_N, ids_N), is_saved=are_saved)


def refill_stores(embeddings: Embeddings, source: RowsSource) -> None:
    """Put restored rows of spill files where their next fetch is."""
    # Only rows in files must be where their next fetch expects them.
    if not any(isinstance(group.slow, FileTier) for group in embeddings.groups):
        return
    for group, part in _newest(embeddings, source):
        slow = group.slow
        if not isinstance(slow, FileTier):
            continue
        slots_N = slow.layout.slots_of_rows(_positions_in(group, part), part.ids_N.astype(np.int64))
        is_cold_N = slots_N >= 0
        slow.refill(slots_N[is_cold_N], part.weights_ND[is_cold_N], part.state_NW[is_cold_N])


def used_slow_rows(group: TableGroup) -> Iterator[NDArray[np.int64]]:
    """Yield the changed rows of a table group's slow tier, ascending, in parts."""
    changed = changed_of(group)
    for rows_N in changed.used():
        slots_N = group.slow.layout.slots_of_rows(*changed.layout.rows_at(rows_N))
        yield slots_N[slots_N >= 0]


def _newest(embeddings: Embeddings, source: RowsSource) -> Iterator[tuple[TableGroup, RowsPart]]:
    """Yield each row once, with its newest value, and its group."""
    # A bitmap a group: the first part that holds a row has its newest value.
    group_of = {table: group for group in embeddings.groups for table in group.tables}
    seen = {
        group.embedding_dim: np.zeros(sum(group.placement.num_rows), np.bool_) for group in embeddings.groups
    }
    for whole in source():
        is_held_N, ids_N = embeddings.local_ids(whole.tables_N, whole.ids_N)
        part = replace(whole.chosen(is_held_N), ids_N=ids_N)
        if part.ids_N.size == 0:
            continue
        group = group_of[int(part.tables_N[0])]
        layout = changed_of(group).layout
        rows_N = layout.slots_of_rows(_positions_in(group, part), part.ids_N.astype(np.int64))
        is_new_N = ~seen[group.embedding_dim][rows_N]
        seen[group.embedding_dim][rows_N] = True
        yield group, part if is_new_N.all() else part.chosen(is_new_N)


def _positions_in(group: TableGroup, part: RowsPart) -> NDArray[np.int64]:
    """(N,): the table of each row among those of the group, which are ascending."""
    return np.searchsorted(np.array(group.tables), part.tables_N).astype(np.int64)


def changed_of(group: TableGroup) -> ChangedRows:
    """Return the marks of the rows of a group."""
    assert group.changed is not None, "rows are tracked where there are checkpoints"
    return group.changed
