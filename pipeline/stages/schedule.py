"""``schedule``: shards/ -> schedule/, the step plans of the mixed batches of whole epochs.

What is trained when is known, so the row that leaves a staging slot is the one whose next use is farthest.
The shards are read once, by all workers; what their batches need lies in files without a name until the
schedule is written. One backward pass an epoch finds the next uses, one forward pass plans. Memory: 8 bytes a
cold row, some 108 a slot, and the steps at hand.

Source: Belady, IBM Systems Journal 5 (1966), for the choice of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...stats.ranking.row_bytes import row_bytes
from ...stats.ranking.staging_slots import share_slots
from ..errors import ConfigError
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..runtime.memory import room_for
from ..runtime.tasks import ProgressCallback, num_workers, silent
from ..scheduling.cold_batches import ColdBatches, mixed_files, read_cold_batches, widths_of
from ..scheduling.epoch_plans import FILE_BYTES, STRETCH_ENTRIES, EpochPlans, StagingArea
from ..sizes import KIB, ByteSize

VERSION = 1
_BYTES_AN_ENTRY = 128
"""What planning holds for each: the stream, its joined copy, the plans and their copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """What a run of the schedule stage may vary; part of its fingerprint."""

    staging_bytes: ByteSize | None = None
    """Fast memory for cold rows with their optimizer state, beside the hot ones; default as many bytes as
    those take."""

    prefetch: int = 2
    """Batches that rows may come and go ahead of the one computed."""

    window: int | None = None
    """Batches known ahead; default the whole epoch."""

    epochs: int = 1
    """Epochs to schedule."""

    seed: int = 0
    """Of the training run, whose order of batches it settles."""

    split_batches: bool = False
    """Run a batch of more cold rows than slots in passes instead of refusing it."""

    def __post_init__(self) -> None:
        if self.staging_bytes is not None and self.staging_bytes < 0:
            raise ConfigError(f"staging_bytes must be 0 or more, got {self.staging_bytes}")
        for name, least in (("prefetch", 0), ("window", 0), ("epochs", 1)):
            found = getattr(self, name)
            if found is not None and found < least:
                raise ConfigError(f"{name} must be {least} or more, got {found}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")


def schedule(
    config: ScheduleConfig,
    shards: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """shards -> schedule: where each cold row of each mixed batch stands, which rows come and which go.

    Reads:   ``mixed-*.arrow``, ids
    Writes:  ``epoch-{epoch}.width-{dim}-{part}.arrow``, a row a step, see `step_plan_files`;
             ``epoch-{epoch}.width-{dim}-residents.arrow``, rows that go home after its last step

    Raises:
        ConfigError: a batch has more distinct cold rows than there are slots; the hint says what would do.
    """
    output = Output.begin("schedule", VERSION, config, [input_of(shards)], out)
    if isinstance(output, Manifest):
        return output
    areas = staging_areas(config, shards)
    needed = needed_bytes(areas, shards, workers)
    room = room_for("schedule", memory_bytes, needed, workers=workers) - needed
    every = [area.width for area in areas]
    cold = read_cold_batches(shards, every, output, workers=workers, progress=progress)
    try:
        for number, batches in enumerate(cold):
            _refuse_large_batch(areas, number, batches)
    except ConfigError:
        output.refuse()
        raise
    widths: list[dict[str, Any]] = []
    num_mixed = shards.totals["samples"]["mixed"]
    for area, batches in zip(areas, cold, strict=True):
        epochs = EpochPlans(shards, area, batches, output, room).make(config.seed, config.epochs)
        widths.append(area.facts | {"epochs": epochs})
        progress("schedule", num_mixed + num_mixed * len(widths) // len(areas), 2 * num_mixed)
    return output.seal(_totals(widths))


def staging_areas(config: ScheduleConfig, shards: Manifest) -> list[StagingArea]:
    """Each row width of ``shards`` with its share of the staging bytes."""
    widths, totals = widths_of(shards), shards.totals
    sizes = [row_bytes(width.embedding_dim, totals["embedding_optimizer"]) for width in widths]
    num_bytes = config.staging_bytes
    if num_bytes is None:
        num_bytes = ByteSize(sum(int(w.first.sum()) * size for w, size in zip(widths, sizes, strict=True)))
    slots = share_slots(num_bytes, [width.num_rows for width in widths], sizes)
    return [
        StagingArea(width, size, num_slots, config.prefetch, config.window, config.split_batches)
        for width, size, num_slots in zip(widths, sizes, slots, strict=True)
    ]


def needed_bytes(areas: Sequence[StagingArea], shards: Manifest, workers: int) -> int:
    """The least that `schedule` can do with: the planner of one width, and what each worker holds."""
    planner = max(4 * area.width.num_rows + 108 * area.num_slots for area in areas)
    planning = 2 * STRETCH_ENTRIES * _BYTES_AN_ENTRY + FILE_BYTES
    largest = max((entry.num_bytes for entry, _ in mixed_files(shards)), default=0)
    return planner + max(planning, num_workers(workers) * largest)


def _refuse_large_batch(areas: Sequence[StagingArea], number: int, batches: ColdBatches) -> None:
    """Raise ConfigError where a batch needs more slots than there are, and is not to be split."""
    sizes, area = np.diff(batches.offsets), areas[number]
    if area.splits or not sizes.size or sizes.max() <= area.num_slots:
        return
    all_bytes = sum(other.width.num_rows * other.row_bytes for other in areas)
    share = area.width.num_rows * area.row_bytes / all_bytes
    enough = int((int(sizes.max()) + 1) * area.row_bytes / share) + 1
    raise ConfigError(
        f"a batch looks up {sizes.max()} distinct cold rows of width {area.width.embedding_dim}, "
        f"staging holds {area.num_slots}",
        hint=f"--staging-bytes {-(-enough // KIB)}KiB would do, or --split-batches, or smaller batches",
    )


def _totals(widths: list[dict[str, Any]]) -> dict[str, Any]:
    """Each width by itself, and what all epochs of all widths move together."""
    keys = (
        "rows_to_fast",
        "rows_made",
        "rows_to_slow",
        "bytes_to_fast",
        "bytes_to_slow",
        "shortened",
        "split",
    )
    epochs = [epoch for width in widths for epoch in width["epochs"]]
    return {"widths": widths} | {key: sum(epoch[key] for epoch in epochs) for key in keys}
