"""Plans a run with spilled rows: next fetches, memory, ranges of rows; and the file of their blocks.

The step plans of all epochs say which fetch needs a row next after it is written back. Lists of rows are
usually in mapped files, and the results are written to such files too; the system can reclaim their pages
when memory is short, and their disk space is gone with the process. Memory holds the next fetches of a range
of rows, 8 bytes each; if there are many rows the pass over the plans is made for one range after another, so
that it keeps to any limit.

A limit of memory is divided into arenas of two groups, a block for each bucket, and what evaluation reads.
Larger arenas make fewer groups, and each group and each range of rows has a block in memory. So some share of
the limit for the arenas is best; the largest that keeps to the limit is taken. Blocks are of 64 KiB or more
where the limit allows it: a disk moves them at nearly the speed of sequential work.

Ranges are cut by how many rows are ever used in each part of the row numbers. A row that no batch uses is
never written back: its value is made from its number. If tables are many times larger than memory, most rows
are unused, and cutting by used rows makes a tenth or a hundredth of the ranges. Used rows are counted by
cells of consecutive rows: 64 KiB of counts at most, for any number of rows.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import tempfile
import threading
import weakref
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from ...pipeline.errors import KIB, ConfigError, HotsetError, format_byte_size
from ...stats.kernel import kernel
from ...stats.lookahead.step_plans import NO_FETCH, StepPlans, cut_groups, find_next_fetches
from ..rows.tiers import disk_space, mapped_file
from .staging import ChunkFetches, EpochFetches

_MOST_CELLS = 1 << 13
_LEAST_CELL_ROWS = 64
_PART_ROWS = 1 << 17
"""Rows that are counted at a time."""


class UsedRows:
    """Counts of the rows that are ever used, by cells of consecutive rows."""

    def __init__(self, num_rows: int) -> None:
        self.num_rows = num_rows
        self.cell_rows = max(-(-num_rows // _MOST_CELLS), _LEAST_CELL_ROWS)
        """Rows of a cell."""
        self._counts_C = np.zeros(-(-num_rows // self.cell_rows), np.int64)

    @property
    def total(self) -> int:
        """All rows counted."""
        return int(self._counts_C.sum())

    @property
    def num_bytes(self) -> int:
        """Memory of the counts."""
        return self._counts_C.nbytes

    def add(self, rows_N: NDArray[Any]) -> None:
        """Count rows, none of which was counted before."""
        for first in range(0, rows_N.size, _PART_ROWS):
            cells_N = rows_N[first : first + _PART_ROWS] // self.cell_rows
            self._counts_C += np.bincount(cells_N, minlength=self._counts_C.size)

    def cut(self, rows_of_tables: Sequence[int], most_used: int, most_rows: int) -> NDArray[np.int64]:
        """Return where ranges of rows begin; each is within one table and small, or one cell.

        A range has at most ``most_used`` used rows, or at most ``most_rows`` rows, or is a single cell.

        Returns:
            (num_ranges + 1,), int64, from 0 to the number of all rows; at least one range.
        """
        bounds = np.zeros(self._counts_C.size + 2 * len(rows_of_tables) + 2, np.int64)
        rows_T = np.array(rows_of_tables, np.int64)
        num_ranges = cut_cells(self._counts_C, self.cell_rows, rows_T, most_used, most_rows, bounds)
        return bounds[: max(num_ranges, 1) + 1].copy()


@kernel
def cut_cells(
    counts_C: NDArray[np.int64],
    cell_rows: int,
    rows_T: NDArray[np.int64],
    most_used: int,
    most_rows: int,
    bounds_H1: NDArray[np.int64],
) -> int:
    """Cut tables into ranges of whole cells, within each table.

    Args:
        counts_C: (num_cells,); used rows of each cell, at most.
        cell_rows: rows of a cell.
        rows_T: (num_tables,); rows of each table.
        most_used: maximum used rows of a range of several cells,
        most_rows: unless it has no more rows than these.
        bounds_H1: (at least num_cells + 2 * num_tables + 1,); ``bounds[0]`` is 0, the ends of the ranges are
            written after it.

    Returns:
        The number of ranges.
    """
    num_ranges = 0
    row = np.int64(0)
    for table in range(rows_T.size):
        table_stop = row + rows_T[table]
        first = row
        used = np.int64(0)
        while row < table_stop:
            # A cell that two tables share counts in each, as far as its rows there could all be used.
            stop = min((row // cell_rows + 1) * cell_rows, table_stop)
            count = min(counts_C[row // cell_rows], stop - row)
            if row > first and used + count > most_used and stop - first > most_rows:
                num_ranges += 1
                bounds_H1[num_ranges] = row
                first = row
                used = np.int64(0)
            used += count
            row = stop
        if first < table_stop:
            num_ranges += 1
            bounds_H1[num_ranges] = table_stop
    return num_ranges


NUM_WRITERS = 2
"""Threads that write full blocks; each may hold two of them."""
NUM_READERS = 2
"""Threads that read the blocks of the next group."""
_BLOCK_BYTES = (256 * KIB, 64 * KIB, 16 * KIB, 4 * KIB)
"""Sizes of blocks, the best first."""
_EVALUATION_SHARE = 8
"""One part in so many is kept for the rows that evaluation reads."""
_STEPS = 24
"""Shares of the limit that are tried for the arenas."""


@dataclass(frozen=True, slots=True)
class SpillShape:
    """The rows that spill, and how they are fetched."""

    embedding_dim: int
    state_width: int
    rows_of_tables: tuple[int, ...]
    """Cold rows of each table of the group, in the order of their slots on the slow tier."""
    fetches_of_items: NDArray[np.int64]
    """(num_items,); rows that each transfer item of the run fetches."""
    used: UsedRows
    """Those that are ever written back."""

    @property
    def record_bytes(self) -> int:
        """Bytes of a row in a block."""
        return 4 * (1 + self.embedding_dim + self.state_width)

    @property
    def place_bytes(self) -> int:
        """Bytes of a row in an arena, with the mark that it is there."""
        return 4 * (self.embedding_dim + self.state_width) + 1

    @property
    def read_bytes(self) -> int:
        """Bytes of a row in evaluation: weights, and sorted numbers."""
        return 4 * self.embedding_dim + 40

    @property
    def num_rows(self) -> int:
        return sum(self.rows_of_tables)


@dataclass(frozen=True, slots=True)
class SpillSizes:
    """Sizes of the parts that are in memory."""

    arena_rows: int
    """Rows of a group, half those of a part of a range, which is merged at the end."""
    block_bytes: int
    evaluation_rows: int
    """Distinct rows that evaluation reads at a time; a single batch may have more."""
    group_first: NDArray[np.int64]
    """(num_groups + 1,); number of the first fetch of each group."""
    range_first: NDArray[np.int64]
    """First row of each range, (num_ranges + 1,). A range is within one table; it has at most twice the rows
    of an arena, or at most the rows of an arena are ever written back of it, or it is a cell of
    `UsedRows`."""
    num_bytes: int
    """Bytes of all this."""

    @property
    def num_groups(self) -> int:
        return int(self.group_first.size) - 1

    @property
    def num_ranges(self) -> int:
        return int(self.range_first.size) - 1

    @property
    def num_buffers(self) -> int:
        """Blocks in memory: one a bucket, and those being written."""
        return self.num_groups + self.num_ranges + 2 * NUM_WRITERS


def choose_all_sizes(shapes: Sequence[SpillShape], limit_bytes: int) -> list[SpillSizes]:
    """Divide memory among table groups: each gets its minimum and a share.

    Raises:
        ConfigError: it is too little; the hint names the least that would do.
    """
    # First what each table group cannot do without.
    least = [least_bytes(shape) for shape in shapes]
    left = limit_bytes - sum(least)
    if left < 0:
        num_rows = sum(shape.num_rows for shape in shapes)
        most = max(int(shape.fetches_of_items.max(initial=0)) for shape in shapes)
        enough = -(-sum(least) // KIB)
        raise ConfigError(
            f"{num_rows:,} cold rows cannot be kept in {format_byte_size(limit_bytes)} of memory: "
            f"a transfer loads up to {most:,} of them",
            hint=f"--slow-bytes {enough}KiB would do; more is faster",
        )
    # The rest is divided by what the rows of a group take, of which each gets the best sizes that fit.
    weights = [shape.num_rows * shape.place_bytes for shape in shapes]
    sizes = [
        _best_sizes(shape, own + left * weight // max(sum(weights), 1)) or _best_sizes(shape, own)
        for shape, own, weight in zip(shapes, least, weights, strict=True)
    ]
    return [found for found in sizes if found is not None]


def least_bytes(shape: SpillShape) -> int:
    """Return the least memory that `choose_all_sizes` accepts for one table group, in whole KiB."""
    # Double until it is enough, then halve the range: sizes grow with the memory, though in steps.
    high = 1
    while _best_sizes(shape, high * KIB) is None:
        high *= 2
    found = range(high // 2 + 1, high + 1)
    return KIB * found[bisect_left(found, True, key=lambda each: _best_sizes(shape, each * KIB) is not None)]


def _best_sizes(shape: SpillShape, limit_bytes: int) -> SpillSizes | None:
    """Return the largest fitting blocks, which leave arenas an eighth, else None."""
    least = max(int(shape.fetches_of_items.max(initial=0)), 1)
    num_fetches = int(shape.fetches_of_items.sum())
    found: SpillSizes | None = None
    # Rows larger than every block size get blocks of whole pages that fit one.
    page = _BLOCK_BYTES[-1]
    usable = [size for size in _BLOCK_BYTES if size >= shape.record_bytes]
    for block_bytes in usable or [-(-shape.record_bytes // page) * page]:
        for step in range(_STEPS, 0, -1):
            arena_rows = limit_bytes * step // _STEPS // (2 * shape.place_bytes)
            if arena_rows < least:
                break
            # Every group and range has a block at least: most attempts that fail are seen to without a cut.
            num_buckets = (num_fetches + shape.used.total // 2) // arena_rows
            if 2 * arena_rows * shape.place_bytes + num_buckets * block_bytes > limit_bytes:
                continue
            sizes = _sizes(shape, arena_rows, block_bytes, limit_bytes // _EVALUATION_SHARE)
            if sizes.num_bytes <= limit_bytes:
                found = found or sizes
                # Smaller blocks are taken only where these would leave the arenas little.
                if 8 * arena_rows * shape.place_bytes >= limit_bytes:
                    return sizes
                break
    return found


def _sizes(shape: SpillShape, arena_rows: int, block_bytes: int, evaluation_bytes: int) -> SpillSizes:
    group_first = cut_groups(shape.fetches_of_items, arena_rows)
    # Ranges are merged when the arenas are no longer needed, in their memory: all rows of one, or its records
    # and a part of its rows.
    range_first = shape.used.cut(shape.rows_of_tables, arena_rows, 2 * arena_rows)
    evaluation_rows = evaluation_bytes // shape.read_bytes
    num_buckets = group_first.size + range_first.size - 2
    # One block more is for the thread that evaluates or merges.
    blocks = num_buckets + 2 * NUM_WRITERS + NUM_READERS + 1
    num_bytes = 2 * arena_rows * shape.place_bytes + blocks * block_bytes + evaluation_bytes
    num_bytes += 8 * (group_first.size + range_first.size) + 8 * num_buckets + shape.used.num_bytes
    return SpillSizes(arena_rows, block_bytes, evaluation_rows, group_first, range_first, num_bytes)


_PLANS = "step plans", "give another --slow-dir, or free disk space"


def mapped_zeros(folder: Path, count: int, dtype: DTypeLike, room_bytes: int = 0) -> NDArray[Any]:
    """Return (count,) zeros, in memory or in a nameless file.

    They are in memory where they fit in ``room_bytes``.

    Raises:
        HotsetError: the disk has no room for them.
    """
    num_bytes = count * np.dtype(dtype).itemsize
    if num_bytes <= room_bytes or num_bytes == 0:
        return np.zeros(count, dtype)
    with disk_space(folder, num_bytes, *_PLANS):
        return np.frombuffer(mapped_file(folder, num_bytes), dtype)


class SpooledArrays:
    """Arrays that are appended to a nameless file of ``folder`` and then mapped together."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._entries: list[tuple[int, np.dtype[Any], int]] = []
        self._end = 0
        with disk_space(folder, 0, *_PLANS):
            self._file = tempfile.TemporaryFile(dir=folder)

    def append(self, values: NDArray[Any]) -> None:
        """Append a one-dimensional array.

        Raises:
            HotsetError: the disk has no room for it.
        """
        # Each array begins at a multiple of its numbers' size; arrays of one type are one, too.
        padding = -self._end % values.itemsize
        with disk_space(self._folder, values.nbytes, *_PLANS):
            self._file.write(bytes(padding))
            self._file.write(np.ascontiguousarray(values).data)
        self._entries.append((self._end + padding, values.dtype, values.size))
        self._end += padding + values.nbytes

    def map(self) -> Sequence[NDArray[Any]]:
        """Return all arrays in order; what is written to them stays in memory."""
        whole = self._map_bytes()
        return [
            whole[first : first + count * dtype.itemsize].view(dtype) for first, dtype, count in self._entries
        ]

    def map_joined(self, dtype: DTypeLike) -> NDArray[Any]:
        """Return arrays, all of this type, as one, and close the file."""
        return self._map_bytes().view(dtype)

    def _map_bytes(self) -> NDArray[np.uint8]:
        with disk_space(self._folder, self._end, *_PLANS), self._file:
            self._file.flush()
            if os.fstat(self._file.fileno()).st_size != self._end:
                raise OSError(0, f"it does not keep {self._end} bytes")
            if self._end == 0:  # an empty file cannot be mapped
                return np.empty(0, np.uint8)
            # Private pages, and so arrays that Numba takes as it takes those in memory.
            return np.asarray(np.memmap(self._file, np.uint8, "c"))


_LEAST_ROWS = 1 << 16
"""Rows of a pass at least: 512 KiB."""


@dataclass(frozen=True, slots=True)
class EpochPlans:
    """The step plans of one epoch and table group."""

    chunks: tuple[StepPlans, ...]
    residents: NDArray[np.int64]
    """(num_residents,); rows written back after the last step."""


@dataclass(frozen=True, slots=True)
class RunFetches:
    """All fetches of a run in one table group."""

    epochs: tuple[EpochFetches, ...]
    fetches_of_items: NDArray[np.int64]
    """(num_items,); rows that each transfer item fetches."""
    rows: NDArray[np.int64]
    """(num_fetches,); the row of each, mapped."""
    used: UsedRows
    """Counts of the rows that are written back at least once."""


def find_fetches(
    epochs: Sequence[EpochPlans],
    num_rows: int,
    folder: Path,
    memory_bytes: int,
    restored_U: NDArray[np.int64] | None = None,
) -> RunFetches:
    """Find all fetches of a run, and what follows each write back.

    Args:
        epochs: the plans, of all epochs in order.
        num_rows: rows are below it.
        folder: where files without a name may lie.
        memory_bytes: memory that next fetches may take while they are found.
        restored_U: (num_restored,); rows that were used before the first of the plans; None: none was.

    Raises:
        HotsetError: the disk is too small.
    """
    chunks = [chunk for epoch in epochs for chunk in epoch.chunks]
    fetches_of_items = np.concatenate([np.empty(0, np.int64), *map(_fetches_of_steps, chunks)])
    used = UsedRows(num_rows)
    if restored_U is not None:
        used.add(restored_U)

    # The row of each fetch, in order; a mapped file, since a long run has billions.
    rows = mapped_zeros(folder, int(fetches_of_items.sum()), np.int64)
    end = 0
    for chunk in chunks:
        used.add(chunk.fetch_rows[chunk.fetch_is_first])
        fetched = chunk.fetch_rows[~chunk.fetch_is_first]
        rows[end : end + fetched.size] = fetched
        end += fetched.size

    # What is fetched next is known from the end backwards, for as many rows at a time as memory holds.
    found = _empty_fetches(epochs, folder)
    rows_of_pass = max(memory_bytes // 8, _LEAST_ROWS)
    for first_row in range(0, num_rows, rows_of_pass):
        next_of_row = np.full(min(rows_of_pass, num_rows - first_row), NO_FETCH, np.int64)
        _find_in_range(epochs, found, first_row, next_of_row, rows.size)
    return RunFetches(tuple(found), fetches_of_items, rows, used)


def _find_in_range(
    epochs: Sequence[EpochPlans],
    found: Sequence[EpochFetches],
    first_row: int,
    next_of_row: NDArray[np.int64],
    end: int,
) -> None:
    """Walk all plans backward, for the rows of one range."""
    for epoch, of_epoch in zip(reversed(epochs), reversed(found), strict=True):
        rows = epoch.residents - first_row
        is_inside = (rows >= 0) & (rows < next_of_row.size)
        of_epoch.of_residents[is_inside] = next_of_row[rows[is_inside]]
        for chunk, fetches in zip(reversed(epoch.chunks), reversed(of_epoch.chunks), strict=True):
            end = find_next_fetches(
                chunk, end, first_row, next_of_row, fetches.of_write_backs, fetches.of_splits
            )
    assert end == 0, "fetches are numbered from 0"


def _empty_fetches(epochs: Sequence[EpochPlans], folder: Path) -> list[EpochFetches]:
    """Allocate the results, all in one mapped file."""

    def sizes_of(chunk: StepPlans) -> tuple[int, int]:
        return chunk.write_back_rows.size, chunk.fetch_rows.size if chunk.is_split.any() else 0

    total = sum(sum(sizes_of(chunk)) for epoch in epochs for chunk in epoch.chunks)
    whole = mapped_zeros(folder, total + sum(epoch.residents.size for epoch in epochs), np.int64)
    end = 0

    def cut(count: int) -> NDArray[np.int64]:
        nonlocal end
        end += count
        part: NDArray[np.int64] = whole[end - count : end]
        return part

    # The parts of each chunk follow each other, then those that live to the end of the epoch.
    found = []
    first_fetch = 0
    for epoch in epochs:
        chunks = tuple(ChunkFetches(*map(cut, sizes_of(chunk))) for chunk in epoch.chunks)
        found.append(EpochFetches(first_fetch, chunks, cut(epoch.residents.size)))
        first_fetch += sum(int(_fetches_of_steps(chunk).sum()) for chunk in epoch.chunks)
    return found


def _fetches_of_steps(chunk: StepPlans) -> NDArray[np.int64]:
    # A row that is initialized on the fast tier is not fetched, so only the others count.
    running = np.concatenate([[0], np.cumsum(~chunk.fetch_is_first, dtype=np.int64)])
    fetches: NDArray[np.int64] = np.diff(running[chunk.fetch_offsets])
    return fetches


LEAST_BLOCK_BYTES = 4 * KIB
"""Blocks of direct input and output are multiples of a page."""


_HINT = "give another --slow-dir, free disk space, or raise --slow-bytes"


def aligned_blocks(num_blocks: int, block_bytes: int) -> NDArray[np.uint8]:
    """Return page-aligned zeros for direct I/O, (num_blocks, block_bytes), free until written."""
    num_bytes = num_blocks * block_bytes
    if num_bytes == 0:
        return np.zeros((num_blocks, block_bytes), np.uint8)
    return np.frombuffer(mmap.mmap(-1, num_bytes), np.uint8).reshape(num_blocks, block_bytes)


class BlockFile:
    """Blocks on disk by number; may be used by several threads.

    Args:
        folder: where the file lies.
        block_bytes: bytes of each block, a multiple of ``LEAST_BLOCK_BYTES``.
        num_blocks: blocks that are reserved; more are taken if there is room.

    Raises:
        HotsetError: the folder cannot be written, or its disk is too small.
    """

    def __init__(self, folder: Path, block_bytes: int, num_blocks: int) -> None:
        assert block_bytes % LEAST_BLOCK_BYTES == 0
        self.block_bytes = block_bytes
        self.reads = 0
        self.writes = 0
        self._folder = folder
        self._lock = threading.Lock()
        self._free: list[int] = []
        self._num_blocks = 0
        with disk_space(folder, num_blocks * block_bytes, "rows", _HINT):
            self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
            # Also where a run ends by an error before it closes its files.
            self._close = weakref.finalize(self, self._file.close)
            if num_blocks:
                # Reserve all room now: a disk that is too small is found before training begins.
                os.posix_fallocate(self._file.fileno(), 0, num_blocks * block_bytes)
        self.is_direct = self._use_direct()

    def allocate(self) -> int:
        """Return the number of a free place for a block."""
        with self._lock:
            number = self._free.pop() if self._free else self._num_blocks
            self._num_blocks = max(self._num_blocks, number + 1)
            return number

    def write(self, number: int, block: NDArray[np.uint8]) -> None:
        """Write one block to its place; raises HotsetError where the disk is full or faulty."""
        with self._lock:
            self.writes += 1
        self._move(lambda view, first: os.pwrite(self._file.fileno(), view, first), "written", block, number)

    def read(self, number: int, block: NDArray[np.uint8]) -> None:
        """Read the block ``number`` into ``block``; raises HotsetError where that fails."""
        with self._lock:
            self.reads += 1
        self._move(lambda view, first: os.preadv(self._file.fileno(), [view], first), "read", block, number)
        if not self.is_direct:
            self._drop_cache(number)

    def free(self, number: int) -> None:
        """Let the place of a block be used again."""
        with self._lock:
            self._free.append(number)

    def close(self) -> None:
        """Give the disk space back."""
        self._close()

    def _move(
        self, call: Callable[[memoryview, int], int], verb: str, block: NDArray[np.uint8], number: int
    ) -> None:
        """Call ``call`` until the whole block has moved."""
        assert block.nbytes == self.block_bytes
        first = number * self.block_bytes
        done = 0
        view = block.data
        # A call may move less than a block, after a signal or at the end of the file.
        while done < self.block_bytes:
            try:
                moved = call(view[done:], first + done)
            except OSError as error:
                raise self._fault(verb, error.strerror or str(error)) from error
            if moved == 0:
                raise self._fault(verb, f"it ends after {done} of {self.block_bytes} bytes of a block")
            done += moved

    def _fault(self, verb: str, reason: str) -> HotsetError:
        return HotsetError(f"the spill file in {self._folder} cannot be {verb}: {reason}", hint=_HINT)

    def _use_direct(self) -> bool:
        """Go past the page cache; False where the system or the file system cannot."""
        if not hasattr(os, "O_DIRECT"):
            return False
        # The flag can only be set on the open file, since a temporary one has no name to open again.
        flags = fcntl.fcntl(self._file, fcntl.F_GETFL)
        try:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags | os.O_DIRECT)
        except OSError:
            return False
        # Some file systems take the flag and refuse the first write.
        try:
            os.pwrite(self._file.fileno(), aligned_blocks(1, self.block_bytes)[0].data, 0)
        except OSError:
            fcntl.fcntl(self._file, fcntl.F_SETFL, flags)
            return False
        return True

    def _drop_cache(self, number: int) -> None:
        """Let the page cache forget a block that is not read again."""
        if hasattr(os, "posix_fadvise"):
            first = number * self.block_bytes
            os.posix_fadvise(self._file.fileno(), first, self.block_bytes, os.POSIX_FADV_DONTNEED)
