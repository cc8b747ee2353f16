"""``rank``: counts/ -> vocabulary/, the id of each category and its place over all tables.

An id is the place of a category in its table's order of importance, so that hot is a comparison
(``id < num_hot``) and a hot set a prefix. The place over all tables gives ``num_hot`` for every budget.
Memory holds runs of equal counts, and the table being written where it fits; other orders than by
frequency need more.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ...stats.ranking.frequency_ranking import RankedRuns, first_places, rank_by_frequency
from ..errors import ConfigError
from ..folders.manifest import FileEntry, Manifest
from ..folders.output import Output, input_of
from ..formats.arrow_files import read_batch, values_of
from ..formats.category_texts import write_id_texts
from ..ranking.peel_order import peel_order
from ..ranking.ranked_tables import Arrangement, RankedTable, write_table
from ..ranking.sampled_order import sampled_order
from ..runtime.memory import room_for
from ..runtime.tasks import ProgressCallback, num_workers, run_tasks, silent
from ..schema.feature_settings import NO_SETTINGS, FeatureSettings, checked_settings, numbers_of
from ..sizes import MIB

VERSION = 1
_MAX_ROWS = 2**31 - 1
_LEAST_ROOM = 16 * MIB
"""For each worker: chunks of counts, and runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """What a run of the rank stage may vary; part of its fingerprint."""

    rank_by: Literal["frequency", "peel", "sampled"] = "frequency"
    """Order of importance: frequency moves the fewest bytes; peel makes most samples fully hot, at the price
    of more cold look-ups; sampled is frequency in a sample of the log, as in FAE, for comparison."""

    min_count: int = 1
    """Categories seen fewer times than this in the training part share the oov row (look-ups)."""

    feature_min_counts: FeatureSettings = NO_SETTINGS
    """Features with a ``min_count`` of their own, and that: C3=10,C5=2 (look-ups)."""

    peel_floor: int = 4096
    """With peel: the most looked-up rows of all tables that come first, by frequency (rows). More need less
    memory."""

    peel_row_bytes: FeatureSettings = NO_SETTINGS
    """With peel: bytes of a row of every feature, where they differ; `preprocess` sets it by itself."""

    sampling_rate: float = 0.05
    """With sampled: share of the training samples whose look-ups are counted, in (0, 1]."""

    sampling_seed: int = 0
    """With sampled: of the draw."""

    with_replacement: bool = False
    """With sampled: draw with replacement, as FAE's released code does."""

    def __post_init__(self) -> None:
        if self.rank_by not in ("frequency", "peel", "sampled"):
            raise ConfigError(f"rank_by must be frequency, peel or sampled, got {self.rank_by!r}")
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"sampling_rate must be in (0, 1], got {self.sampling_rate}")
        if not 0 <= self.sampling_seed < 2**62:
            raise ConfigError(f"sampling_seed must be in [0, 2**62), got {self.sampling_seed}")
        if self.min_count < 1:
            raise ConfigError(f"min_count must be 1 or more, got {self.min_count}")
        if self.peel_floor < 0:
            raise ConfigError(f"peel_floor must be 0 or more, got {self.peel_floor}")
        for name in ("feature_min_counts", "peel_row_bytes"):
            object.__setattr__(self, name, checked_settings(name, getattr(self, name)))


def rank(
    config: RankConfig,
    counts: Manifest,
    out: Path,
    *,
    columns: Manifest | None = None,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """counts -> vocabulary: categories in the order of their ids.

    Reads:   ``{feature}.arrow``: category, count; ``columns``, what was counted, where the order is not by
             frequency
    Writes:  ``{feature}.arrow``: category (null for missing and oov), count int64 look-ups,
             place int64 in the order over all tables; sampled int64 look-ups of the sample, where that
             decides; a row's position is its id; of text columns ``{feature}.texts.arrow``: id int32, text
             of the most frequent ones
    """
    names = [table["name"] for table in counts.totals["tables"]]
    numbers_of("feature_min_counts", config.feature_min_counts, names, 1)  # refused before it is begun
    row_bytes, inputs = _row_bytes(config, names), [input_of(counts)]
    if config.rank_by != "frequency":
        if columns is None:
            raise ConfigError(f"rank_by {config.rank_by} needs the columns that were counted")
        inputs.append(input_of(columns))
    output = Output.begin("rank", VERSION, config, inputs, out)
    if isinstance(output, Manifest):
        return output
    room = room_for("rank", memory_bytes, needed_bytes(workers), workers=workers) // num_workers(workers)
    room -= _LEAST_ROOM
    tables = rank_tables(config, counts, workers, progress)
    arrange: Callable[[RankedTable], Arrangement | None] = _as_they_are
    facts: dict[str, Any] = {}
    if columns is not None and config.rank_by == "peel":
        peeled = peel_order(
            tables,
            row_bytes,
            config.peel_floor,
            columns,
            counted_samples(counts),
            workers=workers,
            memory_bytes=memory_bytes,
            progress=progress,
        )
        arrange = peeled.arrange
        facts = {"rank_by": "peel", "peel": {"floor": peeled.floor, "cuts": peeled.cuts}}
    if columns is not None and config.rank_by == "sampled":
        sampled = sampled_order(
            tables,
            columns,
            counted_samples(counts),
            rate=config.sampling_rate,
            seed=config.sampling_seed,
            with_replacement=config.with_replacement,
            workers=workers,
            memory_bytes=memory_bytes,
            progress=progress,
        )
        arrange = sampled.arrange
        facts = {"rank_by": "sampled", "sampling": {"num_drawn_samples": sampled.num_drawn}}
    tasks = ((table, arrange, output, room) for table in tables)
    here = config.rank_by != "frequency"
    made = list(run_tasks(_write_table, tasks, workers=workers, here=here))
    for table in tables:
        _write_texts(table.name, counts, output)
    keys = ("num_samples", "num_train_samples", "num_counted_samples")
    kept = {key: counts.totals[key] for key in keys if key in counts.totals}
    num_rows = sum(table.num_rows for table in tables)
    return output.seal(kept | {"tables": made, "num_rows": num_rows} | facts)


def _write_texts(name: str, counts: Manifest, output: Output) -> None:
    made = Manifest(output.folder, "rank", VERSION, {}, [], [], {}, "")
    categories = read_batch(made, output.finished[f"{name}.arrow"]).column("category")
    write_id_texts(output, counts, name, categories)


def needed_bytes(workers: int) -> int:
    """The least that `rank` by frequency can do with."""
    return num_workers(workers) * _LEAST_ROOM


def counted_samples(counts: Manifest) -> range:
    """The samples of the log that were counted: the training part, or its last files."""
    num_train = int(counts.totals["num_train_samples"])
    return range(num_train - int(counts.totals.get("num_counted_samples", num_train)), num_train)


def _row_bytes(config: RankConfig, features: list[str]) -> list[int]:
    """Per feature; 1 where they do not differ, because only ratios count."""
    widths = numbers_of("peel_row_bytes", config.peel_row_bytes, features, 0)
    lacking = [name for name, width in widths.items() if not width]
    if config.peel_row_bytes and lacking:
        raise ConfigError(
            f"peel_row_bytes says nothing of {lacking[0]!r}", hint="name every feature, or none"
        )
    return [widths[name] or 1 for name in features]


def rank_tables(
    config: RankConfig, counts: Manifest, workers: int, progress: ProgressCallback
) -> list[RankedTable]:
    """Every table by frequency; by look-ups per byte over all tables where widths are given."""
    entries, facts = {entry.path: entry for entry in counts.files}, counts.totals["tables"]
    names = [table["name"] for table in facts]
    min_counts = numbers_of("feature_min_counts", config.feature_min_counts, names, config.min_count)
    tasks = ((min_counts[name], counts, entries[f"{name}.arrow"]) for name in names)
    ranked, done = [], 0
    for runs in run_tasks(_rank_table, tasks, workers=workers):
        ranked.append(runs)
        done += counts.totals["num_train_samples"]
        progress("rank", done, len(names) * counts.totals["num_train_samples"])
    firsts = first_places([(runs.counts, runs.lengths) for runs in ranked], _row_bytes(config, names))
    return [
        RankedTable(counts, entries[f"{table['name']}.arrow"], table, min_counts[table["name"]], runs, first)
        for table, runs, first in zip(facts, ranked, firsts, strict=True)
    ]


def _rank_table(min_count: int, counts: Manifest, entry: FileEntry) -> RankedRuns:
    occurrences = values_of(read_batch(counts, entry).column("count"), np.int64)
    ranked = rank_by_frequency(occurrences, entry.facts["num_missing"], min_count)
    if ranked.num_rows > _MAX_ROWS:
        name = Path(entry.path).stem
        raise ConfigError(
            f"table {name} has {ranked.num_rows} rows, an id goes to {_MAX_ROWS}",
            hint="raise --min-count",
        )
    return ranked


def _as_they_are(table: RankedTable) -> None:
    """By frequency."""


def _write_table(
    table: RankedTable, arrange: Callable[[RankedTable], Arrangement | None], output: Output, room: int
) -> dict[str, Any]:
    return write_table(table, arrange(table), output, room)
