"""Saves a run to checkpoints, and restores it in a new trainer.

A resumed run repeats the unbroken one bit for bit: a checkpoint has rows and their state, dense layers and
their optimizers, the batches so far, losses that are not logged yet and what the scheduler of fae has seen.
Where rows are and what is staged changes no bit, so that is planned anew. The rows that changed are copied
part by part between steps and written by a thread (`checkpoints.writer`).

Ctrl-C and SIGTERM let the current step finish first, so that it can be saved. The first signal is only noted,
and the loop checks for it after every step. The second one takes effect where it arrives, as if there were no
handler. Only the main thread of a program may handle signals; elsewhere they are left to it.
"""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...pipeline.errors import GIB, KIB, MIB, HotsetError, first_line
from ...pipeline.runtime.memory import available_bytes
from ..build_embeddings import RunStart
from ..checkpoints.files import (
    BATCHES,
    CheckpointRecord,
    ReservedRoom,
    RunState,
    refuse_damaged_files,
    split_state,
)
from ..checkpoints.tensors import dense_state, read_part, read_tensors, restore_dense
from ..checkpoints.writer import CheckpointWriter, NotFiniteError, RowsCopy, TableSizes, Written
from ..config import CheckpointSettings, TrainConfig
from ..data.shards import Shards
from ..execution.embeddings import RowsPart, settle
from ..loop import Trainer
from ..rows.optimizers import RowOptimizer
from ..rows.step_plan import PlannedStep

_OTHER = "other."
_LOSSES = "run.losses"


def table_sizes(shards: Shards, config: TrainConfig) -> TableSizes:
    """The rows of each table, and the floats of rows and states."""
    optimizer = RowOptimizer(config.row_optimizer(shards.embedding_optimizer), 1.0)
    dims = [table.embedding_dim for table in shards.tables]
    return TableSizes(
        [table.num_rows for table in shards.tables], [(dim, optimizer.state_width(dim)) for dim in dims]
    )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole, read but for its rows."""

    folder: Path
    record: CheckpointRecord
    tensors: Mapping[str, torch.Tensor]
    sizes: TableSizes

    @classmethod
    def open(cls, folder: Path, record: CheckpointRecord, sizes: TableSizes) -> Checkpoint:
        """Read a checkpoint; raises HotsetError where it is damaged."""
        refuse_damaged_files(folder, record)
        tensors = read_tensors(folder / record.dense.path)
        found = cls(folder, record, tensors, sizes)
        found._refuse_nonsense()
        return found

    def rows(self) -> Iterator[RowsPart]:
        """Read the rows from their files, each time they are iterated."""
        # The newest first: of a row in several files the last one has its value.
        for entry in reversed(self.record.rows):
            yield read_part(self.folder / entry.path, self.sizes.num_rows, self.sizes.widths)

    @property
    def start(self) -> RunStart:
        """The rows and steps that the trainer of a resumed run is built from."""
        return RunStart(self.rows, self.tensors[BATCHES].numpy(), self.record.state.test_losses)

    @property
    def where(self) -> str:
        return f"the checkpoint of step {self.record.state.step} in {self.folder}"

    def _refuse_nonsense(self) -> None:
        state = self.record.state
        numbers = self.tensors.get(BATCHES)
        losses = self.tensors.get(_LOSSES)
        if numbers is None or numbers.dtype != torch.int32 or tuple(numbers.shape) != (state.step,):
            raise HotsetError(f"{self.where} is damaged: it lacks the batches of its steps")
        # Each step since the last line has a sample at least, by whose number the sum is divided.
        if losses is None or losses.dim() != 1 or losses.numel() > state.unlogged_samples:
            raise HotsetError(f"{self.where} is damaged: it lacks its losses")


def capture(
    trainer: Trainer, metrics: Iterable[str], *, is_logged: bool
) -> tuple[RunState, dict[str, torch.Tensor]]:
    """Copy everything of a run but its rows.

    Args:
        metrics: lines logged so far.
        is_logged: whether the evaluation that is due after the last step was made.
    """
    states = {name: split_state(part.state()) for name, part in trainer.resumables.items()}
    # Tensors go to a separate file, plain values to the record.
    tensors = dense_state(trainer.model, trainer.dense_optimizers)
    tensors[BATCHES] = torch.tensor(trainer.batch_numbers, dtype=torch.int32)
    tensors[_LOSSES] = torch.stack(trainer.losses).cpu() if trainer.losses else torch.zeros(0)
    for name, (_, own) in states.items():
        tensors |= {f"{_OTHER}{name}.{key}": tensor for key, tensor in own.items()}
    # Copying is no training: the clock stands, and what it says is of the steps alone.
    with trainer.meter.during("checkpoint"):
        trainer.meter.enter(None)
        meter = trainer.meter
        seconds = dict(meter.seconds)
        to_fast = dict(meter.bytes_to_fast)
        to_slow = dict(meter.bytes_to_slow)
    names = [table.name for table in trainer.shards.tables]
    rows_by_table = zip(names, trainer.embeddings.counts_of_steps(), strict=True)
    state = RunState(
        step=trainer.step,
        num_samples=trainer.num_samples,
        is_logged=is_logged,
        unlogged_samples=trainer.unlogged_samples,
        metrics=tuple(metrics),
        seconds={str(kind): value for kind, value in seconds.items()},
        bytes_to_fast={str(kind): value for kind, value in to_fast.items()},
        bytes_to_slow={str(kind): value for kind, value in to_slow.items()},
        rows_by_table={
            name: {str(way): count for way, count in rows.items()} for name, rows in rows_by_table
        },
        transfers=_transfers(trainer),
        test_losses=tuple(trainer.order.test_losses),
        others={name: plain for name, (plain, _) in states.items()},
    )
    return state, tensors


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Set everything of a newly built run but its rows, which `build` has restored.

    Raises:
        HotsetError: the checkpoint is of another model, or damaged.
    """
    state = checkpoint.record.state
    tensors = checkpoint.tensors
    # The layers first, because they alone can be of another shape than the model.
    restore_dense(trainer.model, trainer.dense_optimizers, tensors, checkpoint.where)
    trainer.step = state.step
    trainer.num_samples = state.num_samples
    trainer.unlogged_samples = state.unlogged_samples
    trainer.batch_numbers = tensors[BATCHES].tolist()
    # Losses since the last line of the log, which the next line averages.
    trainer.losses = list(tensors[_LOSSES].to(trainer.meter.device))
    trainer.meter.restore(state.seconds, state.bytes_to_fast, state.bytes_to_slow)
    names = [table.name for table in trainer.shards.tables]
    trainer.embeddings.restore_counts([state.rows_by_table.get(name, {}) for name in names])
    _restore_transfers(trainer, state.transfers)
    # Each part checks its own state, and the error names the part.
    for name, part in trainer.resumables.items():
        prefix = f"{_OTHER}{name}."
        own: dict[str, Any] = {
            key.removeprefix(prefix): tensor for key, tensor in tensors.items() if key.startswith(prefix)
        }
        try:
            part.restore(state.others.get(name, {}) | own)
        except (KeyError, TypeError, ValueError) as error:
            raise HotsetError(f"{checkpoint.where} is damaged: {name}: {first_line(error)}") from error


def _transfers(trainer: Trainer) -> dict[str, float]:
    thread = trainer.embeddings.transfers
    source = trainer.step_source
    read, written = trainer.embeddings.file_bytes()
    return {
        "busy_seconds": thread.busy_seconds,
        "stall_seconds": thread.stall_seconds,
        "stalls": float(thread.num_stalls),
        "shortened": float(source.num_shortened),
        "split": float(source.num_split),
        "slots_wanted": float(source.slots_wanted),
        "file_bytes_read": float(read),
        "file_bytes_written": float(written),
    }


def _restore_transfers(trainer: Trainer, found: Mapping[str, float]) -> None:
    thread = trainer.embeddings.transfers
    source = trainer.step_source
    thread.busy_seconds = found.get("busy_seconds", 0.0)
    thread.stall_seconds = found.get("stall_seconds", 0.0)
    thread.num_stalls = int(found.get("stalls", 0))
    source.num_shortened = int(found.get("shortened", 0))
    source.num_split = int(found.get("split", 0))
    source.slots_wanted = found.get("slots_wanted", 1.0)
    read, written = found.get("file_bytes_read", 0), found.get("file_bytes_written", 0)
    trainer.embeddings.earlier_file_bytes = (int(read), int(written))


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
        self._last_step = last.state.step if last else 0
        self._last_time = time.monotonic()
        self.last_written = last.state.step if last else None
        """Step of the newest checkpoint that is whole."""
        self.is_under_way = False
        """Whether a checkpoint was begun, and `settle` has not noted its end."""
        self._captured: tuple[RunState, dict[str, torch.Tensor], int] | None = None
        """The record of the current checkpoint, kept until its rows are copied."""
        self.stall_seconds = 0.0
        """Seconds that training paused for the last checkpoint, in total."""
        self.longest_stall_seconds = 0.0
        """The longest single pause for it."""
        self._prepare(folder, run, trainer, last)

    def _prepare(self, folder: Path, run: str, trainer: Trainer, last: CheckpointRecord | None) -> None:
        """Start the writer, and watch the steps."""
        # Under a limit of memory, a part that waits to be written takes a fixed share of it.
        limit = trainer.config.slow_bytes
        part_bytes = _PART_BYTES
        if limit is not None:
            part_bytes = min(max(limit // _PARTS_IN_LIMIT, _LEAST_PART_BYTES), _PART_BYTES)
        self._writer = self._new_writer(folder, run, trainer, last, most_waiting(part_bytes, limit))
        self._copy = RowsCopy(trainer.embeddings, part_bytes, trainer.threads, self._writer.put)
        self._before_step = trainer.before_step
        self._save_before_step = partial(self.before_update, trainer)

    def _new_writer(
        self, folder: Path, run: str, trainer: Trainer, last: CheckpointRecord | None, most_waiting: int
    ) -> CheckpointWriter:
        # The room is taken before the first step, so that a disk that is too small stops the run now.
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise HotsetError(f"{folder} cannot be written: {error.strerror}") from error
        # Dense layers are small compared with the rows; their optimizers keep up to twice as much.
        sizes = table_sizes(trainer.shards, trainer.config)
        dense = 3 * sum(4 * tensor.numel() for tensor in trainer.model.state_dict().values())
        room = ReservedRoom(folder, dense + _bytes_of_all_rows(sizes))
        keep = self._settings.keep_checkpoints
        return CheckpointWriter(folder, run, keep, sizes, last, most_waiting, room)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due; none while one is being written."""
        if self._writer.is_busy:
            return False
        seconds = time.monotonic() - self._last_time
        return self._settings.checkpoint_every.is_due(step - self._last_step, seconds)

    def take(self, trainer: Trainer, metrics: Iterable[str], *, is_logged: bool = True) -> None:
        """Begin a checkpoint; `before_update` and `advance` copy its rows."""
        with self._standing_still(trainer):
            self._begin(trainer, metrics, num_used_rows(trainer), is_logged=is_logged)
            self._copy.begin()
            self._before_step.append(self._save_before_step)
            self._copy_part()

    def _begin(self, trainer: Trainer, metrics: Iterable[str], num_used: int, *, is_logged: bool) -> None:
        """Begin a checkpoint, whose rows follow.

        Args:
            num_used: rows that were ever changed.
        """
        self.stall_seconds = 0.0
        self.longest_stall_seconds = 0.0
        self._writer.begin(trainer.step)
        self.is_under_way = True
        self._captured = (*capture(trainer, metrics, is_logged=is_logged), num_used)
        self._last_step = trainer.step
        self._last_time = time.monotonic()

    @property
    def is_copying(self) -> bool:
        """Return whether rows of a checkpoint are still to be copied."""
        return self._captured is not None

    def before_update(self, trainer: Trainer, step: PlannedStep) -> None:
        """Copy the checkpoint's rows that a step is about to change."""
        with self._standing_still(trainer):
            self._copy.before_update(step)

    def advance(self, trainer: Trainer, *, to_end: bool = False) -> None:
        """Copy the next part of the checkpoint, if none waits; or all parts."""
        while self._captured is not None and (to_end or self._writer.is_ready):
            with self._standing_still(trainer):
                self._copy_part()
            if not to_end:
                return

    def _copy_part(self) -> None:
        """Copy a part, and let the checkpoint be sealed after the last one."""
        if self._writer.is_lost:
            self._copy.give_up()
        self._copy.copy_part()
        if not self._copy.is_under_way:
            self._before_step.remove(self._save_before_step)
            self._finish()

    def _finish(self) -> None:
        """Let the checkpoint be sealed, whose rows are all with the writer."""
        assert self._captured is not None, "a checkpoint was begun"
        self._writer.finish(*self._captured)
        self._captured = None

    @contextmanager
    def _standing_still(self, trainer: Trainer) -> Iterator[None]:
        """Add the time of the block to that of the checkpoint under way."""
        start = time.perf_counter()
        with trainer.meter.during("checkpoint"):
            yield
        seconds = time.perf_counter() - start
        self.stall_seconds += seconds
        self.longest_stall_seconds = max(self.longest_stall_seconds, seconds)

    def settle(self, trainer: Trainer, *, wait: bool = False) -> Written | None:
        """Note how the last checkpoint ended, if it has; warn where it failed.

        Raises:
            NotFiniteError: weights are not finite.
        """
        if wait:
            self.advance(trainer, to_end=True)
        written = self._writer.result(waits=wait)
        if written is None:
            return None
        self.is_under_way = False
        # Rows of a checkpoint that was lost count as changed still, so the next one has them.
        settle(trainer.embeddings, is_lost=written.error is not None)
        if isinstance(written.error, NotFiniteError):
            raise written.error
        if written.error is not None:
            kept = (
                "there is none" if self.last_written is None else f"that of step {self.last_written} is kept"
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
                1000 * self.stall_seconds,
                1000 * self.longest_stall_seconds,
            )
        return written

    def save_last(self, trainer: Trainer, metrics: Iterable[str], *, is_logged: bool) -> bool:
        """Write a checkpoint of the last step and wait; return whether one exists."""
        self.settle(trainer, wait=True)
        if self.last_written != trainer.step:
            self.take(trainer, metrics, is_logged=is_logged)
            self.settle(trainer, wait=True)
        return self.last_written == trainer.step

    def close(self) -> None:
        """Let the checkpoint under way end, and stop the writer."""
        self._writer.close()


def num_used_rows(trainer: Trainer) -> int:
    """Return how many rows of this process were ever changed."""
    return sum(width.changed.num_used for width in trainer.embeddings.groups if width.changed)


def most_waiting(part_bytes: int, limit: int | None) -> int:
    """Return how many bytes of copies may wait to be written.

    That is a quarter of the memory there is, or of its limit.
    """
    free = available_bytes()
    most = GIB if free is None else free // 4
    return max(part_bytes, most if limit is None else min(most, limit // 4))


def _bytes_of_all_rows(sizes: TableSizes) -> int:
    return sum(
        count * (_ROW_NAME_BYTES + 4 * sum(width))
        for count, width in zip(sizes.num_rows, sizes.widths, strict=True)
    )


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; its steps were saved if possible."""


class Interrupts:
    """The signals that have arrived so far."""

    def __init__(self) -> None:
        self.number: int | None = None
        """The signal that arrived; None where there was none."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals inside the block, without obeying them."""
        # Python delivers signals to the main thread alone; a run in another one is not interrupted.
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.getsignal(each) for each in _SIGNALS}
        # A program that ignores a signal goes on doing so (nohup, a shell's background job).
        handled = [each for each in _SIGNALS if before[each] not in (signal.SIG_IGN, None)]

        # The second signal is obeyed immediately: whoever sends it does not want to wait for a checkpoint.
        def note(number: int, frame: FrameType | None) -> None:
            self.number = number
            for each in handled:
                signal.signal(each, before[each])

        for each in handled:
            signal.signal(each, note)
        try:
            yield
        finally:
            for each in handled:
                signal.signal(each, before[each])
