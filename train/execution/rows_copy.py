"""Copies the rows of a checkpoint while training continues.

A checkpoint has the rows as they are after one step. Copied at that step are only rows that lie in staging
slots, whose place changes; all others are pending. They are copied part by part between later steps, and what
a step is about to change is copied before it does. So training stands still for a part at a time, and the
copies need the memory of a few parts, which is used again: fresh pages cost several times as much as the
copy itself. Rows in a file (`spill`) are all copied at once, in one pass through it.

Shapes: N rows in a part, D floats of a row, W floats of its state.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from ...stats.batch_rows import locate_named_rows, name_rows
from ..rows.row_kernels import copy_found_rows
from ..rows.tiers import FileTier, Tier
from ..spill.spilled_tier import SpilledTier
from ..work_threads import WorkThreads
from .embeddings import Embeddings
from .row_parts import RowsPart, changed_of
from .row_width import PlannedStep, RowWidth

_PIECE_ROWS = 1 << 14
"""Rows that one thread copies at a time."""
_MOST_SPARE = 3
"""Parts of a width whose memory is kept: one being filled, one that waits and one that is being written."""


PutPart = Callable[[RowsPart, Callable[[], None]], None]
_Copy = Callable[[NDArray[np.int64], int, RowsPart], None]
"""Writes names, weights and states of some rows, the first of which has the given number."""


@dataclass(frozen=True, slots=True)
class _Buffers:
    """Memory of the rows of one part."""

    tables_N: NDArray[np.int32]
    ids_N: NDArray[np.int32]
    weights_ND: NDArray[np.float32]
    state_NW: NDArray[np.float32]

    @classmethod
    def empty(cls, num_rows: int, dim: int, state_width: int) -> _Buffers:
        return cls(
            np.empty(num_rows, np.int32),
            np.empty(num_rows, np.int32),
            np.empty((num_rows, dim), np.float32),
            np.empty((num_rows, state_width), np.float32),
        )

    def part(self, first: int, stop: int) -> RowsPart:
        """Some of the rows."""
        own = slice(first, stop)
        return RowsPart(self.tables_N[own], self.ids_N[own], self.weights_ND[own], self.state_NW[own])


class RowsCopy:
    """The copies of a run's rows for its checkpoints, one checkpoint at a time.

    Args:
        embeddings: the rows.
        part_bytes: of a part.
        threads: share the copies.
        put: takes a part, and a function to call once its arrays may be written again.
    """

    def __init__(self, embeddings: Embeddings, part_bytes: int, threads: WorkThreads, put: PutPart) -> None:
        self._embeddings = embeddings
        self._widths = [_WidthCopy(width, part_bytes, threads, put) for width in embeddings.widths]
        self._left: deque[_WidthCopy] = deque()
        """Widths that have perhaps pending rows."""

    @property
    def is_under_way(self) -> bool:
        """Whether rows of the present checkpoint may still be pending."""
        return bool(self._left)

    def begin(self) -> None:
        """Begin the copy of all rows that have changed since they were last saved, as they are now."""
        with self._embeddings.transfers_paused():
            for width in self._widths:
                width.begin()
        self._left.extend(self._widths)

    def copy_part(self) -> None:
        """Copy pending rows until a part is full, or none are left."""
        while self._left:
            if self._left[0].copy_part():
                return
            self._left.popleft()

    def before_update(self, step: PlannedStep) -> None:
        """Copy the pending rows that a step is about to change."""
        for width, part in zip(self._widths, step.parts, strict=True):
            if width in self._left:
                width.add_pending(changed_of(width.width).take_pending_of(part.lookups))

    def give_up(self) -> None:
        """Copy nothing more for the present checkpoint."""
        self._left.clear()
        for width in self._widths:
            width.forget()


class _WidthCopy:
    """The copy of the rows of one width."""

    def __init__(self, width: RowWidth, part_bytes: int, threads: WorkThreads, put: PutPart) -> None:
        self.width = width
        self._changed = changed_of(width)
        self._fast = width.executor.fast
        self._slow = width.executor.slow
        self._threads = threads
        self._put = put
        self._tables_T = np.array(width.tables, np.int32)
        self._dims = width.embedding_dim, self._fast.state_SW.shape[1]
        # A part takes as much memory whatever the width of its rows.
        self._capacity = max(part_bytes // (8 + 4 * sum(self._dims)), 1)
        self._spare: deque[_Buffers] = deque(maxlen=_MOST_SPARE)
        self._open: _Buffers | None = None
        self._count = 0
        """Rows in the open part."""
        self._warm_up()

    def begin(self) -> None:
        """Begin a checkpoint; no transfer may run."""
        self._changed.begin_saving()
        self._add_staged()
        if isinstance(self._slow, FileTier):
            self._copy_with_file()

    def copy_part(self) -> bool:
        """Fill the open part with pending rows and put it; return whether it was full."""
        rows_N = self._changed.take_pending(self._capacity - self._count)
        is_full = self._count + rows_N.size == self._capacity
        self.add_pending(rows_N)
        if not is_full:
            self._put_open()
        return is_full

    def add_pending(self, rows_N: NDArray[np.int64]) -> None:
        """Copy rows that lie in their own slots, given in ascending order."""
        self._add(rows_N, self._copy_own)

    def forget(self) -> None:
        """Drop the rows of the open part."""
        self._count = 0

    def _add(self, rows_N: NDArray[np.int64], copy: _Copy) -> None:
        """Add rows to the open part, and put it whenever it is full."""
        done = 0
        while done < rows_N.size:
            # A part that was put is written by another thread, so the next one fills other memory.
            if self._open is None:
                self._open = self._spare.popleft() if self._spare else self._new_buffers()
            own_N = rows_N[done : done + self._capacity - self._count]
            copy(own_N, done, self._open.part(self._count, self._count + own_N.size))
            done += own_N.size
            self._count += own_N.size
            if self._count == self._capacity:
                self._put_open()

    def _new_buffers(self) -> _Buffers:
        return _Buffers.empty(self._capacity, *self._dims)

    def _put_open(self) -> None:
        if self._open is None or self._count == 0:
            return
        buffers = self._open
        self._open = None
        self._put(buffers.part(0, self._count), partial(self._spare.append, buffers))
        self._count = 0

    def _warm_up(self) -> None:
        """Compile the kernels on no rows, so that the first checkpoint does not wait for the compiler."""
        no_rows_N = np.empty(0, np.int64)
        nothing = _Buffers.empty(0, *self._dims).part(0, 0)
        self._name(no_rows_N, nothing.tables_N, nothing.ids_N)
        for tier in (self._fast, self._slow):
            layout = tier.layout
            ranges = (layout.first_F, layout.last_F, layout.base_F)
            locate_named_rows(nothing.tables_N, nothing.ids_N, *ranges, no_rows_N)
            _copy_found(tier, no_rows_N, nothing.weights_ND, nothing.state_NW)

    def _copy_own(self, rows_N: NDArray[np.int64], _: int, target: RowsPart) -> None:
        """Copy rows from their own slots, in all threads."""
        # Rows with a place on both tiers (fae) have their newest value on the one that is read last.
        is_fast_newest = self.width.executor.is_replica_current
        tiers = (self._slow, self._fast) if is_fast_newest else (self._fast, self._slow)

        # Pieces of fixed size, so that threads share the work evenly.
        def copy_piece(piece: int, _: int) -> None:
            own = slice(piece * _PIECE_ROWS, (piece + 1) * _PIECE_ROWS)
            tables_N = self._name(rows_N[own], target.tables_N[own], target.ids_N[own])
            slots_N = np.empty(tables_N.size, np.int64)
            num_found = 0
            for tier in tiers:
                layout = tier.layout
                ranges = (layout.first_F, layout.last_F, layout.base_F)
                num_here = slots_N.size - locate_named_rows(tables_N, target.ids_N[own], *ranges, slots_N)
                num_found += num_here
                if num_here:
                    _copy_found(tier, slots_N, target.weights_ND[own], target.state_NW[own])
            assert num_found >= slots_N.size, "a changed row is nowhere"

        self._threads.run(copy_piece, -(-rows_N.size // _PIECE_ROWS))

    def _name(
        self, rows_N: NDArray[np.int64], tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]
    ) -> NDArray[np.int32]:
        """Write table and id of rows; return the position of their tables among those of the width."""
        positions_N = np.empty(rows_N.size, np.int32)
        name_rows(rows_N, self._changed.layout.base_F, positions_N, ids_N)
        tables_N[:] = self._tables_T[positions_N]
        return positions_N

    def _add_staged(self) -> None:
        """Copy pending rows in staging slots: no other tier has their newest values, and they may move."""
        residents_N, slots_N = self.width.executor.staged.by_row()
        rows_N = self._changed.layout.slots_of_rows(*self._slow.layout.rows_at(residents_N))
        was_pending_N = self._changed.take_pending_among(rows_N)
        slots_N = slots_N[was_pending_N]

        def copy(rows_N: NDArray[np.int64], first: int, target: RowsPart) -> None:
            self._name(rows_N, target.tables_N, target.ids_N)
            own_N = slots_N[first : first + rows_N.size]
            _copy_found(self._fast, own_N, target.weights_ND, target.state_NW)

        self._add(rows_N[was_pending_N], copy)

    def _copy_with_file(self) -> None:
        """Copy all rows of a width whose slow tier is a file; those in staging slots are copied already."""
        while (rows_N := self._changed.take_pending(self._capacity)).size:
            slots_N = self._fast.layout.slots_of_rows(*self._changed.layout.rows_at(rows_N))
            self.add_pending(rows_N[slots_N >= 0])
        slow = self._slow
        if not isinstance(slow, SpilledTier) or not slow.is_open:
            return
        # The others are in the store, which is read once from its start to its end.
        for stored_N, weights_ND, state_NW in slow.store.newest():
            tables_N, ids_N = slow.layout.rows_at(stored_N)
            is_wanted_N = self._changed.is_being_saved(self._changed.layout.slots_of_rows(tables_N, ids_N))
            if is_wanted_N.any():
                part = RowsPart(self._tables_T[tables_N], ids_N.astype(np.int32), weights_ND, state_NW)
                self._put(part.chosen(is_wanted_N), _keep_nothing)


def _keep_nothing() -> None:
    """Let the memory of a part go: it is not used again."""


def _copy_found(
    tier: Tier, slots_N: NDArray[np.int64], weights_ND: NDArray[np.float32], state_NW: NDArray[np.float32]
) -> None:
    """Copy the rows in slots to the host; those with -1 are left out."""
    for rows, target in ((tier.weights_SD, weights_ND), (tier.state_SW, state_NW)):
        # An optimizer without state has no columns to copy.
        if rows.shape[1] == 0:
            continue
        if tier.device.type == "cpu":
            copy_found_rows(rows.numpy(), slots_N, target)
            continue
        # On a device the rows that are there are gathered first, so that one copy brings them all.
        is_here_N = slots_N >= 0
        here = torch.from_numpy(slots_N[is_here_N]).to(tier.device)
        target[is_here_N] = rows.index_select(0, here).cpu().numpy()
