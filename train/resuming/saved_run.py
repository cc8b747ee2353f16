"""The part of a run in a checkpoint: captured from a trainer, read back, and set in a newly built one.

A run that goes on from it repeats the unbroken one bit for bit: rows and their state, dense layers and their
optimizers, the batches so far, losses that are not logged yet and what the scheduler of fae has seen are all
there; where rows lie and what is staged changes no bit, so that is planned anew.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ...pipeline.errors import HotsetError, first_line
from ..checkpoints.checkpoint_files import CheckpointRecord, refuse_damaged_files
from ..checkpoints.checkpoint_writer import TableSizes
from ..checkpoints.dense_state import dense_state, restore_dense
from ..checkpoints.run_state import BATCHES, RunState, split_state
from ..checkpoints.tensor_file import read_part, read_tensors
from ..config import TrainConfig
from ..data.shards import Shards
from ..execution.row_parts import RowsPart
from ..rows.row_optimizers import RowOptimizer
from ..trainer import Trainer
from ..trainer_building.run_start import RunStart

_OTHER = "other."
_LOSSES = "run.losses"


def table_sizes(shards: Shards, config: TrainConfig) -> TableSizes:
    """The rows of each table, and the floats of a row and of its state."""
    optimizer = RowOptimizer(config.row_optimizer(shards.embedding_optimizer), 1.0)
    dims = [table.embedding_dim for table in shards.tables]
    return TableSizes(
        [table.num_rows for table in shards.tables], [(dim, optimizer.state_width(dim)) for dim in dims]
    )


class RowFiles:
    """The rows of a checkpoint, read from its files each time they are iterated."""

    def __init__(self, folder: Path, record: CheckpointRecord, sizes: TableSizes) -> None:
        self._folder = folder
        self._record = record
        self._sizes = sizes

    def __call__(self) -> Iterable[RowsPart]:
        # The newest first: of a row in several files the last one has its value.
        for entry in reversed(self._record.rows):
            yield read_part(self._folder / entry.path, self._sizes.num_rows, self._sizes.widths)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A checkpoint that is whole, read but for its rows."""

    folder: Path
    record: CheckpointRecord
    tensors: Mapping[str, torch.Tensor]
    rows: RowFiles

    @classmethod
    def open(cls, folder: Path, record: CheckpointRecord, sizes: TableSizes) -> Checkpoint:
        """Read a checkpoint; raises HotsetError where it is damaged."""
        refuse_damaged_files(folder, record)
        tensors = read_tensors(folder / record.dense.path)
        found = cls(folder, record, tensors, RowFiles(folder, record, sizes))
        found._refuse_nonsense()
        return found

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
    # Tensors go to a file of their own, plain values to the record.
    tensors = dense_state(trainer.model, trainer.dense_optimizers)
    tensors[BATCHES] = torch.tensor(trainer.numbers, dtype=torch.int32)
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
        test_losses=tuple(trainer.scheduler.losses) if trainer.scheduler else (),
        others={name: plain for name, (plain, _) in states.items()},
    )
    return state, tensors


def restore(trainer: Trainer, checkpoint: Checkpoint) -> None:
    """Set everything of a newly built run but its rows, which `build_trainer` has restored.

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
    trainer.numbers = tensors[BATCHES].tolist()
    # Losses since the last line of the log, which the next line averages.
    trainer.losses = list(tensors[_LOSSES].to(trainer.device))
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
    read, written = file_bytes(trainer)
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
    trainer.earlier_file_bytes = (int(read), int(written))


def file_bytes(trainer: Trainer) -> tuple[int, int]:
    """Bytes that the run has read from spill files and written to them."""
    stores = trainer.embeddings.spill_traffic()
    read, written = trainer.earlier_file_bytes
    read += sum(store.block_bytes * store.reads for store in stores)
    return read, written + sum(store.block_bytes * store.writes for store in stores)
