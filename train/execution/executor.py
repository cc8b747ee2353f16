"""Runs step plans on the rows of one width: moves them, gives their embeddings, takes gradients back.

One executor serves every placement; what differs is the plan. ``transfer`` brings rows, ``look_up`` comes
before the forward pass, ``update`` after the backward pass. A transfer touches staging slots and the slow
tier alone and may run in another thread, ahead of the batches it serves (`conveyor`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import BatchIds
from ..device_streams import Lanes, lanes_of
from ..meter import Meter
from ..rows.initial_values import InitialValues
from ..rows.row_backends import Lookups, NumbaRows, backend_of
from ..rows.row_mover import make_rows, mover_of
from ..rows.row_optimizers import RowOptimizer
from ..rows.step_plan import Moves, Split, StepPlan, Transfer
from ..rows.tiers import Tier
from .in_place import InPlaceWork
from .replicator import Replicator
from .traffic import Traffic

_HOST = torch.device("cpu")
_BUFFERS = ("pooled", "looked_up")


class Executor:
    """The two tiers of one row width and everything that touches their rows.

    Args:
        fast: rows on the device of the model.
        slow: rows on the host.
        optimizer: of the rows of both.
        initial: values of rows that no batch has used yet.
        meter: counts the bytes between the tiers.
        lanes: of the device of the fast tier.
    """

    def __init__(
        self,
        fast: Tier,
        slow: Tier,
        optimizer: RowOptimizer,
        initial: InitialValues,
        meter: Meter,
        lanes: Lanes | None = None,
    ) -> None:
        self.fast, self.slow = fast, slow
        self.traffic = Traffic(meter, slow.layout)
        self._initial = initial
        self._replicator = Replicator(fast, slow)
        self._mover = mover_of(fast, slow, lanes or lanes_of(fast.device))
        self._resident_S = np.full(fast.num_slots - fast.layout.num_home_slots, -1, np.int64)
        self._fast_rows = backend_of(fast.device, optimizer)
        self._slow_rows = NumbaRows(optimizer)
        self._in_place = InPlaceWork(fast, slow, self._fast_rows, self._slow_rows, self.traffic)
        self._dim = fast.weights_SD.shape[1]
        self._vectors = {
            name: torch.empty(0, self._dim, device=fast.device) for name in ("pooled", "looked_up")
        }
        self._fast_lookups: Lookups | None = None

    def initialise(self) -> None:
        """Give every row its initial values."""
        self.fast.initialise(self._initial)
        self.slow.initialise(self._initial)

    def warm_up(self) -> None:
        """Compile every kernel a run will use, so that its first step is not timed with the compiler."""
        nothing = np.empty(0, np.int64)
        for rows, tier in ((self._fast_rows, self.fast), (self._slow_rows, self.slow)):
            vectors_PD = torch.empty(0, self._dim, device=tier.device)
            rows.look_up(tier.weights_SD, Lookups(nothing, nothing), vectors_PD)
            rows.update(tier, Lookups(nothing, nothing), vectors_PD, 1)
        self.transfer(Transfer())

    def copy_hot(self, plan: StepPlan) -> None:
        """The copy of every hot row at a switch, where the plan has one."""
        if plan.copy_hot:
            with self.traffic.meter.during("switch"):
                self._replicator.copy(plan.copy_hot)
                self.traffic.by_table(plan.copy_hot, self._replicator.num_rows_F, self.fast.row_bytes)

    def transfer(self, transfer: Transfer, kind: str | None = None) -> None:
        """Write rows back, then bring others; counted as work of ``kind``."""
        self._mover.write_back(transfer.write_back)
        self._mover.fetch(transfer.fetch)
        make_rows(self.fast, self.slow, self._initial, transfer.make)
        first = self.fast.layout.num_home_slots
        self._resident_S[transfer.write_back.slots_N - first] = -1
        for moves in (transfer.fetch, transfer.make):
            self._resident_S[moves.slots_N - first] = moves.rows_N
        row_bytes = self.fast.row_bytes
        self.traffic.rows("to_slow", transfer.write_back.rows_N, row_bytes, kind)
        self.traffic.rows("to_fast", transfer.fetch.rows_N, row_bytes, kind)
        self.traffic.rows("made", transfer.make.rows_N, row_bytes, kind)

    def copy_residents_home(self) -> None:
        """Let the slow tier know the newest values of staged rows, which stay where they are."""
        slots_N = np.flatnonzero(self._resident_S >= 0)
        moves = Moves(self._resident_S[slots_N], slots_N + self.fast.layout.num_home_slots)
        self._mover.write_back(moves)
        self.traffic.rows("to_slow", moves.rows_N, self.fast.row_bytes, "evaluation")

    def look_up(self, ids: BatchIds, plan: StepPlan) -> torch.Tensor:
        """(B, F, D) embeddings of a batch, a leaf whose gradient ``update`` wants.

        Their memory is used again by the next look-up.
        """
        pooled_PD = self._buffer("pooled", ids.num_bags)
        in_place = plan.in_place
        self._fast_lookups = self._lookups_on_fast(ids, plan)
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
        emb_BFD = pooled_PD.view(ids.num_samples, ids.num_features, self._dim).detach()
        return emb_BFD.requires_grad_(torch.is_grad_enabled())

    def update(self, ids: BatchIds, emb_BFD: torch.Tensor, plan: StepPlan) -> None:
        """One optimizer step on every row the last look-up read, by the gradient of its embeddings."""
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
        bags_N = lookups.positions_N if ids.bags_N is None else ids.bags_N
        self._fast_rows.update(self.fast, Lookups(bags_N, lookups.slots_N), grad_PD, ids.num_features)

    def table(self, table: int, *, state: bool = False) -> torch.Tensor:
        """(num_rows, D) host weights of one table in id order, or (num_rows, W) optimizer state.

        Valid when every row is at home.
        """
        parts = []
        next_id = 0
        for tier in (self.slow, self.fast, self.slow):
            first, last = int(tier.layout.first_F[table]), int(tier.layout.last_F[table])
            if first == next_id < last:
                rows = tier.state_SW if state else tier.weights_SD
                parts.append(rows[tier.layout.slots_of_table(table)].to(_HOST))
                next_id = last
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _lookups_on_fast(self, ids: BatchIds, plan: StepPlan) -> Lookups | None:
        """The look-ups the fast tier serves; None where all are in place."""
        elsewhere = plan.in_place
        if elsewhere and elsewhere.positions_N is None:
            return None
        slots_N, num_absent = self.fast.layout.locate(ids)
        if plan.staged and plan.staged.positions_N.size:
            slots_N[plan.staged.positions_N] = plan.staged.slots_N
            num_absent -= plan.staged.positions_N.size
        if elsewhere is None:
            assert num_absent == 0, "the plan lists too few look-ups"
            return Lookups(np.arange(slots_N.size), slots_N)
        here = np.ones(slots_N.size, np.bool_)
        here[elsewhere.positions_N] = False
        return Lookups(np.flatnonzero(here), slots_N[here])

    def _look_up_in_passes(self, plan: StepPlan, vectors_ND: torch.Tensor) -> None:
        """Rows that are at home here first, then the cold ones, as many at a time as there are slots."""
        lookups, split, staged = self._fast_lookups, plan.split, plan.staged
        assert lookups is not None and split is not None and staged is not None
        self._fast_rows.look_up(self.fast.weights_SD, _without(lookups, staged.positions_N), vectors_ND)
        pass_N = split.inverse_N // split.num_slots
        for number, rows in enumerate(self._passes(split)):
            self.transfer(rows)
            here = pass_N == number
            part = Lookups(staged.positions_N[here], staged.slots_N[here])
            self._fast_rows.look_up(self.fast.weights_SD, part, vectors_ND)

    def _update_in_passes(self, ids: BatchIds, plan: StepPlan, grad_PD: torch.Tensor) -> None:
        lookups, split, staged = self._fast_lookups, plan.split, plan.staged
        assert lookups is not None and split is not None and staged is not None
        home = _without(lookups, staged.positions_N)
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N
        at_home = Lookups(bags_N[home.positions_N], home.slots_N)
        self._fast_rows.update(self.fast, at_home, grad_PD, ids.num_features)
        args = (bags_N[staged.positions_N], split.inverse_N, split.rows_U.size, grad_PD, ids.num_features)
        sums_UD = self._fast_rows.sum_by_row(*args)
        for number, rows in enumerate(self._passes(split)):
            self.transfer(rows)
            first = number * split.num_slots
            part = split.rows_U[first : first + split.num_slots]
            slots_N = np.arange(part.size) + self.fast.layout.num_home_slots
            self._fast_rows.apply(self.fast, slots_N, sums_UD[first : first + part.size])
            self.transfer(Transfer(write_back=Moves(part, slots_N)))

    def _passes(self, split: Split) -> Iterator[Transfer]:
        """What brings the rows of each pass."""
        for first in range(0, split.rows_U.size, split.num_slots):
            part = slice(first, first + split.num_slots)
            rows_N, is_made = split.rows_U[part], split.is_made_U[part]
            slots_N = np.arange(rows_N.size) + self.fast.layout.num_home_slots
            fetch = Moves(rows_N[~is_made], slots_N[~is_made])
            yield Transfer(fetch=fetch, make=Moves(rows_N[is_made], slots_N[is_made]))

    def _buffer(self, name: str, num_vectors: int) -> torch.Tensor:
        """(num_vectors, D) scratch on the fast tier's device, kept between batches."""
        if self._vectors[name].shape[0] < num_vectors:
            self._vectors[name] = torch.empty(num_vectors, self._dim, device=self.fast.device)
        return self._vectors[name][:num_vectors]


def _without(lookups: Lookups, positions_N: NDArray[np.int64]) -> Lookups:
    """All look-ups of a batch but those at ``positions_N``."""
    stays = np.ones(lookups.positions_N.size, np.bool_)
    stays[positions_N] = False
    return Lookups(lookups.positions_N[stays], lookups.slots_N[stays])
