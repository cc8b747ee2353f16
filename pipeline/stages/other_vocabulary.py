"""``adopt`` and ``map-ids``: use another log's vocabulary, or map its ids.

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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.id_tables import build_id_table, find_ids, most_rows_within
from ..errors import MIB, ManifestError
from ..folders.manifest import Manifest
from ..folders.output import Output, array_in, input_of
from ..folders.totals import (
    ColumnsTotals,
    IdMapFacts,
    IdMapTotals,
    MappedTable,
    SamplingSettings,
    VocabularyTable,
    VocabularyTotals,
)
from ..formats.arrow_files import NO_NULLS, numpy_type, read_batch, values_of, write_batch
from ..runtime.memory import room_for
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, crew_size, run_tasks

VERSION = 2


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
    output = Output.begin("adopt", VERSION, AdoptConfig(), inputs, out)
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
_LEAST_ROOM = 8 * MIB
_STAGES = ("rank", "adopt")
_CHUNK = 1 << 18
"""Rows that are looked up, or added up, at a time."""


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
    room = room_for("map-ids", resources, needed_bytes(resources.workers)) // crew_size(resources.workers)
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


def needed_bytes(workers: int) -> int:
    """The least that `other_vocabulary` can do with."""
    return crew_size(workers) * _LEAST_ROOM


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
