"""Shards as record batches of named columns, for programs that know nothing of shards.

Training samples come in an order a program can train in as it stands: shards keep all hot-only batches
before the mixed ones, here the two kinds alternate evenly. Inside a batch, and from batch to batch of a kind,
samples keep the shuffled order of the shards; evaluation samples keep that of the log.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from ..errors import ManifestError, ShardError
from ..folders.file_facts import ShardFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ShardsTotals
from ..folders.table_info import PlannedTable
from ..formats.arrow_files import damage_named, fixed_lists, open_mapped, values_of
from ..formats.stage_settings import ShardSettings
from ..formats.tables import lookups_of, multi_hot, offsets_of, one_hot
from ..runtime.tasks import run_tasks
from ..stage_commands import hint_to_rewrite

Split = Literal["train", "valid", "test"]
_STAGE = "pack"
LABEL = "label"


@dataclass(frozen=True, slots=True)
class _Position:
    """A record batch of a file of shards."""

    entry: FileEntry
    index: int


class NamedBatches:
    """The samples of a sealed folder of shards, split by split.

    A batch has the columns ``label`` int8 (where the log has labels), each dense feature float32, and each
    categorical feature int32, or list<int32> where it is multi-hot, all called like the feature.
    """

    def __init__(self, shards: Manifest, *, first_id: int = 0) -> None:
        """Read ``shards``, a manifest of the pack stage; ``first_id`` is added to all ids.

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
            "train": sum(entry.num_samples for entry in shards.files) - self.totals.samples.evaluation,
            "valid": self.totals.num_valid_samples,
            "test": self.totals.samples.evaluation - self.totals.num_valid_samples,
        }
        """Samples of each split; 0 where there is no such part."""

    @property
    def schema(self) -> Any:
        """The Arrow schema of all batches."""
        label = [(LABEL, pa.int8())] if self.totals.has_label else []
        dense = [(name, pa.float32()) for name in self.totals.dense]
        ids = [
            (table.name, pa.list_(pa.int32()) if table.is_multi_hot else pa.int32())
            for table in self.totals.tables
        ]
        return pa.schema([*label, *dense, *ids])

    def batches(self, split: Split, workers: int = 0) -> Iterator[Any]:
        """Yield the samples of ``split`` in order, a record batch at a time, read by ``workers`` threads.

        Raises:
            ManifestError: a file is missing or of another checksum.
            ShardError: a column is not that of a shard, or an id is outside its table.
        """
        if split == "train":
            yield from run_tasks(self._read, ((position,) for position in self._train), workers=workers)
            return
        # The validation part is the first samples of the evaluation part, wherever batches begin.
        num_valid = self.num_samples["valid"]
        first, last = (0, num_valid) if split == "valid" else (num_valid, self.totals.samples.evaluation)
        start = 0
        for batch in run_tasks(self._read, ((position,) for position in self._evaluation), workers=workers):
            end = start + len(batch)
            # A batch on the border of the two parts is cut.
            if start < last and end > first:
                low = max(first - start, 0)
                yield batch.slice(low, min(last, end) - start - low)
            start = end

    def _positions(self) -> tuple[list[_Position], list[_Position]]:
        hot_only, mixed, evaluation = list[_Position](), list[_Position](), list[_Position]()
        of_kind = {"hot_only": hot_only, "mixed": mixed, "evaluation": evaluation}
        for entry in self._shards.files:
            facts = ShardFacts.of(self._shards, entry)
            of_kind[facts.kind] += [_Position(entry, index) for index in range(facts.num_batches)]
        return _alternating(hot_only, mixed), evaluation

    def _read(self, position: _Position) -> Any:
        path = self._shards.hashed_path(position.entry)
        with damage_named(path, ShardError, "cannot be read"):
            batch = open_mapped(path).get_batch(position.index)
            batch.validate()
            return self._named(batch)

    def _named(self, batch: Any) -> Any:
        columns = []
        if self.totals.has_label:
            columns.append(pa.array(values_of(batch.column(LABEL), np.float32).astype(np.int8)))
        columns += _columns_of(batch, "dense", np.float32, len(self.totals.dense))
        tables = self.totals.tables
        # Columns in the order of the tables, wherever `pack` has put them.
        one_hot_ids = iter(_columns_of(batch, "ids", np.int32, len(one_hot(tables))))
        bags = {table.name: batch.column(table.name) for table in multi_hot(tables)}
        for table in tables:
            column = bags[table.name] if table.is_multi_hot else next(one_hot_ids)
            columns.append(self._with_ids(column, table, len(batch)))
        return pa.record_batch(columns, schema=self.schema)

    def _with_ids(self, column: Any, table: PlannedTable, num_samples: int) -> Any:
        """Return a column of ids, all of them rows of ``table``, with the first id added."""
        values, num_lookups = lookups_of(column, num_samples)
        ids = values_of(values, np.int32)[:num_lookups]
        # Programs that read the files index tables by these ids without a check.
        if ids.size and not 0 <= ids.min() <= ids.max() < table.num_rows:
            raise ShardError(
                f"{self._shards.folder} looks up a row outside the {table.num_rows} of {table.name}",
                hint=hint_to_rewrite(self._shards.folder),
            )
        shifted = pa.array(ids + np.int32(self._first_id) if self._first_id else ids)
        if not table.is_multi_hot:
            return shifted
        return pa.ListArray.from_arrays(pa.array(offsets_of(column)), shifted)


def _columns_of(batch: Any, name: str, dtype: Any, width: int) -> list[Any]:
    """Return the columns of a matrix of ``width`` columns as arrays of their own."""
    if not width:
        return []
    matrix = fixed_lists(batch.column(name), width, dtype)
    # One copy turns the matrix: columns are read one by one from here on.
    return [pa.array(values) for values in np.ascontiguousarray(matrix.T)]


def _alternating(first: Sequence[_Position], second: Sequence[_Position]) -> list[_Position]:
    """Return both sequences merged, each spread evenly over the whole and in its own order."""
    # Each item stands at the middle of its share of the unit interval; whole numbers keep the order exact.
    places = [((2 * index + 1) * len(second), 0, index) for index in range(len(first))]
    places += [((2 * index + 1) * len(first), 1, index) for index in range(len(second))]
    return [(first, second)[which][index] for _, which, index in sorted(places)]
