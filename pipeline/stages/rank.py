"""``rank``: counts/ -> vocabulary/, the id and place of each category.

The place is the position over all tables. An id is the position of a category in its table's order of
importance, so that hot is a comparison (``id < num_hot``) and a hot set a prefix. The position over all
tables gives ``num_hot`` for every budget. Memory holds runs of equal counts, and the table being written
where it fits; other orders than by frequency need more.

``adopt``: columns/ + another log's vocabulary/ -> vocabulary/. Nothing is counted: every sample of the new
log is for evaluation, and a category that the model's log did not have is looked up in its table's oov row,
as in every evaluation.

``map-ids``: two vocabularies -> id_map/, so that a model of the old ids continues with the new ones. Ids are
ranks, and another day changes them. A row whose category is in both vocabularies is copied to its new place;
only rows of new categories are initialized. The new vocabulary is looked up by the old categories in hash
tables, in pieces where a table is larger than the memory of a worker.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids, most_rows_within
from ...stats.ranking import RankedRuns, first_places, rank_by_frequency
from ..errors import MIB, ConfigError, ManifestError, check_fields, require_at_least
from ..folders.manifest import FileEntry, JsonRecord, Manifest, is_sealed
from ..folders.output import Output, array_in, input_of
from ..folders.totals import (
    ColumnsTotals,
    CountsFacts,
    CountsTotals,
    IdMapTotals,
    MappedTable,
    SamplingSettings,
    VocabularyTable,
    VocabularyTotals,
)
from ..formats.arrow_files import (
    NO_NULLS,
    VOCABULARY_COLUMNS,
    numpy_type,
    read_batch,
    read_file,
    values_of,
    write_batch,
)
from ..formats.columns import write_id_texts
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, check_cap, crew_size, room_for, run_tasks, silent
from ..schema.schema import NO_SETTINGS, FeatureSettings, check_settings, numbers_of
from .row_order import Arrange, RankedTable, write_table

VERSION = 1
_SAMPLED_VERSION = 2
"""Version of folders by sampled counts, since they hold the order of first appearance."""
_MAX_ROWS = 2**31 - 1
PEEL_FLOOR = 4096
"""With peel: rows, the most looked-up of all tables, that stay first, by frequency; more need less memory."""
_LEAST_ROOM = 16 * MIB
"""Bytes that each worker needs at least: chunks of counts, and runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class RankConfig:
    """The settings of the rank stage; part of its fingerprint."""

    rank_by: Literal["frequency", "peel", "sampled"] = "frequency"
    """Order of importance: frequency moves the fewest bytes; peel makes the most samples fully hot, at the
    price of more cold lookups; sampled is the frequency in a sample of the log, as in FAE, for comparison."""

    min_count: int = 1
    """Number of lookups in the training part below which categories share the out-of-vocabulary row."""

    feature_min_counts: FeatureSettings = NO_SETTINGS
    """Another --min-count for some features, such as C3=10,C5=2."""

    peel_row_bytes: FeatureSettings = field(default=NO_SETTINGS, metadata={"no_option": True})
    """With peel: bytes per row of each feature, if they differ."""

    sampling_rate: float = 0.05
    """With sampled: share of the training samples, in (0, 1], whose lookups are counted."""

    sampling_seed: int = 0
    """With sampled: seed of the draw."""

    with_replacement: bool = field(default=False, metadata={"no_option": True})
    """With sampled: draw with replacement, as FAE's released code does."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("feature_min_counts", "peel_row_bytes"):  # lists in a manifest
            object.__setattr__(self, name, FeatureSettings(getattr(self, name)))
        if not 0 < self.sampling_rate <= 1:
            raise ConfigError(f"sampling_rate must be in (0, 1], got {self.sampling_rate}")
        if not 0 <= self.sampling_seed < 2**62:
            raise ConfigError(f"sampling_seed must be in [0, 2**62), got {self.sampling_seed}")
        require_at_least("min_count", self.min_count, 1)
        check_settings("feature_min_counts", self.feature_min_counts)
        check_settings("peel_row_bytes", self.peel_row_bytes)


def rank(
    config: RankConfig,
    counts: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    columns: Manifest | None = None,
) -> Manifest:
    """counts -> vocabulary: categories in the order of their ids.

    Reads:   ``{feature}.arrow``: category, count; ``columns``, what was counted, where the order is not by
             frequency
    Writes:  ``{feature}.arrow``: category (null for missing and oov), count int64 lookups,
             place int64 in the order over all tables; where sampled lookups decide: sampled int64 lookups
             of the sample, appearance int64 position in the order of first lookups in the log; a row's
             position is its id; of text columns ``{feature}.texts.arrow``: id int32, text of the most
             frequent ones
    """
    counted = CountsTotals.of(counts)
    names = [table.name for table in counted.tables]
    numbers_of("feature_min_counts", config.feature_min_counts, names, 1)  # refused before it is begun
    # Other orders than by frequency read the samples again, so the columns become an input.
    row_bytes = _row_bytes(config, names)
    inputs = [input_of(counts)]
    if config.rank_by != "frequency":
        if columns is None:
            raise ConfigError(f"rank_by {config.rank_by} needs the columns that were counted")
        inputs.append(input_of(columns))
    if not is_sealed(out):
        check_cap("rank", resources, needed_bytes(resources.workers))
    output = Output.begin("rank", version_of(config), config, inputs, out)
    if output.sealed is not None:
        return output.sealed
    # Memory that tables may be read into at a time, for each worker.
    room = room_for("rank", resources, needed_bytes(resources.workers)) // crew_size(resources.workers)
    room -= _LEAST_ROOM
    # First every table by frequency, as runs of equal counts; the other orders rearrange that.
    tables = rank_tables(config, counts, resources)
    arrange, facts = _arranged(config, tables, row_bytes, columns, counted_samples(counts), resources)
    tasks = ((table, arrange, output, room) for table in tables)
    # A rearranged order is large and in this process's memory: threads write its tables.
    here = config.rank_by != "frequency"
    written = tuple(run_tasks(write_table, tasks, workers=resources.workers, shares_memory=here))
    for table in tables:
        entry = output.finished[table.entry.path]
        batch = read_file(output.folder / entry.path, entry.num_samples, VOCABULARY_COLUMNS)
        write_id_texts(output, counts, table.name, batch.column("category"))
    totals = VocabularyTotals(
        num_samples=counted.num_samples,
        num_train_samples=counted.num_train_samples,
        num_valid_samples=counted.num_valid_samples,
        num_counted_samples=counted.num_counted_samples,
        tables=written,
        num_rows=sum(table.num_rows for table in tables),
        rank_by=config.rank_by,
        **facts,
    )
    return output.seal(totals)


def _arranged(
    config: RankConfig,
    tables: list[RankedTable],
    row_bytes: list[int],
    columns: Manifest | None,
    counted: range,
    resources: Resources,
) -> tuple[Arrange | None, dict[str, Any]]:
    """Return how to order each table's rows, None by frequency; and the order's facts in the totals."""
    if columns is None or config.rank_by == "frequency":
        return None, {}
    if config.rank_by == "peel":
        from .orders import arranged_by, peel_order

        places, peel = peel_order(tables, row_bytes, PEEL_FLOOR, columns, counted, resources)
        return arranged_by(places), {"peel": peel}
    from .orders import sampled_order

    draw = (config.sampling_rate, config.sampling_seed, config.with_replacement)
    arrange, sampling = sampled_order(tables, columns, counted, resources, *draw)
    return arrange, {"sampling": sampling}


def check_rank(
    config: RankConfig, counts: Manifest, resources: Resources, *, columns: Manifest | None = None
) -> None:
    """Raise ConfigError where `rank` would refuse, before it writes anything."""
    names = [table.name for table in CountsTotals.of(counts).tables]
    numbers_of("feature_min_counts", config.feature_min_counts, names, 1)
    _row_bytes(config, names)
    check_cap("rank", resources, needed_bytes(resources.workers))
    # Every table by frequency is in memory in any case: what the other orders need follows from it.
    tables = rank_tables(config, counts, replace(resources, progress=silent))
    num_samples = len(counted_samples(counts))
    if config.rank_by == "peel":
        from .orders import check_peel_order

        check_peel_order(tables, PEEL_FLOOR, num_samples, resources)
    if config.rank_by == "sampled":
        from .orders import check_sampled_order

        check_sampled_order(tables, num_samples, resources)


def rare_shares(counts: Manifest, vocabulary: Manifest) -> tuple[float, float, float]:
    """Return how much of a log its vocabulary knows little of, in [0, 1].

    Returns:
        Shares of the categories that share the out-of-vocabulary row, of their lookups, and of the lookups of
        categories that occur once; the last is 0 where it is below a half.
    """
    totals = VocabularyTotals.of(vocabulary)
    num_samples = len(counted_samples(counts))
    num_categories = sum(table.num_categories for table in CountsTotals.of(counts).tables)
    lookups = sum(num_samples if table.num_lookups is None else table.num_lookups for table in totals.tables)
    num_rows = sum(table.num_rows - 2 for table in totals.tables)  # those of missing and oov are none
    num_single = 0
    if lookups < 2 * num_rows:
        for table in totals.tables:
            batch = read_batch(vocabulary, vocabulary.entry(f"{table.name}.arrow"))
            num_single += int(np.count_nonzero(values_of(batch.column("count"), np.int64) == 1))
    unknown = sum(table.oov_count for table in totals.tables)
    return (
        1 - min(1.0, max(0, num_rows) / max(1, num_categories)),
        unknown / max(1, lookups),
        num_single / max(1, lookups),
    )


def version_of(config: RankConfig) -> int:
    """Return the version of what `rank` writes with this config."""
    return _SAMPLED_VERSION if config.rank_by == "sampled" else VERSION


def needed_bytes(workers: int) -> int:
    """Return the bytes that `rank` by frequency needs at least."""
    return crew_size(workers) * _LEAST_ROOM


def counted_samples(counts: Manifest) -> range:
    """Return the samples of the log that were counted: the training part, or its last files."""
    totals = CountsTotals.of(counts)
    num_train = totals.num_train_samples
    num_counted = num_train if totals.num_counted_samples is None else totals.num_counted_samples
    return range(num_train - num_counted, num_train)


def _row_bytes(config: RankConfig, features: list[str]) -> list[int]:
    """Return the bytes of a row of each feature; 1 if all are equal."""
    widths = numbers_of("peel_row_bytes", config.peel_row_bytes, features, 0)
    # Half of the widths would rank rows of two units against each other.
    lacking = [name for name, width in widths.items() if not width]
    if config.peel_row_bytes and lacking:
        raise ConfigError(
            f"peel_row_bytes has no entry for {lacking[0]!r}", hint="name every feature, or none"
        )
    return [widths[name] or 1 for name in features]


def rank_tables(config: RankConfig, counts: Manifest, resources: Resources) -> list[RankedTable]:
    """Rank every table by frequency; over all tables by lookups per byte where widths are given."""
    totals = CountsTotals.of(counts)
    names = [table.name for table in totals.tables]
    min_counts = numbers_of("feature_min_counts", config.feature_min_counts, names, config.min_count)
    tasks = ((min_counts[name], counts, counts.entry(f"{name}.arrow")) for name in names)
    ranked = []
    for runs in run_tasks(_rank_table, tasks, workers=resources.workers):
        ranked.append(runs)
        num_train = totals.num_train_samples
        resources.progress("rank", len(ranked) * num_train, len(names) * num_train)
    # Only now that all tables are ranked is the position of each run over all tables known.
    firsts = first_places([(runs.counts, runs.lengths) for runs in ranked], _row_bytes(config, names))
    return [
        RankedTable(counts, counts.entry(f"{table.name}.arrow"), table, min_counts[table.name], runs, first)
        for table, runs, first in zip(totals.tables, ranked, firsts, strict=True)
    ]


def _rank_table(min_count: int, counts: Manifest, entry: FileEntry) -> RankedRuns:
    occurrences = values_of(read_batch(counts, entry).column("count"), np.int64)
    ranked = rank_by_frequency(occurrences, counts.facts_of(CountsFacts, entry).num_missing, min_count)
    if ranked.num_rows > _MAX_ROWS:
        name = Path(entry.path).stem
        raise ConfigError(
            f"table {name} has {ranked.num_rows} rows, an id goes to {_MAX_ROWS}",
            hint="raise --min-count",
        )
    return ranked


VERSION_OF_ADOPT = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class AdoptConfig:
    """The adopt stage has nothing to vary."""


def adopt(
    columns: Manifest,
    model_columns: Manifest,
    model: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """columns, a vocabulary -> vocabulary: the same ids for another log, none of whose samples trains.

    Reads:   ``{feature}.arrow`` of ``model``, the vocabulary of the log a model was trained on
    Writes:  the same files, byte for byte

    Raises:
        ManifestError: the two logs have other features, or features of other kinds.
    """
    log = ColumnsTotals.of(columns)
    model_log = ColumnsTotals.of(model_columns)
    hint = "give --like a folder made with the same schema"
    # Ids mean something only for the same features, read in the same way.
    if log.sparse != model_log.sparse:
        found = ", ".join(log.sparse)
        raise ManifestError(
            f"{model.folder} has the features {', '.join(model_log.sparse)}, the log has {found}", hint=hint
        )
    if log.schema != model_log.schema:
        raise ManifestError(
            f"{model.folder} and the log have the same features under different schemas", hint=hint
        )
    inputs = [input_of(columns), {"name": "model", "fingerprint": model.fingerprint}]
    output = Output.begin("adopt", VERSION_OF_ADOPT, AdoptConfig(), inputs, out)
    if output.sealed is not None:
        return output.sealed
    # Ids stay what they are: copy the files byte for byte.
    for done, entry in enumerate(model.files, 1):
        if not output.has(entry.path):
            output.adopt(model, entry, entry.path)
        resources.progress("adopt", done, len(model.files))
    totals = VocabularyTotals.of(model)
    if model.stage != "adopt":
        num_train = totals.num_train_samples
        trained = tuple(model_log.training_logs(num_train))
        totals = replace(totals, num_model_samples=num_train, model_raw=trained)
        if totals.sampling is not None:
            drawn = SamplingSettings.of(model)
            rate, seed = drawn.sampling_rate, drawn.sampling_seed
            totals = replace(
                totals, sampling=replace(totals.sampling, sampling_rate=rate, sampling_seed=seed)
            )
    # Otherwise the log of the model's vocabulary trained nothing, and its totals name the log that did.
    return output.seal(
        replace(totals, num_samples=columns.num_samples, num_train_samples=0, num_valid_samples=0)
    )


VERSION_OF_MAP_IDS = 1
_ROOM_TO_MAP = 8 * MIB
_STAGES = ("rank", "adopt")
_CHUNK = 1 << 18
"""Rows that are looked up, or added up, at a time."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IdMapFacts(JsonRecord):
    """One table of an id map."""

    num_kept: int
    """Old rows that have a new id."""
    kept_lookups: int
    """Lookups of the new log in rows that are kept."""
    new_lookups: int
    """Lookups of the new log in all rows."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MapIdsConfig:
    """There is nothing to vary."""


def map_ids(old: Manifest, new: Manifest, out: Path, resources: Resources = DEFAULT_RESOURCES) -> Manifest:
    """Two vocabularies -> id_map: the new id of each row of the old vocabulary.

    Reads:   ``{feature}.arrow`` of both: category, count
    Writes:  ``{feature}.arrow``: new_id int32 for each old id; -1 where the category no longer has a row. No
             new id occurs twice: oov becomes oov and missing missing, or -1 where missing values share the
             new oov row.

    Raises:
        ManifestError: a folder holds no vocabulary, or they have other features, or features of other kinds.
    """
    for vocabulary in (old, new):
        if vocabulary.stage not in _STAGES:
            raise ManifestError(
                f"{vocabulary.folder} holds the stage {vocabulary.stage!r}, want a vocabulary",
                hint="give a folder that preprocess wrote (its --out)",
            )
    tables = _pairs(old, new)
    inputs = [{"name": name, "fingerprint": m.fingerprint} for name, m in (("old", old), ("vocabulary", new))]
    output = Output.begin("map-ids", VERSION_OF_MAP_IDS, MapIdsConfig(), inputs, out)
    if output.sealed is not None:
        return output.sealed
    # Tables are independent, so each worker maps one in its share of the memory.
    num_maps = crew_size(resources.workers)
    room = room_for("map-ids", resources, num_maps * _ROOM_TO_MAP) // num_maps
    tasks = ((before, after, old, new, output, room) for before, after in tables)
    for done, _ in enumerate(run_tasks(_map_table, tasks, workers=resources.workers), 1):
        resources.progress("map-ids", done, len(tables))
    return output.seal(_totals(tables, output))


def _totals(tables: list[tuple[VocabularyTable, VocabularyTable]], output: Output) -> IdMapTotals:
    found = tuple(
        output.finished[f"{after.name}.arrow"]
        .read_facts(IdMapFacts)
        .extended(MappedTable, name=after.name, num_old_rows=before.num_rows, num_new_rows=after.num_rows)
        for before, after in tables
    )
    return IdMapTotals(
        tables=found,
        num_old_rows=sum(table.num_old_rows for table in found),
        num_new_rows=sum(table.num_new_rows for table in found),
        num_kept=sum(table.num_kept for table in found),
        kept_lookups=sum(table.kept_lookups for table in found),
        new_lookups=sum(table.new_lookups for table in found),
    )


def _pairs(old: Manifest, new: Manifest) -> list[tuple[VocabularyTable, VocabularyTable]]:
    """The tables of both, which have the same names and kinds of categories."""
    # Tables are paired by their place, so both folders must have the same names in the same order.
    tables = [VocabularyTotals.of(vocabulary).tables for vocabulary in (old, new)]
    names = [[table.name for table in each] for each in tables]
    hint = "both folders must come from the same schema"
    if names[0] != names[1]:
        found, wanted = (", ".join(own) for own in names)
        raise ManifestError(f"{old.folder} has the features {found}; {new.folder} has {wanted}", hint=hint)
    pairs = list(zip(*tables, strict=True))
    for before, _ in pairs:
        path = f"{before.name}.arrow"
        # Widths of categories must agree, or equal numbers would not mean equal categories.
        kinds = [read_batch(m, m.entry(path)).schema.field("category").type for m in (old, new)]
        if kinds[0] != kinds[1]:
            raise ManifestError(
                f"categories of {before.name} are {kinds[0]} in {old.folder}, {kinds[1]} in {new.folder}",
                hint=hint,
            )
    return pairs


def _map_table(
    before: VocabularyTable, after: VocabularyTable, old: Manifest, new: Manifest, output: Output, room: int
) -> None:
    path = f"{before.name}.arrow"
    if output.has(path):
        return
    old_batch, new_batch = (read_batch(manifest, manifest.entry(path)) for manifest in (old, new))
    dtype = numpy_type(old_batch.column("category").type)
    categories = values_of(old_batch.column("category"), dtype)
    new_ids = array_in(room // 4, output, (before.num_rows,), np.int32)
    new_ids[:] = -1
    # A table of new ids may be cut into pieces; an old category has an id in one of them at most.
    for table in _hash_tables(values_of(new_batch.column("category"), dtype), after, room // 2):
        for start in range(0, categories.shape[0], _CHUNK):
            found = np.empty(min(_CHUNK, categories.shape[0] - start), np.int32)
            find_ids(categories[start : start + _CHUNK], NO_NULLS, table, -1, -1, found)
            part = new_ids[start : start + _CHUNK]
            np.maximum(part, found, out=part)
        del table
    # Missing and oov have no category to look up.
    _map_special(before, after, new_ids)
    new_counts = values_of(new_batch.column("count"), np.int64)
    kept = [new_ids[start : start + _CHUNK] for start in range(0, new_ids.shape[0], _CHUNK)]
    # Count chunk by chunk: the map may be a file larger than memory.
    facts = IdMapFacts(
        num_kept=sum(int(np.count_nonzero(part >= 0)) for part in kept),
        kept_lookups=sum(int(new_counts[part[part >= 0]].sum()) for part in kept),
        new_lookups=int(new_counts.sum()),
    )
    with output.writing(path, before.num_rows, facts) as aside:
        write_batch(aside, {"new_id": pa.array(new_ids)})


def _hash_tables(categories: NDArray[Any], after: VocabularyTable, room: int) -> Iterator[NDArray[np.uint64]]:
    """Hash tables from categories to ids, each of as many rows as fit in ``room`` bytes."""
    num_rows = most_rows_within(room, categories.dtype.itemsize)
    for first in range(0, categories.shape[0], num_rows):
        piece = categories[first : first + num_rows]
        yield build_id_table(piece, first, after.missing_id, after.oov_id)


def _map_special(before: VocabularyTable, after: VocabularyTable, new_ids: NDArray[np.int32]) -> None:
    """Settle the rows of missing and oov, whose categories are null and hold anything."""
    if before.missing_id != before.oov_id:
        # Missing may have lost its row to oov, and then no old row may claim that of oov twice.
        has_own = after.missing_id != after.oov_id
        new_ids[before.missing_id] = after.missing_id if has_own else -1
    new_ids[before.oov_id] = after.oov_id
