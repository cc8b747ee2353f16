"""``schedule``: shards/ -> schedule/, the step plans of the mixed batches of whole epochs.

What is trained when is known, so the row that leaves a staging slot is the one whose next use is farthest.
The shards are read once, by all workers; what their batches need lies in files without a name until the
schedule is written. One backward pass an epoch finds the next uses, one forward pass plans. Memory: 8 bytes a
cold row, some 108 a slot, and the steps at hand.

Source: Belady, IBM Systems Journal 5 (1966), for the choice of the row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ...stats.ranking.row_bytes import row_bytes
from ...stats.staging.staging_size import (
    WidthSizes,
    deepest_prefetch,
    default_staging_bytes,
    slots_of_widths,
)
from ..errors import ConfigError, require_at_least
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..folders.stage_totals import ScheduledWidth, ScheduleTotals, ShardsTotals
from ..runtime.memory import refuse_small_cap, room_for
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import num_workers
from ..scheduling.cold_batches import (
    ColdWidth,
    cold_widths,
    largest_batches,
    mixed_files,
    read_batches,
    read_cold_batches,
    refuse_other_shards,
)
from ..scheduling.epoch_plans import CHUNK_ENTRIES, FILE_BYTES, EpochPlans, StagingArea
from ..sizes import KIB, ByteSize

VERSION = 2
_BYTES_AN_ENTRY = 128
"""Bytes that planning holds for each row of a chunk: the stream, its joined copy, the plans, their copies."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleConfig:
    """The settings of the schedule stage; part of its fingerprint."""

    staging_bytes: ByteSize | None = None
    """Fast memory for cold rows with their optimizer state, beside the hot ones. Default: as many bytes as
    the hot rows take, and at least four times those of a batch, so that transfers can run ahead."""

    prefetch: int | None = None
    """Number of batches that transfers may run ahead of the batch being computed. Default: 2, or what the
    staging slots allow: each one takes slots for the cold rows of two batches more."""

    window: int | None = None
    """Number of batches known ahead. Default: the whole epoch."""

    epochs: int = 1
    """Number of epochs to schedule."""

    seed: int = 0
    """Seed of the training run, which decides the order of batches."""

    split_batches: bool = False
    """Run a batch with more cold rows than slots in several passes instead of refusing it."""

    def __post_init__(self) -> None:
        require_at_least("staging_bytes", self.staging_bytes, 0)
        for name, least in (("prefetch", 0), ("window", 0), ("epochs", 1)):
            require_at_least(name, getattr(self, name), least)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")


def schedule(
    config: ScheduleConfig, shards: Manifest, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> Manifest:
    """shards -> schedule: the slot of each cold row of each mixed batch, which rows are loaded and evicted.

    Reads:   ``mixed-*.arrow``, ids
    Writes:  ``epoch-{epoch}.width-{dim}-{part}.arrow``, a row a step, see `step_plan_files`;
             ``epoch-{epoch}.width-{dim}-residents.arrow``, rows written back after its last step

    Raises:
        ConfigError: a batch has more distinct cold rows than there are slots; the hint says what would do.
    """
    areas = staging_areas(config, shards)
    # Recorded as it is planned, so that a run can tell whether the plans are its own.
    config = replace(config, prefetch=areas[0].prefetch)
    output = Output.begin("schedule", VERSION, config, [input_of(shards)], out)
    if output.sealed is not None:
        return output.sealed
    # The distinct cold rows of each batch are found once; every epoch only visits them in another order.
    with output.withdrawn_on_failure():
        needed = needed_bytes(areas, shards, resources.workers)
        room = room_for("schedule", resources, needed) - needed
        every = [area.width for area in areas]
        # Samples are passed once to find their rows, and once for each width and epoch.
        num_passes = 1 + len(areas) * config.epochs
        cold = read_cold_batches(shards, every, output, resources, num_passes)
        _refuse_large_batches(areas, [int(np.diff(batches.offsets).max(initial=0)) for batches in cold])
        # One width after another: a planner's arrays grow with the cold rows of its width.
        widths: list[ScheduledWidth] = []
        num_mixed = ShardsTotals.of(shards).samples.mixed
        done = num_mixed

        def advance(num_samples: int) -> None:
            nonlocal done
            done += num_samples
            resources.progress("schedule", done, num_passes * num_mixed)

        for area, batches in zip(areas, cold, strict=True):
            epochs = EpochPlans(shards, area, batches, output, room).write(
                config.seed, config.epochs, advance
            )
            widths.append(area.describe(epochs))
    return output.seal(_totals(widths))


def refuse_schedule(config: ScheduleConfig, shards: Manifest, resources: Resources) -> None:
    """Raise HotsetError where `schedule` would refuse, before it writes anything."""
    areas = staging_areas(config, shards)
    refuse_small_cap("schedule", resources, needed_bytes(areas, shards, resources.workers))
    if config.split_batches:
        return
    # Without splitting a batch must fit in the slots, so the largest one decides.
    largest = [0] * len(areas)
    for entry, batches in mixed_files(shards):
        _, found = read_batches(entry, batches, shards, [area.width for area in areas])
        largest = [
            max(most, int(rows.sizes.max(initial=0))) for most, rows in zip(largest, found, strict=True)
        ]
    _refuse_large_batches(areas, largest)


def staging_areas(config: ScheduleConfig, shards: Manifest) -> list[StagingArea]:
    """Return each row width of ``shards`` with its share of the staging bytes."""
    refuse_other_shards(shards)
    widths = cold_widths(shards)
    optimizer = ShardsTotals.of(shards).embedding_optimizer
    sizes = staged_sizes(shards, widths, optimizer)
    # What the settings leave open follows from the shards, as it does in training.
    num_bytes = config.staging_bytes
    if num_bytes is None:
        num_bytes = ByteSize(default_staging_bytes(sizes, config.prefetch))
    prefetch = deepest_prefetch(sizes, num_bytes) if config.prefetch is None else config.prefetch
    slots = slots_of_widths(sizes, num_bytes)
    return [
        StagingArea(width, size.row_bytes, num_slots, prefetch, config.window, config.split_batches)
        for width, size, num_slots in zip(widths, sizes, slots, strict=True)
    ]


def staged_sizes(shards: Manifest, widths: Sequence[ColdWidth], optimizer: str) -> list[WidthSizes]:
    """Return what the size of a staging area depends on, for rows with the state of ``optimizer``."""
    return [
        WidthSizes(int(width.first.sum()), width.num_rows, row_bytes(width.embedding_dim, optimizer), largest)
        for width, largest in zip(widths, largest_batches(shards, widths), strict=True)
    ]


def needed_bytes(areas: Sequence[StagingArea], shards: Manifest, workers: int) -> int:
    """Return the bytes that `schedule` needs at least: a planner, and a file for each worker."""
    planner = max(4 * area.width.num_rows + 108 * area.num_slots for area in areas)
    planning = 2 * CHUNK_ENTRIES * _BYTES_AN_ENTRY + FILE_BYTES
    largest = max((entry.num_bytes for entry, _ in mixed_files(shards)), default=0)
    return planner + max(planning, num_workers(workers) * largest)


def _refuse_large_batches(areas: Sequence[StagingArea], largest: Sequence[int]) -> None:
    """Raise ConfigError where a batch needs more slots than there are and may not be split.

    Args:
        areas: one for each row width.
        largest: the most distinct cold rows of a batch, of each width.
    """
    for area, num_rows in zip(areas, largest, strict=True):
        if area.splits or num_rows <= area.num_slots:
            continue
        # The staging bytes are shared in proportion to cold bytes: scale what this width needs to all widths.
        all_bytes = sum(other.width.num_rows * other.row_bytes for other in areas)
        share = area.width.num_rows * area.row_bytes / all_bytes
        enough = int((num_rows + 1) * area.row_bytes / share) + 1
        raise ConfigError(
            f"a batch looks up {num_rows} distinct cold rows of width {area.width.embedding_dim}, "
            f"staging holds {area.num_slots}",
            hint=f"--staging-bytes {-(-enough // KIB)}KiB would do, or --split-batches, or smaller batches",
        )


def _totals(widths: list[ScheduledWidth]) -> ScheduleTotals:
    """Each width by itself, and what all epochs of all widths move together."""
    # Sums over all widths; each width's own figures stand beside them.
    epochs = [epoch for width in widths for epoch in width.epochs]
    return ScheduleTotals(
        widths=tuple(widths),
        rows_to_fast=sum(epoch.rows_to_fast for epoch in epochs),
        rows_made=sum(epoch.rows_made for epoch in epochs),
        rows_to_slow=sum(epoch.rows_to_slow for epoch in epochs),
        bytes_to_fast=sum(epoch.bytes_to_fast for epoch in epochs),
        bytes_to_slow=sum(epoch.bytes_to_slow for epoch in epochs),
        shortened=sum(epoch.shortened for epoch in epochs),
        split=sum(epoch.split for epoch in epochs),
    )
