"""Runs step plans on the rows of one width: moves them, gives their embeddings, takes gradients back.

One executor serves every placement; what differs is the plan. ``transfer`` brings rows, ``look_up`` comes
before the forward pass, ``update`` after the backward pass. A transfer touches staging slots and the slow
tier alone and may run in another thread, ahead of the batches it serves (`conveyor`).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .batch import BatchIds
from .initial_values import InitialValues
from .meter import Meter
from .replicator import Replicator
from .row_backends import Lookups, NumbaRows, backend_of
from .row_mover import HostMover
from .row_optimizers import RowOptimizer
from .step_plan import InPlace, StepPlan, Transfer
from .tiers import Tier

_FLOAT32_BYTES = 4
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
    """

    def __init__(
        self, fast: Tier, slow: Tier, optimizer: RowOptimizer, initial: InitialValues, meter: Meter
    ) -> None:
        self.fast, self.slow = fast, slow
        self._meter = meter
        self._initial = initial
        self._replicator = Replicator(fast, slow)
        self._mover = HostMover(fast, slow, initial)
        self._fast_rows = backend_of(fast.device, optimizer)
        self._slow_rows = NumbaRows(optimizer)
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
            with self._meter.during("switch"):
                self._replicator.copy(plan.copy_hot)
                num_bytes = self._replicator.num_bytes
                up = plan.copy_hot == "to_fast"
                self._meter.moved(to_fast=num_bytes if up else 0, to_slow=0 if up else num_bytes)

    def transfer(self, transfer: Transfer) -> None:
        """Write rows back, then bring others."""
        self._mover.write_back(transfer.write_back)
        self._mover.fetch(transfer.fetch)
        self._mover.make(transfer.make)
        row_bytes = self.fast.row_bytes
        self._meter.moved(
            to_fast=transfer.fetch.num_rows * row_bytes, to_slow=transfer.write_back.num_rows * row_bytes
        )

    def look_up(self, ids: BatchIds, plan: StepPlan) -> torch.Tensor:
        """(B, F, D) embeddings of a batch, a leaf whose gradient ``update`` wants.

        Their memory is used again by the next look-up.
        """
        pooled_PD = self._buffer("pooled", ids.num_bags)
        in_place = plan.in_place
        self._fast_lookups = self._lookups_on_fast(ids, plan)
        if in_place and in_place.positions_N is None and in_place.inverse_N is None:
            self._pool_on_slow(ids, in_place.rows_N, pooled_PD)
        else:
            vectors_ND = pooled_PD if ids.bags_N is None else self._buffer("looked_up", ids.ids_N.size)
            if self._fast_lookups is not None:
                self._fast_rows.look_up(self.fast.weights_SD, self._fast_lookups, vectors_ND)
            if in_place:
                self._look_up_in_place(in_place, vectors_ND)
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
            self._update_in_place(ids, plan.in_place, grad_PD)
            return
        lookups = self._fast_lookups
        assert lookups is not None
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
        if plan.staged:
            slots_N[plan.staged.positions_N] = plan.staged.slots_N
            num_absent -= plan.staged.positions_N.size
        if elsewhere is None:
            assert num_absent == 0, "the plan lists too few look-ups"
            return Lookups(np.arange(slots_N.size), slots_N)
        here = np.ones(slots_N.size, np.bool_)
        here[elsewhere.positions_N] = False
        return Lookups(np.flatnonzero(here), slots_N[here])

    def _pool_on_slow(self, ids: BatchIds, rows_N: NDArray[np.int64], pooled_PD: torch.Tensor) -> None:
        """Look up and add up on the slow tier; one vector a bag travels."""
        self._meter.moved(to_fast=ids.num_bags * self._dim * _FLOAT32_BYTES)
        is_host = self.fast.device == _HOST
        on_host_PD = pooled_PD if is_host else torch.empty(pooled_PD.shape)
        vectors_ND = on_host_PD if ids.bags_N is None else torch.empty(rows_N.size, self._dim)
        self._slow_rows.look_up(self.slow.weights_SD, Lookups(np.arange(rows_N.size), rows_N), vectors_ND)
        if ids.bags_N is not None:
            self._slow_rows.pool(vectors_ND, ids, on_host_PD)
        if not is_host:
            pooled_PD.copy_(on_host_PD)

    def _look_up_in_place(self, in_place: InPlace, vectors_ND: torch.Tensor) -> None:
        """Vectors of single look-ups, or of each distinct row, travel and are read there."""
        count = in_place.rows_N.size
        every = np.arange(vectors_ND.shape[0] if in_place.inverse_N is not None else count)
        positions_N = every if in_place.positions_N is None else in_place.positions_N
        self._meter.moved(to_fast=count * self._dim * _FLOAT32_BYTES)
        if in_place.inverse_N is None and self.fast.device == _HOST:
            self._slow_rows.look_up(self.slow.weights_SD, Lookups(positions_N, in_place.rows_N), vectors_ND)
            return
        travelling = torch.empty(count, self._dim)
        self._slow_rows.look_up(self.slow.weights_SD, Lookups(np.arange(count), in_place.rows_N), travelling)
        read = np.arange(count) if in_place.inverse_N is None else in_place.inverse_N.astype(np.int64)
        self._fast_rows.look_up(travelling.to(self.fast.device), Lookups(positions_N, read), vectors_ND)

    def _update_in_place(self, ids: BatchIds, in_place: InPlace, grad_PD: torch.Tensor) -> None:
        rows_N, inverse_N = in_place.rows_N, in_place.inverse_N
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N
        num_vectors = ids.num_bags if inverse_N is None else rows_N.size
        self._meter.moved(to_slow=num_vectors * self._dim * _FLOAT32_BYTES)
        if inverse_N is None:
            self._slow_rows.update(self.slow, Lookups(bags_N, rows_N), grad_PD.to(_HOST), ids.num_features)
            return
        sums_UD = self._fast_rows.sum_by_row(bags_N, inverse_N, rows_N.size, grad_PD, ids.num_features)
        self._slow_rows.apply(self.slow, rows_N, sums_UD.to(_HOST))

    def _buffer(self, name: str, num_vectors: int) -> torch.Tensor:
        """(num_vectors, D) scratch on the fast tier's device, kept between batches."""
        if self._vectors[name].shape[0] < num_vectors:
            self._vectors[name] = torch.empty(num_vectors, self._dim, device=self.fast.device)
        return self._vectors[name][:num_vectors]
