"""How long training stands still for a checkpoint, by the rows that changed since the one before."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch

from ....train.checkpoints.checkpoint_settings import CheckpointSettings
from ....train.config import TrainConfig
from ....train.data.shards import Shards
from ....train.options.interval import Interval
from ....train.resuming.run_checkpoints import RunCheckpoints
from ....train.trainer import Trainer
from ....train.trainer_building.build_trainer import build_trainer
from ...drawn_shards import DrawnShards

_TABLES = 26
_REPEATS = 5
_FEW = 100
"""One row in so many has changed where few have."""

_STEP_SECONDS = 0.005
"""Between two looks at whether the writer is ready; a step of training takes longer."""


def measure_stall(num_rows: int, scratch: Path) -> dict[str, Any]:
    """Return how long training stands still for checkpoints of a model of width 16 with Adagrad.

    Args:
        num_rows: of all tables together.
        scratch: folder for shards and checkpoints.
    """
    shards = DrawnShards(
        rows_of_table=max(num_rows // _TABLES, 1), hot_rows_of_table=1, cold_share=1.0, num_batches=1
    )
    shards.write(scratch / "drawn" / "shards")
    config = TrainConfig(placement="all-fast", embedding_optimizer="adagrad", threads=1)
    # No step is trained: rows are marked as changed, and what a checkpoint then costs is measured.
    trainer = build_trainer(Shards.open(scratch / "drawn"), config, tracks_changes=True)
    settings = CheckpointSettings(checkpoint_every=Interval(steps=1), keep_checkpoints=1)
    saved = RunCheckpoints(scratch / "checkpoints", "", settings, trainer)
    all_changed: list[float] = []
    few_changed: list[float] = []
    longest: list[float] = []
    copies: list[float] = []
    written_seconds: list[float] = []
    num_bytes = 0
    for _ in range(_REPEATS):
        # Few changed rows and all of them, in turn.
        for times, step in ((few_changed, _FEW), (all_changed, 1)):
            changed = _mark_every(trainer, step)
            if step == _FEW:
                few = changed
            # A checkpoint belongs to a step, so one is counted as taken, with any batch.
            trainer.step += 1
            trainer.numbers.append(0)
            saved.take(trainer, [])
            # As between steps, but that none is taken: each part as soon as the one before is being written.
            while saved.is_copying:
                saved.go_on(trainer)
                time.sleep(_STEP_SECONDS)
            times.append(1000 * saved.stall_seconds[-1])
            written = saved.settle(trainer, wait=True)
            assert written is not None and written.error is None
            num_bytes = written.num_bytes
            seconds = written.seconds
        # The checkpoint taken last is the one for which all rows had changed.
        longest.append(1000 * saved.longest_stall_seconds[-1])
        written_seconds.append(seconds)
        copies.append(_copy_all(trainer))
    saved.close()
    trainer.embeddings.close()
    return {
        "rows": sum(table.num_rows for table in trainer.shards.tables),
        "all_changed_ms": all_changed,
        "all_changed_longest_ms": longest,
        "few_changed_ms": few_changed,
        "few_changed_rows": few,
        "copy_ms": copies,
        "all_written_seconds": written_seconds,
        "all_written_bytes": num_bytes,
    }


def _mark_every(trainer: Trainer, step: int) -> int:
    """Mark one row in so many as changed; returns how many."""
    count = 0
    for width in trainer.embeddings.widths:
        assert width.changed is not None
        rows = torch.arange(0, sum(width.placement.num_rows), step).numpy()
        width.changed.mark_rows(rows, is_saved=False)
        count += rows.size
    return count


def _copy_all(trainer: Trainer) -> float:
    """Milliseconds of a plain copy of all rows with their state."""
    started_at = time.perf_counter()
    for width in trainer.embeddings.widths:
        width.executor.fast.weights_SD.clone()
        width.executor.fast.state_SW.clone()
    return 1000 * (time.perf_counter() - started_at)
