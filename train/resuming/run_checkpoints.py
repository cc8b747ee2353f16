"""Saves a run to checkpoints while it trains.

The rows that changed are copied part by part between steps (see `execution.rows_copy`), and written by a
thread (`checkpoints.checkpoint_writer`); what else a checkpoint holds is in `saved_run`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import torch

from ...pipeline.errors import GIB, KIB, MIB, HotsetError, first_line
from ...pipeline.runtime.memory import available_bytes
from ..checkpoints.checkpoint_files import CheckpointRecord
from ..checkpoints.checkpoint_settings import CheckpointSettings
from ..checkpoints.checkpoint_writer import CheckpointWriter, NotFiniteError, TableSizes, Written
from ..checkpoints.reserved_room import ReservedRoom
from ..checkpoints.run_state import RunState
from ..execution.row_parts import RowsPart, settle
from ..execution.row_width import PlannedStep
from ..execution.rows_copy import RowsCopy
from ..trainer import Trainer
from .saved_run import capture, table_sizes

_log = logging.getLogger(__name__)

_PART_BYTES = 32 * MIB
_LEAST_PART_BYTES = 64 * KIB
_PARTS_IN_LIMIT = 32
"""With a limit of memory for rows, a part that is copied takes one in so many of it."""
_ROW_NAME_BYTES = 8
"""Table and id of a row in a file."""


class RunCheckpoints:
    """The checkpoints of a run under way.

    Args:
        folder: where they lie; created.
        run: checksum of the run's settings.
        settings: how often they are written, and how many are kept.
        trainer: the run.
        last: the checkpoint that it was resumed from.

    Raises:
        HotsetError: the folder cannot be written, or its disk is too small.
    """

    def __init__(
        self,
        folder: Path,
        run: str,
        settings: CheckpointSettings,
        trainer: Trainer,
        last: CheckpointRecord | None = None,
    ) -> None:
        self._settings = settings
        sizes = table_sizes(trainer.shards, trainer.config)
        limit = trainer.config.slow_bytes
        # Under a limit of memory, a part that waits to be written takes a fixed share of it.
        self._part_bytes = (
            _PART_BYTES
            if limit is None
            else min(max(limit // _PARTS_IN_LIMIT, _LEAST_PART_BYTES), _PART_BYTES)
        )
        # The room is taken before the first step, so that a disk that is too small stops the run now.
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise HotsetError(f"{folder} cannot be written: {error.strerror}") from error
        # Dense layers are small beside what is saved of them: their optimizers keep up to twice as much.
        dense = 3 * sum(4 * tensor.numel() for tensor in trainer.model.state_dict().values())
        room = ReservedRoom(folder, dense + _bytes_of_all_rows(sizes))
        self._writer = CheckpointWriter(
            folder, run, settings.keep_checkpoints, sizes, last, self._most_waiting(limit), room
        )
        self._last_step = last.state.step if last else 0
        self._last_time = time.monotonic()
        self.last_written = last.state.step if last else None
        """Step of the newest checkpoint that is whole."""
        self._copy = RowsCopy(trainer.embeddings, self._part_bytes, trainer.threads, self._writer.put)
        trainer.before_update = partial(self.before_update, trainer)
        self._captured: tuple[RunState, dict[str, torch.Tensor], int] | None = None
        """Record of the present checkpoint beside its rows, until these are copied."""
        self.stall_seconds: list[float] = []
        """How long training stood still for each checkpoint, altogether."""
        self.longest_stall_seconds: list[float] = []
        """How long it did so at a time, at most."""

    def is_due(self, step: int) -> bool:
        """Whether the next checkpoint is to be taken now; not while one is being written."""
        if self._writer.is_busy:
            return False
        seconds = time.monotonic() - self._last_time
        return self._settings.checkpoint_every.is_due(step - self._last_step, seconds)

    def take(self, trainer: Trainer, metrics: Iterable[str], *, is_logged: bool = True) -> None:
        """Begin a checkpoint of the run as it is now; `before_update` and `go_on` copy its rows."""
        self.stall_seconds.append(0.0)
        self.longest_stall_seconds.append(0.0)
        with self._standing_still(trainer):
            self._writer.begin(trainer.step)
            self._copy.begin()
            num_used = sum(width.changed.num_used for width in trainer.embeddings.widths if width.changed)
            self._captured = (*capture(trainer, metrics, is_logged=is_logged), num_used)
            self._copy_part()
        self._last_step = trainer.step
        self._last_time = time.monotonic()

    def begin_parts(
        self, trainer: Trainer, metrics: Iterable[str], num_used: int, *, is_logged: bool = True
    ) -> None:
        """Begin a checkpoint of rows that are copied elsewhere: `put_parts` and `end_parts` follow.

        Args:
            num_used: rows that were ever changed.
        """
        self.stall_seconds.append(0.0)
        self.longest_stall_seconds.append(0.0)
        with self._standing_still(trainer):
            self._writer.begin(trainer.step)
            self._captured = (*capture(trainer, metrics, is_logged=is_logged), num_used)

    def put_parts(self, trainer: Trainer, parts: Iterable[RowsPart]) -> None:
        """Add rows that changed since the last checkpoint, whose memory is not used again."""
        with self._standing_still(trainer):
            for part in parts:
                self._writer.put(part, lambda: None)

    def end_parts(self, trainer: Trainer) -> Written | None:
        """Wait until the checkpoint is written; as `settle`."""
        assert self._captured is not None, "begin_parts comes first"
        with self._standing_still(trainer):
            self._writer.finish(*self._captured)
            self._captured = None
        self._last_step = trainer.step
        self._last_time = time.monotonic()
        return self.settle(trainer, wait=True)

    @property
    def is_copying(self) -> bool:
        """Whether rows of a checkpoint are still to be copied."""
        return self._captured is not None

    def before_update(self, trainer: Trainer, step: PlannedStep) -> None:
        """Copy the rows of the checkpoint under way that a step is about to change."""
        if self._captured is not None:
            with self._standing_still(trainer):
                self._copy.before_update(step)

    def go_on(self, trainer: Trainer, *, to_end: bool = False) -> None:
        """Copy the next part of the checkpoint under way, if none waits to be written; or all parts."""
        while self._captured is not None and (to_end or self._writer.is_ready):
            with self._standing_still(trainer):
                self._copy_part()
            if not to_end:
                return

    def _copy_part(self) -> None:
        """Copy a part, and let the checkpoint be sealed after the last one."""
        assert self._captured is not None
        if self._writer.is_lost:
            self._copy.give_up()
        self._copy.copy_part()
        if not self._copy.is_under_way:
            self._writer.finish(*self._captured)
            self._captured = None

    @contextmanager
    def _standing_still(self, trainer: Trainer) -> Iterator[None]:
        """Add the time of the block to that of the checkpoint under way."""
        start = time.perf_counter()
        with trainer.meter.during("checkpoint"):
            yield
        seconds = time.perf_counter() - start
        self.stall_seconds[-1] += seconds
        self.longest_stall_seconds[-1] = max(self.longest_stall_seconds[-1], seconds)

    def settle(self, trainer: Trainer, *, wait: bool = False) -> Written | None:
        """Note how the last checkpoint ended, if it has; one that could not be written is a warning.

        Raises:
            NotFiniteError: weights are not finite.
        """
        if wait:
            self.go_on(trainer, to_end=True)
        written = self._writer.result(wait=wait)
        if written is None:
            return None
        # Rows of a checkpoint that was lost count as changed still, so the next one has them.
        settle(trainer.embeddings, is_lost=written.error is not None)
        if isinstance(written.error, NotFiniteError):
            raise written.error
        if written.error is not None:
            kept = (
                f"that of step {self.last_written} is kept"
                if self.last_written is not None
                else "there is none"
            )
            reason = getattr(written.error, "strerror", None) or first_line(written.error)
            _log.warning(
                "the checkpoint of step %s could not be written: %s; %s, and training continues",
                written.step,
                reason,
                kept,
            )
        else:
            self.last_written = written.step
            _log.info(
                "checkpoint of step %s: %s bytes in %.1f s, training stood still for %.0f ms, %.0f at a time",
                written.step,
                written.num_bytes,
                written.seconds,
                1000 * self.stall_seconds[-1],
                1000 * self.longest_stall_seconds[-1],
            )
        return written

    def save_last(self, trainer: Trainer, metrics: Iterable[str], *, is_logged: bool) -> bool:
        """Write a checkpoint of the last step and wait for it, unless there is one; returns whether there
        is."""
        self.settle(trainer, wait=True)
        if self.last_written != trainer.step:
            self.take(trainer, metrics, is_logged=is_logged)
            self.settle(trainer, wait=True)
        return self.last_written == trainer.step

    def close(self) -> None:
        """Let the checkpoint under way end, and stop the writer."""
        self._writer.close()

    def _most_waiting(self, limit: int | None) -> int:
        """Bytes of copies that may wait to be written: a quarter of the memory there is, or of its limit."""
        free = available_bytes()
        most = GIB if free is None else free // 4
        return max(self._part_bytes, most if limit is None else min(most, limit // 4))


def _bytes_of_all_rows(sizes: TableSizes) -> int:
    return sum(
        count * (_ROW_NAME_BYTES + 4 * sum(width))
        for count, width in zip(sizes.num_rows, sizes.widths, strict=True)
    )
