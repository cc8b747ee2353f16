"""Runs step plans on the rows of one width: moves rows, looks up their embeddings, updates them by gradients.

One executor serves every placement; what differs is the plan. ``transfer`` loads rows, ``look_up`` comes
before the forward pass, ``update`` after the backward pass. A transfer touches staging slots and the slow
tier alone and may run in another thread, ahead of the batches it serves (`transfer_thread`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import BatchIds
from ..device_streams import DeviceStreams, streams_of
from ..meter import Kind, Meter
from ..rows.initial_values import InitialValues
from ..rows.row_backends import NumbaRows, SlotLookups, backend_of
from ..rows.row_mover import RowMover, initialize_rows, mover_of
from ..rows.row_optimizers import RowOptimizer
from ..rows.step_plan import Moves, SplitBatch, StepPlan, Transfer
from ..rows.tiers import Tier
from ..spill.spilled_tier import SpilledTier, SpillMover
from .in_place import InPlaceWork
from .replicator import Replicator
from .traffic import TrafficCounter

_HOST = torch.device("cpu")


class Executor:
    """The two tiers of one row width and everything that touches their rows.

    Args:
        fast: rows on the device of the model.
        slow: rows on the host.
        optimizer: that of the rows of both tiers.
        initial: values of rows that no batch has used yet.
        meter: counts the bytes between the tiers.
        streams: those of the device of the fast tier.
    """

    def __init__(
        self,
        fast: Tier,
        slow: Tier,
        optimizer: RowOptimizer,
        initial: InitialValues,
        meter: Meter,
        streams: DeviceStreams | None = None,
    ) -> None:
        self.fast = fast
        self.slow = slow
        self.traffic = TrafficCounter(meter, slow.layout)
        self._initial = initial
        self._replicator = Replicator(fast, slow)
        self.is_replica_current = False
        """Whether rows that both tiers hold are newer on the fast one, as of the last copy that was made."""
        self._mover: RowMover = (
            SpillMover(fast, slow)
            if isinstance(slow, SpilledTier)
            else mover_of(fast, slow, streams or streams_of(fast.device))
        )
        self._resident_S = np.full(fast.num_slots - fast.layout.num_own_slots, -1, np.int64)
        """Row in each staging slot, by its slot on the slow tier; -1 where there is none."""
        self._fast_rows = backend_of(fast.device, optimizer)
        self._slow_rows = NumbaRows(optimizer)
        self._in_place = InPlaceWork(fast, slow, self._fast_rows, self._slow_rows, self.traffic)
        self._dim = fast.weights_SD.shape[1]
        self._vectors = {
            name: torch.empty(0, self._dim, device=fast.device) for name in ("pooled", "looked_up")
        }
        self._fast_lookups: SlotLookups | None = None
        """Lookups on the fast tier of the batch looked up last, kept for its update."""

    def initialize(self) -> None:
        """Give every row its initial values."""
        self.fast.initialize(self._initial)
        self.slow.initialize(self._initial)

    def warm_up(self) -> None:
        """Compile every kernel a run will use, so that its first step is not timed with the compiler."""
        nothing = np.empty(0, np.int64)
        for rows, tier in ((self._fast_rows, self.fast), (self._slow_rows, self.slow)):
            vectors_PD = torch.empty(0, self._dim, device=tier.device)
            rows.look_up(tier.weights_SD, SlotLookups(nothing, nothing), vectors_PD)
            rows.update(tier, SlotLookups(nothing, nothing), vectors_PD, 1)
        self.transfer(Transfer())

    def copy_hot(self, plan: StepPlan) -> None:
        """Copy every hot row to the other tier, where the plan says so (a switch of FAE)."""
        if plan.copy_hot:
            with self.traffic.meter.during("switch"):
                self._replicator.copy(plan.copy_hot)
                self.is_replica_current = plan.copy_hot == "to_fast"
                self.traffic.by_table(plan.copy_hot, self._replicator.num_rows_F, self.fast.row_bytes)

    def transfer(self, transfer: Transfer, kind: Kind | None = None) -> None:
        """Write rows back, then load others; counted as work of ``kind``."""
        # In this order: a slot is free, and a row up to date on the slow tier, once it is written back.
        self._mover.write_back(transfer.write_back)
        self._mover.fetch(transfer.fetch)
        initialize_rows(self.fast, self.slow, self._initial, transfer.initialize)

        # Remember which row is in which slot, for copies of staged rows between transfers.
        first = self.fast.layout.num_own_slots
        self._resident_S[transfer.write_back.slots_N - first] = -1
        for moves in (transfer.fetch, transfer.initialize):
            self._resident_S[moves.slots_N - first] = moves.rows_N

        row_bytes = self.fast.row_bytes
        self.traffic.rows("to_slow", transfer.write_back.rows_N, row_bytes, kind)
        self.traffic.rows("to_fast", transfer.fetch.rows_N, row_bytes, kind)
        self.traffic.rows("made", transfer.initialize.rows_N, row_bytes, kind)

    def write_back_residents(self) -> None:
        """Copy the newest values of staged rows to the slow tier; the rows stay staged."""
        # Evaluation reads staged rows where they are if the others are in a file: see `read_rows`.
        if isinstance(self.slow, SpilledTier):
            return
        slots_N = np.flatnonzero(self._resident_S >= 0)
        moves = Moves(self._resident_S[slots_N], slots_N + self.fast.layout.num_own_slots)
        self._mover.write_back(moves)
        self.traffic.rows("to_slow", moves.rows_N, self.fast.row_bytes, "evaluation")

    def read_rows(self, wanted_U: NDArray[np.int64]) -> None:
        """Read the newest weights of rows of a slow tier in a file, for lookups in place.

        Args:
            wanted_U: rows, ascending, by their slots on the slow tier; none: give the memory back.
        """
        assert isinstance(self.slow, SpilledTier)
        slots_N = np.flatnonzero(self._resident_S >= 0)
        rows_N = self._resident_S[slots_N]
        self.slow.read(wanted_U, self.fast, rows_N, slots_N + self.fast.layout.num_own_slots)

    def look_up(self, ids: BatchIds, plan: StepPlan) -> torch.Tensor:
        """(B, F, D) embeddings of a batch, a leaf whose gradient ``update`` wants.

        Their memory is used again by the next lookup.
        """
        pooled_PD = self._buffer("pooled", ids.num_bags)
        in_place = plan.in_place
        self._fast_lookups = self._lookups_on_fast(ids, plan)
        # Either the slow tier pools the whole batch (hybrid), or vectors of single lookups are gathered from
        # both tiers and pooled on the fast one. Without bags a lookup's vector is pooled already.
        if in_place and in_place.positions_N is None and in_place.inverse_N is None:
            self._in_place.pool(ids, in_place.rows_N, pooled_PD)
        else:
            vectors_ND = pooled_PD if ids.bags_N is None else self._buffer("looked_up", ids.ids_N.size)
            if plan.split:
                self._look_up_in_passes(plan, vectors_ND)
            elif self._fast_lookups is not None:
                self._fast_rows.look_up(self.fast.weights_SD, self._fast_lookups, vectors_ND)
            if in_place:
                self._in_place.look_up(in_place, vectors_ND)
            if ids.bags_N is not None:
                self._fast_rows.pool(vectors_ND, ids, pooled_PD)
        # A leaf of the graph: the backward pass leaves the gradient there, and stops there.
        emb_BFD = pooled_PD.view(ids.num_samples, ids.num_features, self._dim).detach()
        return emb_BFD.requires_grad_(torch.is_grad_enabled())

    def update(self, ids: BatchIds, emb_BFD: torch.Tensor, plan: StepPlan) -> None:
        """Take one optimizer step on every row the last lookup read, by the gradient of its embeddings."""
        assert emb_BFD.grad is not None, "the backward pass comes first"
        grad_PD = emb_BFD.grad.reshape(-1, self._dim)
        if plan.in_place:
            assert plan.in_place.positions_N is None, "a training step is in place as a whole"
            self._in_place.update(ids, plan.in_place, grad_PD)
            return
        lookups = self._fast_lookups
        assert lookups is not None
        if plan.split:
            self._update_in_passes(ids, plan, grad_PD)
            return
        # The gradient of a lookup is that of its bag.
        bags_N = lookups.positions_N if ids.bags_N is None else ids.bags_N
        self._fast_rows.update(self.fast, SlotLookups(bags_N, lookups.slots_N), grad_PD, ids.num_features)

    def table(self, table: int, *, state: bool = False) -> torch.Tensor:
        """(num_rows, D) host weights of one table in id order, or (num_rows, W) optimizer state.

        Valid once every row is written back.
        """
        # The tiers hold ranges of ids: the slow tier the whole table, or what follows the fast tier's range.
        parts = []
        next_id = 0
        for tier in (self.slow, self.fast, self.slow):
            first, last = int(tier.layout.first_F[table]), int(tier.layout.last_F[table])
            if first == next_id < last:
                parts.append(tier.rows_of_table(table, state=state).to(_HOST))
                next_id = last
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def table_parts(self, table: int) -> Iterator[torch.Tensor]:
        """Yield the weights of one table in id order, in parts of bounded size where they are in a file."""
        next_id = 0
        for tier in (self.slow, self.fast, self.slow):
            first, last = int(tier.layout.first_F[table]), int(tier.layout.last_F[table])
            if first == next_id < last:
                if isinstance(tier, SpilledTier):
                    yield from tier.parts_of_table(table)
                else:
                    yield tier.rows_of_table(table, state=False).to(_HOST)
                next_id = last

    def _lookups_on_fast(self, ids: BatchIds, plan: StepPlan) -> SlotLookups | None:
        """The lookups the fast tier serves; None where all are in place."""
        in_place = plan.in_place
        if in_place and in_place.positions_N is None:
            return None
        # Rows that live here are located by their ids; those staged here are listed in the plan.
        slots_N, num_absent = self.fast.layout.locate(ids)
        if plan.staged and plan.staged.positions_N.size:
            slots_N[plan.staged.positions_N] = plan.staged.slots_N
            num_absent -= plan.staged.positions_N.size
        if in_place is None:
            assert num_absent == 0, "the plan lists too few lookups"
            return SlotLookups(np.arange(slots_N.size), slots_N)
        # Evaluation: the cold lookups are in place, the others here.
        is_on_fast = np.ones(slots_N.size, np.bool_)
        is_on_fast[in_place.positions_N] = False
        return SlotLookups(np.flatnonzero(is_on_fast), slots_N[is_on_fast])

    def _look_up_in_passes(self, plan: StepPlan, vectors_ND: torch.Tensor) -> None:
        """Look up the rows that live here first, then the cold ones, as many at a time as there are slots."""
        lookups = self._fast_lookups
        split = plan.split
        staged = plan.staged
        assert lookups is not None and split is not None and staged is not None
        self._fast_rows.look_up(self.fast.weights_SD, _without(lookups, staged.positions_N), vectors_ND)
        # Rows are numbered in the order of the passes, and so are their slots within a pass.
        pass_N = split.inverse_N // split.num_slots
        for number, rows in enumerate(self._passes(split)):
            self.transfer(rows)
            in_pass = pass_N == number
            part = SlotLookups(staged.positions_N[in_pass], staged.slots_N[in_pass])
            self._fast_rows.look_up(self.fast.weights_SD, part, vectors_ND)

    def _update_in_passes(self, ids: BatchIds, plan: StepPlan, grad_PD: torch.Tensor) -> None:
        lookups = self._fast_lookups
        split = plan.split
        staged = plan.staged
        assert lookups is not None and split is not None and staged is not None
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N

        # Rows that live here are updated at once.
        own = _without(lookups, staged.positions_N)
        own_by_bag = SlotLookups(bags_N[own.positions_N], own.slots_N)
        self._fast_rows.update(self.fast, own_by_bag, grad_PD, ids.num_features)

        # The gradients of cold rows are summed over the whole batch, in the order they always are; then each
        # pass loads its rows again, updates them and writes them back.
        sums_UD = self._fast_rows.sum_by_row(
            bags_N[staged.positions_N], split.inverse_N, split.rows_U.size, grad_PD, ids.num_features
        )
        for number, rows in enumerate(self._passes(split)):
            self.transfer(rows)
            first = number * split.num_slots
            part = slice(first, first + split.num_slots)
            rows_N = split.rows_U[part]
            slots_N = np.arange(rows_N.size) + self.fast.layout.num_own_slots
            self._fast_rows.apply(self.fast, slots_N, sums_UD[part])
            next_fetches_N = None if split.next_fetches_U is None else split.next_fetches_U[part]
            self.transfer(Transfer(write_back=Moves(rows_N, slots_N, next_fetches_N)))

    def _passes(self, split: SplitBatch) -> Iterator[Transfer]:
        """The transfer that loads the rows of each pass."""
        for first in range(0, split.rows_U.size, split.num_slots):
            part = slice(first, first + split.num_slots)
            rows_N = split.rows_U[part]
            is_first = split.is_first_U[part]
            slots_N = np.arange(rows_N.size) + self.fast.layout.num_own_slots
            fetches_N = None if split.fetches_U is None else split.fetches_U[part][~is_first]
            fetch = Moves(rows_N[~is_first], slots_N[~is_first], fetches_N)
            yield Transfer(fetch=fetch, initialize=Moves(rows_N[is_first], slots_N[is_first]))

    def _buffer(self, name: str, num_vectors: int) -> torch.Tensor:
        """(num_vectors, D) workspace on the fast tier's device, kept between batches."""
        if self._vectors[name].shape[0] < num_vectors:
            self._vectors[name] = torch.empty(num_vectors, self._dim, device=self.fast.device)
        return self._vectors[name][:num_vectors]


def _without(lookups: SlotLookups, positions_N: NDArray[np.int64]) -> SlotLookups:
    """All lookups of a batch but those at ``positions_N``."""
    stays = np.ones(lookups.positions_N.size, np.bool_)
    stays[positions_N] = False
    return SlotLookups(lookups.positions_N[stays], lookups.slots_N[stays])
