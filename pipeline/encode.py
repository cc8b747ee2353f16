"""``encode``: columns/ + vocabulary/ -> samples/, every category replaced by its id.

Independent of budget, batch size and seed, so it is made once. Ids of a sample stand together: later
stages and the trainer read whole samples.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..stats.hash_table import find_ids, insert_ids, new_table
from .arrow_files import as_fixed_lists, read_batch, validity_of, values_of, write_batch
from .manifest import FileEntry, Manifest
from .output import Output, input_of
from .tasks import ProgressCallback, run_tasks, silent

VERSION = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class EncodeConfig:
    """The encode stage has nothing to vary."""


@dataclass(frozen=True, slots=True)
class _Table:
    """One table's categories, ready to be looked up."""

    name: str
    entries: NDArray[np.uint64]
    missing_id: int
    oov_id: int


def encode(
    config: EncodeConfig,
    columns: Manifest,
    vocabulary: Manifest,
    out: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns, vocabulary -> samples: the ids of each sample's look-ups.

    Reads:   ``*.arrow`` of columns, C*; ``{feature}.arrow`` of vocabulary
    Writes:  the same files: ids, fixed-size list<int32>[num_features]; unknown categories are oov
    """
    output = Output.begin("encode", VERSION, config, [input_of(columns), input_of(vocabulary)], out)
    if isinstance(output, Manifest):
        return output
    num_train: int = vocabulary.totals["num_train_samples"]
    if any(not output.has(entry.path) for entry in columns.files):
        tables = list(run_tasks(_load_table, _tables_of(vocabulary), workers=workers))
        done = 0
        tasks = (
            (entry, num_train - first, tables, columns, output)
            for first, entry in iterate_parts(columns)
            if not output.has(entry.path)
        )
        for num_samples in run_tasks(_encode_part, tasks, workers=workers):
            done += num_samples
            progress("encode", done, columns.num_samples)
    return output.seal(_totals(vocabulary, output))


def iterate_parts(manifest: Manifest) -> Iterator[tuple[int, FileEntry]]:
    """Each file of a log-ordered folder with the number of its first sample."""
    first = 0
    for entry in manifest.files:
        yield first, entry
        first += entry.num_samples


def _tables_of(vocabulary: Manifest) -> Iterator[tuple[Manifest, FileEntry, dict[str, Any]]]:
    entries = {entry.path: entry for entry in vocabulary.files}
    for table in vocabulary.totals["tables"]:
        yield vocabulary, entries[f"{table['name']}.arrow"], table


def _load_table(vocabulary: Manifest, entry: FileEntry, table: dict[str, Any]) -> _Table:
    array = read_batch(vocabulary, entry).column("category")
    is_category = np.ones(table["num_rows"], np.bool_)
    is_category[[table["missing_id"], table["oov_id"]]] = False
    entries = new_table(table["num_rows"])
    insert_ids(values_of(array, array.type.to_pandas_dtype()), is_category, entries)
    return _Table(table["name"], entries, table["missing_id"], table["oov_id"])


def _encode_part(
    entry: FileEntry, num_train: int, tables: list[_Table], columns: Manifest, output: Output
) -> int:
    """Encode one file, of which the first ``num_train`` samples are for training."""
    batch = read_batch(columns, entry)
    ids = np.empty((entry.num_samples, len(tables)), np.int32)
    num_train = min(max(num_train, 0), entry.num_samples)
    oov_train, oov_evaluation = [], []
    for feature, table in enumerate(tables):
        array = batch.column(table.name)
        categories = values_of(array, array.type.to_pandas_dtype())
        column = ids[:, feature]
        find_ids(categories, validity_of(array), table.entries, table.missing_id, table.oov_id, column)
        is_oov = column == table.oov_id
        oov_train.append(int(np.count_nonzero(is_oov[:num_train])))
        oov_evaluation.append(int(np.count_nonzero(is_oov[num_train:])))
    oov = {"oov_train": oov_train, "oov_evaluation": oov_evaluation}
    with output.writing(entry.path, entry.num_samples, **oov) as path:
        write_batch(path, {"ids": as_fixed_lists(ids)})
    return entry.num_samples


def _totals(vocabulary: Manifest, output: Output) -> dict[str, Any]:
    facts = [entry.facts for entry in output.finished.values()]
    tables = []
    for feature, table in enumerate(vocabulary.totals["tables"]):
        oov = {key: sum(fact[key][feature] for fact in facts) for key in ("oov_train", "oov_evaluation")}
        tables.append(table | oov)
    return vocabulary.totals | {"tables": tables}
