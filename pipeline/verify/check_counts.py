"""What `verify` looks for in a file of counts: an order, a sum, and days that add up."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ...stats.counting.count_merging import Counts, merge_chunks
from ..counting.merged_counts import counts_in
from ..folders.manifest import FileEntry, Manifest


def check_counts(entry: FileEntry, counts: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Faults of one table, or of one day of it."""
    categories, occurrences = counts_in(counts, entry)
    total = int(occurrences.sum()) + entry.facts["num_missing"]
    if (categories[1:] <= categories[:-1]).any():
        yield "its categories are not ascending"
    spans = {span["file"]: span["num_samples"] for span in counts.totals["spans"]}
    is_of_day = "file" in entry.facts
    num_samples = spans[entry.facts["file"]] if is_of_day else sum(spans.values())
    wanted = entry.facts.get("num_lookups", num_samples)
    if total != wanted:
        yield f"it counts {total} look-ups, want {wanted}"
    if len(spans) > 1 and not is_of_day:
        files = {other.path: other for other in counts.files}
        days = [counts_in(counts, files[f"file{file:04}-{entry.path}"]) for file in spans]
        if not is_sum((categories, occurrences), days):
            yield "it is not the sum of the counts of its days"


def is_sum(total: Counts, days: list[Counts]) -> bool:
    """Whether ``total`` is what ``days`` add up to."""
    categories, occurrences = total
    start = 0
    for chunk, chunk_counts in merge_chunks(days):
        stop = start + chunk.shape[0]
        same = np.array_equal(categories[start:stop], chunk)
        if not same or not np.array_equal(occurrences[start:stop], chunk_counts):
            return False
        start = stop
    return start == int(categories.shape[0])
