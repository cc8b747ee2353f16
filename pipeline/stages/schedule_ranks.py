"""``schedule --ranks``: shards/ -> exchange/, what crosses between the ranks of a run in each step.

Where rows live and which ranks look them up follows from the order of batches, so each rank can read what it
sends, receives and serves instead of finding it in the whole of every batch. The shards are read once, by all
workers; then homes are planned, and each rank's rows are cut out and written. Memory: 6 bytes per row, at
most 256 MiB to plan homes, and the steps at hand; what grows with the log lies in files without a name.

Source: `stats.exchange.home_moves`, for homes that move.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...stats.exchange.fixed_homes import striped_homes
from ...stats.exchange.home_moves import MoveCosts, move_costs
from ...stats.exchange.home_plan import RowUses, first_homes, users_of_rows
from ...stats.exchange.homes_name import HomesName
from ...stats.exchange.rank_masks import MOST_RANKS
from ...stats.exchange.row_users import mark_bytes
from ...stats.ranking.row_bytes import state_width
from ..errors import ConfigError, require_at_least
from ..folders.file_facts import RankFacts
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..folders.stage_totals import ExchangeTotals, RankedWidthTotals, ShardsTotals
from ..folders.table_info import MOST_ROWS
from ..formats.stage_settings import ShardSettings
from ..runtime.memory import refuse_small_cap, room_for
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import num_workers
from ..scheduling.cold_batches import ColdWidth, refuse_other_shards
from ..scheduling.exchange_files import write_homes
from ..scheduling.exchange_plans import CHUNK_ENTRIES, FILE_BYTES, ExchangePlans, WidthHomes
from ..scheduling.ranked_batches import Ranked, read_ranked_batches, training_files, whole_widths
from ..sizes import MIB

VERSION = 1
_ROW_BYTES = 16
"""Bytes of a row while homes are planned: its homes, users and last step."""
_RANGE_BYTES = 256 * MIB
_BYTES_OF_RANK = 6
"""Bytes of a row for each rank in the range that is looked at: its uses, or the values of a plan."""
_BYTES_AN_ENTRY = 64
"""Bytes that cutting holds for each row of a chunk: the rows, and their copies in Arrow."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankScheduleConfig:
    """The settings of a schedule of several ranks; part of its fingerprint."""

    ranks: int
    """Number of ranks of the training run."""

    homes: HomesName = "by-use"
    """Rank where a row lives, as in training."""

    epochs: int = 1
    """Number of epochs to schedule."""

    seed: int = 0
    """Seed of the training run, which decides the order of batches."""

    def __post_init__(self) -> None:
        if not 2 <= self.ranks <= MOST_RANKS:
            raise ConfigError(f"ranks must be from 2 to {MOST_RANKS}, got {self.ranks}")
        require_at_least("epochs", self.epochs, 1)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")


def schedule_ranks(
    config: RankScheduleConfig, shards: Manifest, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> Manifest:
    """shards -> exchange: the rows that each rank looks up, sends, receives and serves in each step.

    Reads:   ``hot_only-*.arrow`` and ``mixed-*.arrow``, ids
    Writes:  ``homes.width-{dim}.arrow``, a row for each row of the tables;
             ``epoch-{epoch}.width-{dim}.rank-{rank}-{part}.arrow``, a row a step, see `exchange_files`

    Raises:
        ConfigError: more ranks than a batch has samples, or rows that cannot be planned.
    """
    widths = _widths(config, shards)
    costs = [_costs(config, width, shards) for width in widths]
    output = Output.begin("schedule-ranks", VERSION, config, [input_of(shards)], out)
    if output.sealed is not None:
        return output.sealed
    with output.withdrawn_on_failure():
        needed = _needed_bytes(config, widths, shards, resources.workers)
        room = room_for("schedule --ranks", resources, needed) - needed
        ranked = Ranked(shards, tuple(widths), config.ranks)
        uses_of_widths = read_ranked_batches(ranked, output, resources)
        # One width after another: homes and plans grow with the rows of a width.
        samples = ShardsTotals.of(shards).samples
        num_samples = samples.hot_only + samples.mixed
        found: list[RankedWidthTotals] = []
        for width, cost, uses in zip(widths, costs, uses_of_widths, strict=True):
            homes_K = _write_homes(config, width, uses, output)
            plans = ExchangePlans(shards, WidthHomes(width, homes_K, cost), uses, output, room)
            epochs = plans.write(config.seed, config.epochs)
            rows_of_ranks = np.bincount(homes_K, minlength=config.ranks).tolist()
            found.append(
                RankedWidthTotals(
                    embedding_dim=width.embedding_dim,
                    num_rows=width.num_rows,
                    rows_of_ranks=tuple(rows_of_ranks),
                    epochs=tuple(epochs),
                )
            )
            resources.progress(
                "schedule", num_samples + num_samples * len(found) // len(widths), 2 * num_samples
            )
    return output.seal(ExchangeTotals(samples=config.epochs * num_samples, widths=tuple(found)))


def refuse_schedule_ranks(config: RankScheduleConfig, shards: Manifest, resources: Resources) -> None:
    """Raise HotsetError where `schedule_ranks` would refuse, before it writes anything."""
    widths = _widths(config, shards)
    for width in widths:
        _costs(config, width, shards)
    refuse_small_cap("schedule --ranks", resources, _needed_bytes(config, widths, shards, resources.workers))


def _widths(config: RankScheduleConfig, shards: Manifest) -> list[ColdWidth]:
    refuse_other_shards(shards)
    batch_size = ShardSettings.of(shards).batch_size
    if config.ranks > batch_size:
        raise ConfigError(
            f"a batch of {batch_size} samples cannot be divided among {config.ranks} ranks",
            hint="preprocess with a larger --batch-size, or give fewer --ranks",
        )
    widths = whole_widths(shards)
    for width in widths:
        if width.num_rows > MOST_ROWS:
            raise ConfigError(f"{width.num_rows:,} rows of one width; at most {MOST_ROWS:,} can be planned")
    return widths


def _costs(config: RankScheduleConfig, width: ColdWidth, shards: Manifest) -> MoveCosts | None:
    if config.homes != "moving":
        return None
    dim = width.embedding_dim
    try:
        return move_costs(dim, state_width(dim, ShardsTotals.of(shards).embedding_optimizer))
    except ValueError as error:
        raise ConfigError(f"homes cannot move: {error}") from None


def _write_homes(
    config: RankScheduleConfig, width: ColdWidth, uses: RowUses, output: Output
) -> NDArray[np.uint8]:
    """Write where rows live before their first use; return it."""
    if config.homes == "striped":
        homes_K = striped_homes(uses.num_rows, uses.num_ranks)
    else:
        homes_K, _ = first_homes(uses, 0)
    name = f"homes.width-{width.embedding_dim:05}.arrow"
    if not output.has(name):
        facts = RankFacts(kind="homes", embedding_dim=width.embedding_dim)
        with output.writing(name, 0, facts) as path:
            write_homes(path, homes_K, users_of_rows(uses), uses.num_ranks)
    return homes_K


def _needed_bytes(config: RankScheduleConfig, widths: list[ColdWidth], shards: Manifest, workers: int) -> int:
    """Return the bytes that the stage needs at least: its rows, a range of them, and a file a worker."""
    most_rows = max(width.num_rows for width in widths)
    planner = _ROW_BYTES * most_rows + min(_RANGE_BYTES, _BYTES_OF_RANK * config.ranks * most_rows)
    cutting = 2 * CHUNK_ENTRIES * _BYTES_AN_ENTRY + FILE_BYTES
    largest = max((entry.num_bytes for entry in training_files(shards)), default=0)
    # What a task finds of a file is about as large as the file; its marks are gone when homes are planned.
    marks = sum(mark_bytes(width.num_rows, config.ranks) for width in widths)
    reading = num_workers(workers) * (2 * largest + marks)
    return max(reading, planner + max(cutting, 2 * num_workers(workers) * largest))
