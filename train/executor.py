"""Runs step plans: moves rows, gives the model its embeddings, takes their gradients back to the rows.

One executor serves every placement; what differs is the plan. A plan runs in three calls: ``move`` (rows
between tiers), ``look_up`` before the forward pass, ``update`` after the backward pass. Here they follow
one another; nothing in a plan keeps ``move`` of a later batch from running beside the compute of this one.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from .meter import Meter
from .replicator import Replicator
from .row_backends import Lookups, NumbaRows, backend_of
from .row_optimizers import RowOptimizer
from .step_plan import InPlace, Moves, StepPlan
from .tiers import Tier

_FLOAT32_BYTES = 4
_HOST = torch.device("cpu")


class Executor:
    """The two tiers and everything that touches their rows.

    Args:
        fast: rows on the device of the model.
        slow: rows on the host.
        optimizer: of the rows of both.
        max_samples: samples of the largest batch.
        meter: counts the bytes between the tiers.
    """

    def __init__(
        self, fast: Tier, slow: Tier, optimizer: RowOptimizer, max_samples: int, meter: Meter
    ) -> None:
        self.fast, self.slow = fast, slow
        self._meter = meter
        self._replicator = Replicator(fast, slow)
        self._fast_rows = backend_of(fast.device, optimizer)
        self._slow_rows = NumbaRows(optimizer)
        self._num_features = fast.layout.num_tables
        self._dim = fast.weights_SD.shape[1]
        num_positions = max_samples * self._num_features
        self._positions = np.arange(num_positions, dtype=np.int64)
        self._vectors_PD = torch.empty(num_positions, self._dim, device=fast.device)

    def warm_up(self) -> None:
        """Compile every kernel a run will use, so that its first step is not timed with the compiler."""
        nothing = np.empty(0, np.int64)
        for rows, tier in ((self._fast_rows, self.fast), (self._slow_rows, self.slow)):
            vectors_PD = torch.empty(0, self._dim, device=tier.device)
            rows.look_up(tier.weights_SD, Lookups(nothing, nothing), vectors_PD)
            rows.update(tier, Lookups(nothing, nothing), vectors_PD, self._num_features)

    def move(self, plan: StepPlan) -> None:
        """Bring rows where the plan wants them: hot rows at a switch, then write-backs, then fetches."""
        if plan.copy_hot:
            with self._meter.during("switch"):
                self._replicator.copy(plan.copy_hot)
                num_bytes = self._replicator.num_bytes
                up = plan.copy_hot == "to_fast"
                self._meter.moved(to_fast=num_bytes if up else 0, to_slow=0 if up else num_bytes)
        if plan.write_back:
            self._move_rows(self.fast, plan.write_back.slots_N, self.slow, plan.write_back.rows_N)
            self._meter.moved(to_slow=self._bytes_of(plan.write_back))
        if plan.fetch:
            self._move_rows(self.slow, plan.fetch.rows_N, self.fast, plan.fetch.slots_N)
            self._meter.moved(to_fast=self._bytes_of(plan.fetch))

    def look_up(self, ids_BF: NDArray[np.int32], plan: StepPlan) -> torch.Tensor:
        """(B, F, D) embeddings of a batch, a leaf whose gradient ``update`` wants.

        Their memory is used again by the next look-up.
        """
        vectors_PD = self._vectors_PD[: ids_BF.size]
        fast = self._fast_lookups(ids_BF, plan)
        if fast is not None:
            self._fast_rows.look_up(self.fast.weights_SD, fast, vectors_PD)
        if plan.in_place:
            self._look_up_in_place(plan.in_place, vectors_PD)
        emb_BFD = vectors_PD.view(*ids_BF.shape, self._dim).detach()
        return emb_BFD.requires_grad_(torch.is_grad_enabled())

    def update(self, ids_BF: NDArray[np.int32], emb_BFD: torch.Tensor, plan: StepPlan) -> None:
        """One optimizer step on every row the batch looked up, by the gradient of its embeddings."""
        assert emb_BFD.grad is not None, "the backward pass comes first"
        grad_PD = emb_BFD.grad.reshape(-1, self._dim)
        if plan.in_place:
            assert plan.in_place.positions_N is None, "a training step is in place as a whole"
            self._update_in_place(plan.in_place, grad_PD)
            return
        fast = self._fast_lookups(ids_BF, plan)
        assert fast is not None
        self._fast_rows.update(self.fast, fast, grad_PD, self._num_features)

    def table(self, table: int) -> torch.Tensor:
        """(num_rows, D) host weights of one table in id order; valid when every row is at home."""
        parts = []
        next_id = 0
        for tier in (self.slow, self.fast, self.slow):
            first, last = int(tier.layout.first_F[table]), int(tier.layout.last_F[table])
            if first == next_id < last:
                parts.append(tier.weights_SD[tier.layout.slots_of_table(table)].to(_HOST))
                next_id = last
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _fast_lookups(self, ids_BF: NDArray[np.int32], plan: StepPlan) -> Lookups | None:
        """The look-ups the fast tier serves; None where all are in place."""
        elsewhere = plan.in_place
        if elsewhere and elsewhere.positions_N is None:
            return None
        slots_N, num_absent = self.fast.layout.locate(ids_BF)
        if plan.staged:
            slots_N[plan.staged.positions_N] = plan.staged.slots_N
            num_absent -= plan.staged.positions_N.size
        if elsewhere is None:
            assert num_absent == 0, "the plan lists too few look-ups"
            return Lookups(self._positions[: slots_N.size], slots_N)
        here = np.ones(slots_N.size, np.bool_)
        here[elsewhere.positions_N] = False
        return Lookups(np.flatnonzero(here), slots_N[here])

    def _look_up_in_place(self, in_place: InPlace, vectors_PD: torch.Tensor) -> None:
        every = self._positions[: vectors_PD.shape[0]]
        positions_N = every if in_place.positions_N is None else in_place.positions_N
        self._meter.moved(to_fast=in_place.rows_N.size * self._dim * _FLOAT32_BYTES)
        if in_place.inverse_N is None and self.fast.device == _HOST:
            self._slow_rows.look_up(self.slow.weights_SD, Lookups(positions_N, in_place.rows_N), vectors_PD)
            return
        count = in_place.rows_N.size
        travelling = torch.empty(count, self._dim)
        order = Lookups(self._positions[:count], in_place.rows_N)
        self._slow_rows.look_up(self.slow.weights_SD, order, travelling)
        read = self._positions[:count] if in_place.inverse_N is None else in_place.inverse_N.astype(np.int64)
        self._fast_rows.look_up(travelling.to(self.fast.device), Lookups(positions_N, read), vectors_PD)

    def _update_in_place(self, in_place: InPlace, grad_PD: torch.Tensor) -> None:
        rows_N, inverse_N = in_place.rows_N, in_place.inverse_N
        self._meter.moved(to_slow=rows_N.size * self._dim * _FLOAT32_BYTES)
        if inverse_N is None:
            lookups = Lookups(self._positions[: rows_N.size], rows_N)
            self._slow_rows.update(self.slow, lookups, grad_PD.to(_HOST), self._num_features)
            return
        sums_UD = self._fast_rows.sum_by_row(inverse_N, rows_N.size, grad_PD, self._num_features)
        self._slow_rows.apply(self.slow, rows_N, sums_UD.to(_HOST))

    def _bytes_of(self, moves: Moves) -> int:
        return moves.rows_N.size * self.fast.row_bytes

    @staticmethod
    def _move_rows(
        source: Tier, source_N: NDArray[np.int64], target: Tier, target_N: NDArray[np.int64]
    ) -> None:
        """Copy rows with their state; on the host by torch's gather and scatter."""
        from_N = torch.from_numpy(source_N).to(source.device)
        to_N = torch.from_numpy(target_N).to(target.device)
        for old, new in ((source.weights_SD, target.weights_SD), (source.state_SW, target.state_SW)):
            new.index_copy_(0, to_N, old.index_select(0, from_N).to(target.device))
