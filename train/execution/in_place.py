"""Look-ups of rows that stay on the slow tier: vectors go up, gradients come down."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ..data.batch import BatchIds
from ..rows.row_backends import Lookups, NumbaRows, RowBackend
from ..rows.step_plan import InPlace
from ..rows.tiers import Tier
from .traffic import Traffic, Way

_FLOAT32_BYTES = 4
_HOST = torch.device("cpu")


class InPlaceWork:
    """What an executor asks of its slow tier.

    Args:
        fast: where vectors are wanted.
        slow: where rows are.
        fast_rows: back end of the fast tier.
        slow_rows: back end of the slow tier.
        traffic: counts what goes between the tiers.
    """

    def __init__(
        self, fast: Tier, slow: Tier, fast_rows: RowBackend, slow_rows: NumbaRows, traffic: Traffic
    ) -> None:
        self._fast, self._slow = fast, slow
        self._fast_rows, self._slow_rows = fast_rows, slow_rows
        self._traffic = traffic
        self._dim = fast.weights_SD.shape[1]
        self._vector_bytes = self._dim * _FLOAT32_BYTES

    def pool(self, ids: BatchIds, rows_N: NDArray[np.int64], pooled_PD: torch.Tensor) -> None:
        """Look up and add up on the slow tier; one vector a bag travels."""
        self._vector_a_bag("to_fast", ids)
        is_host = self._fast.device == _HOST
        on_host_PD = pooled_PD if is_host else torch.empty(pooled_PD.shape)
        vectors_ND = on_host_PD if ids.bags_N is None else torch.empty(rows_N.size, self._dim)
        self._slow_rows.look_up(self._slow.weights_SD, Lookups(np.arange(rows_N.size), rows_N), vectors_ND)
        if ids.bags_N is not None:
            self._slow_rows.pool(vectors_ND, ids, on_host_PD)
        if not is_host:
            pooled_PD.copy_(on_host_PD)

    def look_up(self, in_place: InPlace, vectors_ND: torch.Tensor) -> None:
        """Vectors of single look-ups, or of each distinct row, travel and are read there."""
        count = in_place.rows_N.size
        every = np.arange(vectors_ND.shape[0] if in_place.inverse_N is not None else count)
        positions_N = every if in_place.positions_N is None else in_place.positions_N
        self._traffic.rows("to_fast", in_place.rows_N, self._vector_bytes)
        if in_place.inverse_N is None and self._fast.device == _HOST:
            self._slow_rows.look_up(self._slow.weights_SD, Lookups(positions_N, in_place.rows_N), vectors_ND)
            return
        travelling = torch.empty(count, self._dim)
        self._slow_rows.look_up(self._slow.weights_SD, Lookups(np.arange(count), in_place.rows_N), travelling)
        read = np.arange(count) if in_place.inverse_N is None else in_place.inverse_N.astype(np.int64)
        self._fast_rows.look_up(travelling.to(self._fast.device), Lookups(positions_N, read), vectors_ND)

    def update(self, ids: BatchIds, in_place: InPlace, grad_PD: torch.Tensor) -> None:
        rows_N, inverse_N = in_place.rows_N, in_place.inverse_N
        bags_N = np.arange(ids.ids_N.size) if ids.bags_N is None else ids.bags_N
        if inverse_N is None:
            self._vector_a_bag("to_slow", ids)
            self._slow_rows.update(self._slow, Lookups(bags_N, rows_N), grad_PD.to(_HOST), ids.num_features)
            return
        self._traffic.rows("to_slow", rows_N, self._vector_bytes)
        sums_UD = self._fast_rows.sum_by_row(bags_N, inverse_N, rows_N.size, grad_PD, ids.num_features)
        self._slow_rows.apply(self._slow, rows_N, sums_UD.to(_HOST))

    def _vector_a_bag(self, way: Way, ids: BatchIds) -> None:
        counts_F = np.full(ids.num_features, ids.num_samples)
        self._traffic.by_table(way, counts_F, self._vector_bytes)
