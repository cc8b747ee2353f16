"""The check of what `ingest` wrote, which only the log could rebuild."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from .folders.manifest import ColumnsFacts, FileEntry, Manifest
from .folders.totals import ColumnsTotals
from .formats.arrow_files import read_batch, values_of
from .formats.columns import CUT_MARK, read_texts
from .formats.tables import offsets_of
from .schema.schema import SAMPLE_TIME

_REPLACED = "\ufffd"


def check_columns(entry: FileEntry, columns: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Find the faults of one part of columns: lists of the right length, finite floats, true labels."""
    if entry.is_texts:
        yield from _faults_of_texts(entry, columns)
        return
    batch = read_batch(columns, entry)
    totals = ColumnsTotals.of(columns)
    facts = ColumnsFacts.of(columns, entry)
    # Lists are checked by their ends: offsets were checked when the batch was opened.
    for name in totals.lists:
        num_lookups = int(offsets_of(batch.column(name))[-1])
        if num_lookups != facts.lookups.get(name):
            yield f"its lists of {name} have {num_lookups} elements, want {facts.lookups.get(name)}"
    for name in totals.floats:
        if not np.isfinite(values_of(batch.column(name).fill_null(0), np.float64)).all():
            yield f"a value of {name} is not finite"
    if totals.has_time and entry.num_samples:
        times = values_of(batch.column(SAMPLE_TIME), np.int64)
        if (np.diff(times) < 0).any() or (facts.first_time, facts.last_time) != (times[0], times[-1]):
            yield "its times are not in order, or do not begin and end as the manifest says"
    if totals.has_label and entry.num_samples:
        if values_of(batch.column("label"), np.uint8).max() > 1:
            yield "a label is neither 0 nor 1"


def _faults_of_texts(entry: FileEntry, columns: Manifest) -> Iterator[str]:
    batch = read_texts(columns, entry)
    categories = values_of(batch.column("category"), np.uint64).tolist()
    for text, category in zip(batch.column("text").to_pylist(), categories, strict=True):
        # A text that was cut or repaired may have any hash.
        is_whole = not text.endswith(CUT_MARK) and _REPLACED not in text
        if is_whole and xxhash.xxh3_64_intdigest(text.encode()) != category:
            yield f"the text {text!r} does not have the hash of its category"
            return
