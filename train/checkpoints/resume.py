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
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from ...pipeline.errors import GIB, KIB, MIB, HotsetError, first_line
from ...pipeline.runtime.limits import available_bytes
from ..build_embeddings import RunStart
from ..config import TrainConfig
from ..config_parts import CheckpointSettings, seconds_of
from ..data.shards import ShardSet
from ..loop import Trainer
from ..rows.backends import RowOptimizer
from ..rows.embeddings import RowsPart, settle
from ..rows.step_plan import PlannedStep
from ..run_folder.files import ReservedRoom
from ..run_folder.weights import Weights
from .files import (
    BATCHES,
    CheckpointRecord,
    RunState,
    TableSizes,
    dense_state,
    is_optimizer_state,
    read_part,
    read_tensors,
    restore_dense,
)
from .writer import CheckpointWriter, NotFiniteError, RowsCopy

_OTHER = "other."
_LOSSES = "run.losses"


def table_sizes(shards: ShardSet, config: TrainConfig) -> TableSizes:
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
        """Read a checkpoint that `newest_whole` found; raises HotsetError where it is no state of a run."""
        tensors = read_tensors(folder / record.dense.path)
        found = cls(folder, record, tensors, sizes)
        state = record.state
        numbers = tensors.get(BATCHES)
        losses = tensors.get(_LOSSES)
        if numbers is None or numbers.dtype != torch.int32 or tuple(numbers.shape) != (state.step,):
            raise HotsetError(f"{found.where} is damaged: it lacks the batches of its steps")
        # Each step since the last line has a sample at least, by whose number the sum is divided.
        if losses is None or losses.dim() != 1 or losses.numel() > state.unlogged_samples:
            raise HotsetError(f"{found.where} is damaged: it lacks its losses")
        return found

    def rows(self) -> Iterator[RowsPart]:
        """Read the rows from their files, each time they are iterated."""
        # The newest first: of a row in several files the last one has its value.
        for entry in reversed(self.record.rows):
            yield read_part(self.folder / entry.path, self.sizes)

    @property
    def start(self) -> RunStart:
        """The rows and steps that the trainer of a resumed run is built from."""
        return RunStart(self.rows, self.tensors[BATCHES].numpy(), self.record.state.test_losses)

    @property
    def where(self) -> str:
        return f"the checkpoint of step {self.record.state.step} in {self.folder}"


def capture(
    trainer: Trainer, metrics: Iterable[str], *, is_logged: bool
) -> tuple[RunState, dict[str, torch.Tensor]]:
    """Copy everything of a run but its rows.

    Args:
        metrics: lines logged so far.
        is_logged: whether the evaluation that is due after the last step was made.
    """
    states = {name: part.state() for name, part in trainer.resumables.items()}
    # Tensors go to a separate file, plain values to the record.
    tensors = dense_state(trainer.model, trainer.dense_optimizers)
    tensors[BATCHES] = torch.tensor(trainer.batch_numbers, dtype=torch.int32, device="cpu")
    tensors[_LOSSES] = (
        trainer.step_losses().cpu() if trainer.losses else torch.zeros(0, dtype=torch.float32, device="cpu")
    )
    others: dict[str, dict[str, Any]] = {name: {} for name in states}
    for name, state_of in states.items():
        for key, value in state_of.items():
            if isinstance(value, torch.Tensor):
                tensors[f"{_OTHER}{name}.{key}"] = value
            else:
                others[name][key] = value
    # Copying is no training: the clock stands, and what it says is of the steps alone.
    meter = trainer.meter
    with meter.during("checkpoint"):
        meter.enter(None)
        seconds = {str(kind): value for kind, value in meter.seconds.items()}
        to_fast = {str(kind): value for kind, value in meter.bytes_to_fast.items()}
        to_slow = {str(kind): value for kind, value in meter.bytes_to_slow.items()}
    names = [table.name for table in trainer.shards.tables]
    rows_by_table = zip(names, trainer.embeddings.counts_of_steps(), strict=True)
    transfers = {name: float(getattr(*place)) for name, place in _counters(trainer).items()}
    transfers["file_bytes_read"], transfers["file_bytes_written"] = trainer.embeddings.file_bytes()
    state = RunState(
        step=trainer.step,
        num_samples=trainer.num_samples,
        is_logged=is_logged,
        unlogged_samples=trainer.unlogged_samples,
        metrics=tuple(metrics),
        seconds=seconds,
        bytes_to_fast=to_fast,
        bytes_to_slow=to_slow,
        rows_by_table={
            name: {str(way): count for way, count in rows.items()} for name, rows in rows_by_table
        },
        transfers=transfers,
        test_losses=tuple(trainer.order.test_losses),
        others=others,
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
    trainer.set_losses(tensors[_LOSSES].to(trainer.meter.device))
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


def _counters(trainer: Trainer) -> dict[str, tuple[object, str]]:
    """Return the counts of transfers that a resumed run goes on from: by name the owner and its attribute."""
    thread = trainer.embeddings.transfers
    source = trainer.step_source
    return {
        "busy_seconds": (thread, "busy_seconds"),
        "stall_seconds": (thread, "stall_seconds"),
        "stalls": (thread, "num_stalls"),
        "shortened": (source, "num_shortened"),
        "split": (source, "num_split"),
        "slots_wanted": (source, "slots_wanted"),
    }


def _restore_transfers(trainer: Trainer, found: Mapping[str, float]) -> None:
    for name, (owner, attribute) in _counters(trainer).items():
        count = getattr(owner, attribute)  # of a new run
        setattr(owner, attribute, type(count)(found.get(name, count)))
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
        folder: of the checkpoints; created.
        run: checksum of the run's settings.
        last: the checkpoint that it was resumed from.

    Raises:
        HotsetError: the folder cannot be written, or its disk is too small.
    """

    def __init__(
        self,
        trainer: Trainer,
        folder: Path,
        run: str,
        settings: CheckpointSettings,
        last: CheckpointRecord | None = None,
    ) -> None:
        self._trainer = trainer
        self._keep = settings.keep_checkpoints
        every = settings.checkpoint_every
        self._every = every if isinstance(every, int) else seconds_of(every)
        """Whole number of steps, or seconds as a float, between two checkpoints; None: there are none."""
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
        self._prepare(folder, run, last)

    def _prepare(self, folder: Path, run: str, last: CheckpointRecord | None) -> None:
        """Start the writer, and what copies the rows."""
        # Under a limit of memory, a part that waits to be written takes a fixed share of it.
        limit = self._trainer.config.slow_bytes
        part_bytes = _PART_BYTES
        if limit is not None:
            part_bytes = min(max(limit // _PARTS_IN_LIMIT, _LEAST_PART_BYTES), _PART_BYTES)
        self._writer = self._new_writer(folder, run, last, part_bytes)
        self._copy = RowsCopy(self._trainer.embeddings, part_bytes, self._trainer.threads, self._writer.put)

    def _new_writer(
        self, folder: Path, run: str, last: CheckpointRecord | None, part_bytes: int
    ) -> CheckpointWriter:
        # The room is taken before the first step, so that a disk that is too small stops the run now.
        try:
            folder.mkdir(exist_ok=True)
        except OSError as error:
            raise HotsetError(f"{folder} cannot be written: {error.strerror}") from error
        # Dense layers are small compared with the rows; their optimizers keep up to twice as much.
        config = self._trainer.config
        sizes = table_sizes(self._trainer.shards, config)
        num_bytes = 3 * sum(4 * tensor.numel() for tensor in self._trainer.model.state_dict().values())
        num_bytes += sum(
            count * (_ROW_NAME_BYTES + 4 * sum(width))
            for count, width in zip(sizes.num_rows, sizes.widths, strict=True)
        )
        room = ReservedRoom(folder, num_bytes)
        # A quarter of the memory there is, or of its limit, may wait to be written.
        free = available_bytes()
        most_waiting = GIB if free is None else free // 4
        if config.slow_bytes is not None:
            most_waiting = min(most_waiting, config.slow_bytes // 4)
        return CheckpointWriter(folder, run, self._keep, sizes, last, max(part_bytes, most_waiting), room)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due; none while one is being written."""
        if self.is_under_way:
            return False
        seconds = time.monotonic() - self._last_time
        return _is_over(self._every, step - self._last_step, seconds)

    def take(self, metrics: Iterable[str], *, is_logged: bool = True) -> None:
        """Begin a checkpoint; `before_update` and `advance` copy its rows."""
        with self._standing_still():
            self._begin(metrics, num_used_rows(self._trainer), is_logged=is_logged)
            self._copy.begin()
            self._trainer.before_step.append(self.before_update)
            self._copy_part()

    def _begin(self, metrics: Iterable[str], num_used: int, *, is_logged: bool) -> None:
        """Begin a checkpoint, whose rows follow."""
        self.stall_seconds = 0.0
        self.longest_stall_seconds = 0.0
        self._writer.begin(self._trainer.step)
        self.is_under_way = True
        self._captured = (*capture(self._trainer, metrics, is_logged=is_logged), num_used)
        self._last_step = self._trainer.step
        self._last_time = time.monotonic()

    def before_update(self, step: PlannedStep) -> None:
        """Copy the checkpoint's rows that a step is about to change."""
        with self._standing_still():
            self._copy.before_update(step)

    def advance(self, *, to_end: bool = False) -> None:
        """Copy the next part of the checkpoint, if none waits; or all parts."""
        while self._captured is not None and (to_end or self._writer.is_ready):
            with self._standing_still():
                self._copy_part()
            if not to_end:
                return

    def _copy_part(self) -> None:
        """Copy a part, and let the checkpoint be sealed after the last one."""
        if self._writer.is_lost:
            self._copy.give_up()
        self._copy.copy_part()
        if not self._copy.is_under_way:
            self._trainer.before_step.remove(self.before_update)
            self._finish()

    def _finish(self) -> None:
        """Let the checkpoint be sealed, whose rows are all with the writer."""
        assert self._captured is not None, "a checkpoint was begun"
        self._writer.finish(*self._captured)
        self._captured = None

    @contextmanager
    def _standing_still(self) -> Iterator[None]:
        """Add the time of the block to that of the checkpoint under way."""
        start = time.perf_counter()
        with self._trainer.meter.during("checkpoint"):
            yield
        seconds = time.perf_counter() - start
        self.stall_seconds += seconds
        self.longest_stall_seconds = max(self.longest_stall_seconds, seconds)

    def settle(self, *, wait: bool = False) -> None:
        """Note how the last checkpoint ended, if it has; warn where it failed.

        Raises:
            NotFiniteError: weights are not finite.
        """
        if not self.is_under_way:
            return
        if wait:
            self.advance(to_end=True)
        fault: Exception | None = None
        try:
            num_bytes = self._writer.result(waits=wait)
        except (OSError, HotsetError) as error:
            num_bytes = 0
            fault = error
        if num_bytes is None:
            return
        self.is_under_way = False
        # Rows of a checkpoint that was lost count as changed still, so the next one has them.
        settle(self._trainer.embeddings, is_lost=fault is not None)
        if isinstance(fault, NotFiniteError):
            raise fault
        if fault is not None:
            kept = (
                "there is none" if self.last_written is None else f"that of step {self.last_written} is kept"
            )
            _log.warning(
                "the checkpoint of step %s could not be written: %s; %s, and training continues",
                self._last_step,
                getattr(fault, "strerror", None) or first_line(fault),
                kept,
            )
            return
        self.last_written = self._last_step
        _log.info(
            "checkpoint of step %s: %s bytes in %.1f s, training stood still for %.0f ms, %.0f at a time",
            self._last_step,
            num_bytes,
            time.monotonic() - self._last_time,
            1000 * self.stall_seconds,
            1000 * self.longest_stall_seconds,
        )

    def save_last(self, metrics: Iterable[str], *, is_logged: bool) -> None:
        """Write a checkpoint of the last step, unless there is one, and wait for it."""
        self.settle(wait=True)
        if self.last_written != self._trainer.step:
            self.take(metrics, is_logged=is_logged)
            self.settle(wait=True)

    def close(self) -> None:
        """Let the checkpoint under way end, and stop the writer."""
        self._writer.close()


def _is_over(every: float | None, steps: int, seconds: float) -> bool:
    """Return whether an interval is over, so many steps and seconds after the last time."""
    if isinstance(every, int):
        return steps >= every
    return every is not None and seconds >= every and steps > 0


def num_used_rows(trainer: Trainer) -> int:
    """Return how many rows of this process were ever changed."""
    return sum(group.changed.num_used for group in trainer.embeddings.groups if group.changed)


_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(KeyboardInterrupt):
    """Training was interrupted; its steps were saved if possible.

    Args:
        number: of the signal.
        left: the step that training stopped after, and what is kept.
    """

    def __init__(self, number: int, left: str) -> None:
        super().__init__(number)
        self.left = left


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


def optimizer_states(trainer: Trainer) -> Weights:
    """Return the states of all optimizers of a finished run.

    Those of rows are by table, those of dense layers named as in a checkpoint. Tables are read one at a time
    while they are written.
    """
    dense = {
        name: tensor
        for name, tensor in dense_state(trainer.model, trainer.dense_optimizers).items()
        if is_optimizer_state(name)
    }
    # A table has states only where the optimizer of its rows keeps any, and steps change them.
    widths = table_sizes(trainer.shards, trainer.config).widths
    parts = trainer.embeddings.parts_of_tables(trainer.shards.tables, state=True)
    tables = {
        table.name: ((table.num_rows, width), of_table)
        for table, (_, width), of_table in zip(trainer.shards.tables, widths, parts, strict=True)
        if width and not table.is_frozen
    }
    # The last step has written all rows back, so tables are read where they live.
    return Weights.of_run(dense, tables)
