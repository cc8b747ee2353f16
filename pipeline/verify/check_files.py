"""Checks of the files of columns, counts and vocabularies, and of the totals of a plan.

A check is given a file whose bytes are right, and yields a sentence for each fault of its meaning.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import xxhash

from ...stats.counting.count_merging import Counts, merge_chunks
from ...stats.ranking.fae_calibration import is_permutation
from ...stats.ranking.row_bytes import row_bytes
from ..counting.merged_counts import counts_in
from ..folders.file_facts import ColumnsFacts, CountsFacts
from ..folders.manifest import FileEntry, Manifest
from ..folders.stage_totals import ColumnsTotals, CountsTotals, PlanTotals, VocabularyTotals
from ..formats.arrow_files import read_batch, validity_of, values_of
from ..formats.category_texts import CUT_MARK, read_texts
from ..formats.tables import offsets_of, table_named
from ..schema.schema import SAMPLE_TIME

_REPLACED = "\ufffd"


def check_columns(entry: FileEntry, columns: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Find the faults of one part of columns: lists of the right length, finite floats, true labels."""
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


def check_counts(entry: FileEntry, counts: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Find the faults of the counts of one table, or of one raw file of it."""
    categories, occurrences = counts_in(counts, entry)
    facts = CountsFacts.of(counts, entry)
    total = int(occurrences.sum()) + facts.num_missing
    if (categories[1:] <= categories[:-1]).any():
        yield "its categories are not ascending"
    # Every sample of the span has one lookup, unless the table counts lists.
    spans = {span.file: span.num_samples for span in CountsTotals.of(counts).spans}
    is_of_one_file = facts.file is not None
    num_samples = spans[facts.file] if is_of_one_file else sum(spans.values())
    wanted = num_samples if facts.num_lookups is None else facts.num_lookups
    if total != wanted:
        yield f"it counts {total} lookups, want {wanted}"
    if len(spans) > 1 and not is_of_one_file:
        parts = [counts_in(counts, counts.entry(f"file{file:04}-{entry.path}")) for file in spans]
        if not is_sum((categories, occurrences), parts):
            yield "it is not the sum of the counts of its days"


def is_sum(total: Counts, parts: list[Counts]) -> bool:
    """Whether ``total`` is what ``parts`` add up to."""
    categories, occurrences = total
    start = 0
    for chunk, chunk_counts in merge_chunks(parts):
        stop = start + chunk.shape[0]
        # Merged chunk by chunk: the sum of large tables never stands in memory as a whole.
        same = np.array_equal(categories[start:stop], chunk)
        if not same or not np.array_equal(occurrences[start:stop], chunk_counts):
            return False
        start = stop
    return start == int(categories.shape[0])


def check_vocabulary(entry: FileEntry, vocabulary: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Find the faults of one table of a vocabulary: its order, its sum, its places, its categories."""
    totals = VocabularyTotals.of(vocabulary)
    # The manifest comes first: its tables decide how many rows there are, and so which places are.
    table = table_named(vocabulary, totals.tables, entry.path.removesuffix(".arrow"))
    batch = read_batch(vocabulary, entry)
    counts, places = (values_of(batch.column(name), np.int64) for name in ("count", "place"))
    # The order of ids is that of sampled counts, and of first appearance among equal ones.
    if totals.rank_by == "sampled":
        sampled = values_of(batch.column("sampled"), np.int64)
        if (sampled[1:] > sampled[:-1]).any():
            yield "its sampled counts rise from one id to the next"
        appearances = values_of(batch.column("appearance"), np.int64)
        if not is_permutation(appearances):
            yield "its positions in the order of first appearance are no order"
    if totals.rank_by == "frequency" and (counts[1:] > counts[:-1]).any():
        yield "its counts rise from one id to the next"
    # Every lookup of the samples that were counted belongs to one row.
    wanted = _num_counted(totals) if table.num_lookups is None else table.num_lookups
    if int(counts.sum()) != wanted:
        yield f"its rows have {int(counts.sum())} lookups, want {wanted}"
    if (places[1:] <= places[:-1]).any() or places.max() >= totals.num_rows:
        yield "its places are no order over all tables"
    # Rows of missing and rare values have none; Arrow's own filter would import all its functions.
    column = batch.column("category")
    categories = values_of(column, column.type.to_pandas_dtype())
    bits = validity_of(column)
    if bits.size:
        categories = categories[np.unpackbits(bits, count=len(column), bitorder="little").astype(np.bool_)]
    if np.unique(categories).size != categories.size:
        yield "it has a category twice"


def _num_counted(totals: VocabularyTotals) -> int:
    """Samples that were counted: of a window, of the model's log, or of the whole training part."""
    if totals.num_counted_samples is not None:
        return totals.num_counted_samples
    return totals.num_train_samples if totals.num_model_samples is None else totals.num_model_samples


def check_texts(entry: FileEntry, manifest: Manifest, _: dict[str, Manifest]) -> Iterator[str]:
    """Find the faults of one file of texts: an order, ids that are there, texts of the right hash."""
    batch = read_texts(manifest, entry)
    texts = batch.column("text").to_pylist()
    if manifest.stage in ("rank", "adopt"):
        # A vocabulary has the ids of categories: look the categories up beside the texts.
        ids = values_of(batch.column("id"), np.int32)
        table = manifest.entry(f"{entry.path.removesuffix('.texts.arrow')}.arrow")
        categories = read_batch(manifest, table).column("category")
        if (ids[1:] <= ids[:-1]).any() or ids[0] < 0 or ids[-1] >= len(categories):
            yield "its ids are not ascending, or outside the table"
            return
        found = values_of(categories, np.uint64)[ids]
    else:
        # The hash of a text is its category, wherever the category stands.
        found = values_of(batch.column("category"), np.uint64)
        if manifest.stage == "count" and (found[1:] <= found[:-1]).any():
            yield "its categories are not ascending"
    wrong = [text for text, category in zip(texts, found.tolist(), strict=True) if not _fits(text, category)]
    if wrong:
        yield f"the text {wrong[0]!r} does not have the hash of its category"


def _fits(text: str, category: int) -> bool:
    """Whether a text has the hash of its category; one that was cut or repaired may have any."""
    is_whole = not text.endswith(CUT_MARK) and _REPLACED not in text
    return not is_whole or xxhash.xxh3_64_intdigest(text.encode()) == category


def faults_of_plan(plan: Manifest) -> Iterator[str]:
    """Find the faults of a plan's totals: rows as wide as its config sets, hot ones within its budget."""
    config = plan.config
    dims = dict(config["feature_dims"])
    totals = PlanTotals.of(plan)
    for table, found in zip(totals.tables, totals.bytes_of_rows, strict=True):
        dim = dims.get(table.name, config["embedding_dim"])
        wanted = row_bytes(dim, config["embedding_optimizer"])
        found_dim = config["embedding_dim"] if table.embedding_dim is None else table.embedding_dim
        if (found_dim, found) != (dim, wanted):
            yield f"{table.name} has rows of {found} bytes, want {wanted}"
    # Small tables are hot as a whole in `fae-paper`, and its threshold is an estimate: only other modes keep
    # the budget.
    num_bytes = sum(
        table.num_hot * width for table, width in zip(totals.tables, totals.bytes_of_rows, strict=True)
    )
    is_estimated = config["mode"] == "fae-paper"  # which may exceed it
    if num_bytes > config["hot_bytes"] and not is_estimated:
        yield f"its hot rows take {num_bytes} bytes, the budget is {config['hot_bytes']}"
