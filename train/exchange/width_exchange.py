"""Finds what a rank looks up, serves, sends and receives in one step, for the rows of one table group.

Every rank reads the lookups of the whole batch, so it knows which rows each rank uses and makes the same
lists as they do (`stats.exchange.messages`); nothing is asked. Before the step the owner of a row sends its
vector to each rank that looks it up, once however often it is looked up there; at the first use of a row each
of them computes the initial value instead. After it each sends one gradient to the owner, the sum over its
micro-batches.

Shapes: U distinct rows of the step, O of these that this rank looks up, S that it owns, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.batch_rows import LookupsByRow
from ...stats.exchange import RowLists, StepRows, list_messages, rank_masks
from ..data.batch import BatchIds, IdReader
from .held_rows import HeldRows
from .row_messages import CrossingRows


class Crossing(NamedTuple):
    """Rows that cross one way, ordered by rank."""

    rows: CrossingRows
    places: NDArray[np.int32]
    """Where each is among the rows that this rank serves or looks up."""


class Exchange(NamedTuple):
    """Rows that cross both ways."""

    send: Crossing
    receive: Crossing


@dataclass(frozen=True, slots=True)
class WidthExchange:
    """The rows of a step that cross between this rank and the others."""

    own_ids: BatchIds
    """Lookups of this rank."""
    own_lookups: LookupsByRow
    """The same by row."""
    is_training: bool
    """Whether the rows are those of a training step: those of an evaluation cross as they are."""
    vectors: Exchange
    """Served rows that are sent, and own rows that are received."""
    gradients: Exchange
    """Own rows that are sent, and served rows that are received."""
    kept: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Own rows that this rank owns, as such and as served ones; neither vector nor gradient crosses."""
    made: NDArray[np.int64]
    """Own rows of another owner that are used for the first time."""
    made_rows: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Table and id of each."""
    partials_SW: NDArray[np.int32]
    """Where the gradient of each served row by each rank is among those received, then those kept; -1 where
    there is none."""


class ExchangeReader:
    """Makes the lists of a rank for one table group.

    Args:
        reader: of the lookups of these tables.
        held: the rows that this rank owns.
        num_ranks: of them all.
    """

    def __init__(self, reader: IdReader, held: HeldRows, num_ranks: int) -> None:
        self.reader = reader
        self.held = held
        self._num_ranks = num_ranks
        self._is_used_K = np.zeros(held.owners_K.size, np.bool_)
        """Whether a step that was read has used each row."""

    def mark_used(self, keys_N: NDArray[np.int64]) -> None:
        """Mark rows as used before; their owners send their values."""
        self._is_used_K[keys_N] = True

    def read(
        self, ids: BatchIds, lookups: LookupsByRow, ranks_B: NDArray[np.uint8], own: BatchIds
    ) -> tuple[LookupsByRow, WidthExchange]:
        """Return the rows served in the next training step, and what crosses.

        Args:
            ids: lookups of all ranks.
            lookups: the same by row.
            ranks_B: the rank of each sample.
            own: lookups of this rank.
        """
        keys_U = self.keys(lookups)
        is_first_U = ~self._is_used_K[keys_U]
        self._is_used_K[keys_U] = True
        return self._lists(ids, lookups, ranks_B, own, is_first_U, is_training=True)

    def look(
        self, ids: BatchIds, lookups: LookupsByRow, ranks_B: NDArray[np.uint8], own: BatchIds
    ) -> tuple[LookupsByRow, WidthExchange]:
        """Return the same of lookups that change nothing: every row comes from its owner."""
        is_first_U = np.zeros(lookups.num_rows, np.bool_)
        return self._lists(ids, lookups, ranks_B, own, is_first_U, is_training=False)

    def _lists(
        self,
        ids: BatchIds,
        lookups: LookupsByRow,
        ranks_B: NDArray[np.uint8],
        own: BatchIds,
        is_first_U: NDArray[np.bool_],
        *,
        is_training: bool,
    ) -> tuple[LookupsByRow, WidthExchange]:
        # The distinct rows of the step, and the ranks that use each.
        held = self.held
        keys_U = self.keys(lookups)
        ranks_N = np.repeat(ranks_B, ids.num_features) if ids.bags_N is None else _of_bags(ranks_B, ids)
        masks_U = rank_masks(lookups, ranks_N, self._num_ranks)
        step = StepRows(keys_U, masks_U, held.owners_K[keys_U], is_first_U)
        messages = list_messages(step, held.rank, self._num_ranks)

        # Positions among the rows of the step become positions among own and served ones.
        is_served_U = step.owners_U == held.rank
        is_own_U = (masks_U >> masks_U.dtype.type(held.rank) & 1).astype(np.bool_)
        served_U = (np.cumsum(is_served_U) - 1).astype(np.int32)
        own_U = (np.cumsum(is_own_U) - 1).astype(np.int32)
        kept = np.flatnonzero(is_own_U & is_served_U)
        # An initial value follows from the row's table and id.
        made = np.flatnonzero(is_own_U & is_first_U & ~is_served_U)
        tables_M = np.searchsorted(held.first_key_F1, keys_U[made], side="right") - 1
        exchange = WidthExchange(
            own_ids=own,
            own_lookups=self.reader.by_row(own),
            is_training=is_training,
            vectors=Exchange(
                _crossing(messages.vectors_out, keys_U, served_U),
                _crossing(messages.vectors_in, keys_U, own_U),
            ),
            gradients=Exchange(
                _crossing(messages.gradients_out, keys_U, own_U),
                _crossing(messages.gradients_in, keys_U, served_U),
            ),
            kept=(own_U[kept].astype(np.int64), served_U[kept].astype(np.int64)),
            made=own_U[made].astype(np.int64),
            made_rows=(tables_M, keys_U[made] - held.first_key_F1[tables_M]),
            partials_SW=_partials(messages.gradients_in, is_served_U, kept, held.rank),
        )
        return held.served(keys_U[is_served_U]), exchange

    def keys(self, lookups: LookupsByRow) -> NDArray[np.int32]:
        """Return the keys of the distinct rows of a batch, (num_rows,), ascending."""
        firsts = np.repeat(self.held.first_key_F1[:-1], np.diff(lookups.first_F1))
        keys_U: NDArray[np.int32] = (lookups.rows_U + firsts).astype(np.int32)
        return keys_U


def served_ids(served: LookupsByRow) -> BatchIds:
    """Return served rows as the lookups of so many samples of one feature."""
    return BatchIds(served.rows_U, None, served.num_rows, 1)


def _partials(
    incoming: RowLists, is_served_U: NDArray[np.bool_], kept: NDArray[np.int64], rank: int
) -> NDArray[np.int32]:
    """(num_served, num_ranks): the gradient of each rank, among those received, then those kept; or -1."""
    served_U = np.cumsum(is_served_U) - 1
    num_ranks = incoming.starts_W1.size - 1
    partials_SW = np.full((int(np.count_nonzero(is_served_U)), num_ranks), -1, np.int32)
    # A list of rows by source says which of them each rank has; the others have none.
    sources = np.repeat(np.arange(num_ranks), np.diff(incoming.starts_W1))
    partials_SW[served_U[incoming.positions], sources] = np.arange(incoming.positions.size)
    partials_SW[served_U[kept], rank] = incoming.positions.size + np.arange(kept.size)
    return partials_SW


def _of_bags(ranks_B: NDArray[np.uint8], ids: BatchIds) -> NDArray[np.uint8]:
    assert ids.bags_N is not None
    return ranks_B[ids.bags_N // max(ids.num_features, 1)]


def _crossing(lists: RowLists, keys_U: NDArray[np.int32], places_U: NDArray[np.int32]) -> Crossing:
    counts = tuple(np.diff(lists.starts_W1).tolist())
    return Crossing(CrossingRows(counts, keys_U[lists.positions]), places_U[lists.positions])
