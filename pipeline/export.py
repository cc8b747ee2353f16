"""Export shards for other programs, as Parquet or CSV with named columns.

Record batches are written one at a time. Next to the data, ``columns.json`` has what a program needs to build
a model for them, and ``feature_map.json`` describes the columns and table sizes for FuxiCTR (reczoo). FuxiCTR
keeps id 0 for padding, so exported ids are one higher there than in the shards.

Shards keep all hot-only batches before the mixed ones; an export alternates the two kinds evenly, so that a
program can train in file order. Within a kind, samples keep the shuffled order of the shards. Evaluation
samples keep the order of the log.

``planner.json`` has the inputs of TorchRec's planner and FBGEMM's benchmarks, from the counts of the training
part: for each table the arguments of TorchRec's `ParameterConstraints` and `CacheStatistics`, and FBGEMM's
description of its lookups with the error of that fit. ``planner_inputs.py`` builds TorchRec's objects from it
without hotset.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.curves import falling, fit_zipf, presence
from ..stats.shuffle import spread_evenly
from .errors import ConfigError, ManifestError, ShardError
from .folders.disk import new_folder, paths_in, write_errors_explained
from .folders.manifest import FileEntry, Manifest
from .folders.totals import ShardFacts, ShardSettings, ShardsTotals, by_feature, multi_hot
from .formats.arrow_files import (
    damage_named,
    fixed_lists,
    is_there,
    open_mapped,
    row_groups,
    type_of,
    values_of,
)
from .formats.ids import PartIds
from .runtime.tasks import DEFAULT_RESOURCES, Resources, run_tasks
from .schema.schema import GROUP, LABEL, WEIGHT
from .stages.row_order import read_tables

LIST_SEPARATOR = "^"
"""Between the elements of a list in CSV, as FuxiCTR and others read it."""
_ROW_GROUP = 1 << 17
"""Samples of a row group of Parquet: large enough for columns to compress, small enough to be read ahead."""


def flat_table(table: Any) -> Any:
    """Return a table as CSV holds it: elements of lists are joined by `LIST_SEPARATOR`.

    Raises:
        ConfigError: a list is empty, which CSV cannot distinguish from a missing one.
    """
    import pyarrow.compute as pc  # which takes a fifth of the start of a command, as the files below do

    for place, field in enumerate(table.schema):
        if not pa.types.is_list(field.type):
            continue
        column = table.column(place)
        if pc.any(pc.equal(pc.list_value_length(column), 0)).as_py():
            raise ConfigError(
                f"a list of {field.name} is empty, which CSV cannot tell from a missing one",
                hint="take --to parquet",
            )
        texts = column.cast(pa.list_(pa.string()))
        table = table.set_column(place, field.name, pc.binary_join(texts, LIST_SEPARATOR))
    return table


Split = Literal["train", "valid", "test"]
_STAGE = "pack"


_Position = tuple[FileEntry, int]
"""A file of shards, and the number of a record batch in it."""


class NamedBatches:
    """The samples of a sealed folder of shards, split by split.

    A batch has, where the log has them, the columns ``label`` and ``label_NAME`` int8, ``weight`` float32 and
    ``group`` uint64; a label or a group may be null. Then each dense feature float32, and each categorical
    feature int32, or list<int32> where it is multi-hot, all called like the feature.
    """

    def __init__(self, shards: Manifest, *, first_id: int = 0) -> None:
        """Read the manifest of shards; ``first_id`` is added to all ids.

        Raises:
            ManifestError: not shards, or a damaged manifest.
        """
        if shards.stage != _STAGE:
            raise ManifestError(
                f"{shards.folder} holds the stage {shards.stage!r}, want {_STAGE!r}",
                hint="give the folder that preprocess wrote (its --out), or its shards/",
            )
        self._shards = shards
        self._first_id = first_id
        self.totals = ShardsTotals.of(shards)
        self.batch_size = ShardSettings.of(shards).batch_size
        self._train, self._evaluation = self._positions()
        # Samples by part: the validation part is cut from the evaluation samples.
        self.num_samples: dict[Split, int] = {
            "train": shards.num_samples - self.totals.samples.evaluation,
            "valid": self.totals.num_valid_samples,
            "test": self.totals.samples.evaluation - self.totals.num_valid_samples,
        }
        """Samples of each split; 0 where there is no such part."""

    @property
    def schema(self) -> Any:
        """The Arrow schema of all batches."""
        kinds = {name: type_of(name) for name in (WEIGHT, GROUP, *self.totals.number_columns)}
        label = [(LABEL, kinds.get(LABEL, pa.int8()))] if self.totals.has_label else []
        label += [(name, kinds.get(name, pa.int8())) for name in self.totals.sample_columns]
        dense = [(name, pa.float32()) for name in self.totals.dense]
        ids = [
            (feature.name, pa.list_(pa.int32()) if feature.is_multi_hot else pa.int32())
            for feature in by_feature(self.totals.tables)
        ]
        return pa.schema([*label, *dense, *ids])

    def batches(self, split: Split, workers: int = 0) -> Iterator[Any]:
        """Yield the samples of ``split`` in order as record batches.

        Raises:
            ManifestError: a file is missing or of another checksum.
            ShardError: a column is not that of a shard, or an id is outside its table.
        """
        if split == "train":
            yield from run_tasks(self._read, self._train, workers=workers)
            return
        # The validation part is the first samples of the evaluation part, wherever batches begin.
        num_valid = self.num_samples["valid"]
        first, last = (0, num_valid) if split == "valid" else (num_valid, self.totals.samples.evaluation)
        start = 0
        for batch in run_tasks(self._read, self._evaluation, workers=workers):
            end = start + len(batch)
            # A batch on the border of the two parts is cut.
            if start < last and end > first:
                low = max(first - start, 0)
                yield batch.slice(low, min(last, end) - start - low)
            start = end

    def _positions(self) -> tuple[list[_Position], list[_Position]]:
        """Return batches of training, kinds spread evenly, and of the evaluation."""
        of_kind: dict[str, list[_Position]] = {"hot_only": [], "mixed": [], "evaluation": []}
        for _, entry in self._shards.parts():
            facts = self._shards.facts_of(ShardFacts, entry)
            of_kind[facts.kind] += [(entry, index) for index in range(facts.num_batches)]
        train = of_kind["hot_only"] + of_kind["mixed"]
        numbers = np.arange(len(train), dtype=np.int32)
        order = spread_evenly(*np.split(numbers, [len(of_kind["hot_only"])]))
        return [train[number] for number in order.tolist()], of_kind["evaluation"]

    def _read(self, entry: FileEntry, index: int) -> Any:
        path = self._shards.hashed_path(entry)
        with damage_named(path, ShardError, "cannot be read"):
            batch = open_mapped(path).get_batch(index)
            batch.validate()
            return self._named(batch, path)

    def _named(self, batch: Any, path: Path) -> Any:
        columns = []
        as_they_are = (WEIGHT, GROUP, *self.totals.number_columns)
        for name in (*([LABEL] if self.totals.has_label else []), *self.totals.sample_columns):
            column = batch.column(name)
            columns.append(column if name in as_they_are else _label(column))
        # One copy turns the matrix: columns are read one by one from here on.
        dense = fixed_lists(batch.column("dense"), len(self.totals.dense), np.float32)
        columns += [pa.array(values) for values in np.ascontiguousarray(dense.T)]
        # Programs that read the files index tables by these ids without a check.
        part = PartIds.read(batch, self.totals.tables)
        part.check_ids(path)
        for feature, ids in zip(by_feature(part.tables), part.ids, strict=True):
            shifted = pa.array(ids + np.int32(self._first_id))
            if feature.is_multi_hot:
                shifted = pa.ListArray.from_arrays(pa.array(part.lists[feature.name][0]), shifted)
            columns.append(shifted)
        return pa.record_batch(columns, schema=self.schema)


def _label(column: Any) -> Any:
    """Return a label of shards as int8."""
    values = values_of(column, np.float32)
    if not column.null_count:
        return pa.array(values.astype(np.int8))
    is_missing = ~is_there(column)
    return pa.array(np.where(is_missing, 0, values).astype(np.int8), mask=is_missing)


def write_column_map(shards: NamedBatches, out: Path) -> None:
    """Write ``columns.json``: the label, the dense features and the tables.

    Each feature has its column, whether the column holds lists, the number of rows of its table (all ids are
    smaller), and the ids of oov and of missing values; and the name of the table, where several share it.
    """
    totals = shards.totals
    # Columns by their part in training, which their names do not show.
    found = {
        "label": LABEL if totals.has_label else None,
        **({"of_samples": list(totals.sample_columns)} if totals.sample_columns else {}),
        "dense": list(totals.dense),
        "tables": [
            {
                "column": feature.name,
                "is_list": feature.is_multi_hot,
                "num_rows": table.num_rows,
                "oov_id": table.oov_id,
                "missing_id": table.missing_id,
            }
            | ({"table": table.name} if table.features else {})
            for table in totals.tables
            for feature in by_feature([table])
        ],
        "samples": shards.num_samples,
    }
    (out / "columns.json").write_text(json.dumps(found, indent=2) + "\n")


FIRST_ID = 1
"""First id of FuxiCTR's tables, after that of the padding."""


def write_feature_map(shards: NamedBatches, out: Path, data_set: str) -> None:
    """Write ``feature_map.json`` of the data set ``data_set``, as FuxiCTR reads it."""
    totals = shards.totals
    # The features have the order of the columns.
    features: list[dict[str, Any]] = [{name: {"source": "", "type": "numeric"}} for name in totals.dense]
    features += [
        {
            feature.name: {
                "source": "",
                "type": "categorical",
                "padding_idx": 0,
                "oov_idx": table.oov_id + FIRST_ID,
                "vocab_size": table.num_rows + FIRST_ID,
            }
            # FuxiCTR gives a feature the table of one before it.
            | ({"share_embedding": table.features[0].name} if number else {})
        }
        for table in totals.tables
        for number, feature in enumerate(by_feature([table]))
    ]
    # Every table has one row more than in the shards, that of the padding.
    found = {
        "dataset_id": data_set,
        "num_fields": len(features),
        "total_features": len(totals.dense) + sum(table.num_rows + FIRST_ID for table in totals.tables),
        "input_length": len(features),
        "labels": [LABEL],
        "features": features,
    }
    (out / "feature_map.json").write_text(json.dumps(found, indent=4) + "\n")


PLANNER_FILE = "planner.json"
PLANNER_PROGRAM = "planner_inputs.py"
LOAD_FACTORS = (0.0, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
"""Shares of a table's rows in a cache, for which its miss rate is given."""


_PROGRAM = '''"""Makes the inputs of TorchRec's planner of planner.json; needs torchrec, not hotset."""

import json
from bisect import bisect_right
from pathlib import Path

from torchrec.distributed.planner.types import ParameterConstraints
from torchrec.distributed.types import CacheParams, CacheStatistics


class CountedStatistics(CacheStatistics):
    """Statistics of one table from its exact counts."""

    def __init__(self, table):
        self._table = table

    @property
    def expected_lookups(self):
        return self._table["expected_lookups"]

    @property
    def cacheability(self):
        return self._table["cacheability"]

    def expected_miss_rate(self, clf):
        factors, rates = zip(*self._table["miss_rates"])
        place = min(max(bisect_right(factors, clf), 1), len(factors) - 1)
        low, high = factors[place - 1], factors[place]
        part = min(max((clf - low) / (high - low), 0.0), 1.0)
        return rates[place - 1] + part * (rates[place] - rates[place - 1])


def constraints(folder=Path(__file__).parent):
    """Return ParameterConstraints by table, for EmbeddingShardingPlanner(constraints=...)."""
    found = json.loads((Path(folder) / "planner.json").read_text())
    return {
        name: ParameterConstraints(
            pooling_factors=table["pooling_factors"],
            batch_sizes=[found["batch_size"]] * len(table["pooling_factors"]),
            cache_params=CacheParams(load_factor=table["load_factor"], stats=CountedStatistics(table)),
        )
        for name, table in found["tables"].items()
    }
'''


def write_planner_files(shards: Manifest, out: Path) -> None:
    """Write `PLANNER_FILE` and `PLANNER_PROGRAM` into ``out``.

    Raises:
        ConfigError: the vocabulary, which has the counts, is not next to the shards.
    """
    totals = ShardsTotals.of(shards)
    folder = shards.folder.parent / "vocabulary"
    vocabulary = Manifest.read(folder)
    batch_size = ShardSettings.of(shards).batch_size
    num_samples = totals.samples.hot_only + totals.samples.mixed
    # Each feature of a shared table has its pooling factor.
    looked_up: Counter[str] = Counter()
    for _, entry in shards.parts():
        facts = shards.facts_of(ShardFacts, entry)
        if facts.kind != "evaluation":
            looked_up.update(facts.lookups)
    tables: dict[str, Any] = {}
    for table, dim, counts in zip(
        totals.tables, totals.embedding_dims, read_tables(vocabulary, "count"), strict=True
    ):
        if counts.size != table.num_rows:
            raise ConfigError(f"{folder} is not the vocabulary of {shards.folder}")
        # Both statistics want the most frequent rows first, whatever order the ids follow.
        lookups = falling(counts)
        pooling_factor = float(lookups.sum()) / num_samples if num_samples else 0.0
        fit = fit_zipf(lookups)
        tables[table.name] = {
            "num_embeddings": table.num_rows,
            "embedding_dim": dim,
            "pooling_factor": pooling_factor,
            "pooling_factors": [
                looked_up[each.name] / max(1, num_samples) if each.is_multi_hot else 1.0
                for each in table.features
            ]
            or [pooling_factor],
            "load_factor": table.num_hot / table.num_rows,
            **cache_statistics(lookups, batch_size * pooling_factor),
            # A fit by the names that FBGEMM has, and its errors.
            "fbgemm": {
                "heavy_hitters": list(fit.heavy_hitters),
                "zipf_q": fit.q,
                "zipf_s": fit.s,
                "max_index": table.num_rows - 1,
                "num_indices": int(lookups.sum()),
                "fit_error": fit.error,
                "worst_coverage_error": fit.worst_coverage_error,
            },
        }
    found = {"batch_size": batch_size, "samples": num_samples, "tables": tables}
    (out / PLANNER_FILE).write_text(json.dumps(found, indent=1) + "\n")
    (out / PLANNER_PROGRAM).write_text(_PROGRAM)


def cache_statistics(counts: NDArray[np.int64], lookups_per_batch: float) -> dict[str, Any]:
    """Return TorchRec's statistics of batches drawn by a table's counts.

    Args:
        counts: (num_rows,); lookups of each row, descending.
        lookups_per_batch: of the table.

    Returns:
        ``expected_lookups``, distinct rows of a batch; ``miss_rates``, pairs of a share of the rows and the
        share of those distinct rows that are not among the most frequent ones; ``cacheability``, the area
        below them, from 0 for one row that serves all to 1.
    """
    total = int(counts.sum())
    probabilities = counts / total if total else np.zeros(counts.size)
    # The most frequent rows come first: a running sum has the distinct rows that a cache of them serves.
    distinct = np.cumsum(presence(probabilities, lookups_per_batch))
    expected = float(distinct[-1]) if distinct.size else 0.0
    # What such a cache does not serve of the distinct rows of a batch is its miss rate.
    rates = []
    for factor in LOAD_FACTORS:
        cached = int(factor * counts.size)
        hit = float(distinct[cached - 1]) if cached else 0.0
        rates.append(1 - hit / expected if expected else 0.0)
    pairs = [[factor, max(rate, 0.0)] for factor, rate in zip(LOAD_FACTORS, rates, strict=True)]
    return {
        "expected_lookups": expected,
        "miss_rates": pairs,
        "cacheability": float(np.trapezoid([rate for _, rate in pairs], LOAD_FACTORS)),
    }


ExportFormat = Literal["parquet", "csv", "fuxictr", "torchrec"]
"""Files of named columns, Parquet with FuxiCTR's feature map, or Parquet with the inputs of TorchRec's
planner."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ExportedShards:
    """The files and counts that `export` wrote."""

    num_samples: dict[Split, int]
    """Samples of each split that is not empty."""
    files: list[dict[str, Any]]
    """``name`` and ``num_bytes`` of each."""


def export_shards(
    shards: Manifest, to: ExportFormat, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> ExportedShards:
    """Write the samples of ``shards`` into the new folder ``out``.

    Training samples alternate evenly between hot-only and mixed batches, see `export`. No more than a
    row group of each split is in memory.

    Raises:
        ConfigError: the format has no place for what the log has.
        ManifestError: ``out`` exists, or ``shards`` are damaged or no shards.
        ShardError: a batch is not what a shard holds.
    """
    batches = NamedBatches(shards, first_id=FIRST_ID if to == "fuxictr" else 0)
    # FuxiCTR takes one category a feature, and labels: other logs are refused before a file is written.
    if to == "fuxictr":
        check_log(batches, to)
    # Parts without samples get no file.
    splits: list[Split] = [split for split, count in batches.num_samples.items() if count]
    total = sum(batches.num_samples.values())
    # The folder takes its name when everything is in it.
    with new_folder(out) as folder:
        done = 0
        for num_samples in _written(batches, to, splits, folder, resources.workers):
            done += num_samples
            resources.progress("export", done, total)
        if to == "fuxictr":
            write_feature_map(batches, folder, out.name)
        else:
            write_column_map(batches, folder)
        if to == "torchrec":
            write_planner_files(shards, folder)
    files = [{"name": path.name, "num_bytes": path.stat().st_size} for path in paths_in(out)]
    return ExportedShards(num_samples={split: batches.num_samples[split] for split in splits}, files=files)


def check_log(batches: NamedBatches, to: str) -> None:
    """Raise ConfigError for a log with lists or without labels."""
    hint = "take --to parquet"
    lists = [feature.name for feature in multi_hot(batches.totals.tables)]
    if lists:
        raise ConfigError(f"{to} holds one category a feature, and {lists[0]} has lists", hint=hint)
    if not batches.totals.has_label:
        raise ConfigError(f"{to} is for training, and the log has no labels", hint=hint)
    if LABEL in batches.totals.number_columns:
        raise ConfigError(
            f"{to} takes labels of 0 and 1, and {batches.totals.labels[0]!r} is a number", hint=hint
        )
    if batches.totals.num_unlabeled:
        num_samples = sum(batches.num_samples.values())
        lacking = f"{batches.totals.num_unlabeled} of {num_samples} samples lack {batches.totals.labels[0]!r}"
        raise ConfigError(f"{to} is for training, and {lacking}", hint=hint)


def _written(
    batches: NamedBatches, to: ExportFormat, splits: list[Split], folder: Path, workers: int
) -> Iterator[int]:
    """Write all files of samples; yield the samples of each row group."""
    # One file for each part, group by group, so that memory does not grow with the log.
    for split in splits:
        path = folder / f"{split}.{'csv' if to == 'csv' else 'parquet'}"
        with write_errors_explained(path), _open(path, batches.schema) as writer:
            for table in row_groups(batches.batches(split, workers), _ROW_GROUP):
                writer.write_table(flat_table(table) if to == "csv" else table.combine_chunks())
                yield len(table)


def _open(path: Path, schema: Any) -> Any:
    if path.suffix == ".csv":
        from pyarrow.csv import CSVWriter

        return CSVWriter(path, flat_table(schema.empty_table()).schema)
    from pyarrow.parquet import ParquetWriter

    return ParquetWriter(path, schema, compression="zstd", compression_level=1)
