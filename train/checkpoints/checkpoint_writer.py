"""Writes checkpoints in a thread beside training.

Training hands over copies of the rows that changed, part by part, as fast as they are written; it waits only
where steps change more of them meanwhile than there is memory for. A checkpoint counts once its record is
written, which comes last, so a kill at any moment leaves the one before. What goes wrong is kept for the next
call of `result`: training may well go on without this checkpoint.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from ...pipeline.errors import HotsetError
from ..execution.row_parts import RowsPart
from .checkpoint_files import CheckpointRecord, FileRecord, new_record, remove_others, write_record
from .merge_parts import is_worth_merging, merge_parts
from .reserved_room import ReservedRoom
from .run_state import RunState
from .tensor_file import write_part, write_tensors


class NotFiniteError(HotsetError):
    """Weights that are not finite, which no checkpoint is to hold."""


@dataclass(frozen=True, slots=True)
class Written:
    """How the writing of a checkpoint ended."""

    step: int
    num_bytes: int
    """Bytes of the files it added."""
    seconds: float
    """From its beginning to its record."""
    error: Exception | None = None
    """Why it was not written."""


@dataclass(frozen=True, slots=True)
class TableSizes:
    """The sizes of the tables of a run, by number."""

    num_rows: list[int]
    widths: list[tuple[int, int]]
    """Floats of a row, and of its state."""


_Part = tuple[RowsPart, Callable[[], None]]
"""Rows, and what to call once they are written."""


class CheckpointWriter:
    """Writes one checkpoint at a time.

    Args:
        folder: of the run's checkpoints; it exists.
        run: checksum of the run's settings.
        keep: checkpoints that are kept.
        tables: of the run.
        last: the checkpoint that the run was resumed from; None where it was not.
        most_waiting: bytes of rows that may wait to be written.
        room: disk space reserved for checkpoints.
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
        self._pool = ThreadPoolExecutor(1, "checkpoint")
        # One condition guards the parts that wait; every change of it notifies both threads.
        self._state = threading.Condition()
        self._waiting: deque[_Part | None] = deque()
        self._num_waiting_bytes = 0
        self._is_lost = False
        """Whether the thread has given the present checkpoint up, so that parts are dropped."""
        self._new: list[FileRecord] = []
        self._step = 0
        self._start = 0.0
        self._parts: Future[None] | None = None
        self._end: Future[Written] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether a checkpoint is being written, or its result has not been asked for."""
        return self._parts is not None

    def begin(self, step: int) -> None:
        """Begin a checkpoint; parts of rows and `finish` follow."""
        assert not self.is_busy, "one checkpoint at a time"
        self._step = step
        self._start = time.perf_counter()
        self._new = []
        self._is_lost = False
        # A checkpoint that was given up leaves the mark of its end here.
        self._waiting.clear()
        self._parts = self._pool.submit(self._write_parts)

    @property
    def is_ready(self) -> bool:
        """Whether no part is waiting to be written, so that the next one is wanted."""
        return not self._waiting

    @property
    def is_lost(self) -> bool:
        """Whether the present checkpoint was given up; parts are dropped."""
        return self._is_lost

    def put(self, part: RowsPart, release: Callable[[], None]) -> None:
        """Add rows; waits where too many are waiting already. ``release`` is called once they are written."""
        with self._state:
            most = self._most_waiting - part.num_bytes
            self._state.wait_for(
                lambda: self._is_lost or not self._waiting or self._num_waiting_bytes <= most
            )
            if not self._is_lost:
                self._waiting.append((part, release))
                self._num_waiting_bytes += part.num_bytes
                self._state.notify_all()

    def finish(self, state: RunState, tensors: Mapping[str, torch.Tensor], num_used: int) -> None:
        """Add what is no row, and let the thread seal the checkpoint.

        Args:
            num_used: rows that were ever changed.
        """
        with self._state:
            self._waiting.append(None)
            self._state.notify_all()
        self._end = self._pool.submit(self._seal, state, tensors, num_used)

    def result(self, *, wait: bool = False) -> Written | None:
        """How the checkpoint begun last ended, once; None where it has not, or was asked for before."""
        if self._end is None or not (wait or self._end.done()):
            return None
        written = self._end.result()
        self._end = None
        self._parts = None
        return written

    def close(self) -> None:
        """Let the present checkpoint end, and stop the thread."""
        with self._state:
            if self._parts is not None and self._end is None:
                # Training ended by an error while parts were put: they make no checkpoint.
                self._is_lost = True
                self._waiting.append(None)
            self._state.notify_all()
        self._pool.shutdown()

    def _write_parts(self) -> None:
        """Write parts until there is no further one; after an error they are dropped."""
        try:
            while (taken := self._take()) is not None:
                part, release = taken
                self._refuse_not_finite(part)
                self._new.append(self._write_part(part, len(self._new)))
                release()
        except BaseException:
            with self._state:
                self._is_lost = True
                self._waiting.clear()
                self._num_waiting_bytes = 0
                self._state.notify_all()
            raise

    def _take(self) -> _Part | None:
        with self._state:
            self._state.wait_for(lambda: self._waiting)
            taken = self._waiting.popleft()
            if taken is not None:
                self._num_waiting_bytes -= taken[0].num_bytes
            self._state.notify_all()
            return taken

    def _write_part(self, part: RowsPart, number: int) -> FileRecord:
        name = f"rows-{self._step:09}-{number:05}.safetensors"
        self._room.give(part.num_bytes)
        num_bytes, checksum = write_part(self._folder / name, part)
        return FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum, rows=int(part.ids_N.size))

    def _seal(self, state: RunState, tensors: Mapping[str, torch.Tensor], num_used: int) -> Written:
        """Write dense layers and the record, unless a part failed."""
        try:
            assert self._parts is not None
            self._parts.result()
            # Rows were checked as they came; dense layers are small enough to be checked here.
            for name, tensor in tensors.items():
                if tensor.is_floating_point() and not torch.isfinite(tensor).all():
                    raise NotFiniteError(f"{name} holds values that are not finite after step {self._step}")
            name = f"dense-{self._step:09}.safetensors"
            # Every file is on the disk before the record that names it.
            num_bytes, checksum = write_tensors(self._folder / name, tensors)
            dense = FileRecord(path=name, bytes=num_bytes, xxh3_128=checksum)
            rows = (*self._rows, *self._new)
            # Many small files of changed rows are read at every resumption, so they are merged now and then.
            if is_worth_merging(rows, num_used):
                rows = self._merged(rows)
            write_record(self._folder, new_record(self._run, state, dense, rows))
            self._rows = rows
            self._last_step = self._step
            remove_others(self._folder, self._keep, self._last_step)
        except (OSError, HotsetError) as error:
            # What was written of it is in the way of the next.
            with suppress(OSError):
                remove_others(self._folder, self._keep, self._last_step)
            return Written(self._step, 0, self._seconds(), error)
        num_bytes += sum(entry.bytes for entry in self._new)
        return Written(self._step, num_bytes, self._seconds())

    def _merged(self, rows: tuple[FileRecord, ...]) -> tuple[FileRecord, ...]:
        """Write all rows once, the newest values, to files behind those of this checkpoint."""
        parts = merge_parts(self._folder, rows, self._tables.num_rows, self._tables.widths)
        return tuple(self._write_part(part, number) for number, part in enumerate(parts, len(self._new)))

    def _refuse_not_finite(self, part: RowsPart) -> None:
        if not (np.isfinite(part.weights_ND).all() and np.isfinite(part.state_NW).all()):
            raise NotFiniteError(f"embedding rows hold values that are not finite after step {self._step}")

    def _seconds(self) -> float:
        return time.perf_counter() - self._start
