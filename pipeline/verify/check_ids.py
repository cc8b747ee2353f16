"""Checks of files of ids and tags: ids in range, lists of the right length, true tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..folders.file_facts import SamplesFacts, ShardFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import PlanTotals, SamplesTotals, ShardsTotals
from ..folders.table_info import PlannedTable
from ..formats.arrow_files import open_mapped, read_batch, values_of
from ..formats.part_ids import PartIds
from ..formats.stage_settings import ShardSettings
from ..formats.tables import offsets_of, one_hot


def check_samples(entry: FileEntry, samples: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of samples: ids in range, lists as long as in columns."""
    ids = PartIds.read(read_batch(samples, entry), SamplesTotals.of(samples).tables)
    yield from _ids_in_range(ids)
    facts = SamplesFacts.of(samples, entry)
    for name, (offsets, _) in ids.lists.items():
        wanted = sum(facts.lookups.get(name, (0, 0)))
        if int(offsets[-1]) != wanted:
            yield f"its lists of {name} have {offsets[-1]} ids, want {wanted}"
    if "columns" in manifests:
        other = manifests["columns"].entries.get(entry.path)
        found = None if other is None else other.num_samples
        if found != entry.num_samples:
            yield f"it has {entry.num_samples} samples, columns has {found}"
        # Only lists of equally many samples can be compared one by one.
        elif other is not None and ids.lists:
            yield from _lists_as_in_columns(other, ids, manifests["columns"])


def _lists_as_in_columns(entry: FileEntry, ids: PartIds, columns: Manifest) -> Iterator[str]:
    """Every list has as many ids as elements in columns/."""
    batch = read_batch(columns, entry)
    for name, (offsets, _) in ids.lists.items():
        if (offsets_of(batch.column(name)) != offsets).any():
            yield f"its lists of {name} are not as long as those of columns"


def check_tags(entry: FileEntry, plan: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of a plan: tags that are not those of the ids."""
    is_hot = values_of(read_batch(plan, entry).column("is_hot"), np.uint8)
    # Without the samples there is nothing to compare tags with.
    if "samples" not in manifests:
        return
    samples = manifests["samples"]
    other = samples.entries.get(entry.path)
    if other is None or other.num_samples != entry.num_samples:
        yield "samples has no such file, or one of another length"
        return
    tables = PlanTotals.of(plan).tables
    ids = PartIds.read(read_batch(samples, other), tables)
    if (_tags(ids, tables) != is_hot).any():
        yield "its tags do not agree with the ids"


def check_shards(entry: FileEntry, shards: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of shards."""
    totals = ShardsTotals.of(shards)
    facts = ShardFacts.of(shards, entry)
    batch_size = ShardSettings.of(shards).batch_size
    reader = open_mapped(shards.checked_path(entry))
    batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    for batch in batches:
        batch.validate()
    # Every batch but the last is whole, or a trainer's steps would have other samples than it counts.
    if len(batches) != facts.num_batches:
        yield f"it has {len(batches)} batches, want {facts.num_batches}"
    if any(batch.num_rows != batch_size for batch in batches[:-1]):
        yield f"a batch before the last has not {batch_size} samples"
    if sum(batch.num_rows for batch in batches) != entry.num_samples:
        yield f"its batches have not {entry.num_samples} samples"
    hot_only = facts.hot_only_batches
    # Tags are computed again from the ids, and compared with the kind of the file and of the batch.
    lookups: Counter[str] = Counter()
    for number, batch in enumerate(batches):
        ids = PartIds.read(batch, totals.tables)
        faults = list(_ids_in_range(ids))
        lookups.update({name: int(offsets[-1]) for name, (offsets, _) in ids.lists.items()})
        if totals.has_label and not _are_labels(values_of(batch.column("label"), np.float32)):
            faults.append("a label is neither 0 nor 1")
        is_hot = _tags(ids, totals.tables)
        if facts.kind == "evaluation" and (values_of(batch.column("is_hot"), np.uint8) != is_hot).any():
            faults.append("its tags do not agree with the ids")
        if facts.kind == "hot_only" and not is_hot.all():
            faults.append("a lookup of a hot-only batch hits a cold row")
        if facts.kind == "mixed" and hot_only is None and is_hot.any():
            faults.append("a fully hot sample is in a mixed batch")
        if hot_only is not None and bool(is_hot.all()) != (number in hot_only):
            faults.append("the manifest says wrongly whether it is hot-only")
        yield from (f"batch {number}: {fault}" for fault in faults)
    # Lists are counted over all batches, as the manifest counts them.
    if lookups != facts.lookups:
        yield f"its lists have {dict(lookups)} lookups, want {facts.lookups}"


def _ids_in_range(ids: PartIds) -> Iterator[str]:
    # An empty part has no lowest id: 0 stands for it, which is in every table.
    lowest = ids.matrix.min(axis=0, initial=0)
    highest = ids.matrix.max(axis=0, initial=0)
    names = [table.name for table in one_hot(ids.tables)]
    ranges = dict(zip(names, zip(lowest, highest, strict=True), strict=True))
    ranges |= {name: (flat.min(initial=0), flat.max(initial=0)) for name, (_, flat) in ids.lists.items()}
    for table in ids.tables:
        lowest_id, highest_id = ranges[table.name]
        if lowest_id < 0 or highest_id >= table.num_rows:
            yield f"an id of {table.name} is outside its {table.num_rows} rows"


def _are_labels(label: NDArray[np.float32]) -> bool:
    return bool(((label == 0) | (label == 1)).all())


def _tags(ids: PartIds, tables: Sequence[PlannedTable]) -> NDArray[np.uint8]:
    return ids.tags([table.num_hot for table in tables])
