"""Rows that left memory, each where its next fetch will find it: time-forward processing.

The plan of a run says which fetch needs a row next. Fetches are numbered, and consecutive ones form groups of
batches whose rows fit in an arena, an array with one place for each fetch of the group. A row that is written
back goes straight to its place if the group is the current or the next one; else it is appended to the bucket
of its group, in blocks that are written when they are full and read once, while the group before runs. A row
without a further fetch goes to the bucket of its range of rows, which the end of the run merges. So what a
batch moves is its rows, and every byte on disk is written and read in large blocks. A place is written once
and its number never comes again, so readers of blocks, the writer of rows and the thread that fetches never
use the same place.

At the end of a run the rows of a range are merged a part at a time: initial values, overwritten by what was
stored. A range has at most the rows of both arenas, in whose memory it is merged, or it is longer and has few
rows that were ever written back: then its records are read once and held, and each part takes those it needs.
If memory has no room for the records of a long range, which happens only in very little memory, they are read
again for each part.

The file has blocks of one size and no name, and is gone with the process. Blocks are written and read whole,
past the page cache where the file system allows it: under a limit of memory the cache would compete with the
rows, and copy each byte once more. The disk space is reserved at the start, so that a full disk is an error
of one line before the first step and not after hours.

A record in a block is one word that says where the row belongs, then its weights and its optimizer state, as
float32. In the block of a group the word is the place in the arena of the group; in that of a range of rows
it is the row's position in the range.

Shapes: S slots, D embedding_dim, W words of optimizer state, A places of an arena, N rows listed, G groups, H
ranges, K buffers of V words each.

Source:
    Arge, Algorithmica 37 (2003), for time-forward processing; Belady's order of rows is the plan's.
"""

from __future__ import annotations

import queue
import threading
from array import array
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import HotsetError
from ...stats.kernel import kernel
from ..rows.kernels import copy_rows
from .spill_plan import NUM_READERS, NUM_WRITERS, BlockFile, SpillShape, SpillSizes, aligned_blocks

Block = tuple[NDArray[np.uint32], NDArray[np.float32], int]
"""Words of a block, the same memory as floats, and its records."""


def check_record(record: int) -> None:
    """Raise RuntimeError where a kernel found a misplaced record; -1: none."""
    if record >= 0:
        raise RuntimeError(f"record {record} of a block of the spill file is misplaced")


_PART_PLACES = 1 << 16
"""Places of an arena that are copied at a time."""


class RowStore:
    """The rows of one table group that are in no slot.

    For one thread at a time, which is that of transfers.

    Args:
        shape: the rows.
        sizes: how they are kept, see `choose_all_sizes`.
        rows_of_fetches: (num_fetches,); the row of each fetch of the run.
        folder: where the spill file lies. Disk space is reserved for the rows that are ever written back.

    Raises:
        HotsetError: the disk is too small, now or later.
    """

    def __init__(
        self,
        shape: SpillShape,
        sizes: SpillSizes,
        rows_of_fetches: NDArray[np.int64],
        folder: Path,
    ) -> None:
        self.shape = shape
        self.sizes = sizes
        self._rows_of_fetches = rows_of_fetches
        num_places = sizes.arena_rows
        # Two arenas, of the current group of fetches and of the next; they change roles at each group.
        self._arenas = Arenas(
            np.zeros((2, num_places, shape.embedding_dim), np.float32),
            np.zeros((2, num_places, shape.state_width), np.float32),
            np.zeros((2, num_places), np.uint8),
        )
        # Every bucket may have a block that is being filled; a few more are being written.
        memory = aligned_blocks(sizes.num_buffers, sizes.block_bytes)
        num_buckets = sizes.num_groups + sizes.num_ranges
        self._buckets = Buckets(
            sizes.group_first,
            sizes.range_first,
            memory.view(np.uint32),
            memory.view(np.float32),
            np.full(num_buckets, -1, np.int32),
            np.zeros(num_buckets, np.int32),
        )
        self._blocks = memory
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for number in range(sizes.num_buffers):
            self._free.put(number)
        self._per_block = sizes.block_bytes // shape.record_bytes
        self._on_disk = [array("q") for _ in range(num_buckets)]
        """Numbers of the full blocks of each bucket."""
        self._writing: dict[int, Future[None]] = {}
        """Writes that may not be over, by number of the block. Readers look here, so it is replaced whole."""
        # A block is full when it is written and free once it is read, so no more than these are in use.
        num_stored = shape.used.total
        num_blocks = -(-(num_stored + num_places) // self._per_block) if num_stored else 0
        self._file = BlockFile(folder, sizes.block_bytes, num_blocks)
        self._writers = ThreadPoolExecutor(NUM_WRITERS, "spill-write")
        self._readers = ThreadPoolExecutor(NUM_READERS, "spill-read")
        self._scratch = threading.local()
        self._present = 0
        self._loads: list[Future[None]] = []
        """Reads of the next group that may not be over yet."""
        self._next_fetch = 0
        """Number of the first fetch not made yet."""
        self._fault: HotsetError | None = None
        """Error of a writer, which the next call raises."""

    @property
    def file_bytes(self) -> tuple[int, int]:
        """Bytes that were read from the file so far, and written to it."""
        block_bytes = self.sizes.block_bytes
        return block_bytes * self._file.reads, block_bytes * self._file.writes

    def put(
        self,
        rows_N: NDArray[np.int64],
        next_fetches_N: NDArray[np.int64],
        weights_SD: NDArray[np.float32],
        state_SW: NDArray[np.float32],
        slots_N: NDArray[np.int64],
    ) -> None:
        """Take rows out of slots.

        Args:
            rows_N: the rows, numbered through all tables of the group.
            next_fetches_N: number of the next fetch of each; -1 where there is none.
            weights_SD: weights in slots.
            state_SW: optimizer state in slots.
            slots_N: slot of each row.
        """
        done = 0
        while True:
            # An error of a writer thread stops training at the next call.
            if self._fault is not None:
                raise self._fault
            arguments = (slots_N, rows_N, next_fetches_N, done, self._present, self._arenas, self._buckets)
            done, bucket = append_rows(weights_SD, state_SW, *arguments)
            if bucket == ALL_DONE:
                return
            if bucket == PAST_GROUP:
                raise RuntimeError(f"row {rows_N[done]} is wanted by fetch {next_fetches_N[done]}, long made")
            self._flush(bucket)
            # The kernel stopped because this bucket's block is full: write it, and continue in a free one.
            self._buckets.buffer_of[bucket] = self._free.get()

    def take(
        self,
        numbers_N: NDArray[np.int64],
        weights_SD: NDArray[np.float32],
        state_SW: NDArray[np.float32],
        slots_N: NDArray[np.int64],
    ) -> None:
        """Copy the rows of some fetches, all of one item, to slots.

        Args:
            numbers_N: consecutive numbers of fetches, which may be made more than once.
            weights_SD: weights in slots, written.
            state_SW: optimizer state in slots, written.
            slots_N: slot of each row.
        """
        if numbers_N.size == 0:
            return
        # Fetches come in order, so a group is done once a later fetch is requested.
        while numbers_N[0] >= self.sizes.group_first[self._present + 1]:
            self._go_on()
        arena = self._present & 1
        # A fetch's place in the arena is its number within the group.
        places_N = numbers_N - self.sizes.group_first[self._present]
        is_there_N = self._arenas.is_there[arena][places_N]
        if not is_there_N.all():
            missing = numbers_N[np.argmin(is_there_N)]
            row = self._rows_of_fetches[missing]
            raise RuntimeError(f"fetch {missing} wants row {row}, which was not written back")
        copy_rows(self._arenas.weights[arena], places_N, weights_SD, slots_N)
        copy_rows(self._arenas.state[arena], places_N, state_SW, slots_N)
        self._next_fetch = max(self._next_fetch, int(numbers_N[-1]) + 1)

    @property
    def most_read(self) -> int:
        """Return how many rows `pick` may return with the memory there is."""
        if self._arenas.is_there.size:
            return self.sizes.evaluation_rows
        # The arenas were given back, and their memory is for evaluation too.
        of_arenas = 2 * self.sizes.arena_rows * self.shape.place_bytes
        return self.sizes.evaluation_rows + of_arenas // self.shape.read_bytes

    def finish(self) -> None:
        """Release the arenas after the last fetch; rows are in ranges."""
        self._wait_for_loads()
        nothing = np.zeros((2, 0, 0), np.float32)
        self._arenas = Arenas(nothing, nothing, np.zeros((2, 0), np.uint8))
        self._next_fetch = int(self.sizes.group_first[-1])

    def close(self) -> None:
        """Stop the threads and give the disk space back."""
        self._writers.shutdown(cancel_futures=True)
        self._readers.shutdown(cancel_futures=True)
        self._file.close()

    def parts_of_range(
        self, number: int, fill: Callable[[NDArray[np.int64], NDArray[np.float32]], None]
    ) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
        """Yield the rows of a range, a part at a time; valid after `finish`.

        Args:
            number: which range.
            fill: writes the initial weights of rows.
        """
        range_first, range_stop = self.sizes.range_first[number : number + 2].tolist()
        bucket = self.sizes.num_groups + number
        num_records = len(self._on_disk[bucket]) * self._per_block + int(self._buckets.num_records[bucket])
        arena_rows = self.sizes.arena_rows
        part_rows = 2 * arena_rows
        held: list[Block] | None = None
        # Longer ranges have few records: the memory of the arenas is for these and the rows of a part.
        if range_stop - range_first > part_rows and num_records <= arena_rows:
            record_words = self.shape.record_bytes // 4
            held = []
            for words_V, _, count in self._records(bucket):
                held_V = words_V[: count * record_words].copy()
                held.append((held_V, held_V.view(np.float32), count))
            left = arena_rows * (2 * self.shape.place_bytes - self.shape.record_bytes)
            part_rows = max(left // self.shape.place_bytes, 1)
        # A part at a time: its initial values first, then over them what was stored.
        for first in range(range_first, range_stop, part_rows):
            count = min(part_rows, range_stop - first)
            weights_ND = np.empty((count, self.shape.embedding_dim), np.float32)
            state_NW = np.zeros((count, self.shape.state_width), np.float32)
            is_there_N = np.zeros(count, np.uint8)
            fill(np.arange(first, first + count), weights_ND)
            places = (first - range_first, range_stop - range_first)
            for block in self._records(bucket) if held is None else held:
                check_record(scatter_records(*block, *places, weights_ND, state_NW, is_there_N))
            yield weights_ND, state_NW

    def pick(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Copy the weights of some rows outside slots; nothing moves.

        Args:
            wanted_U: rows, ascending.
            weights_UD: their weights, written for those that were ever written back.
        """
        for rows_N, weights_ND, _ in self.newest() if wanted_U.size else ():
            places_N = np.minimum(np.searchsorted(wanted_U, rows_N), wanted_U.size - 1)
            is_wanted_N = wanted_U[places_N] == rows_N
            weights_UD[places_N[is_wanted_N]] = weights_ND[is_wanted_N]

    def newest(self) -> Iterator[tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]]:
        """Yield every row once, with its weights and state, in any order.

        Nothing moves. One pass over all that is stored, a block or a part of an arena at a time. Arrays are
        valid until the next.
        """
        # Loads that are under way would move rows while they are read.
        self._wait_for_loads()
        # Two groups are in memory: the one that is being used, and the one that is being loaded.
        for group in (self._present, self._present + 1):
            if group < self.sizes.num_groups and self._arenas.is_there.size:
                places_N, rows_N = self._places_of_arena(group)
                weights_AD, state_AW = self._arenas.weights[group & 1], self._arenas.state[group & 1]
                for first in range(0, places_N.size, _PART_PLACES):
                    part = slice(first, first + _PART_PLACES)
                    yield rows_N[part], weights_AD[places_N[part]], state_AW[places_N[part]]
        dim = self.shape.embedding_dim
        record_words = self.shape.record_bytes // 4
        # All other rows are in buckets of the file, or in buffers on their way there.
        for bucket in range(self.sizes.num_groups + self.sizes.num_ranges):
            if not self._on_disk[bucket] and self._buckets.buffer_of[bucket] < 0:
                continue
            # Records of a group name places, those of a range rows; both count from the bucket's first.
            rows_of_places, first_row = self._rows_of_bucket(bucket)
            for words_V, values_V, count in self._records(bucket):
                num_words = count * record_words
                places_N = words_V[:num_words:record_words].astype(np.int64)
                rows_N = rows_of_places[places_N] if rows_of_places.size else first_row + places_N
                values = values_V[:num_words].reshape(count, record_words)
                yield rows_N, values[:, 1 : 1 + dim], values[:, 1 + dim :]

    def _places_of_arena(self, group: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return a group's places taken and not fetched yet, with rows."""
        # What was fetched before is in a slot now, or was written back to a later place.
        start, stop = self.sizes.group_first[group : group + 2].tolist()
        first = max(start, self._next_fetch)
        places_N = np.arange(first, stop) - start
        is_there_N = self._arenas.is_there[group & 1][places_N] != 0
        return places_N[is_there_N], np.array(self._rows_of_fetches[first:stop])[is_there_N]

    def _rows_of_bucket(self, bucket: int) -> tuple[NDArray[np.int64], int]:
        """Return the rows of a bucket's places, and the first row.

        For a group these are the row of each place and 0; for a range nothing and its first row.
        """
        if bucket < self.sizes.num_groups:
            start, stop = self.sizes.group_first[bucket : bucket + 2].tolist()
            return np.array(self._rows_of_fetches[start:stop]), 0
        return np.empty(0, np.int64), int(self.sizes.range_first[bucket - self.sizes.num_groups])

    def _records(self, bucket: int) -> Iterator[Block]:
        """Yield a bucket's blocks and the open one, valid until the next."""
        block = self._scratch_block()
        for number in self._on_disk[bucket]:
            self._read(number, block)
            yield block.view(np.uint32), block.view(np.float32), self._per_block
        # The block being filled is in memory only.
        buffer = self._buckets.buffer_of[bucket]
        if buffer >= 0:
            yield (
                self._buckets.words[buffer],
                self._buckets.values[buffer],
                int(self._buckets.num_records[bucket]),
            )

    def _go_on(self) -> None:
        """Make the next group current, and begin to read its successor."""
        self._wait_for_loads()
        self._present += 1
        group = self._present + 1
        if group >= self.sizes.num_groups:
            return
        # The arena of the group before is free: from now on its places are those of the new group.
        arena = group & 1
        self._arenas.is_there[arena] = 0
        num_places = int(np.diff(self.sizes.group_first[group : group + 2])[0])
        arrays = (self._arenas.weights[arena], self._arenas.state[arena], self._arenas.is_there[arena])
        rows = (0, num_places, *arrays)
        # What waits in memory for the new group goes to its arena first, and its block is free again.
        buffer = self._buckets.buffer_of[group]
        if buffer >= 0:
            num_records = int(self._buckets.num_records[group])
            words = (self._buckets.words[buffer], self._buckets.values[buffer])
            check_record(scatter_records(*words, num_records, *rows))
            self._buckets.buffer_of[group] = -1
            self._buckets.num_records[group] = 0
            self._free.put(buffer)
        # The rest is read in the background, while the current group is used.
        self._loads = [self._readers.submit(self._load, number, rows) for number in self._on_disk[group]]
        self._on_disk[group] = array("q")

    def _load(
        self,
        number: int,
        rows: tuple[int, int, NDArray[np.float32], NDArray[np.float32], NDArray[np.uint8]],
    ) -> None:
        """Read one block into an arena, and free its place on disk."""
        block = self._scratch_block()
        self._read(number, block)
        check_record(scatter_records(block.view(np.uint32), block.view(np.float32), self._per_block, *rows))
        self._file.free(number)

    def _flush(self, bucket: int) -> None:
        """Write the full block of a bucket, if it has one, in the background."""
        buffer = int(self._buckets.buffer_of[bucket])
        if buffer < 0:
            return
        # The block gets its place now, and its bytes while training continues.
        number = self._file.allocate()
        self._on_disk[bucket].append(number)
        written = self._writers.submit(self._write, number, buffer)
        # Writes that have ended need no one to wait for them.
        under_way = {other: write for other, write in self._writing.items() if not write.done()}
        self._writing = under_way | {number: written}
        self._buckets.buffer_of[bucket] = -1
        self._buckets.num_records[bucket] = 0

    def _read(self, number: int, block: NDArray[np.uint8]) -> None:
        """Read a block once it is written."""
        written = self._writing.get(number)
        if written is not None:
            written.result()
        if self._fault is not None:
            raise self._fault
        self._file.read(number, block)

    def _write(self, number: int, buffer: int) -> None:
        try:
            self._file.write(number, self._blocks[buffer])
        except HotsetError as error:
            self._fault = error
            raise
        finally:
            # Also after an error: nobody waits forever.
            self._free.put(buffer)

    def _wait_for_loads(self) -> None:
        for load in self._loads:
            load.result()
        self._loads = []

    def _scratch_block(self) -> NDArray[np.uint8]:
        """Return a block of the calling thread."""
        if not hasattr(self._scratch, "block"):
            self._scratch.block = aligned_blocks(1, self.sizes.block_bytes)[0]
        block: NDArray[np.uint8] = self._scratch.block
        return block


ALL_DONE = -1
PAST_GROUP = -2
"""Results of `append_rows` in place of a bucket."""


class Arenas(NamedTuple):
    """Rows in memory for the current and the next group: group g has arena ``g & 1``."""

    weights: NDArray[np.float32]
    """(2, A, D)."""
    state: NDArray[np.float32]
    """(2, A, W)."""
    is_there: NDArray[np.uint8]
    """(2, A); 1 where the row has arrived."""


class Buckets(NamedTuple):
    """The blocks being filled: later groups first, then ranges of rows."""

    group_first: NDArray[np.int64]
    """(G + 1,); number of the first fetch of each group."""
    range_first: NDArray[np.int64]
    """(H + 1,); first row of each range."""
    words: NDArray[np.uint32]
    """(K, V)."""
    values: NDArray[np.float32]
    """(K, V), the same memory."""
    buffer_of: NDArray[np.int32]
    """(G + H,); -1 where the bucket has none."""
    num_records: NDArray[np.int32]
    """(G + H,); records in that buffer."""


@kernel
def append_rows(
    weights_SD: NDArray[np.float32],
    state_SW: NDArray[np.float32],
    slots_N: NDArray[np.int64],
    rows_N: NDArray[np.int64],
    next_fetches_N: NDArray[np.int64],
    start: int,
    present: int,
    arenas: Arenas,
    buckets: Buckets,
) -> tuple[int, int]:
    """Take rows out of slots to an arena, or to their bucket.

    Rows of the current or the next group go to its arena.

    Args:
        weights_SD: (S, D).
        state_SW: (S, W).
        slots_N: (N,); slot of each row.
        rows_N: (N,); the rows.
        next_fetches_N: (N,); number of the next fetch of each; -1: none.
        start: rows before this one are taken already.
        present: the current group.
        arenas: updated.
        buckets: updated.

    Returns:
        N and ALL_DONE; or the first row that is not taken, with the bucket that has no room for it, or with
        PAST_GROUP where its group is over.
    """
    dim = weights_SD.shape[1]
    width = state_SW.shape[1]
    record_words = 1 + dim + width
    per_block = buckets.words.shape[1] // record_words
    num_groups = buckets.group_first.size - 1
    for i in range(start, slots_N.size):
        slot = slots_N[i]
        number = next_fetches_N[i]
        # Where the row is fetched again, its place is the number of that fetch within its group.
        if number >= 0:
            group = np.searchsorted(buckets.group_first, number, side="right") - 1
            place = number - buckets.group_first[group]
            if group < present:
                return i, PAST_GROUP
            # The current group and the next one are in memory: nothing is written and read again.
            if group <= present + 1:
                arena = group & 1
                for column in range(dim):
                    arenas.weights[arena, place, column] = weights_SD[slot, column]
                for column in range(width):
                    arenas.state[arena, place, column] = state_SW[slot, column]
                arenas.is_there[arena, place] = 1
                continue
            bucket = group
        else:
            # Not fetched again: the row goes to the log of its range, which the end of the run merges.
            bucket = np.searchsorted(buckets.range_first, rows_N[i], side="right") - 1
            place = rows_N[i] - buckets.range_first[bucket]
            bucket += num_groups
        # The caller writes the full block and comes back with an empty one.
        buffer = buckets.buffer_of[bucket]
        if buffer < 0 or buckets.num_records[bucket] == per_block:
            return i, bucket
        # A record is the place and then the floats of weights and state, all 4 bytes wide.
        word = buckets.num_records[bucket] * record_words
        buckets.num_records[bucket] += 1
        buckets.words[buffer, word] = place
        for column in range(dim):
            buckets.values[buffer, word + 1 + column] = weights_SD[slot, column]
        for column in range(width):
            buckets.values[buffer, word + 1 + dim + column] = state_SW[slot, column]
    return slots_N.size, ALL_DONE


@kernel
def scatter_records(
    words_V: NDArray[np.uint32],
    values_V: NDArray[np.float32],
    num_records: int,
    first: int,
    num_places: int,
    weights_AD: NDArray[np.float32],
    state_AW: NDArray[np.float32],
    is_there_A: NDArray[np.uint8],
) -> int:
    """Copy the records of a block to those places that are here.

    Args:
        words_V: (V,); the block.
        values_V: (V,); the same memory.
        num_records: records in it.
        first: place of the bucket that is the first one here; records of others than the A from there on are
            left out.
        num_places: places of the bucket.
        weights_AD: (A, D), written.
        state_AW: (A, W), written.
        is_there_A: (A,); set for each record.

    Returns:
        -1; or the first record whose place is beyond the bucket, or taken.
    """
    dim = weights_AD.shape[1]
    width = state_AW.shape[1]
    for record in range(num_records):
        word = record * (1 + dim + width)
        # A place outside the bucket, or one that is filled already, shows that the file is damaged.
        place = np.int64(words_V[word])
        if place >= num_places:
            return record
        place -= first
        if place < 0 or place >= is_there_A.size:
            continue
        if is_there_A[place]:
            return record
        is_there_A[place] = 1
        for column in range(dim):
            weights_AD[place, column] = values_V[word + 1 + column]
        for column in range(width):
            state_AW[place, column] = values_V[word + 1 + dim + column]
    return -1
