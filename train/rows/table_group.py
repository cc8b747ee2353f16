"""Table groups: the tables of one embedding_dim, and everything that touches their rows.

One class serves every placement; what differs is the plan. ``load`` moves rows, ``look_up`` comes before the
forward pass, ``update`` after the backward pass. A transfer touches only staging slots and the slow tier and
may run in another thread, ahead of the batches it serves (`step_plan`). Where rows stay on the slow tier,
their vectors are sent to the fast tier, and gradients back.

A group keeps which row is in each staging slot. A device is given transfers faster than they can be noted
(some milliseconds each), so whoever needs the staged rows first notes the remaining ones.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow, group_lookups, of_matrix
from ..data.batch import Batch, BatchIds, IdReader, Lookups, MicroBatches
from ..metrics import Kind
from ..threads import WorkThreads
from .backends import NumbaRows, RowBackend, RowOptimizer, backend_of, fetch, initialize_rows, write_back
from .kernels import copy_rows
from .step_plan import ChangedRows, ColdRows, GroupStep, Placement, SplitBatch, StepPlan, Transfer
from .tiers import FileTier, InitialValues, Moves, Tier, TrafficCounter, Way

# ruff: noqa: N815  (arrays carry shape suffixes)

_FLOAT32_BYTES = 4
_ROWS_AT_ONCE = 1 << 13
"""Rows that a thread copies at a time."""


def without_tables(
    lookups: LookupsByRow, slots_U: NDArray[np.int64], tables: Sequence[int]
) -> NDArray[np.int64]:
    """Return the slots of distinct rows, with -1 for those of some tables."""
    slots_U = slots_U.copy()
    for table in tables:
        slots_U[lookups.first_F1[table] : lookups.first_F1[table + 1]] = -1
    return slots_U


@dataclass(frozen=True, slots=True)
class InPlaceWork:
    """The work of a table group on its slow tier."""

    fast: Tier
    """The tier where vectors are wanted."""
    slow: Tier
    """The tier where the rows are."""
    fast_rows: RowBackend
    rows: NumbaRows
    """Back end of the slow tier."""
    traffic: TrafficCounter
    threads: WorkThreads
    frozen: tuple[int, ...] = ()
    """As in `TableGroup`."""

    def send_bags(self, part: GroupStep, pooled_PD: torch.Tensor) -> None:
        """Look up and pool on the slow tier; send one vector per bag."""
        # A fast tier on the host takes the vectors directly, one on a GPU gets them as one copy.
        if self.fast.is_host:
            self.look_up_bags(part, pooled_PD)
            return
        on_host_PD = torch.empty(pooled_PD.shape, dtype=torch.float32, device="cpu")
        self.look_up_bags(part, on_host_PD)
        pooled_PD.copy_(on_host_PD)

    def look_up_bags(self, part: GroupStep, on_host_PD: torch.Tensor) -> None:
        """Look up and pool on the slow tier; the caller sends the vectors."""
        self._count_vector_per_bag("to_fast", part.ids)
        slots_U = self.slow.slots_of(self.slots_of_rows(part.lookups))
        ids = part.ids
        vectors_ND = (
            on_host_PD
            if ids.bags_N is None
            else torch.empty(ids.ids_N.size, on_host_PD.shape[1], dtype=torch.float32, device="cpu")
        )
        self.rows.look_up(self.slow.weights_SD, part.lookups, slots_U, vectors_ND)
        if ids.bags_N is not None:
            self.rows.pool(vectors_ND, ids, on_host_PD)

    def send_rows(
        self, lookups: LookupsByRow, is_sent_U: NDArray[np.bool_], vectors_ND: torch.Tensor
    ) -> None:
        """Send the vectors of distinct rows, and look them up on the fast tier."""
        slots_U, _ = self.slow.layout.slots_of(lookups)
        sent_rows = slots_U[is_sent_U]
        self.traffic.rows("to_fast", sent_rows, self._vector_bytes)
        slots_U[~is_sent_U] = -1
        slots_U[is_sent_U] = self.slow.slots_of(sent_rows)
        if self.fast.is_host:
            self.rows.look_up(self.slow.weights_SD, lookups, slots_U, vectors_ND)
            return
        # On the device the sent vectors form a small table, in which the lookups are made.
        sent = self.slow.weights_SD.index_select(0, torch.from_numpy(slots_U[is_sent_U]))
        places_U = np.where(is_sent_U, np.cumsum(is_sent_U) - 1, -1)
        self.fast_rows.look_up(sent.to(self.fast.device), lookups, places_U, vectors_ND)

    def update(self, part: GroupStep, grad_PD: torch.Tensor, rate: float | None = None) -> None:
        """Take one optimizer step on the rows of a batch, from gradients on the fast tier."""
        assert part.plan.in_place is not None and part.plan.in_place.is_whole
        by_bag = part.ids.by_bag(part.lookups)
        slots_U = self.slots_of_rows(part.lookups)
        # Either one gradient per bag is sent and summed here, or they are summed there, one per distinct row.
        if part.plan.in_place.sends == "bags":
            self._count_vector_per_bag("to_slow", part.ids)
            changed_U = without_tables(part.lookups, slots_U, self.frozen) if self.frozen else slots_U
            self.rows.update(self.slow, by_bag, changed_U, grad_PD.cpu(), part.ids.num_features, rate)
            return
        self.traffic.rows("to_slow", slots_U, self._vector_bytes)
        sums_UD = self.fast_rows.sums(by_bag, grad_PD, part.ids.num_features)
        self._apply(part.lookups, slots_U, sums_UD.cpu(), rate)

    def _apply(
        self,
        lookups: LookupsByRow,
        slots_U: NDArray[np.int64],
        sums_UD: torch.Tensor,
        rate: float | None,
    ) -> None:
        """Take one optimizer step on the distinct rows of a batch that may change."""
        if self.frozen:
            is_changed_U = without_tables(lookups, slots_U, self.frozen) >= 0
            slots_U = slots_U[is_changed_U]
            sums_UD = sums_UD[torch.from_numpy(is_changed_U)]
        self.rows.apply(self.slow, slots_U, sums_UD, rate)

    def slots_of_rows(self, lookups: LookupsByRow) -> NDArray[np.int64]:
        """Return the slots of distinct rows on the slow tier, which holds all."""
        slots_U, num_absent = self.slow.layout.slots_of(lookups)
        assert num_absent == 0, "the slow tier holds every row"
        return slots_U

    def read_rows(self, lookups: LookupsByRow, slots_U: NDArray[np.int64], rows_UD: torch.Tensor) -> None:
        """Copy the distinct rows of a batch to memory that the caller sends."""
        self._count_vector_per_row("to_fast", lookups)
        weights = self.slow.weights_SD.numpy()
        rows = rows_UD.numpy()

        def copy_some(piece: int, _: int) -> None:
            own = slice(piece * _ROWS_AT_ONCE, (piece + 1) * _ROWS_AT_ONCE)
            own_N = slots_U[own]
            copy_rows(weights, own_N, rows[own], np.arange(own_N.size))

        self.threads.run(copy_some, -(-slots_U.size // _ROWS_AT_ONCE))

    def apply_sums(
        self,
        lookups: LookupsByRow,
        slots_U: NDArray[np.int64],
        sums_UD: torch.Tensor,
        rate: float | None = None,
    ) -> None:
        """Take one optimizer step on distinct rows, from gradient sums on the host."""
        self._count_vector_per_row("to_slow", lookups)
        self._apply(lookups, slots_U, sums_UD, rate)

    @property
    def _vector_bytes(self) -> int:
        return self.fast.weights_SD.shape[1] * _FLOAT32_BYTES

    def _count_vector_per_bag(self, way: Way, ids: BatchIds) -> None:
        # By table, which has several bags in a sample where it holds histories or several features share it.
        tables_F = np.arange(ids.num_features) if ids.tables_F is None else ids.tables_F
        counts_F = np.bincount(tables_F) * ids.num_samples
        self.traffic.by_table(way, counts_F, self._vector_bytes)

    def _count_vector_per_row(self, way: Way, lookups: LookupsByRow) -> None:
        self.traffic.by_table(way, np.diff(lookups.first_F1), self._vector_bytes)


@dataclass(frozen=True, slots=True)
class RowStep:
    """An optimizer step on some of the distinct rows of a batch."""

    rows_N: NDArray[np.int64]
    """Positions among the distinct rows."""
    optimizer: RowOptimizer
    """One whose state the rows of the group have room for."""
    rate: float
    """Learning rate, a float32."""


class StagedRows:
    """The rows in staging slots, by their slots on the slow tier."""

    def __init__(self, fast: Tier, traffic: TrafficCounter) -> None:
        self._first = fast.layout.num_own_slots
        self._row_bytes = fast.row_bytes
        self._traffic = traffic
        self._row_S = np.full(fast.num_slots - self._first, -1, np.int64)
        """Row in each staging slot; -1 where there is none."""
        self._begun: deque[tuple[Transfer, Kind | None]] = deque()
        """Transfers that a device was given, and that are not noted yet."""
        # Several threads note them, one at a time, in order.
        self._noting = threading.Lock()

    def begin(self, transfer: Transfer, kind: Kind | None) -> None:
        """Take down that a device was given a transfer; `catch_up` does the rest."""
        self._begun.append((transfer, kind))

    def catch_up(self, *, waits: bool = True) -> None:
        """Note the transfers that a device was given.

        Args:
            waits: for a thread that is at it; otherwise the transfers are left to that one, or to the next.
        """
        if not self._noting.acquire(blocking=waits):
            return
        try:
            while self._begun:
                self.note(*self._begun.popleft())
        finally:
            self._noting.release()

    def note(self, transfer: Transfer, kind: Kind | None) -> None:
        """Note where rows are once a transfer is done, and count it."""
        self._row_S[transfer.write_back.slots_N - self._first] = -1
        for moves in (transfer.fetch, transfer.initialize):
            self._row_S[moves.slots_N - self._first] = moves.rows_N

        self._traffic.rows("to_slow", transfer.write_back.rows_N, self._row_bytes, kind)
        self._traffic.rows("to_fast", transfer.fetch.rows_N, self._row_bytes, kind)
        self._traffic.rows("made", transfer.initialize.rows_N, self._row_bytes, kind)

    def by_slot(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the staged rows and their slots, in the order of slots."""
        self.catch_up()
        staged_N = np.flatnonzero(self._row_S >= 0)
        return self._row_S[staged_N], staged_N + self._first

    def by_row(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The same, rows ascending."""
        rows_N, slots_N = self.by_slot()
        order_N = np.argsort(rows_N)
        return rows_N[order_N], slots_N[order_N]

    def forget(self) -> None:
        """Forget all staged rows, once written back and no step follows."""
        self.catch_up()
        self._row_S[:] = -1


@dataclass(slots=True, kw_only=True)
class TableGroup:
    """The tables of one embedding_dim, and the two tiers of their rows."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Their positions among all tables."""
    reader: IdReader
    placement: Placement
    fast: Tier
    """Rows on the device of the model."""
    slow: Tier
    """Rows on the host."""
    optimizer: RowOptimizer
    initial: InitialValues
    """Values of rows that no batch has used yet."""
    traffic: TrafficCounter
    threads: WorkThreads
    """Share the work on rows of the host."""
    micro_batches: MicroBatches
    """Micro-batches, whose gradients are summed separately."""
    changed: ChangedRows | None = None
    """Which rows steps have changed, for checkpoints; None: nobody wants to know."""
    frozen: tuple[int, ...] = ()
    """Tables whose rows no step changes, by their positions in the group."""
    staged: StagedRows = field(init=False)
    """The rows in staging slots."""
    in_place: InPlaceWork = field(init=False)
    """The work on rows that stay on the slow tier."""
    _fast_rows: RowBackend = field(init=False)
    _vectors: dict[str, torch.Tensor] = field(init=False)

    def __post_init__(self) -> None:
        self.staged = StagedRows(self.fast, self.traffic)
        # The tiers may be on two devices, and each device updates its rows with its own kernels.
        self._fast_rows = backend_of(self.fast.device, self.optimizer, self.threads, self.micro_batches)
        slow_rows = NumbaRows(self.optimizer, self.threads, self.micro_batches)
        self.in_place = InPlaceWork(
            self.fast, self.slow, self._fast_rows, slow_rows, self.traffic, self.threads, self.frozen
        )
        no_vectors = torch.empty(0, self.embedding_dim, dtype=torch.float32, device=self.fast.device)
        self._vectors = {"pooled": no_vectors, "looked_up": no_vectors}

    def read(self, batch: Batch) -> GroupStep:
        """Read the lookups of a batch in these tables, also by row; its plan follows."""
        ids = self.reader.read(batch)
        return GroupStep(ids, self.reader.by_row(ids))

    def cold_rows(self, batch: Lookups) -> ColdRows:
        """Return the rows of a batch that need staging slots, for planning."""
        return self.placement.find_cold_rows(self.reader.read(batch))

    def initialize(self) -> None:
        """Give every row its initial values."""
        self.fast.initialize(self.initial, self.threads)
        self.slow.initialize(self.initial, self.threads)

    def warm_up(self) -> None:
        """Compile every kernel of a run, so that the first step does not."""
        no_slots = np.empty(0, np.int64)
        no_lookups = group_lookups(of_matrix(np.empty(0, np.int32), no_slots))
        for rows, tier in ((self._fast_rows, self.fast), (self.in_place.rows, self.slow)):
            vectors_PD = torch.empty(0, self.embedding_dim, dtype=torch.float32, device=tier.device)
            rows.look_up(tier.weights_SD, no_lookups, no_slots, vectors_PD)
            rows.update(tier, no_lookups, no_slots, vectors_PD, 1)
        self.load(Transfer())

    def load(self, transfer: Transfer, kind: Kind | None = None) -> None:
        """Write rows back, then load others; counted as work of ``kind``."""
        self.staged.catch_up()
        # In this order: a slot is free, and a row up to date on the slow tier, once it is written back.
        write_back(self.fast, self.slow, transfer.write_back)
        fetch(self.fast, self.slow, transfer.fetch)
        initialize_rows(self.fast, self.slow, self.initial, transfer.initialize)
        self.staged.note(transfer, kind)

    def write_back(self) -> None:
        """Copy staged rows' newest values to the slow tier; rows stay staged."""
        # Evaluation reads staged rows where they are if the others are in a file: see `read_rows`.
        if isinstance(self.slow, FileTier):
            return
        moves = Moves(*self.staged.by_slot())
        write_back(self.fast, self.slow, moves)
        self.traffic.rows("to_slow", moves.rows_N, self.fast.row_bytes, "evaluation")

    def read_rows(self, wanted_U: NDArray[np.int64]) -> None:
        """Read newest weights from a slow tier's file, for lookups in place.

        Args:
            wanted_U: rows, ascending, by their slots on the slow tier; none: give the memory back.
        """
        assert isinstance(self.slow, FileTier)
        self.slow.read(wanted_U, self.fast, *self.staged.by_row())

    def restore(
        self,
        tables_N: NDArray[np.int64],
        ids_N: NDArray[np.int64],
        weights_ND: NDArray[np.float32],
        state_NW: NDArray[np.float32],
    ) -> None:
        """Set rows wherever they are in memory, before the first step."""
        tiers = [self.fast] if isinstance(self.slow, FileTier) else [self.fast, self.slow]
        for tier in tiers[self.slow.is_stale :]:
            slots_N = tier.layout.slots_of_rows(tables_N, ids_N)
            is_here_N = slots_N >= 0
            here = torch.from_numpy(slots_N[is_here_N]).to(tier.device)
            for rows, values in ((tier.weights_SD, weights_ND), (tier.state_SW, state_NW)):
                rows.index_copy_(0, here, torch.from_numpy(values[is_here_N]).to(tier.device))

    def look_up(self, part: GroupStep) -> torch.Tensor:
        """(B, F, D) embeddings, leaves for ``update``; the next lookup reuses their memory."""
        ids = part.ids
        pooled_PD = self._buffer("pooled", ids.num_samples * ids.num_features)
        in_place = part.plan.in_place
        # Either the slow tier pools the whole batch (hybrid), or vectors of single lookups are gathered from
        # both tiers and pooled on the fast one. Without bags a lookup's vector is pooled already.
        if in_place and in_place.sends == "bags":
            self.in_place.send_bags(part, pooled_PD)
        else:
            vectors_ND = pooled_PD if ids.bags_N is None else self._buffer("looked_up", ids.ids_N.size)
            self._gather(part.lookups, part.plan, vectors_ND)
            if ids.bags_N is not None:
                self._fast_rows.pool(vectors_ND, ids, pooled_PD)
        # A leaf of the graph: the backward pass leaves the gradient there, and stops there.
        emb_BFD = pooled_PD.view(ids.num_samples, ids.num_features, self.embedding_dim).detach()
        return emb_BFD.requires_grad_(torch.is_grad_enabled())

    def update(self, part: GroupStep, emb_BFD: torch.Tensor, rate: float | None = None) -> None:
        """Take one optimizer step by the gradient of the last lookup's embeddings.

        Args:
            rate: learning rate of the step, a float32; None: that of the optimizer.
        """
        assert emb_BFD.grad is not None, "the backward pass comes first"
        grad_PD = emb_BFD.grad.reshape(-1, self.embedding_dim)
        if part.plan.in_place:
            self.in_place.update(part, grad_PD, rate)
            return
        by_bag = part.ids.by_bag(part.lookups)
        own_U, every_U = self._slots(part.lookups, part.plan)
        split = part.plan.split
        # The sum of a row is over the whole batch, whichever pass updates it.
        for slots_U in [every_U] if split is None else self._in_passes(split, own_U):
            changed_U = without_tables(part.lookups, slots_U, self.frozen) if self.frozen else slots_U
            self._fast_rows.update(self.fast, by_bag, changed_U, grad_PD, part.ids.num_features, rate)

    def _in_passes(self, split: SplitBatch, own_U: NDArray[np.int64]) -> Iterator[NDArray[np.int64]]:
        """Yield the slots of the rows to update next, -1 for the others, until all had their turn.

        Rows that live on the fast tier come right away; then each pass loads its rows again, and writes them
        back once they are updated.
        """
        yield own_U
        for load, moves, slots_U in self._passes(split, own_U):
            self.load(load)
            yield slots_U
            self.load(Transfer(write_back=moves))

    def sums(self, by_bag: LookupsByRow, grad_PD: torch.Tensor, num_features: int) -> torch.Tensor:
        """(num_distinct, D): summed gradient of each distinct row."""
        return self._fast_rows.sums(by_bag, grad_PD, num_features)

    def apply(self, part: GroupStep, sums_UD: torch.Tensor, steps: Sequence[RowStep]) -> None:
        """Take optimizer steps from summed gradients, which stay as they are, wherever the rows are."""
        if part.plan.in_place:
            slots_U = self.in_place.slots_of_rows(part.lookups)
            self._apply(self.slow, slots_U, sums_UD.cpu(), steps)
            return
        own_U, every_U = self._slots(part.lookups, part.plan)
        split = part.plan.split
        for slots_U in [every_U] if split is None else self._in_passes(split, own_U):
            self._apply(self.fast, slots_U, sums_UD, steps)

    def _apply(
        self, tier: Tier, slots_U: NDArray[np.int64], sums_UD: torch.Tensor, steps: Sequence[RowStep]
    ) -> None:
        for step in steps:
            rows_N = step.rows_N[slots_U[step.rows_N] >= 0]
            rows = backend_of(tier.device, step.optimizer, self.threads)
            # The copy may change: decay is added to it.
            of_step = sums_UD.index_select(0, torch.from_numpy(rows_N).to(sums_UD.device))
            rows.apply(tier, slots_U[rows_N], of_step, step.rate)

    def table_parts(self, position: int, *, state: bool = False) -> Iterator[torch.Tensor]:
        """Yield the host weights of a table, or its state, in id order.

        Parts are of bounded size where they are in a file. Valid once every row is written back.
        """
        # A table has hot rows first and cold rows after them, or all rows on one tier: read whichever tier
        # has the next id. Rows with a place on both tiers (fae) are read where they are newer.
        tiers = (self.slow, self.fast, self.slow)
        next_id = 0
        for tier in tiers[self.slow.is_stale :]:
            first, last = int(tier.layout.first_F[position]), int(tier.layout.last_F[position])
            if not first <= next_id < last:
                continue
            num_read = next_id - first
            for part in tier.parts_of_table(position, state=state):
                yield part[num_read:]
                num_read = max(num_read - part.shape[0], 0)
            next_id = last

    def _gather(self, lookups: LookupsByRow, plan: StepPlan, vectors_ND: torch.Tensor) -> None:
        """Write the row of each lookup to its position, wherever the rows are."""
        in_place = plan.in_place
        if in_place and in_place.is_whole:
            self.in_place.send_rows(lookups, np.ones(lookups.num_rows, np.bool_), vectors_ND)
            return
        own_U, slots_U = self._slots(lookups, plan)
        self._fast_rows.look_up(self.fast.weights_SD, lookups, slots_U, vectors_ND)
        # Evaluation: rows that do not live here are read in place.
        if in_place and (own_U < 0).any():
            self.in_place.send_rows(lookups, own_U < 0, vectors_ND)
        if plan.split is not None:
            for load, _, slots_of_pass in self._passes(plan.split, own_U):
                self.load(load)
                self._fast_rows.look_up(self.fast.weights_SD, lookups, slots_of_pass, vectors_ND)

    def _slots(self, lookups: LookupsByRow, plan: StepPlan) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return distinct rows' slots on the fast tier, else -1; with staged rows."""
        own_U, num_absent = self.fast.layout.slots_of(lookups)
        staged_U = plan.staged_U
        if staged_U is None:
            assert num_absent == 0 or plan.in_place or plan.split, "the plan lists too few rows"
            return own_U, own_U
        # Rows without a slot are those that the plan has staged, in the same order.
        assert num_absent == staged_U.size, "the plan lists too few rows"
        slots_U = own_U.copy()
        slots_U[own_U < 0] = staged_U
        return own_U, slots_U

    def _passes(
        self, split: SplitBatch, own_U: NDArray[np.int64]
    ) -> Iterator[tuple[Transfer, Moves, NDArray[np.int64]]]:
        """Yield each pass of a batch: its loading transfer, all moves, and slots.

        A pass has as many cold rows as there are slots; distinct rows of other passes have slot -1.
        """
        cold = np.flatnonzero(own_U < 0)
        # Each pass has a part of the rows, in the order of the plan, from the first staging slot on.
        slots_N = np.arange(split.rows_U.size) % split.num_slots + self.fast.layout.num_own_slots
        loads = Moves(split.rows_U, slots_N, split.fetches_U)
        write_backs = Moves(split.rows_U, slots_N, split.next_fetches_U)
        for first in range(0, split.rows_U.size, split.num_slots):
            part = slice(first, first + split.num_slots)
            own, is_first = loads.part(part), split.is_first_U[part]
            # Lookups of other passes have no slot in this one.
            slots_U = np.full(own_U.size, -1, np.int64)
            slots_U[cold[part]] = own.slots_N
            yield Transfer.of(own, is_first), write_backs.part(part), slots_U

    def _buffer(self, name: str, num_vectors: int) -> torch.Tensor:
        """(num_vectors, D) workspace on the fast tier's device, kept between batches."""
        if self._vectors[name].shape[0] < num_vectors:
            self._vectors[name] = torch.empty(
                num_vectors, self.embedding_dim, dtype=torch.float32, device=self.fast.device
            )
        return self._vectors[name][:num_vectors]
