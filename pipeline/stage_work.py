"""The work of each stage on paper: tasks, passes, bytes read and written, and memory of a machine.

All numbers follow from the sizes of a log and from the functions that the stages themselves divide their work
by, with the workers and the memory of this machine or of an imagined cluster. A test counts the bytes of a
run and holds them to these.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from typing import Any

from ..stats.id_tables import id_table_bytes
from .errors import MemoryCapError
from .folders.manifest import Manifest
from .folders.totals import VocabularyTotals
from .formats.ids import PartSize, largest_part
from .runtime.limits import page_cache_bytes
from .runtime.tasks import (
    FIXED_BYTES,
    Resources,
    crew_size,
    groups_within,
    nodes,
    num_processes,
    num_workers,
    room_for,
    rooms_of_machines,
)
from .stages import count as count_stage
from .stages import encode as encode_stage
from .stages import pack as pack_stage
from .stages import rank as rank_stage
from .stages.count_tasks import RUN_ROW_BYTES, map_bytes, most_merged
from .stages.pack import PackConfig, pack_work, samples_per_file
from .stages.shuffle import PackSizes

_RUN_ROW_MEMORY = 32
"""Memory of a row in a table that is counted: an entry of 8 bytes, half of them free, and the run."""


@dataclass(frozen=True, slots=True)
class StageWork:
    """The work of one stage."""

    tasks: int
    passes: int
    """Times that the stage reads its largest input."""
    bytes_read: float
    """Bytes of raw logs or folders; a file that is read again counts again."""
    bytes_written: float
    """Bytes of the stage's folder."""
    temporary_bytes: float
    """Bytes of files that are written and read again while the stage runs."""
    memory_bytes: float
    """Memory of one machine at most, with that of its processes."""

    def left(self, share: float) -> StageWork:
        """Return the work where only a share of the files is left to write."""
        return replace(
            self,
            tasks=ceil(share * self.tasks),
            bytes_read=share * self.bytes_read,
            bytes_written=share * self.bytes_written,
            temporary_bytes=share * self.temporary_bytes,
        )

    def to_json(self) -> dict[str, Any]:
        """Return the work as plain data, bytes as whole numbers."""
        return {name: round(value) for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class TableSize:
    """A table of the log."""

    num_features: int
    category_bytes: int
    num_rows: int
    """Rows of the vocabulary."""
    num_categories: Callable[[float], float]
    """Returns the categories among so many samples."""


@dataclass(frozen=True, slots=True)
class LogSizes:
    """The sizes that the work depends on."""

    raw_bytes: float
    """Bytes on disk that `ingest` reads."""
    raw_parts: int
    raw_files: int
    """Files that are read in order, each by one worker of a cluster; 0 where their parts are tasks."""
    raw_worker_bytes: float
    """Memory of a worker of `ingest`."""
    folder_bytes: Mapping[str, float]
    """Bytes of the folder of each stage."""
    num_samples: float
    counted_samples: float
    num_parts: int
    tables: list[TableSize]
    num_one_hot: int
    list_lookups: float
    """Lookups of multi-hot features per sample."""
    words: int
    """Words of a packed sample without its bags."""
    num_files: int
    """Files of shards."""
    order_bytes: float
    """Memory of `rank` for its order of rows."""

    part: PartSize
    """The largest part."""

    def with_finished(self, finished: Mapping[str, Manifest]) -> LogSizes:
        """Return these sizes with those that the folders of finished stages have."""
        known = {stage: sum(entry.num_bytes for entry in made.files) for stage, made in finished.items()}
        sizes = replace(self, folder_bytes={**self.folder_bytes, **known})
        if "ingest" in finished:
            columns = finished["ingest"]
            parts = [entry for _, entry in columns.parts()]
            sizes = replace(sizes, num_parts=len(parts), part=largest_part(columns, parts))
        if "rank" in finished:
            rows = [table.num_rows for table in VocabularyTotals.of(finished["rank"]).tables]
            tables = [replace(own, num_rows=found) for own, found in zip(self.tables, rows, strict=True)]
            sizes = replace(sizes, tables=tables)
        return sizes


def work_of_stages(
    sizes: LogSizes, config: PackConfig, resources: Resources
) -> tuple[dict[str, StageWork], list[MemoryCapError]]:
    """Return the work of every stage from scratch, and the errors of those that cannot keep the cap."""
    stages: dict[str, Callable[[], StageWork]] = {
        "ingest": lambda: _ingest(sizes, resources),
        "count": lambda: _count(sizes, resources),
        "rank": lambda: _rank(sizes, resources),
        "encode": lambda: _encode(sizes, resources),
        "split": lambda: _split(sizes, resources),
        "pack": lambda: _pack(sizes, config, resources),
    }
    found = {}
    refusals = []
    for stage, work in stages.items():
        try:
            found[stage] = work()
        except MemoryCapError as error:
            refusals.append(error)
    return found, refusals


def _held(held: float, resources: Resources, *, here: bool = False) -> float:
    """Return the memory of a machine where a stage would hold so much beside what every process takes."""
    room = max(0, min(rooms_of_machines(resources, here=here)))
    return FIXED_BYTES * (1 + (0 if here else num_processes(resources.workers))) + min(held, room)


def _ingest(sizes: LogSizes, resources: Resources) -> StageWork:
    held = crew_size(resources.workers) * sizes.raw_worker_bytes
    written = sizes.folder_bytes["ingest"]
    tasks = sizes.raw_files if sizes.raw_files and num_processes(resources.workers) else sizes.raw_parts
    return StageWork(tasks, 1, sizes.raw_bytes, written, 0.0, _held(held, resources))


def _count(sizes: LogSizes, resources: Resources) -> StageWork:
    workers = num_workers(resources.workers)
    crew = crew_size(resources.workers)
    needed = count_stage.needed_bytes(len(sizes.tables), resources.workers)
    room = room_for("count", resources, needed) // crew
    read = sizes.folder_bytes["ingest"] * sizes.counted_samples / sizes.num_samples
    of_map = map_bytes(read, len(sizes.tables), room, resources.workers)
    if of_map is None:
        num_maps = min(len(sizes.tables), 2 * workers)
        held = sum(_counter_bytes(table, sizes.counted_samples) for table in sizes.tables)
        written = sizes.folder_bytes["count"]
        return StageWork(num_maps, num_maps, num_maps * read, written, 0.0, _held(held, resources))
    num_maps = max(1, round(read / of_map))
    samples = sizes.counted_samples / num_maps
    # Tables that fill the memory are emptied in the middle of a map, so the runs of fewer samples have more
    # rows.
    num_runs = num_maps
    while num_runs < sizes.counted_samples and room < _RUN_ROW_MEMORY * _rows_of(sizes, num_runs):
        num_runs *= 2
    rows = [num_runs * table.num_categories(sizes.counted_samples / num_runs) for table in sizes.tables]
    # Runs, and the tables that are merged in pieces.
    most = most_merged(sum(rows), room, resources.workers)
    merges = [max(1, round(2 * found / most)) if found > most else 1 for found in rows]
    pieces = sum(
        (8 + table.category_bytes) * table.num_categories(sizes.counted_samples)
        for table, number in zip(sizes.tables, merges, strict=True)
        if number > 1
    )
    held = crew * sum(_counter_bytes(table, samples) for table in sizes.tables)
    temporary = RUN_ROW_BYTES * sum(rows) + pieces
    tasks = num_maps + sum(merges)
    return StageWork(tasks, 1, read, sizes.folder_bytes["count"], temporary, _held(held, resources))


def _rows_of(sizes: LogSizes, num_runs: int) -> float:
    """Return the rows of one of so many runs of all tables."""
    return sum(table.num_categories(sizes.counted_samples / num_runs) for table in sizes.tables)


def _counter_bytes(table: TableSize, num_samples: float) -> float:
    """Return the memory of counting a table: entries of 8 bytes and more, a third free, and the next size."""
    return 64 * max(4096.0, table.num_categories(num_samples))


def _rank(sizes: LogSizes, resources: Resources) -> StageWork:
    needed = rank_stage.needed_bytes(resources.workers)
    room_for("rank", resources, needed)
    read = sizes.folder_bytes["count"]
    held = max(needed, sizes.order_bytes)
    written = sizes.folder_bytes["rank"]
    return StageWork(2 * len(sizes.tables), 1, read, written, 0.0, _held(held, resources))


def _encode(sizes: LogSizes, resources: Resources) -> StageWork:
    table_bytes = sum(id_table_bytes(table.num_rows, table.category_bytes) for table in sizes.tables)
    workers = encode_stage.workers_for(sizes.part, sizes.num_one_hot, table_bytes, resources)
    fitting = replace(resources, workers=workers)
    room = encode_stage.room_of_tables(sizes.part, sizes.num_one_hot, fitting)
    pieces = [
        (table.num_features, id_table_bytes(stop - first, table.category_bytes))
        for table in sizes.tables
        for first, stop in encode_stage.cuts_of_table(table.num_rows, table.category_bytes, room)
    ]
    passes = list(groups_within(room, pieces, lambda piece: piece[1]))
    # Ids of all passes but the last wait in files, and tables of other processes are files.
    spilled = sum(features for group in passes[:-1] for features, _ in group)
    lookups = sizes.num_one_hot + sizes.list_lookups
    of_features = sum(table.num_features for table in sizes.tables)
    temporary = 4 * sizes.num_samples * lookups * spilled / max(1, of_features)
    tables = sum(size for group in passes for _, size in group)
    temporary += tables if num_processes(workers) else 0
    read = len(passes) * sizes.folder_bytes["ingest"] + sizes.folder_bytes["rank"]
    needed = encode_stage.needed_bytes(sizes.part, sizes.num_one_hot, workers)
    largest = max((sum(size for _, size in group) for group in passes), default=0)
    written = sizes.folder_bytes["encode"]
    memory = _held(needed + largest, fitting)
    tasks = len(passes) * sizes.num_parts + len(pieces)
    return StageWork(tasks, len(passes), read, written, temporary, memory)


def _split(sizes: LogSizes, resources: Resources) -> StageWork:
    held = crew_size(resources.workers) * 2 * sizes.part.num_samples
    read = sizes.folder_bytes["encode"] + sizes.folder_bytes["rank"]
    written = sizes.folder_bytes["split"]
    return StageWork(sizes.num_parts, 1, read, written, 0.0, _held(held, resources))


def _pack(sizes: LogSizes, config: PackConfig, resources: Resources) -> StageWork:
    width = sizes.words + round(sizes.list_lookups)
    needed = pack_stage.needed_bytes(config, width, sizes.part.num_samples, resources.workers)
    of_file = samples_per_file(config, width) * (4 * width + 8)
    room = room_for("pack", resources, needed, here=True) - (needed - of_file)
    row_bytes = 4 * sizes.words + (16 if sizes.list_lookups else 8) + 4 * sizes.list_lookups
    inputs = sum(sizes.folder_bytes[stage] for stage in ("ingest", "encode", "split"))
    rows = sizes.num_samples * row_bytes
    largest = sizes.part.num_samples * row_bytes
    machines = nodes()
    cache = page_cache_bytes(room) if not machines else min(node.memory_bytes for node in machines) - room
    # No more is known to be cached than a machine that does not say.
    sizes_of = {"inputs": round(inputs), "rows": round(rows), "largest_part": round(largest)}
    packing = PackSizes(**sizes_of, room=room, cache=cache or 0)
    work = pack_work(packing, resources.workers)
    parts = sizes.num_parts * work.passes
    # Two passes over the tags decide which sample goes to which file.
    read = work.bytes_read - work.piece_bytes + 2 * sizes.folder_bytes["split"]
    held = needed - of_file + min(room, rows / (1 if work.piece_bytes else work.passes))
    return StageWork(
        parts + sizes.num_files,
        work.passes,
        read,
        sizes.folder_bytes["pack"],
        work.piece_bytes,
        _held(held, resources, here=True),
    )
