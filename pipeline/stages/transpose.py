"""``transpose``: shards/ -> lookups/, the lookups of every training batch by row.

Optional: training groups each batch of each epoch itself where there is no such folder. What is stored takes
4 bytes less per sample than the ids (100 bytes of 26 one-hot features at batch 2,048, 80 at 65,536), and
reading and checking it takes a third of the time of grouping. Evaluation batches are left out: no gradient is
summed there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.batch_lookups import BatchLookups, of_matrix, of_tables
from ...stats.batches.lookups_by_row import LookupsByRow, group_lookups
from ...stats.batches.stored_lookups import LONG_LOOKUPS
from ..errors import ShardError
from ..folders.file_facts import LookupsFacts, ShardFacts
from ..folders.manifest import FileEntry, Manifest, is_sealed
from ..folders.output import Output, input_of
from ..folders.stage_totals import LookupsTotals, ShardsTotals
from ..folders.table_info import PlannedTable
from ..formats.arrow_files import damage_named, open_hashed, open_writer
from ..formats.lookup_files import lookup_batch, lookup_schema
from ..formats.part_ids import PartIds
from ..formats.stage_settings import ShardSettings
from ..formats.tables import one_hot
from ..runtime.memory import refuse_small_cap
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import num_workers, run_tasks
from ..scheduling.cold_batches import refuse_other_shards
from ..stage_commands import hint_to_rewrite

VERSION = 1
_BYTES_A_LOOKUP = 64
"""Bytes that a worker holds for each lookup of a batch: ids, keys, lists, and what Arrow writes."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TransposeConfig:
    """The transpose stage has nothing to vary."""


def transpose(
    config: TransposeConfig, shards: Manifest, out: Path, resources: Resources = DEFAULT_RESOURCES
) -> Manifest:
    """shards -> lookups: each training batch's distinct rows, and the lookups of each.

    Reads:   ``hot_only-*.arrow``, ``mixed-*.arrow``: ids, and the lists of multi-hot features
    Writes:  the same files, a record batch for each training batch, in it a row for each table; lists:
             ``order`` uint16 or int32, lookups in order of (id, position), numbered within the table;
             ``rows`` int32, distinct ids, ascending; ``starts`` as ``order``, where the lookups of each row
             begin; ``long_rows`` int32, positions of rows with more than LONG_LOOKUPS lookups
    """
    if not is_sealed(out):
        refuse_transpose(config, shards, resources)
    output = Output.begin("transpose", VERSION, config, [input_of(shards)], out)
    if output.sealed is not None:
        return output.sealed
    # One task a file; batches of it are small enough to be grouped in turn.
    entries = list(training_files(shards))
    total = sum(entry.num_samples for entry in entries)
    done = 0
    tasks = ((entry, shards, output) for entry in entries)
    with output.withdrawn_on_failure():
        for num_samples in run_tasks(_transpose_file, tasks, workers=resources.workers):
            done += num_samples
            resources.progress("transpose", done, total)
    facts = [entry.read_facts(LookupsFacts) for entry in output.finished.values()]
    return output.seal(
        LookupsTotals(
            samples=total,
            batches=sum(found.num_batches for found in facts),
            lookups=sum(found.num_lookups for found in facts),
            rows=sum(found.num_rows for found in facts),
            long_rows=sum(found.num_long_rows for found in facts),
        )
    )


def refuse_transpose(config: TransposeConfig, shards: Manifest, resources: Resources) -> None:
    """Raise HotsetError where `transpose` would refuse, before it writes anything."""
    refuse_other_shards(shards)
    refuse_small_cap("transpose", resources, needed_for(shards, resources.workers))


def training_files(shards: Manifest) -> Iterator[FileEntry]:
    """Yield the files of shards with training batches."""
    for entry in shards.files:
        if ShardFacts.of(shards, entry).kind != "evaluation":
            yield entry


def needed_for(shards: Manifest, workers: int) -> int:
    """Return the bytes that `transpose` needs for these shards."""
    num_one_hot = len(one_hot(ShardsTotals.of(shards).tables))
    # All lookups of a file's lists may stand in one of its batches.
    lists = [sum(ShardFacts.of(shards, entry).lookups.values()) for entry in training_files(shards)]
    most = ShardSettings.of(shards).batch_size * num_one_hot + max(lists, default=0)
    largest = max((entry.num_bytes for entry in training_files(shards)), default=0)
    return needed_bytes(largest, most, workers)


def needed_bytes(file_bytes: int, batch_lookups: int, workers: int) -> int:
    """Return the bytes that `transpose` needs: a file of shards, and a batch at work, for each worker."""
    return num_workers(workers) * (file_bytes + batch_lookups * _BYTES_A_LOOKUP)


def _transpose_file(entry: FileEntry, shards: Manifest, output: Output) -> int:
    """Write the batches of one file; a flipped bit may well be another id, so the file is hashed first."""
    if output.has(entry.path):
        return entry.num_samples
    path = shards.checked_path(entry)
    num_rows = np.array([table.num_rows for table in ShardsTotals.of(shards).tables], np.int64)
    # Lookups, rows and long rows of the file so far, for its record.
    counts = np.zeros(3, np.int64)

    # Called when the file is complete.
    def facts() -> LookupsFacts:
        of_shards = ShardFacts.of(shards, entry)
        lookups, rows, long_rows = counts.tolist()
        return LookupsFacts(
            kind=of_shards.kind,
            num_batches=of_shards.num_batches,
            num_lookups=lookups,
            num_rows=rows,
            num_long_rows=long_rows,
        )

    with output.writing(entry.path, entry.num_samples, facts) as aside:
        schema, batches = _open(entry, shards, num_rows)
        with open_writer(aside, schema) as writer:
            for lookups in batches:
                found = _group(lookups, shards, path)
                writer.write_batch(lookup_batch(schema, found, lookups.offsets_F1))
                num_long = np.count_nonzero(found.counts_U > LONG_LOOKUPS)
                counts += np.array([found.order_N.size, found.num_rows, num_long])
    return entry.num_samples


def _open(
    entry: FileEntry, shards: Manifest, num_rows: NDArray[np.int64]
) -> tuple[Any, Iterator[BatchLookups]]:
    """Return the columns of the new file, and the lookups of the batches of a file of shards."""
    with damage_named(shards.folder / entry.path, ShardError, "cannot be read"):
        reader = open_hashed(shards, entry)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        # Their lengths decide how wide numbers are; ids are read batch by batch.
        most = max((_most_lookups(batch, shards) for batch in batches), default=0)
    tables = ShardsTotals.of(shards).tables
    return lookup_schema(most), (lookups_of_batch(batch, tables, num_rows) for batch in batches)


def _most_lookups(batch: Any, shards: Manifest) -> int:
    ids = PartIds.read(batch, ShardsTotals.of(shards).tables)
    return max(int(batch.num_rows), *(int(offsets[-1]) for offsets, _ in ids.lists.values()), 0)


def lookups_of_batch(batch: Any, tables: Sequence[PlannedTable], num_rows: NDArray[np.int64]) -> BatchLookups:
    """Return the lookups of a record batch of shards; ``num_rows`` are those of ``tables``."""
    ids = PartIds.read(batch, tables)
    # Copies, because mapped arrays cannot be written to, which is another type for the compiler.
    return of_tables(ids.ids, num_rows) if ids.lists else of_matrix(ids.matrix.flatten(), num_rows)


def _group(lookups: BatchLookups, shards: Manifest, path: Path) -> LookupsByRow:
    # The kernel reports the position of a stray id; here it gets its table and its file.
    try:
        return group_lookups(lookups, is_local=True)
    except IndexError as error:
        (position,) = error.args
        tables = ShardsTotals.of(shards).tables
        number = position % len(tables)
        if lookups.positions_N.size:
            number = int(np.searchsorted(lookups.offsets_F1, position, side="right")) - 1
        found = (
            f"id {lookups.ids_N[position]} in table {tables[number].name} of {tables[number].num_rows} rows"
        )
        raise ShardError(f"{path}: {found}", hint=hint_to_rewrite(path.parent)) from None
