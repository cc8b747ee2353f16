"""What `verify` looks for in files of ids and tags: ids in range, lists of the right length, true tags."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from ..folders.manifest import FileEntry, Manifest
from ..formats.arrow_files import read_batch, values_of
from ..formats.part_ids import PartIds
from ..formats.tables import offsets_of, one_hot


def check_samples(entry: FileEntry, samples: Manifest, manifests: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of samples: ids in range, lists as long as in columns."""
    ids = PartIds.read(read_batch(samples, entry), samples.totals["tables"])
    yield from _ids_in_range(ids)
    for name, (offsets, _) in ids.lists.items():
        if int(offsets[-1]) != sum(entry.facts["lookups"][name]):
            yield f"its lists of {name} have {offsets[-1]} ids, want {sum(entry.facts['lookups'][name])}"
    if "columns" in manifests:
        other = manifests["columns"].entries.get(entry.path)
        found = None if other is None else other.num_samples
        if found != entry.num_samples:
            yield f"it has {entry.num_samples} samples, columns has {found}"
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
    if "samples" not in manifests:
        return
    samples = manifests["samples"]
    other = samples.entries.get(entry.path)
    if other is None or other.num_samples != entry.num_samples:
        yield "samples has no such file, or one of another length"
        return
    ids = PartIds.read(read_batch(samples, other), plan.totals["tables"])
    if (_tags(ids) != is_hot).any():
        yield "its tags do not agree with the ids"


def check_shards(entry: FileEntry, shards: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one file of shards."""
    tables, kind, batch_size = shards.totals["tables"], entry.facts["kind"], shards.config["batch_size"]
    with pa.memory_map(str(shards.folder / entry.path)) as source:
        reader = pa.ipc.open_file(source)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
        for batch in batches:
            batch.validate()
        if len(batches) != entry.facts["batches"]:
            yield f"it has {len(batches)} batches, want {entry.facts['batches']}"
        if any(batch.num_rows != batch_size for batch in batches[:-1]):
            yield f"a batch before the last has not {batch_size} samples"
        if sum(batch.num_rows for batch in batches) != entry.num_samples:
            yield f"its batches have not {entry.num_samples} samples"
        hot_only = entry.facts.get("hot_only_batches")
        lookups: Counter[str] = Counter()
        for number, batch in enumerate(batches):
            ids = PartIds.read(batch, tables)
            faults = list(_ids_in_range(ids))
            lookups.update({name: int(offsets[-1]) for name, (offsets, _) in ids.lists.items()})
            if shards.totals["has_label"] and not _are_labels(values_of(batch.column("label"), np.float32)):
                faults.append("a label is neither 0 nor 1")
            is_hot = _tags(ids)
            if kind == "evaluation" and (values_of(batch.column("is_hot"), np.uint8) != is_hot).any():
                faults.append("its tags do not agree with the ids")
            if kind == "hot_only" and not is_hot.all():
                faults.append("a look-up of a hot-only batch hits a cold row")
            if kind == "mixed" and hot_only is None and is_hot.any():
                faults.append("a fully hot sample stands in a mixed batch")
            if hot_only is not None and bool(is_hot.all()) != (number in hot_only):
                faults.append("the manifest says wrongly whether it is hot-only")
            yield from (f"batch {number}: {fault}" for fault in faults)
        if lookups != entry.facts.get("lookups", {}):
            yield f"its lists have {dict(lookups)} look-ups, want {entry.facts.get('lookups')}"


def _ids_in_range(ids: PartIds) -> Iterator[str]:
    lowest, highest = ids.matrix.min(axis=0, initial=0), ids.matrix.max(axis=0, initial=0)
    names = [table["name"] for table in one_hot(ids.tables)]
    ranges = dict(zip(names, zip(lowest, highest, strict=True), strict=True))
    ranges |= {name: (flat.min(initial=0), flat.max(initial=0)) for name, (_, flat) in ids.lists.items()}
    for table in ids.tables:
        if ranges[table["name"]][0] < 0 or ranges[table["name"]][1] >= table["num_rows"]:
            yield f"an id of {table['name']} is outside its {table['num_rows']} rows"


def _are_labels(label: Any) -> bool:
    return bool(((label == 0) | (label == 1)).all())


def _tags(ids: PartIds) -> Any:
    return ids.tags([table["num_hot"] for table in ids.tables])
