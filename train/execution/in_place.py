"""Lookups of rows that stay on the slow tier: vectors are sent to the fast tier, gradients back."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ..data.batch import BatchIds
from ..rows.row_backends import NumbaRows, RowBackend
from ..rows.row_kernels import copy_found_rows
from ..rows.step_plan import InPlace
from ..rows.tiers import Tier
from ..work_threads import WorkThreads
from .traffic import TrafficCounter, Way

_FLOAT32_BYTES = 4
_HOST = torch.device("cpu")
_ROWS_AT_ONCE = 1 << 13
"""Rows that a thread copies at a time."""


class InPlaceWork:
    """The work of an executor on its slow tier.

    Args:
        fast: the tier where vectors are wanted.
        slow: the tier where the rows are.
        fast_rows: back end of the fast tier.
        slow_rows: back end of the slow tier.
        traffic: counts what moves between the tiers.
        threads: share the work on rows of the host.
    """

    def __init__(
        self,
        fast: Tier,
        slow: Tier,
        fast_rows: RowBackend,
        slow_rows: NumbaRows,
        traffic: TrafficCounter,
        threads: WorkThreads,
    ) -> None:
        self._threads = threads
        self._fast = fast
        self._slow = slow
        self._fast_rows = fast_rows
        self._slow_rows = slow_rows
        self._traffic = traffic
        self._dim = fast.weights_SD.shape[1]
        self._vector_bytes = self._dim * _FLOAT32_BYTES

    def send_bags(self, ids: BatchIds, lookups: LookupsByRow, pooled_PD: torch.Tensor) -> None:
        """Look up and add up on the slow tier; one vector per bag is sent."""
        # A fast tier on the host takes the vectors directly, one on a GPU gets them as one copy.
        is_host = self._fast.device == _HOST
        on_host_PD = pooled_PD if is_host else torch.empty(pooled_PD.shape)
        self.look_up_bags(ids, lookups, on_host_PD)
        if not is_host:
            pooled_PD.copy_(on_host_PD)

    def look_up_bags(self, ids: BatchIds, lookups: LookupsByRow, on_host_PD: torch.Tensor) -> None:
        """Look up and add up on the slow tier, for vectors that somebody else sends."""
        self._count_vector_per_bag("to_fast", ids)
        slots_U = self._slow.slots_of(self.slots_of_rows(lookups))
        vectors_ND = on_host_PD if ids.bags_N is None else torch.empty(ids.ids_N.size, self._dim)
        self._slow_rows.look_up(self._slow.weights_SD, lookups, slots_U, vectors_ND)
        if ids.bags_N is not None:
            self._slow_rows.pool(vectors_ND, ids, on_host_PD)

    def send_rows(
        self, lookups: LookupsByRow, is_sent_U: NDArray[np.bool_], vectors_ND: torch.Tensor
    ) -> None:
        """Send the vector of each of these distinct rows, and look them up on the fast tier."""
        slots_U, _ = self._slow.layout.slots_of(lookups)
        sent_rows = slots_U[is_sent_U]
        self._traffic.rows("to_fast", sent_rows, self._vector_bytes)
        slots_U[~is_sent_U] = -1
        slots_U[is_sent_U] = self._slow.slots_of(sent_rows)
        if self._fast.device == _HOST:
            self._slow_rows.look_up(self._slow.weights_SD, lookups, slots_U, vectors_ND)
            return
        # The vectors sent are a small table of their own there, in which the lookups are made.
        sent = self._slow.weights_SD.index_select(0, torch.from_numpy(slots_U[is_sent_U]))
        places_U = np.where(is_sent_U, np.cumsum(is_sent_U) - 1, -1)
        self._fast_rows.look_up(sent.to(self._fast.device), lookups, places_U, vectors_ND)

    def update(
        self,
        ids: BatchIds,
        lookups: LookupsByRow,
        in_place: InPlace,
        grad_PD: torch.Tensor,
        rate: float | None = None,
    ) -> None:
        """Take one optimizer step on the rows of a batch, by gradients from the fast tier.

        Args:
            rate: learning rate of the step, a float32; None: that of the optimizer.
        """
        by_bag = ids.by_bag(lookups)
        slots_U = self.slots_of_rows(lookups)
        # Either one gradient per bag is sent and summed here, or they are summed there, one per distinct row.
        if in_place.sends == "bags":
            self._count_vector_per_bag("to_slow", ids)
            self._slow_rows.update(self._slow, by_bag, slots_U, grad_PD.to(_HOST), ids.num_features, rate)
            return
        self._traffic.rows("to_slow", slots_U, self._vector_bytes)
        sums_UD = self._fast_rows.sums(by_bag, grad_PD, ids.num_features)
        self._slow_rows.apply(self._slow, slots_U, sums_UD.to(_HOST), rate)

    def slots_of_rows(self, lookups: LookupsByRow) -> NDArray[np.int64]:
        """The slot of each distinct row of a batch on the slow tier, which holds every row."""
        slots_U, num_absent = self._slow.layout.slots_of(lookups)
        assert num_absent == 0, "the slow tier holds every row"
        return slots_U

    def read_rows(self, lookups: LookupsByRow, slots_U: NDArray[np.int64], rows_UD: torch.Tensor) -> None:
        """Copy the distinct rows of a batch, in all threads, to host memory that somebody else sends."""
        self._count_vector_per_row("to_fast", lookups)
        weights = self._slow.weights_SD.numpy()
        rows = rows_UD.numpy()

        def copy_some(piece: int, _: int) -> None:
            own = slice(piece * _ROWS_AT_ONCE, (piece + 1) * _ROWS_AT_ONCE)
            copy_found_rows(weights, slots_U[own], rows[own])

        self._threads.run(copy_some, -(-slots_U.size // _ROWS_AT_ONCE))

    def apply_sums(
        self,
        lookups: LookupsByRow,
        slots_U: NDArray[np.int64],
        sums_UD: torch.Tensor,
        rate: float | None = None,
    ) -> None:
        """Take one optimizer step on the distinct rows of a batch by sums that have come to the host."""
        self._count_vector_per_row("to_slow", lookups)
        self._slow_rows.apply(self._slow, slots_U, sums_UD, rate)

    def _count_vector_per_bag(self, way: Way, ids: BatchIds) -> None:
        # By table, which has several bags in a sample where it holds histories.
        features_F = np.arange(ids.num_features) if ids.features_F is None else ids.features_F
        counts_F = np.bincount(features_F) * ids.num_samples
        self._traffic.by_table(way, counts_F, self._vector_bytes)

    def _count_vector_per_row(self, way: Way, lookups: LookupsByRow) -> None:
        self._traffic.by_table(way, np.diff(lookups.first_F1), self._vector_bytes)
