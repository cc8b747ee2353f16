"""Columns of a log: dense features, texts of categories, and predictions.

Dense columns are float32 after their transform, 0 where missing. Texts are for people to read; stages look up
hashes and never need them. Predictions are a Parquet file of one column, a row for each sample of the log, in
its order.

`ingest` keeps, next to each part of a log, every text that occurs in it twice or more. Of the other texts it
keeps those of the smallest hashes, up to 10,000 per column. So a category with more lookups than the log has
parts has its text kept (it occurs twice in one of them), and so has every category of a small log. Disk use
grows with what recurs and not with what occurs once. `count` picks the texts of the most frequent categories
from all parts, and `rank` assigns ids to them.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.batch_rows import log1p_table, transform_dense, transform_values
from ...stats.counting import Counts
from ...stats.kernel import read_only
from ..folders.manifest import FileEntry, JsonRecord, Manifest, stored_as
from ..folders.output import Output
from ..folders.totals import ColumnsTotals
from ..schema.schema import Schema
from ..schema.schema_file import schema_of
from .arrow_files import damage_named, map_batch, row_groups, validity_of, values_of, write_batch

if TYPE_CHECKING:
    from ..raw.column_values import DistinctTexts

_LOG1P = log1p_table(1 << 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class TextsFacts(JsonRecord):
    """A file of texts."""

    num_texts: int = stored_as("texts")


def transform_columns(
    log: ColumnsTotals | Schema, columns: Any, chosen: NDArray[np.int32], out: NDArray[np.float32]
) -> None:
    """Write the transformed dense values of some samples.

    Args:
        log: names the dense features, those that are floats, and those without a logarithm. The others become
            log1p(max(x, 0)).
        columns: Arrow columns by name, int32 or float64, that start at offset 0.
        chosen: (num_chosen,), positions of the samples.
        out: (dense features, num_chosen) out; may be strided.
    """
    for name, row in zip(log.dense, out, strict=True):
        is_float = name in log.floats
        is_log = name not in log.untransformed
        values = read_only(values_of(columns[name], np.float64 if is_float else np.int32))
        is_valid = read_only(validity_of(columns[name]))
        if is_log and not is_float:  # a table has the logarithms of small integers
            transform_dense(values, is_valid, chosen, _LOG1P, row)
        else:
            transform_values(values, is_valid, chosen, is_log, row)


MAX_BYTES = 200
CUT_MARK = "…"
_ALWAYS_KEPT = 10_000
_CHUNK_ROWS = 1 << 20
_OF_PARTS = {"feature": pa.dictionary(pa.int32(), pa.string()), "category": pa.uint64(), "text": pa.string()}
_OF_STAGE = {
    "ingest": _OF_PARTS,
    "count": {"category": pa.uint64(), "text": pa.string()},
    "rank": {"id": pa.int32(), "text": pa.string()},
    "adopt": {"id": pa.int32(), "text": pa.string()},
}


def texts_file(name: str) -> str:
    """The file of texts that goes with a part, or with a table, of this file name."""
    return f"{name.removesuffix('.arrow')}.texts.arrow"


def text_tables(columns: Manifest) -> list[str]:
    """Tables whose categories are texts."""
    totals = ColumnsTotals.of(columns)
    kinds = {} if totals.schema is None else schema_of(totals.schema).kind_of
    return [table for table, (first, *_) in tables_of(columns).items() if kinds.get(first) == "text"]


def tables_of(columns: Manifest) -> dict[str, tuple[str, ...]]:
    """Return the features of each table, in the order of both."""
    totals = ColumnsTotals.of(columns)
    if totals.schema is None:
        return {name: (name,) for name in totals.sparse}
    return schema_of(totals.schema).features_of_tables


def read_texts(manifest: Manifest, entry: FileEntry) -> Any:
    """The record batch of a file of texts, memory-mapped and checked: texts are used as they are.

    Raises:
        ManifestError: missing, of another size or checksum, or not what Arrow or the manifest says it is.
    """
    path = manifest.hashed_path(entry)
    wanted = manifest.facts_of(TextsFacts, entry).num_texts
    with damage_named(path):
        batch = map_batch(path)
        # In full, because offsets into the bytes of a text are followed without another check.
        batch.validate(full=True)
        found = {field.name: field.type for field in batch.schema}
        if found != _OF_STAGE[manifest.stage] or any(column.null_count for column in batch.columns):
            raise TypeError(f"it has the columns {found}")
        if batch.num_rows != wanted:
            raise ValueError(f"it has {batch.num_rows} texts, its manifest says {wanted}")
    return batch


def write_part_texts(output: Output, part: str, texts: Mapping[str, DistinctTexts]) -> None:
    """Write the texts to be kept of one part's columns; nothing where there are none."""
    # One file for all text columns of a part: which feature, its hash, its text.
    kept = {name: _kept(distinct) for name, distinct in texts.items()}
    total = sum(places.shape[0] for places in kept.values())
    if total == 0 or output.has(texts_file(part)):
        return
    names = pa.array(list(kept), pa.string())
    features: NDArray[np.int32] = np.repeat(np.arange(len(kept)), [p.shape[0] for p in kept.values()])
    columns = {
        "feature": pa.DictionaryArray.from_arrays(pa.array(features.astype(np.int32)), names),
        "category": pa.array(np.concatenate([texts[name].hashes[p] for name, p in kept.items()])),
    }
    chosen = [_readable(texts[name].texts.take(pa.array(p))) for name, p in kept.items()]
    columns["text"] = pa.concat_arrays(chosen)
    with output.writing(texts_file(part), 0, TextsFacts(num_texts=total)) as path:
        write_batch(path, columns)


def _kept(distinct: DistinctTexts) -> NDArray[np.int64]:
    """Which texts to keep, by ascending hash; the empty one, which is missing, is none."""
    order = np.argsort(distinct.hashes, kind="stable")
    order = order[_lengths(distinct.texts)[order] > 0]
    # All that recur, and of the others the smallest hashes: the same choice whatever the order of lines.
    recurs = distinct.counts[order] > 1
    num_others = max(0, _ALWAYS_KEPT - int(np.count_nonzero(recurs)))
    return order[recurs | (np.cumsum(~recurs) <= num_others)]


def _lengths(texts: Any) -> NDArray[np.int64]:
    offsets = np.frombuffer(texts.buffers()[1], np.int64)[texts.offset : texts.offset + len(texts) + 1]
    return np.diff(offsets)


def _readable(texts: Any) -> Any:
    """Texts as an Arrow array of strings, see `readable`."""
    # Nearly always all texts are short and valid UTF-8: then no text is touched one by one.
    if _lengths(texts).max(initial=0) <= MAX_BYTES:
        try:
            return texts.cast(pa.string())
        except pa.ArrowException:  # not UTF-8
            pass
    return pa.array([readable(text) for text in texts.to_pylist()], pa.string())


def readable(text: bytes) -> str:
    """Return at most MAX_BYTES of a text, with a mark if cut; invalid UTF-8 is replaced."""
    if len(text) <= MAX_BYTES:
        return text.decode("utf-8", "replace")
    stop = MAX_BYTES
    # Step back from the middle of a character, whose further bytes begin with the bits 10.
    while stop > MAX_BYTES - 4 and text[stop] & 0xC0 == 0x80:
        stop -= 1
    return text[:stop].decode("utf-8", "replace") + CUT_MARK


def top_categories(counts: Counts, num_texts: int) -> NDArray[np.uint64]:
    """The ``num_texts`` most frequent categories, ascending; of equal ones the smaller, as ids have it."""
    best = np.zeros(0, np.uint64)
    best_counts = np.zeros(0, np.int64)
    for first in range(0, counts[0].shape[0], _CHUNK_ROWS):
        categories = np.concatenate([best, counts[0][first : first + _CHUNK_ROWS].astype(np.uint64)])
        occurrences = np.concatenate([best_counts, counts[1][first : first + _CHUNK_ROWS]])
        # The best so far compete with the next chunk, so memory holds one chunk however large the table is.
        order = np.lexsort((categories, -occurrences))[:num_texts]
        best = categories[order]
        best_counts = occurrences[order]
    return np.sort(best)


def write_top_texts(output: Output, columns: Manifest, wanted: Mapping[str, NDArray[np.uint64]]) -> None:
    """Write the texts of the wanted categories, (num_wanted,) ascending for each table, that parts kept.

    Of two texts that share a hash it is the first in log order.
    """
    table_of = {name: table for table, features in tables_of(columns).items() for name in features}
    found: dict[str, dict[int, str]] = {name: {} for name in wanted if not output.has(texts_file(name))}
    for entry in columns.files:
        # A table that has all its texts is left out; once none is lacking, no further file is opened.
        lacking = {name for name in found if len(found[name]) < wanted[name].shape[0]}
        if entry.is_texts and lacking:
            found_here = {name: found[table] for name, table in table_of.items() if table in lacking}
            wanted_here = {name: wanted[table_of[name]] for name in found_here}
            _collect(read_texts(columns, entry), wanted_here, found_here)
    for name, texts in found.items():
        if texts:
            categories = sorted(texts)
            written = {"category": pa.array(categories, pa.uint64())}
            written["text"] = pa.array([texts[category] for category in categories], pa.string())
            with output.writing(texts_file(name), 0, TextsFacts(num_texts=len(texts))) as path:
                write_batch(path, written)


def _collect(batch: Any, wanted: Mapping[str, NDArray[np.uint64]], found: dict[str, dict[int, str]]) -> None:
    features = batch.column("feature")
    categories = values_of(batch.column("category"), np.uint64)
    numbers = values_of(features.indices, np.int32)
    for number, name in enumerate(features.dictionary.to_pylist()):
        if name in found:
            # One file has the texts of all features, so those of this one are picked by its number.
            is_wanted = (numbers == number) & np.isin(categories, wanted[name])
            for place in np.flatnonzero(is_wanted).tolist():
                # The first in log order stays: files are read in that order, and so are the texts in them.
                found[name].setdefault(int(categories[place]), batch.column("text")[place].as_py())


def write_id_texts(output: Output, counts: Manifest, table: str, categories: Any) -> None:
    """Write the texts that counts have of one table with the ids of their categories, by ascending id.

    Args:
        categories: the Arrow column of the vocabulary; categories that share the oov row are not in it.
    """
    entry = counts.entries.get(texts_file(table))
    if entry is None or output.has(entry.path):
        return
    batch = read_texts(counts, entry)
    known = values_of(batch.column("category"), np.uint64)
    rows = values_of(categories, np.uint64)
    is_own = categories.is_valid().to_numpy(zero_copy_only=False)
    ids: list[int] = []
    places: list[int] = []
    for first in range(0, rows.shape[0], _CHUNK_ROWS):
        chunk = rows[first : first + _CHUNK_ROWS]
        # Both sides ascend in no common order: search each row among the known ones, then compare for
        # equality.
        place = np.minimum(np.searchsorted(known, chunk), known.shape[0] - 1)
        is_known = (known[place] == chunk) & is_own[first : first + _CHUNK_ROWS]
        ids += (np.flatnonzero(is_known) + first).tolist()
        places += place[is_known].tolist()
    if ids:
        written = {"id": pa.array(ids, pa.int32()), "text": batch.column("text").take(pa.array(places))}
        with output.writing(entry.path, 0, TextsFacts(num_texts=len(ids))) as path:
            write_batch(path, written)


def texts_of_table(vocabulary: Manifest, table: str) -> dict[int, str]:
    """The text of each id that has one kept."""
    entry = vocabulary.entries.get(texts_file(table))
    if entry is None:
        return {}
    batch = read_texts(vocabulary, entry)
    return dict(zip(batch.column("id").to_pylist(), batch.column("text").to_pylist(), strict=True))


PROBABILITY = "probability"
PREDICTION = "prediction"
_ROWS_OF_GROUP = 1 << 20


def score_columns(labels: Sequence[str], predicts: str) -> tuple[str, ...]:
    """Return the columns of predictions, one for each of several labels.

    Args:
        labels: of the run; empty for one without a name.
        predicts: probability, or value.
    """
    name = PROBABILITY if predicts == PROBABILITY else PREDICTION
    return tuple(f"{name}_{label}" for label in labels) if len(labels) > 1 else (name,)


def write_scores(
    path: Path,
    names: Sequence[str],
    scores: Iterable[NDArray[np.float32]],
    *,
    others: Callable[[Iterator[Any]], Iterator[Any]] = iter,
    overwrite: bool = False,
) -> None:
    """Write the predictions of consecutive samples, in row groups of a million.

    Args:
        names: of the columns.
        scores: (num_samples,), or a column for each name.
        others: adds columns to the batches.

    Raises:
        HotsetError: ``path`` exists, or cannot be written.
    """
    # pyarrow's Parquet module takes a fifth of the start of a command.
    import pyarrow.parquet as pq

    from ..folders.disk import whole_file

    of_scores = pa.schema([pa.field(name, pa.float32(), nullable=False) for name in names])
    batches = (
        pa.record_batch(list(map(pa.array, found.reshape(-1, len(names)).T)), schema=of_scores)
        for found in scores
    )
    tables = row_groups(others(batches), _ROWS_OF_GROUP)
    first = next(tables, None)
    schema = of_scores if first is None else first.schema
    with whole_file(path, overwrite=overwrite) as file, pq.ParquetWriter(file, schema) as writer:
        for table in () if first is None else itertools.chain([first], tables):
            writer.write_table(table.combine_chunks())
