"""How a limit of memory is divided: arenas of two groups, a block for each bucket, and what evaluation reads.

Larger arenas make fewer groups, and each group and each range of rows has a block in memory. So some share of
the limit for the arenas is best; the largest that keeps to the limit is taken. Blocks are of 64 KiB or more
where the limit allows it: a disk moves them at nearly the speed of sequential work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import KIB, ConfigError, format_byte_size
from ...stats.lookahead.step_plans import cut_groups
from .used_rows import UsedRows

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
    """Cold rows of each table of the width, in the order of their slots on the slow tier."""
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
        """Bytes that evaluation takes for a row: its weights, and numbers that are sorted and joined."""
        return 4 * self.embedding_dim + 40

    @property
    def num_rows(self) -> int:
        return sum(self.rows_of_tables)


@dataclass(frozen=True, slots=True)
class SpillSizes:
    """The parts that lie in memory."""

    arena_rows: int
    """Rows of a group, half those of a part of a range, which is merged at the end."""
    block_bytes: int
    evaluation_rows: int
    """Distinct rows that evaluation reads at a time; a single batch may have more."""
    group_first: NDArray[np.int64]
    """(num_groups + 1,); number of the first fetch of each group."""
    range_first: NDArray[np.int64]
    """(num_ranges + 1,); first row of each range. A range lies in one table; it has at most twice the rows of
    an arena, or at most the rows of an arena are ever written back of it, or it is a cell of `UsedRows`."""
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


def choose_sizes(shape: SpillShape, limit_bytes: int) -> SpillSizes:
    """Divide ``limit_bytes`` of memory among what the rows of one width need; raises ConfigError as below."""
    return choose_all_sizes([shape], limit_bytes)[0]


def choose_all_sizes(shapes: Sequence[SpillShape], limit_bytes: int) -> list[SpillSizes]:
    """Divide memory among rows of several widths: each gets the least it needs, and a share of the rest.

    Args:
        shapes: the rows of each width.
        limit_bytes: memory of all of them.

    Raises:
        ConfigError: it is too little; the hint names the least that would do.
    """
    # First what each width cannot do without.
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
    # The rest is divided by what the rows of a width take, of which each gets the best sizes that fit.
    weights = [shape.num_rows * shape.place_bytes for shape in shapes]
    sizes = [
        _best_sizes(shape, own + left * weight // max(sum(weights), 1)) or _best_sizes(shape, own)
        for shape, own, weight in zip(shapes, least, weights, strict=True)
    ]
    return [found for found in sizes if found is not None]


def least_bytes(shape: SpillShape) -> int:
    """Return the least memory that `choose_sizes` accepts, in whole KiB."""
    # Double until it is enough, then halve the range: sizes grow with the memory, though in steps.
    high = KIB
    while _best_sizes(shape, high) is None:
        high *= 2
    low = high // 2
    while high - low > KIB:
        middle = (low + high) // (2 * KIB) * KIB
        if _best_sizes(shape, middle) is None:
            low = middle
        else:
            high = middle
    return high


def _best_sizes(shape: SpillShape, limit_bytes: int) -> SpillSizes | None:
    """Return the sizes with the largest blocks that leave the arenas an eighth; None where none fit."""
    least = _least_arena(shape)
    num_fetches = int(shape.fetches_of_items.sum())
    found: SpillSizes | None = None
    for block_bytes in _usable_blocks(shape):
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


def _usable_blocks(shape: SpillShape) -> Sequence[int]:
    """Sizes of blocks that hold a record, the best first."""
    usable = [size for size in _BLOCK_BYTES if size >= shape.record_bytes]
    # Rows wider than all of them get blocks of their own size, in whole pages.
    page = _BLOCK_BYTES[-1]
    return usable or [-(-shape.record_bytes // page) * page]


def _least_arena(shape: SpillShape) -> int:
    return max(int(shape.fetches_of_items.max(initial=0)), 1)


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
