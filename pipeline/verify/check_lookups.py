"""Checks of files of lookups by row: every number against the ids of the shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ...stats.batches.stored_lookups import place_lookups
from ..folders.file_facts import LookupsFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ShardsTotals
from ..formats.arrow_files import open_mapped
from ..formats.lookup_files import is_lookup_schema, stored_lookups
from ..stages.transpose import lookups_of_batch


def check_lookups(entry: FileEntry, lookups: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file; without shards beside it, those of its columns alone."""
    # Alone, a file can only be of the right form; beside shards it must also be of the right lookups.
    reader = open_mapped(lookups.checked_path(entry))
    facts = LookupsFacts.of(lookups, entry)
    if not is_lookup_schema(reader.schema):
        yield "its columns are not those of lookups by row"
        return
    if reader.num_record_batches != facts.num_batches:
        yield f"it has {reader.num_record_batches} batches, want {facts.num_batches}"
        return
    if "shards" in manifests:
        yield from _against_shards(reader, entry, facts, manifests["shards"])


def _against_shards(reader: Any, entry: FileEntry, facts: LookupsFacts, shards: Manifest) -> Iterator[str]:
    other = shards.entries.get(entry.path)
    if other is None:
        yield "shards has no such file"
        return
    packed = open_mapped(shards.checked_path(other))
    tables = ShardsTotals.of(shards).tables
    num_rows = np.array([table.num_rows for table in tables], np.int64)
    if packed.num_record_batches != facts.num_batches:
        yield f"it has {facts.num_batches} batches, shards has {packed.num_record_batches}"
        return
    found = np.zeros(3, np.int64)
    # Batch by batch: what is stored must place every lookup where grouping it anew would.
    for number in range(facts.num_batches):
        stored = stored_lookups(reader.get_batch(number), len(tables))
        batch = lookups_of_batch(packed.get_batch(number), tables, num_rows)
        try:
            placed = place_lookups(stored, np.arange(len(tables)), batch)
        except ValueError as error:
            yield f"batch {number}: its lookups of {tables[error.args[0]].name} are not those of the shards"
            return
        found += np.array([placed.order_N.size, placed.num_rows, stored.long_rows.size])
    # The sums of the file as its manifest has them.
    wanted = [facts.num_lookups, facts.num_rows, facts.num_long_rows]
    if found.tolist() != wanted:
        yield f"it has {found.tolist()} lookups, rows and long rows, the manifest says {wanted}"
