"""Finds what a rank looks up, serves, sends and receives in one step, for the rows of one width.

Every rank reads the lookups of the whole batch, so it knows which rows each rank uses and makes the same
lists as they do (`stats.exchange.messages`); nothing is asked. Before the step the home of a row sends its
vector to each rank that looks it up, once however often it is looked up there; at the first use of a row each
of them computes the initial value instead. After it each sends one gradient to the home, the sum over its
shares.

Shapes: U distinct rows of the step, O of these that this rank looks up, S that live here, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.lookups_by_row import LookupsByRow
from ...stats.exchange.home_moves import NO_HOME
from ...stats.exchange.messages import RowLists, list_messages
from ...stats.exchange.rank_masks import rank_masks
from ...stats.exchange.volume import StepRows
from ..data.batch import BatchIds, IdReader
from .held_rows import HeldRows
from .row_messages import CrossingRows


@dataclass(frozen=True, slots=True)
class WidthExchange:
    """The rows of a step that cross between this rank and the others; all lists are ordered by rank."""

    own_ids: BatchIds
    """Lookups of this rank."""
    own_lookups: LookupsByRow
    """The same by row."""
    is_training: bool
    """Whether the rows are those of a training step: those of an evaluation cross as they are."""
    sent_rows: CrossingRows
    sent: NDArray[np.int32]
    """Served rows whose vectors are sent."""
    received_rows: CrossingRows
    received: NDArray[np.int32]
    """Own rows whose vectors are received."""
    kept: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Own rows that live here, as such and as served ones."""
    made: NDArray[np.int64]
    """Own rows that live elsewhere and are used for the first time."""
    made_rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Table and id of each."""
    gradients_sent_rows: CrossingRows
    gradients_sent: NDArray[np.int32]
    """Own rows whose gradients are sent."""
    gradients_received_rows: CrossingRows
    partials_SW: NDArray[np.int32]
    """Where the gradient of each served row by each rank is among those received, then those kept; -1 where
    there is none."""


class ExchangeReader:
    """Makes the lists of a rank for one width.

    Args:
        reader: of the lookups of these tables.
        held: the rows that live at this rank.
        num_ranks: of them all.
    """

    def __init__(self, reader: IdReader, held: HeldRows, num_ranks: int) -> None:
        self.reader = reader
        self.held = held
        self._num_ranks = num_ranks
        self._is_used_K = np.zeros(held.homes_K.size, np.bool_)

    def mark_used(self, keys: NDArray[np.int64]) -> None:
        """Take rows as used before; their values are those at their home, which sends them."""
        self._is_used_K[keys] = True

    def served(self, ids: BatchIds) -> LookupsByRow:
        """Return the rows that live here and are looked up by any rank, once each."""
        keys_U = self._keys(self.reader.by_row(ids))
        return self.held.served(keys_U[self.held.homes_K[keys_U] == self.held.rank])

    def read(
        self,
        ids: BatchIds,
        lookups: LookupsByRow,
        ranks_B: NDArray[np.uint8],
        own: BatchIds,
        *,
        is_training: bool,
    ) -> tuple[LookupsByRow, WidthExchange]:
        """Return the rows served in a step, and what crosses.

        Args:
            ids: lookups of all ranks.
            lookups: the same by row.
            ranks_B: the rank of each sample.
            own: lookups of this rank.
            is_training: whether rows count as used from then on; if not, also unused ones come from their
                home.
        """
        # The distinct rows of the step, the home of each, and the ranks that use it.
        rank, held = self.held.rank, self.held
        keys_U = self._keys(lookups)
        homes_U = held.homes_K[keys_U]
        ranks_N = np.repeat(ranks_B, ids.num_features) if ids.bags_N is None else _of_bags(ranks_B, ids)
        masks_U = rank_masks(lookups, ranks_N, self._num_ranks)
        # A row has no home before its first use, so each user computes its initial value.
        before_U = homes_U
        if is_training:
            before_U = np.where(self._is_used_K[keys_U], homes_U, np.uint8(NO_HOME)).astype(np.uint8)
            self._is_used_K[keys_U] = True
        messages = list_messages(StepRows(keys_U, masks_U, before_U, homes_U), rank, self._num_ranks)

        # Positions among the rows of the step become positions among own and served ones.
        is_served_U = homes_U == rank
        is_own_U = (masks_U >> masks_U.dtype.type(rank) & 1).astype(np.bool_)
        served_U = (np.cumsum(is_served_U) - 1).astype(np.int32)
        own_U = (np.cumsum(is_own_U) - 1).astype(np.int32)
        # Rows used here that live here, and those used for the first time that live elsewhere.
        kept = np.flatnonzero(is_served_U & is_own_U)
        made = np.flatnonzero(is_own_U & ~is_served_U & (before_U == NO_HOME))
        # An initial value follows from the row's table and id.
        tables_M = np.searchsorted(held.first_key_F1, keys_U[made], side="right") - 1
        # A list of rows by source says which of them each rank has; the others have none.
        partials_SW = np.full((int(np.count_nonzero(is_served_U)), self._num_ranks), -1, np.int32)
        incoming = messages.gradients_in
        sources = np.repeat(np.arange(self._num_ranks), np.diff(incoming.starts_W1))
        partials_SW[served_U[incoming.positions], sources] = np.arange(incoming.positions.size)
        partials_SW[served_U[kept], rank] = incoming.positions.size + np.arange(kept.size)
        exchange = WidthExchange(
            own_ids=own,
            own_lookups=self.reader.by_row(own),
            is_training=is_training,
            sent_rows=_crossing(messages.vectors_out, keys_U),
            sent=served_U[messages.vectors_out.positions],
            received_rows=_crossing(messages.vectors_in, keys_U),
            received=own_U[messages.vectors_in.positions],
            kept=(own_U[kept].astype(np.int64), served_U[kept].astype(np.int64)),
            made=own_U[made].astype(np.int64),
            made_rows=(tables_M, keys_U[made] - held.first_key_F1[tables_M]),
            gradients_sent_rows=_crossing(messages.gradients_out, keys_U),
            gradients_sent=own_U[messages.gradients_out.positions],
            gradients_received_rows=_crossing(incoming, keys_U),
            partials_SW=partials_SW,
        )
        return held.served(keys_U[is_served_U]), exchange

    def _keys(self, lookups: LookupsByRow) -> NDArray[np.int32]:
        """(num_rows,), ascending."""
        firsts = np.repeat(self.held.first_key_F1[:-1], np.diff(lookups.first_F1))
        keys_U: NDArray[np.int32] = (lookups.rows_U + firsts).astype(np.int32)
        return keys_U


def served_ids(served: LookupsByRow) -> BatchIds:
    """Return served rows as the lookups of so many samples of one feature."""
    return BatchIds(served.rows_U, None, served.num_rows, 1)


def _of_bags(ranks_B: NDArray[np.uint8], ids: BatchIds) -> NDArray[np.uint8]:
    assert ids.bags_N is not None
    return ranks_B[ids.bags_N // max(ids.num_features, 1)]


def _crossing(lists: RowLists, keys_U: NDArray[np.int32]) -> CrossingRows:
    return CrossingRows(tuple(np.diff(lists.starts_W1).tolist()), keys_U[lists.positions])
