"""Copies the rows of a checkpoint between steps and writes them asynchronously.

A checkpoint has the rows as they are after one step. At that step only rows in staging slots are copied,
since their slots change owners; all others are pending. They are copied part by part between later steps, and
what a step is about to change is copied before it does. So training pauses for a part at a time, and the
copies need the memory of a few parts, which is reused: fresh pages cost several times as much as the copy
itself. Rows in a file (`spill`) are all copied in one pass through it.

The thread writes the parts as they come; training waits only where steps change more rows meanwhile than
there is memory for. A checkpoint counts once its record is written, which comes last, so a kill at any moment
leaves the one before. Errors are kept for the next call of `result`: training may well go on without this
checkpoint.

Shapes: N rows in a part, D floats of a row, W floats of its state.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats.batch_rows import locate_distinct_rows
from ..rows.embeddings import Embeddings, RowsPart, changed_of
from ..rows.step_plan import PlannedStep
from ..rows.table_group import TableGroup
from ..rows.tiers import FileTier
from ..run_folder.files import ReservedRoom
from ..run_folder.weights import write_tensors
from ..threads import WorkThreads
from .files import (
    RECORD_VERSION,
    CheckpointRecord,
    FileRecord,
    RunState,
    TableSizes,
    is_worth_merging,
    merge_parts,
    remove_others,
    write_part,
    write_record,
)


class NotFiniteError(HotsetError):
    """Weights that are not finite, which no checkpoint is to hold."""


class CheckpointWriter:
    """Writes one checkpoint at a time.

    Args:
        folder: of the run's checkpoints; it exists.
        run: checksum of the run's settings.
        most_waiting: bytes of rows that may wait to be written.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        keep: int,
        tables: TableSizes,
        last: CheckpointRecord | None,
        most_waiting: int,
        room: ReservedRoom,
    ) -> None:
        self._folder = folder
        self._run = run
        self._keep = keep
        self._tables = tables
        self._rows: tuple[FileRecord, ...] = last.rows if last else ()
        """Files of the last checkpoint, the oldest first."""
        self._last_step = last.state.step if last else -1
        self._most_waiting = most_waiting
        self._room = room
        # One thread, which writes parts in their order and seals the checkpoint after the last one.
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        self._parts: list[Future[FileRecord | None]] = []
        """The writing of each part of the current checkpoint."""
        self._unwritten: deque[tuple[int, Future[FileRecord | None]]] = deque()
        """Bytes of each part that is perhaps not written yet, and its writing."""
        self.is_lost = False
        """Whether the current checkpoint was given up, by an error or at the end; parts are dropped."""
        self._step = 0
        self._end: Future[int] | None = None

    def begin(self, step: int) -> None:
        """Begin a checkpoint; parts of rows and `finish` follow."""
        self._step = step
        self._parts = []
        self.is_lost = False
        self._end = None

    @property
    def is_ready(self) -> bool:
        """Return whether no part waits to be written, so the next is wanted."""
        while self._unwritten and self._unwritten[0][1].done():
            self._unwritten.popleft()
        return len(self._unwritten) < 2

    def put(self, part: RowsPart, release: Callable[[], None]) -> None:
        """Add rows; wait where too many are waiting already.

        ``release`` is called once they are written.
        """
        # The first of them is being written, the others wait.
        most = self._most_waiting - part.num_bytes
        while not self.is_ready and sum(size for size, _ in islice(self._unwritten, 1, None)) > most:
            wait([self._unwritten[0][1]])
        if not self.is_lost:
            self._parts.append(self._pool.submit(self._write, part, release, len(self._parts)))
            self._unwritten.append((part.num_bytes, self._parts[-1]))

    def finish(self, state: RunState, tensors: Mapping[str, torch.Tensor], num_used: int) -> None:
        """Add what is no row, and let the thread seal the checkpoint."""
        self._end = self._pool.submit(self._seal, state, tensors, num_used)

    def result(self, *, waits: bool = False) -> int | None:
        """Return the bytes of files that the checkpoint added; None while it is not done.

        Raises:
            NotFiniteError: weights are not finite.
            HotsetError: a file that is to be merged is damaged.
            OSError: the disk is full or does not work.
        """
        return self._end.result() if self._end is not None and (waits or self._end.done()) else None

    def close(self) -> None:
        """Let the current checkpoint end, and stop the thread."""
        self.is_lost |= self._end is None
        self._pool.shutdown()

    def _write(self, part: RowsPart, release: Callable[[], None], number: int) -> FileRecord | None:
        """Write a part, unless one before it failed."""
        if self.is_lost:
            return None
        try:
            if not (np.isfinite(part.weights_ND).all() and np.isfinite(part.state_NW).all()):
                raise NotFiniteError(
                    f"embedding rows hold values that are not finite after step {self._step}"
                )
            record = self._write_part(part, number)
        except BaseException:
            self.is_lost = True
            raise
        release()
        return record

    def _write_part(self, part: RowsPart, number: int) -> FileRecord:
        name = f"rows-{self._step:09}-{number:05}.safetensors"
        self._room.give(part.num_bytes)
        num_bytes, checksum = write_part(self._folder / name, part)
        return FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum, rows=int(part.ids_N.size))

    def _seal(self, state: RunState, tensors: Mapping[str, torch.Tensor], num_used: int) -> int:
        """Write dense layers and the record, unless a part failed; return the bytes of new files."""
        try:
            new = [record for part in self._parts if (record := part.result()) is not None]
            # Rows were checked as they came; dense layers are small enough to be checked here.
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise NotFiniteError(f"{name} holds values that are not finite after step {self._step}")
            name = f"dense-{self._step:09}.safetensors"
            # Every file is on the disk before the record that names it.
            num_bytes, checksum = write_tensors(self._folder / name, tensors)
            dense = FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum)
            rows = (*self._rows, *new)
            # Many small files of changed rows are read at every resumption, so they are merged now and then.
            if is_worth_merging(rows, num_used):
                parts = merge_parts(self._folder, rows, self._tables)
                rows = tuple(self._write_part(part, number) for number, part in enumerate(parts, len(new)))
            write_record(
                self._folder,
                CheckpointRecord(version=RECORD_VERSION, run=self._run, state=state, dense=dense, rows=rows),
            )
            self._rows = rows
            self._last_step = self._step
            remove_others(self._folder, self._keep, self._last_step)
        except (OSError, HotsetError):
            # What was written of it is in the way of the next.
            with suppress(OSError):
                remove_others(self._folder, self._keep, self._last_step)
            raise
        return num_bytes + sum(entry.bytes for entry in new)


_PIECE_ROWS = 1 << 14
"""Rows that one thread copies at a time."""
_MOST_SPARE = 3
"""Parts of a table group whose memory is kept: one that is filled, one that waits, one that is written."""


PutPart = Callable[[RowsPart, Callable[[], None]], None]
_Copy = Callable[[NDArray[np.int64], int, RowsPart], None]
"""Writes names, weights and states of some rows, the first of which has the given number."""


def _empty_part(num_rows: int, dim: int, state_width: int) -> RowsPart:
    """Return memory for the rows of a part."""
    return RowsPart(
        np.empty(num_rows, np.int32),
        np.empty(num_rows, np.int32),
        np.empty((num_rows, dim), np.float32),
        np.empty((num_rows, state_width), np.float32),
    )


class RowsCopy:
    """The copies of a run's rows for its checkpoints, one checkpoint at a time.

    Args:
        put: takes a part, and a function to call once its arrays may be written again.
    """

    def __init__(self, embeddings: Embeddings, part_bytes: int, threads: WorkThreads, put: PutPart) -> None:
        self._embeddings = embeddings
        self._groups = [_GroupCopy(group, part_bytes, threads, put) for group in embeddings.groups]
        self._left: deque[_GroupCopy] = deque()
        """Table groups that have perhaps pending rows."""

    @property
    def is_under_way(self) -> bool:
        """Return whether rows of the current checkpoint may still be pending."""
        return bool(self._left)

    def begin(self) -> None:
        """Begin to copy all rows that have changed since the last save."""
        with self._embeddings.transfers.paused():
            for group in self._groups:
                group.begin()
        self._left.extend(self._groups)

    def copy_part(self) -> None:
        """Copy pending rows until a part is full, or none are left."""
        while self._left:
            if self._left[0].copy_part():
                return
            self._left.popleft()

    def before_update(self, step: PlannedStep) -> None:
        """Copy the pending rows that a step is about to change."""
        for group, part in zip(self._groups, step.parts, strict=True):
            if group in self._left:
                group.add_pending(group.changed.take_pending_of(part.lookups))

    def give_up(self) -> None:
        """Copy nothing more for the current checkpoint."""
        self._left.clear()
        for group in self._groups:
            group.forget()


class _GroupCopy:
    """The copy of the rows of one table group."""

    def __init__(self, group: TableGroup, part_bytes: int, threads: WorkThreads, put: PutPart) -> None:
        self.changed = changed_of(group)
        self._staged = group.staged
        self._fast = group.fast
        self._slow = group.slow
        self._threads = threads
        self._put = put
        self._tables_T = np.array(group.tables, np.int32)
        self._dims = group.embedding_dim, self._fast.state_SW.shape[1]
        # A part takes as much memory whatever the dim of its rows.
        self._capacity = max(part_bytes // (8 + 4 * sum(self._dims)), 1)
        self._spare: deque[RowsPart] = deque(maxlen=_MOST_SPARE)
        self._open: RowsPart | None = None
        self._count = 0
        """Rows in the open part."""
        self._warm_up()

    def begin(self) -> None:
        """Begin a checkpoint; no transfer may run."""
        self.changed.begin_saving()
        self._add_staged()
        if isinstance(self._slow, FileTier):
            self._copy_with_file()

    def copy_part(self) -> bool:
        """Fill the open part with pending rows; return whether it was full."""
        rows_N = self.changed.take_pending(self._capacity - self._count)
        is_full = self._count + rows_N.size == self._capacity
        self.add_pending(rows_N)
        if not is_full:
            self._put_open()
        return is_full

    def add_pending(self, rows_N: NDArray[np.int64]) -> None:
        """Copy rows whose slots are fixed, given in ascending order."""
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
                memory = self._spare.popleft() if self._spare else None
                self._open = memory or _empty_part(self._capacity, *self._dims)
            own_N = rows_N[done : done + self._capacity - self._count]
            copy(own_N, done, self._open.chosen(slice(self._count, self._count + own_N.size)))
            done += own_N.size
            self._count += own_N.size
            if self._count == self._capacity:
                self._put_open()

    def _put_open(self) -> None:
        if self._open is None or self._count == 0:
            return
        memory = self._open
        self._open = None
        self._put(memory.chosen(slice(self._count)), partial(self._spare.append, memory))
        self._count = 0

    def _warm_up(self) -> None:
        """Compile the kernels on no rows, before the first checkpoint needs them."""
        no_rows_N = np.empty(0, np.int64)
        nothing = _empty_part(0, *self._dims)
        offsets_F1 = self._name(no_rows_N, nothing.tables_N, nothing.ids_N)
        for tier in (self._fast, self._slow):
            layout = tier.layout
            ranges = (layout.first_F, layout.last_F, layout.base_F)
            locate_distinct_rows(nothing.ids_N, offsets_F1, *ranges, no_rows_N)
            tier.copy_out(no_rows_N, nothing.weights_ND, nothing.state_NW)

    def _copy_own(self, rows_N: NDArray[np.int64], _: int, target: RowsPart) -> None:
        """Copy rows from their own slots, in all threads."""
        # Rows with a place on both tiers (fae) have their newest value on the one that is read last.
        is_fast_newest = self._slow.is_stale
        tiers = (self._slow, self._fast) if is_fast_newest else (self._fast, self._slow)

        # Pieces of fixed size, so that threads share the work evenly.
        def copy_piece(piece: int, _: int) -> None:
            own = slice(piece * _PIECE_ROWS, (piece + 1) * _PIECE_ROWS)
            offsets_F1 = self._name(rows_N[own], target.tables_N[own], target.ids_N[own])
            slots_N = np.empty(offsets_F1[-1], np.int64)
            num_found = 0
            for tier in tiers:
                layout = tier.layout
                ranges = (layout.first_F, layout.last_F, layout.base_F)
                num_absent = locate_distinct_rows(target.ids_N[own], offsets_F1, *ranges, slots_N)
                num_here = slots_N.size - num_absent
                num_found += num_here
                if num_here:
                    tier.copy_out(slots_N, target.weights_ND[own], target.state_NW[own])
            assert num_found >= slots_N.size, "a changed row is nowhere"

        self._threads.run(copy_piece, -(-rows_N.size // _PIECE_ROWS))

    def _name(
        self, rows_N: NDArray[np.int64], tables_N: NDArray[np.int32], ids_N: NDArray[np.int32]
    ) -> NDArray[np.int64]:
        """Write table and id of ascending rows; return where those of each table of the group begin."""
        base_F = self.changed.layout.base_F
        offsets_F1 = np.append(np.searchsorted(rows_N, base_F), rows_N.size)
        counts_F = np.diff(offsets_F1)
        tables_N[:] = np.repeat(self._tables_T, counts_F)
        ids_N[:] = rows_N - np.repeat(base_F, counts_F)
        return offsets_F1

    def _add_staged(self) -> None:
        """Copy pending staged rows, which may move: no tier has newer values."""
        residents_N, slots_N = self._staged.by_row()
        rows_N = self.changed.layout.slots_of_rows(*self._slow.layout.rows_at(residents_N))
        was_pending_N = self.changed.take_pending_among(rows_N)
        slots_N = slots_N[was_pending_N]

        def copy(rows_N: NDArray[np.int64], first: int, target: RowsPart) -> None:
            self._name(rows_N, target.tables_N, target.ids_N)
            own_N = slots_N[first : first + rows_N.size]
            self._fast.copy_out(own_N, target.weights_ND, target.state_NW)

        self._add(rows_N[was_pending_N], copy)

    def _copy_with_file(self) -> None:
        """Copy all rows but staged ones, where the slow tier is a file."""
        while (rows_N := self.changed.take_pending(self._capacity)).size:
            slots_N = self._fast.layout.slots_of_rows(*self.changed.layout.rows_at(rows_N))
            self.add_pending(rows_N[slots_N >= 0])
        slow = self._slow
        assert isinstance(slow, FileTier), "other tiers are copied by slots"
        # The others are in the file, which is read once from its start to its end.
        for stored_N, weights_ND, state_NW in slow.stored_rows():
            tables_N, ids_N = slow.layout.rows_at(stored_N)
            is_wanted_N = self.changed.is_being_saved(self.changed.layout.slots_of_rows(tables_N, ids_N))
            if is_wanted_N.any():
                part = RowsPart(self._tables_T[tables_N], ids_N.astype(np.int32), weights_ND, state_NW)
                self._put(part.chosen(is_wanted_N), lambda: None)
