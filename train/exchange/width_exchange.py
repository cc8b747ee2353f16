"""Finds what a rank looks up, serves, sends and receives in one step, for the rows of one width.

Every rank reads the lookups of the whole batch, so it knows which rows each rank uses and makes the same
lists as they do (`stats.exchange.messages`); nothing is asked. Before the step the home of a row sends its
vector to each rank that looks it up, once however often it is looked up there; at the first use of a row each
of them computes the initial value instead. After it each sends one gradient to the home, the sum over its
shares. The vector of a row that the step before does not use may cross while that step is computed.

Shapes: U distinct rows of the step, O of these that this rank looks up, S that live here, W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.lookups_by_row import LookupsByRow
from ...stats.exchange.early_rows import early_rows
from ...stats.exchange.home_moves import NO_HOME
from ...stats.exchange.messages import RowLists, list_messages
from ...stats.exchange.rank_masks import Masks, rank_masks
from ...stats.exchange.volume import StepRows
from ..data.batch import BatchIds, IdReader
from .exchange_file import PlannedSteps
from .held_rows import HeldRows
from .row_messages import CrossingRows
from .step_homes import EpochHomes, StepHomes

Rehomed = tuple[NDArray[np.int32], NDArray[np.uint8]]
"""Rows whose home a step gives or changes, and that home."""
_NOTHING_PASSED: Rehomed = (np.empty(0, np.int32), np.empty(0, np.uint8))


class CopiedRows(NamedTuple):
    """The rows of a step that every rank holds a copy of, and that do not cross in it."""

    own: NDArray[np.int64]
    """Own rows that are copies."""
    slots: NDArray[np.int64]
    """Their numbers among all copies."""
    used: NDArray[np.int64]
    """Copies that any rank looks up."""
    masks: Masks
    """The ranks that look up each of these."""


class EarlyVectors(NamedTuple):
    """The vectors of a step that may cross while the step before is computed, which does not use their
    rows."""

    sent_rows: CrossingRows
    sent: NDArray[np.int32]
    """Served rows whose vectors are sent."""
    received_rows: CrossingRows
    received: NDArray[np.int32]
    """Own rows whose vectors are received."""


@dataclass(frozen=True, slots=True)
class WidthExchange:
    """The rows of a step that cross between this rank and the others; all lists are ordered by rank."""

    own_ids: BatchIds
    """Lookups of this rank."""
    own_lookups: LookupsByRow
    """The same by row."""
    is_training: bool
    """Whether the rows are those of a training step: those of an evaluation cross as they are."""
    early: EarlyVectors | None
    """Vectors with a message of their own; None: all cross in the step, at every rank."""
    sent_rows: CrossingRows
    sent: NDArray[np.int32]
    """Served rows whose vectors are sent in the step."""
    received_rows: CrossingRows
    received: NDArray[np.int32]
    """Own rows whose vectors are received in it."""
    leaving_rows: CrossingRows
    leaving: NDArray[np.int32]
    """Served rows that move to another rank, where they are updated."""
    coming_rows: CrossingRows
    coming: tuple[NDArray[np.int32], NDArray[np.int32]]
    """Own rows that move here, as such and as served ones."""
    rehomed: Rehomed
    """Rows of all ranks whose home the step gives or changes, and that home; none where homes stay."""
    kept: tuple[NDArray[np.int64], NDArray[np.int64]]
    """Own rows whose vectors are here, as such and as served ones."""
    updated: NDArray[np.int64]
    """Own rows that live here after the step, whose gradients stay."""
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
    copied: CopiedRows


class ExchangeReader:
    """Makes the lists of a rank for one width.

    Args:
        reader: of the lookups of these tables.
        held: the rows that live at this rank.
        homes: of the rows of each step; or the rows of each step that concern this rank, as they are on disk.
        num_ranks: of them all.
        synced_keys: (num_copies,), ascending; the rows of which every rank holds a copy.
        sends_early: whether vectors that may cross a step early are listed apart.
    """

    def __init__(
        self,
        reader: IdReader,
        held: HeldRows,
        homes: StepHomes | PlannedSteps,
        num_ranks: int,
        synced_keys: NDArray[np.int32] | None = None,
        *,
        sends_early: bool = False,
    ) -> None:
        self.synced_keys = np.empty(0, np.int32) if synced_keys is None else synced_keys
        self.reader = reader
        self.held = held
        self.homes: EpochHomes = homes
        self.planned = homes if isinstance(homes, PlannedSteps) else None
        """The rows of each step, where they need not be found in the batches."""
        self._step_homes = None if isinstance(homes, PlannedSteps) else homes
        self._num_ranks = num_ranks
        self.sends_early = sends_early
        """Whether training steps to come list vectors that may cross a step early apart."""
        self._last_keys: NDArray[np.int32] | None = None
        """Rows of the last training step that was read."""

    def mark_used(self, keys: NDArray[np.int64]) -> None:
        """Take rows as used before; their values are those at their home, which sends them."""
        self.homes.mark_used(keys)

    def expected(self, number: int, keys_U: NDArray[np.int32]) -> LookupsByRow:
        """Return the rows that a step to come serves here, once each.

        Args:
            number: of the training batch.
            keys_U: (num_rows,), its distinct rows, ascending.
        """
        assert self._step_homes is not None, "planned rows need no batch"
        before_U, after_U = self._step_homes.expect(number, keys_U)
        rank = self.held.rank
        is_served_U = ((before_U == rank) | (after_U == rank)) & (self._copies(keys_U) < 0)
        return self.held.served(keys_U[is_served_U])

    def expected_by_plan(self, number: int) -> LookupsByRow:
        """Return the same of the batch that the plan on disk has next."""
        assert self.planned is not None
        rows = self.planned.expect(number)
        rank = self.held.rank
        return self.held.served(rows.keys_R[(rows.before_R == rank) | (rows.after_R == rank)])

    def read(
        self, ids: BatchIds, lookups: LookupsByRow, ranks_B: NDArray[np.uint8], own: BatchIds, number: int
    ) -> tuple[LookupsByRow, WidthExchange]:
        """Return the rows served in the next training step, and what crosses.

        Args:
            ids: lookups of all ranks.
            lookups: the same by row.
            ranks_B: the rank of each sample.
            own: lookups of this rank.
            number: of the batch.
        """
        assert self._step_homes is not None
        keys_U = self.keys(lookups)
        step = StepRows(keys_U, self._masks(ids, lookups, ranks_B), *self._step_homes.take(number, keys_U))
        is_early_U = self._early(keys_U, step.before_U) if self.sends_early else None
        own_lookups = self.reader.by_row(own)
        return self._lists(step, own, own_lookups, self._copies(keys_U), is_early_U, is_training=True)

    def read_by_plan(self, own: BatchIds, number: int) -> tuple[LookupsByRow, WidthExchange]:
        """Return the same by the plan on disk.

        Args:
            own: lookups of this rank.
            number: of the batch.

        Raises:
            ManifestError: the plan is of other lookups.
        """
        assert self.planned is not None
        rows = self.planned.take(number)
        own_lookups = self.reader.by_row(own)
        # Messages are lists of positions among these rows.
        is_own_R = (rows.masks_R >> rows.masks_R.dtype.type(self.held.rank) & 1).astype(np.bool_)
        if not np.array_equal(rows.keys_R[is_own_R], self.keys(own_lookups)):
            self.planned.refuse_other_rows(number)
        step = StepRows(rows.keys_R, rows.masks_R, rows.before_R, rows.after_R)
        no_copies_R = np.full(rows.keys_R.size, -1, np.int64)
        is_early_R = rows.is_early_R if self.sends_early else None
        return self._lists(
            step, own, own_lookups, no_copies_R, is_early_R, passed=rows.passed, is_training=True
        )

    def look(
        self,
        ids: BatchIds,
        lookups: LookupsByRow,
        ranks_B: NDArray[np.uint8],
        own: BatchIds,
        *,
        reads_copies: bool = False,
    ) -> tuple[LookupsByRow, WidthExchange]:
        """Return the same of lookups that change nothing: all rows come from where they live now.

        Args:
            reads_copies: whether copies are read instead, where there are any.
        """
        keys_U = self.keys(lookups)
        homes_U = self.held.homes_K[keys_U]
        copies_U = self._copies(keys_U) if reads_copies else np.full(keys_U.size, -1, np.int64)
        step = StepRows(keys_U, self._masks(ids, lookups, ranks_B), homes_U, homes_U)
        return self._lists(step, own, self.reader.by_row(own), copies_U, None, is_training=False)

    def _early(self, keys_U: NDArray[np.int32], before_U: NDArray[np.uint8]) -> NDArray[np.bool_]:
        """(num_rows,): whether the step before leaves each row of a training step as it is."""
        earlier, self._last_keys = self._last_keys, keys_U
        # The first step of a process has none before.
        if earlier is None:
            return np.zeros(keys_U.size, np.bool_)
        return early_rows(keys_U, before_U, earlier)

    def _masks(self, ids: BatchIds, lookups: LookupsByRow, ranks_B: NDArray[np.uint8]) -> Masks:
        """(num_rows,): the ranks that use each distinct row of a batch."""
        ranks_N = np.repeat(ranks_B, ids.num_features) if ids.bags_N is None else _of_bags(ranks_B, ids)
        return rank_masks(lookups, ranks_N, self._num_ranks)

    def _lists(
        self,
        step: StepRows,
        own: BatchIds,
        own_lookups: LookupsByRow,
        copies_U: NDArray[np.int64],
        is_early_U: NDArray[np.bool_] | None,
        *,
        passed: Rehomed = _NOTHING_PASSED,
        is_training: bool,
    ) -> tuple[LookupsByRow, WidthExchange]:
        # The distinct rows of the step, at least those that concern this rank, and the ranks that use each.
        rank = self.held.rank
        held = self.held
        is_copy_U = copies_U >= 0
        own_copies = _own_copies(copies_U, step.masks_U, rank)
        copied = CopiedRows(*own_copies, copies_U[is_copy_U], step.masks_U[is_copy_U])
        if is_copy_U.any():
            step = _without_copies(step, is_copy_U, rank)
        keys_U, masks_U, before_U, after_U = step
        messages = list_messages(step, rank, self._num_ranks)

        # Positions among the rows of the step become positions among own and served ones.
        is_first_U = before_U == NO_HOME
        is_served_U = ((before_U == rank) | (after_U == rank)) & ~is_copy_U
        is_own_U = (masks_U >> masks_U.dtype.type(rank) & 1).astype(np.bool_)
        served_U = (np.cumsum(is_served_U) - 1).astype(np.int32)
        own_U = (np.cumsum(is_own_U) - 1).astype(np.int32)
        # Rows used here whose values are here, those that are updated here, and those used for the first time
        # that live elsewhere.
        kept = np.flatnonzero(is_own_U & ~is_copy_U & ((before_U == rank) | (is_first_U & (after_U == rank))))
        updated = np.flatnonzero(is_own_U & ~is_copy_U & (after_U == rank))
        made = np.flatnonzero(is_own_U & is_first_U & (after_U != rank))
        # An initial value follows from the row's table and id.
        tables_M = np.searchsorted(held.first_key_F1, keys_U[made], side="right") - 1
        partials_SW = _partials(messages.gradients_in, is_served_U, updated, rank)
        # Vectors of rows that move cross with their states, apart from the others. Of these some cross early.
        out, into = messages.vectors_out, messages.vectors_in
        coming = into.positions[into.is_move]
        is_sent, is_sent_early = _late_and_early(out, is_early_U)
        is_received, is_received_early = _late_and_early(into, is_early_U)
        early = EarlyVectors(
            _crossing(out, keys_U, is_sent_early),
            served_U[out.positions[is_sent_early]],
            _crossing(into, keys_U, is_received_early),
            own_U[into.positions[is_received_early]],
        )
        exchange = WidthExchange(
            own_ids=own,
            own_lookups=own_lookups,
            is_training=is_training,
            early=None if is_early_U is None else early,
            sent_rows=_crossing(out, keys_U, is_sent),
            sent=served_U[out.positions[is_sent]],
            received_rows=_crossing(into, keys_U, is_received),
            received=own_U[into.positions[is_received]],
            leaving_rows=_crossing(out, keys_U, out.is_move),
            leaving=served_U[out.positions[out.is_move]],
            coming_rows=_crossing(into, keys_U, into.is_move),
            coming=(own_U[coming], served_U[coming]),
            rehomed=self._rehomed(step, passed),
            kept=(own_U[kept].astype(np.int64), served_U[kept].astype(np.int64)),
            updated=own_U[updated].astype(np.int64),
            made=own_U[made].astype(np.int64),
            made_rows=(tables_M, keys_U[made] - held.first_key_F1[tables_M]),
            gradients_sent_rows=_crossing(messages.gradients_out, keys_U),
            gradients_sent=own_U[messages.gradients_out.positions],
            gradients_received_rows=_crossing(messages.gradients_in, keys_U),
            partials_SW=partials_SW,
            copied=copied,
        )
        return held.served(keys_U[is_served_U]), exchange

    def _rehomed(self, step: StepRows, passed: Rehomed) -> Rehomed:
        """Rows whose home a step gives or changes, and those of them that concern other ranks alone."""
        if not self.homes.may_move:
            return _NOTHING_PASSED
        keys_U, _, before_U, after_U = step
        is_rehomed_U = before_U != after_U
        return (
            np.concatenate([keys_U[is_rehomed_U], passed[0]]),
            np.concatenate([after_U[is_rehomed_U], passed[1]]),
        )

    def _copies(self, keys_U: NDArray[np.int32]) -> NDArray[np.int64]:
        """(num_rows,): the number of each row among the copies, -1 where it is none."""
        keys_K = self.synced_keys
        if not keys_K.size:
            return np.full(keys_U.size, -1, np.int64)
        found_U = np.minimum(np.searchsorted(keys_K, keys_U), keys_K.size - 1)
        return np.where(keys_K[found_U] == keys_U, found_U, -1)

    def keys(self, lookups: LookupsByRow) -> NDArray[np.int32]:
        """Return the keys of the distinct rows of a batch, (num_rows,), ascending."""
        firsts = np.repeat(self.held.first_key_F1[:-1], np.diff(lookups.first_F1))
        keys_U: NDArray[np.int32] = (lookups.rows_U + firsts).astype(np.int32)
        return keys_U


def served_ids(served: LookupsByRow) -> BatchIds:
    """Return served rows as the lookups of so many samples of one feature."""
    return BatchIds(served.rows_U, None, served.num_rows, 1)


def _without_copies(step: StepRows, is_copy_U: NDArray[np.bool_], rank: int) -> StepRows:
    """Return rows of which nothing crosses where there are copies of them: to the lists, only this rank uses
    these, and for the first time."""
    keys_U, masks_U, before_U, after_U = step
    own_bit = masks_U.dtype.type(1) << masks_U.dtype.type(rank)
    return StepRows(
        keys_U,
        np.where(is_copy_U, masks_U & own_bit, masks_U).astype(masks_U.dtype),
        np.where(is_copy_U, np.uint8(NO_HOME), before_U).astype(np.uint8),
        np.where(is_copy_U, np.uint8(rank), after_U).astype(np.uint8),
    )


def _own_copies(
    copies_U: NDArray[np.int64], masks_U: Masks, rank: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return which rows of a rank are copies, and their numbers among the copies."""
    is_own_U = (masks_U >> masks_U.dtype.type(rank) & 1).astype(np.bool_)
    own = np.flatnonzero(copies_U[is_own_U] >= 0)
    return own, copies_U[is_own_U][own]


def _late_and_early(
    lists: RowLists, is_early_U: NDArray[np.bool_] | None
) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Return which vectors of lists cross in the step, and which may a step early; of rows that move none."""
    is_late_N = ~lists.is_move
    if is_early_U is None:
        return is_late_N, np.zeros(is_late_N.size, np.bool_)
    is_early_N = is_late_N & is_early_U[lists.positions]
    return is_late_N & ~is_early_N, is_early_N


def _partials(
    incoming: RowLists, is_served_U: NDArray[np.bool_], updated: NDArray[np.int64], rank: int
) -> NDArray[np.int32]:
    """(num_served, num_ranks): the gradient of each rank, among those received, then those kept; or -1."""
    served_U = np.cumsum(is_served_U) - 1
    num_ranks = incoming.starts_W1.size - 1
    partials_SW = np.full((int(np.count_nonzero(is_served_U)), num_ranks), -1, np.int32)
    # A list of rows by source says which of them each rank has; the others have none.
    sources = np.repeat(np.arange(num_ranks), np.diff(incoming.starts_W1))
    partials_SW[served_U[incoming.positions], sources] = np.arange(incoming.positions.size)
    partials_SW[served_U[updated], rank] = incoming.positions.size + np.arange(updated.size)
    return partials_SW


def _of_bags(ranks_B: NDArray[np.uint8], ids: BatchIds) -> NDArray[np.uint8]:
    assert ids.bags_N is not None
    return ranks_B[ids.bags_N // max(ids.num_features, 1)]


def _crossing(
    lists: RowLists, keys_U: NDArray[np.int32], is_chosen_N: NDArray[np.bool_] | None = None
) -> CrossingRows:
    """Name the rows of lists, all of them or those that are chosen."""
    if is_chosen_N is None:
        return CrossingRows(tuple(np.diff(lists.starts_W1).tolist()), keys_U[lists.positions])
    num_before_N1 = np.concatenate([[0], np.cumsum(is_chosen_N)])
    counts = np.diff(num_before_N1[lists.starts_W1])
    return CrossingRows(tuple(counts.tolist()), keys_U[lists.positions[is_chosen_N]])
