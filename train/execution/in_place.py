"""Lookups of rows that stay on the slow tier: vectors are sent to the fast tier, gradients back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import BatchIds
from ..rows.row_backends import NumbaRows, RowBackend, SlotLookups
from ..rows.step_plan import InPlace
from ..rows.tiers import Tier
from .traffic import TrafficCounter, Way

_FLOAT32_BYTES = 4
_HOST = torch.device("cpu")


class InPlaceWork:
    """The work of an executor on its slow tier.

    Args:
        fast: the tier where vectors are wanted.
        slow: the tier where the rows are.
        fast_rows: back end of the fast tier.
        slow_rows: back end of the slow tier.
        traffic: counts what moves between the tiers.
    """

    def __init__(
        self, fast: Tier, slow: Tier, fast_rows: RowBackend, slow_rows: NumbaRows, traffic: TrafficCounter
    ) -> None:
        self._fast = fast
        self._slow = slow
        self._fast_rows = fast_rows
        self._slow_rows = slow_rows
        self._traffic = traffic
        self._dim = fast.weights_SD.shape[1]
        self._vector_bytes = self._dim * _FLOAT32_BYTES

    def pool(self, ids: BatchIds, rows_N: NDArray[np.int64], pooled_PD: torch.Tensor) -> None:
        """Look up and add up on the slow tier; one vector per bag is sent."""
        self._count_vector_per_bag("to_fast", ids)
        # A fast tier on the host takes the vectors directly, one on a GPU gets them as one copy.
        is_host = self._fast.device == _HOST
        on_host_PD = pooled_PD if is_host else torch.empty(pooled_PD.shape)
        vectors_ND = on_host_PD if ids.bags_N is None else torch.empty(rows_N.size, self._dim)
        self._read_rows(rows_N, np.arange(rows_N.size), vectors_ND)
        if ids.bags_N is not None:
            self._slow_rows.pool(vectors_ND, ids, on_host_PD)
        if not is_host:
            pooled_PD.copy_(on_host_PD)

    def look_up(self, in_place: InPlace, vectors_ND: torch.Tensor) -> None:
        """Send the vectors of single lookups, or of each distinct row, and read them on the fast tier."""
        count = in_place.rows_N.size
        every = np.arange(vectors_ND.shape[0] if in_place.inverse_N is not None else count)
        positions_N = every if in_place.positions_N is None else in_place.positions_N
        self._traffic.rows("to_fast", in_place.rows_N, self._vector_bytes)
        if in_place.inverse_N is None and self._fast.device == _HOST:
            self._read_rows(in_place.rows_N, positions_N, vectors_ND)
            return
        # The vectors sent are a small table of their own there, in which the lookups are made.
        sent = torch.empty(count, self._dim)
        self._read_rows(in_place.rows_N, np.arange(count), sent)
        read = np.arange(count) if in_place.inverse_N is None else in_place.inverse_N.astype(np.int64)
        self._fast_rows.look_up(sent.to(self._fast.device), SlotLookups(positions_N, read), vectors_ND)

    def update(self, ids: BatchIds, in_place: InPlace, grad_PD: torch.Tensor) -> None:
        """Take one optimizer step on the rows of a batch, by gradients from the fast tier."""
        rows_N = in_place.rows_N
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N
        # Either one gradient per bag is sent and summed here, or they are summed there, one per distinct row.
        if in_place.inverse_N is None:
            self._count_vector_per_bag("to_slow", ids)
            lookups = SlotLookups(bags_N, rows_N)
            self._slow_rows.update(self._slow, lookups, grad_PD.to(_HOST), ids.num_features)
            return
        self._traffic.rows("to_slow", rows_N, self._vector_bytes)
        sums_UD = self._fast_rows.sum_by_row(
            bags_N, in_place.inverse_N, rows_N.size, grad_PD, ids.num_features
        )
        self._slow_rows.apply(self._slow, rows_N, sums_UD.to(_HOST))

    def _read_rows(
        self, rows_N: NDArray[np.int64], positions_N: NDArray[np.int64], vectors_ND: torch.Tensor
    ) -> None:
        """Copy rows of the slow tier to ``positions_N`` of vectors on the host."""
        slots_N = self._slow.slots_of(rows_N)
        self._slow_rows.look_up(self._slow.weights_SD, SlotLookups(positions_N, slots_N), vectors_ND)

    def _count_vector_per_bag(self, way: Way, ids: BatchIds) -> None:
        counts_F = np.full(ids.num_features, ids.num_samples)
        self._traffic.by_table(way, counts_F, self._vector_bytes)
