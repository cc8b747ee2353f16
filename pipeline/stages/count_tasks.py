"""The tasks of `count`: maps over parts, and merges over ranges of categories.

A map reads consecutive parts, each once, and counts tables over them. A short log, or one of more tables than
a worker has room for, is one map for each group of tables; it writes the tables that fit in its memory. Any
other is cut into maps of about 1 GiB that count all tables, so there are as many tasks as the log has
gigabytes, and each byte is read and hashed by one of them. A map leaves sorted runs in one file: of its
tables where memory was short, and at its end.

A merge adds up the runs of one table within a range of categories, in memory. Ranges follow from evenly
spaced categories of all runs, so a table of hundreds of millions of rows is merged by many tasks.

A file of runs is noted with its checksum when it is whole: a run that resumes merges it instead of counting
again. The runs are 16 bytes a row, a tenth of the columns that they are counted from.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import xxhash
from numpy.typing import NDArray

from ...stats.counting import (
    BYTES_PER_TABLE_BYTE,
    SMALLEST_ENTRIES,
    CategoryCounter,
    Counts,
    category_bounds,
    merge_counts,
    rows_within,
)
from ..folders.manifest import FileEntry, JsonRecord, Manifest, RecordError, checksum_of, hash_file
from ..folders.output import Output, array_in, remove_arrays, write_arrays
from ..folders.totals import ColumnsTotals, CountsFacts
from ..formats.arrow_files import (
    lookups_of,
    map_batch,
    map_file,
    numpy_type,
    read_batch,
    validity_of,
    values_of,
    write_batch,
)
from ..runtime.tasks import Resources, num_processes, num_workers, run_tasks

_MAP_BYTES = 1 << 30
"""Columns that a map reads, and the longest log that has one map for each group of tables."""
_MAPS_PER_WORKER = 2
"""Maps per worker at least: more even out the load."""
RUN_ROW_BYTES = 16
"""Bytes of a row in a file of runs."""
_MERGED_BYTES = 32
"""Memory of a merged row at most: its category and count, and the pages of the buffers."""
_LEAST_MERGED = 1 << 20
"""Rows of a merge that are not divided for the sake of more tasks."""


@dataclass(frozen=True, slots=True)
class Span:
    """Samples ``[first, stop)`` of the log."""

    first: int
    stop: int
    file: int | None
    """Number of the raw file in whose name the counts are kept; None where there is one span alone."""

    @property
    def prefix(self) -> str:
        """Beginning of the names of its files."""
        return "" if self.file is None else f"file{self.file:04}-"


@dataclass(frozen=True, slots=True)
class CountedLog:
    """The samples to count, the output, and the counts that exist already."""

    columns: Manifest
    output: Output
    tables: dict[str, tuple[str, ...]]
    """The features of each table."""
    spans: list[Span]
    before: Manifest | None
    """The counts from before the log grew."""
    bases: dict[Span, Span]
    """Spans of those counts that spans begin with."""

    def first_new(self, span: Span) -> int:
        """Return the first sample of a span that is not counted yet."""
        return self.bases[span].stop if span in self.bases else span.first

    def is_multi_hot(self, table: str) -> bool:
        """Return whether samples may look a table up other than once."""
        features = self.tables[table]
        return len(features) > 1 or features[0] in ColumnsTotals.of(self.columns).lists

    def counted_before(self, span: Span, table: str) -> tuple[Manifest, FileEntry]:
        """Return the counts that a span begins with, and their file of one table."""
        assert self.before is not None
        return self.before, self.before.entry(f"{self.bases[span].prefix}{table}.arrow")

    def todo(self, span: Span, names: Iterable[str]) -> tuple[str, ...]:
        """Return the tables of a span that are not finished."""
        return tuple(name for name in names if not self.output.has(f"{span.prefix}{name}.arrow"))


def checksum_of_parts(columns: Manifest, first: int, stop: int) -> str:
    """Return a checksum of the parts with samples of [first, stop)."""
    parts = [
        [entry.path, entry.num_samples, entry.xxh3_128]
        for _, entry, _, _ in columns.parts_within(first, stop)
    ]
    return checksum_of({"parts": parts})


@dataclass(frozen=True, slots=True)
class MapTask:
    """Tables that are counted over samples ``[first, stop)`` of a span."""

    span: Span
    first: int
    stop: int
    tables: tuple[str, ...]
    is_only: bool
    """Whether no other task counts these tables over samples of the span."""

    @property
    def name(self) -> str:
        """Name of its file of runs."""
        group = f"-{self.tables[0]}" if self.is_only else ""
        return f"{self.span.prefix}samples{self.first:013}-{self.stop:013}{group}.runs"


def map_tasks(log: CountedLog, names: Sequence[str], room: int, workers: int) -> list[MapTask]:
    """Return the maps that count tables over what is new in all spans; ``room`` of a worker in bytes."""
    new = [(span, log.first_new(span), log.todo(span, names)) for span in log.spans]
    new = [(span, first, todo) for span, first, todo in new if first < span.stop and todo]
    sizes = [[*_sizes_of_parts(log.columns, first, span.stop)] for span, first, _ in new]
    num_bytes = sum(size for parts in sizes for _, size in parts)
    num_tasks = _MAPS_PER_WORKER * num_workers(workers)
    of_map = map_bytes(num_bytes, len(names), room, workers)
    if of_map is None:
        groups = [group for first in range(num_tasks) if (group := names[first::num_tasks])]
        cells = [
            (span, first, [name for name in group if name in todo])
            for span, first, todo in new
            for group in groups
        ]
        return [MapTask(span, first, span.stop, tuple(group), True) for span, first, group in cells if group]
    tasks = []
    for (span, first, todo), parts in zip(new, sizes, strict=True):
        stops = [*_stops_of_maps(parts, of_map)]
        bounds = pairwise([first, *stops])
        tasks += [MapTask(span, *own, todo, len(stops) == 1) for own in bounds]
    return tasks


def least_room(num_tables: int) -> int:
    """Return the bytes of so many tables while they are small."""
    # An entry has up to 16 bytes, and a small table grows fourfold, next to itself.
    return 16 * 5 * SMALLEST_ENTRIES * num_tables


def map_bytes(num_bytes: float, num_tables: int, room: int, workers: int) -> float | None:
    """Return the bytes of columns that a map reads; None where each map reads them all, for some tables."""
    if num_bytes <= _MAP_BYTES or room < least_room(num_tables):
        return None
    return min(_MAP_BYTES, num_bytes / (_MAPS_PER_WORKER * num_workers(workers)))


def _sizes_of_parts(columns: Manifest, first: int, stop: int) -> Iterator[tuple[int, float]]:
    """Yield, for each part with samples of [first, stop), where they end and the bytes of the part."""
    for start, entry, _, high in columns.parts_within(first, stop):
        yield start + high, entry.num_bytes


def _stops_of_maps(parts: Sequence[tuple[int, float]], map_bytes: float) -> Iterator[int]:
    """Yield where maps of about ``map_bytes`` end, at ends of parts."""
    filled = 0.0
    for number, (stop, size) in enumerate(parts, 1):
        filled += size
        if filled >= map_bytes or number == len(parts):
            yield stop
            filled = 0.0


@dataclass(frozen=True, slots=True)
class MappedTable(JsonRecord):
    """What a map left of one table."""

    num_missing: int
    bits: int
    """Bits of its categories, 32 or 64."""
    runs: tuple[tuple[int, int], ...]
    """The first word of each run in the file, and its rows."""


@dataclass(frozen=True, slots=True)
class MapNote(JsonRecord):
    """A file of runs that is whole."""

    parts: str
    """Checksum of the parts that were counted."""
    xxh3_128: str
    """Checksum of the file."""
    tables: dict[str, MappedTable]


class SpilledCounts:
    """The tables that one worker counts; what they hold beyond ``max_bytes`` goes to runs in a file."""

    def __init__(self, names: Sequence[str], max_bytes: int, path: Path) -> None:
        self.counters = {name: CategoryCounter() for name in names}
        self.runs: dict[str, list[tuple[int, int]]] = {name: [] for name in names}
        self._max_bytes = max_bytes
        self._path = path
        self._num_words = 0
        self._digest = xxhash.xxh3_128()

    @property
    def xxh3_128(self) -> str:
        """Checksum of the file so far, hex."""
        return str(self._digest.hexdigest())

    def add(self, name: str, categories: NDArray[Any], is_valid: NDArray[np.uint8]) -> None:
        """Count the lookups of one part in one table."""
        self.counters[name].add(categories, is_valid, lambda: self._make_room(name))

    def _make_room(self, name: str) -> None:
        """Grow a full table, after emptying larger ones, or empty it."""
        counter = self.counters[name]
        # To grow, a table of twice the size is allocated next to the old one: at most three times its bytes.
        while (
            sum(other.num_bytes for other in self.counters.values()) + 3 * counter.num_bytes > self._max_bytes
        ):
            # The largest frees the most for one run to merge; of equal ones the table that asks is emptied
            # itself.
            largest = max(self.counters, key=lambda other: self.counters[other].num_bytes)
            if self.counters[largest].num_bytes == counter.num_bytes:
                return self.spill(name)
            self.spill(largest)
        return counter.grow()

    def spill(self, name: str) -> None:
        """Append what a table holds to the file of runs: categories, ascending, then their counts."""
        categories, counts = self.counters[name].take()
        # What a killed run left under this name is overwritten by the first run.
        write_arrays(self._path, [categories, counts], appends=self._num_words > 0)
        for array in (categories, counts):
            self._digest.update(array.data)
        self.runs[name].append((self._num_words, categories.shape[0]))
        self._num_words += 2 * categories.shape[0]


def map_parts(
    task: MapTask, log: CountedLog, room: int, advance: Callable[[int], None] | None
) -> tuple[int, MapNote]:
    """Count the tables of a map.

    Args:
        room: memory for tables (bytes).
        advance: hears of the lookups, part by part.

    Returns:
        Its lookups, and what it left in its file of runs.
    """
    num_lookups = (task.stop - task.first) * len(task.tables)
    checksum = checksum_of_parts(log.columns, task.first, task.stop)
    known = _map_before(task, checksum, log.output)
    if known is not None:
        if advance is not None:
            advance(num_lookups)
        return num_lookups, known
    tables = SpilledCounts(
        task.tables, int(room / BYTES_PER_TABLE_BYTE), log.output.temporary_path(task.name)
    )
    dtypes = _count_parts(task, tables, log, advance)
    left = {}
    for name in task.tables:
        num_missing = tables.counters[name].num_missing
        if task.is_only and not tables.runs[name] and task.span not in log.bases:
            categories, counts = tables.counters.pop(name).take()
            merged = _table_of(name, task.span, log, [], dtypes[name], num_missing)
            merged.write(categories.astype(dtypes[name]), counts, log.output)
        else:
            tables.spill(name)
            del tables.counters[name]
            left[name] = MappedTable(num_missing, 8 * dtypes[name].itemsize, tuple(tables.runs[name]))
    note = MapNote(checksum, tables.xxh3_128, left)
    if left:
        log.output.share(task.name)
        log.output.write_note(_note_of(task), json.dumps(note.to_json()))
    return num_lookups, note


def _note_of(task: MapTask) -> str:
    return f"{task.name}.note"


def _map_before(task: MapTask, checksum: str, output: Output) -> MapNote | None:
    """Return what an interrupted run noted of the same map, where its file is whole."""
    text = output.read_note(_note_of(task))
    try:
        note = None if text is None else MapNote.from_json(json.loads(text))
        if note is None or note.parts != checksum or not note.tables.keys() >= {*task.tables}:
            return None
        return note if hash_file(output.shared_path(task.name))[1] == note.xxh3_128 else None
    except (OSError, ValueError, RecordError):  # a power cut left half of either
        return None


def _count_parts(
    task: MapTask, tables: SpilledCounts, log: CountedLog, advance: Callable[[int], None] | None
) -> dict[str, np.dtype[Any]]:
    """Count the parts of a map; return the type of each table's categories."""
    dtypes: dict[str, np.dtype[Any]] = dict.fromkeys(task.tables, np.dtype(np.uint32))
    # Read each part once for all tables.
    for _, entry, low, high in log.columns.parts_within(task.first, task.stop):
        batch = read_batch(log.columns, entry)
        for name in task.tables:
            for feature in log.tables[name]:
                column = batch.column(feature)
                # Kernels want columns that begin at offset 0.
                column = column if low == 0 else column.take(pa.array(np.arange(low, len(column))))
                array, num_lookups = lookups_of(column, high - low)
                # Hex digits have 32 bits, and in lists 64: a table of both has the wider ones.
                dtypes[name] = max(dtypes[name], numpy_type(array.type), key=lambda dtype: dtype.itemsize)
                tables.add(name, values_of(array)[:num_lookups], validity_of(array))
        if advance is not None:
            advance((high - low) * len(task.tables))
    return dtypes


@dataclass(frozen=True, slots=True)
class SortedCounts:
    """Where a file has categories of one table, ascending, and their counts."""

    path: Path
    num_rows: int
    first_word: int | None = None
    """The first word of a run in a file of runs; None for a file of counts."""

    def map(self) -> Counts:
        """Map them; a file of counts is checked before."""
        if self.first_word is None:
            batch = map_batch(self.path)
            return values_of(batch.column("category")), values_of(batch.column("count"), np.int64)
        words = np.frombuffer(map_file(self.path), np.uint64)[self.first_word :]
        return words[: self.num_rows], words[self.num_rows : 2 * self.num_rows].view(np.int64)


@dataclass(frozen=True, slots=True)
class MergedTable:
    """A file of counts, and the sorted counts that add up to it."""

    name: str
    sources: tuple[SortedCounts, ...]
    dtype: np.dtype[Any]
    num_missing: int
    is_multi_hot: bool
    file: int | None
    """Number of the raw file that the counts are of."""

    def piece(self, number: int) -> str:
        """Return the name of the temporary file of a range of categories."""
        return f"{self.name}.piece{number:05}"

    def write(self, categories: NDArray[Any], counts: NDArray[np.int64], output: Output) -> None:
        """Write the file."""
        num_lookups = self.num_missing + int(counts.sum()) if self.is_multi_hot else None
        facts = CountsFacts(num_missing=self.num_missing, num_lookups=num_lookups, file=self.file)
        with output.writing(self.name, categories.shape[0], facts) as path:
            write_batch(path, {"category": pa.array(categories), "count": pa.array(counts)})


def _table_of(
    table: str,
    span: Span,
    log: CountedLog,
    sources: Sequence[SortedCounts],
    dtype: np.dtype[Any],
    num_missing: int,
) -> MergedTable:
    name = f"{span.prefix}{table}.arrow"
    kept = tuple(source for source in sources if source.num_rows)
    return MergedTable(name, kept, dtype, num_missing, log.is_multi_hot(table), span.file)


def merge_tables(tables: Sequence[MergedTable], output: Output, room: int, workers: int) -> None:
    """Add up tables and write them; ``room``: memory of a worker (bytes)."""
    # Enough ranges for all workers, and none larger than the memory of one.
    total = sum(source.num_rows for table in tables for source in table.sources)
    most_rows = most_merged(total, room, workers)
    bounds = [_bounds_of(table, most_rows) for table in tables]
    tasks = [
        (table, low, high, number if len(own) > 2 else None, output)
        for table, own in zip(tables, bounds, strict=True)
        for number, (low, high) in enumerate(pairwise(own))
    ]
    rows: dict[str, list[int]] = {table.name: [] for table in tables}
    results = run_tasks(_merge_range, tasks, workers=workers)
    for (table, *_), num_rows in zip(tasks, results, strict=True):
        rows[table.name].append(num_rows)
    joins = ((table, rows[table.name], room, output) for table in tables if len(rows[table.name]) > 1)
    for _ in run_tasks(_join_ranges, joins, workers=workers):
        pass


def most_merged(num_rows: float, room: int, workers: int) -> int:
    """Return the rows of a table that a task merges at most, of ``num_rows`` of all tables together."""
    shared = num_rows // (_MAPS_PER_WORKER * num_workers(workers))
    return max(1, min(room // _MERGED_BYTES, max(_LEAST_MERGED, int(shared))))


def _bounds_of(table: MergedTable, most_rows: int) -> list[int | None]:
    """Return where ranges of categories begin, and None as the end of the last."""
    inner = []
    if sum(source.num_rows for source in table.sources) > most_rows:
        inner = category_bounds([source.map()[0] for source in table.sources], most_rows)
    return [0, *inner, None]


def _merge_range(table: MergedTable, low: int, high: int | None, number: int | None, output: Output) -> int:
    """Merge categories ``[low, high)`` of a table; return their number.

    ``number``: of the range, whose rows are a piece of the file; None where it is the whole file.
    """
    if number is None and output.has(table.name):  # by a worker that was killed before it could say so
        return 0
    sources = [rows_within(source.map(), low, high) for source in table.sources]
    most = sum(categories.shape[0] for categories, _ in sources)
    categories, counts = np.empty(most, table.dtype), np.empty(most, np.int64)
    num_rows = merge_counts(sources, categories, counts)
    # The arrays may be longer: sources that share categories add up to fewer rows.
    categories, counts = categories[:num_rows], counts[:num_rows]
    if number is None:
        table.write(categories, counts, output)
    else:
        write_arrays(output.temporary_path(table.piece(number)), [counts, categories])
        output.share(table.piece(number))
    return num_rows


def _join_ranges(table: MergedTable, rows: list[int], room: int, output: Output) -> None:
    """Write the file of a table from the pieces of its ranges, of ``rows`` rows each."""
    if not output.has(table.name):
        categories = array_in(room // 3, output, (sum(rows),), table.dtype)
        counts = array_in(room // 3, output, (sum(rows),), np.int64)
        start = 0
        for number, num_rows in enumerate(rows):
            stop = start + num_rows
            piece = map_file(output.shared_path(table.piece(number)))
            counts[start:stop] = np.frombuffer(piece, np.int64, num_rows)
            categories[start:stop] = np.frombuffer(piece, table.dtype, num_rows, 8 * num_rows)
            start = stop
        table.write(categories, counts, output)
    for number in range(len(rows)):
        remove_arrays(output.shared_path(table.piece(number)))


def count_tables(
    names: Sequence[str], log: CountedLog, room: int, resources: Resources, advance: Callable[[int], None]
) -> None:
    """Count tables in all spans; write the counts of each span and their sum.

    Args:
        room: memory of a worker (bytes).
        advance: hears of the lookups that are counted.
    """
    workers = resources.workers
    # A span whose counts are there already is kept file by file; any other is counted from where its base
    # ends.
    kept = ((span, name, log) for span in log.spans for name in log.todo(span, names))
    kept = ((span, name, log) for span, name, log in kept if log.first_new(span) == span.stop)
    for _ in run_tasks(_adopt_counts, kept, workers=workers):
        pass
    # Threads report each part; of another process a map is reported when it ends.
    is_remote = num_processes(workers) > 0
    maps = map_tasks(log, names, room, workers)
    tasks = ((task, log, room, None if is_remote else advance) for task in maps)
    notes = []
    for num_lookups, note in run_tasks(map_parts, tasks, workers=workers):
        notes.append(note)
        if is_remote:
            advance(num_lookups)
    merge_tables(_tables_of_maps(maps, notes, log), log.output, room, workers)
    for task in maps:
        for name in (task.name, _note_of(task)):
            remove_arrays(log.output.shared_path(name))
    # A window of several files: its counts are the sum of theirs, which are kept for the next window.
    if len(log.spans) > 1:
        merge_tables([_sum_of_spans(name, log) for name in names], log.output, room, workers)


def _adopt_counts(span: Span, name: str, log: CountedLog) -> None:
    before, entry = log.counted_before(span, name)
    facts = sum_facts([entry], span.file)
    log.output.adopt(before, entry, f"{span.prefix}{name}.arrow", facts)


def sum_facts(entries: Sequence[FileEntry], file: int | None) -> CountsFacts:
    """Add up the facts of the counts of several spans of one table."""
    facts = [entry.read_facts(CountsFacts) for entry in entries]
    lookups = [found.num_lookups for found in facts if found.num_lookups is not None]
    num_missing = sum(found.num_missing for found in facts)
    return CountsFacts(num_missing=num_missing, num_lookups=sum(lookups) if lookups else None, file=file)


def _tables_of_maps(maps: Sequence[MapTask], notes: Sequence[MapNote], log: CountedLog) -> list[MergedTable]:
    """Return the tables that maps left in runs, with what was counted before of the same spans."""
    found: dict[tuple[Span, str], list[tuple[Path, MappedTable]]] = {}
    for task, note in zip(maps, notes, strict=True):
        path = log.output.shared_path(task.name)
        for name in task.tables:
            if name in note.tables:
                found.setdefault((task.span, name), []).append((path, note.tables[name]))
    tables = []
    for (span, name), left in found.items():
        sources = [SortedCounts(path, rows, first) for path, table in left for first, rows in table.runs]
        num_missing = sum(table.num_missing for _, table in left)
        dtype = np.dtype(f"uint{max(table.bits for _, table in left)}")
        # The earlier counts are merged as if they were one more run.
        if span in log.bases:
            before, entry = log.counted_before(span, name)
            read_batch(before, entry)  # checked here once, so that the tasks trust it
            sources.append(SortedCounts(before.folder / entry.path, entry.num_samples))
            num_missing += before.facts_of(CountsFacts, entry).num_missing
        tables.append(_table_of(name, span, log, sources, dtype, num_missing))
    return tables


def _sum_of_spans(name: str, log: CountedLog) -> MergedTable:
    """Return the table of a window, the sum of those of its files."""
    entries = [log.output.finished[f"{span.prefix}{name}.arrow"] for span in log.spans]
    sources = [SortedCounts(log.output.folder / entry.path, entry.num_samples) for entry in entries]
    dtype = sources[0].map()[0].dtype
    whole = Span(log.spans[0].first, log.spans[-1].stop, None)
    return _table_of(name, whole, log, sources, dtype, sum_facts(entries, None).num_missing)
