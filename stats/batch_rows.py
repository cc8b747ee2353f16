"""The inputs of a batch: lookups, distinct rows, lookups by row, bags and dense values.

Distinct rows are found in order of first appearance by one pass with a hash table: 1-3 ns per lookup at tens
of thousands of lookups. It serves the trainer, the planners and the simulations.

A radix sort of each table's ids groups a batch by (table, id) in some 12 ns per lookup. It serves lookups
(each row is read once), sums of gradients (each row's lookups are contiguous, in sample order) and planners
(distinct rows without a hash table). Devices get the groups as numbers within each table, which mostly fit 16
bits.

Ids are ranks, so the slot of a row is a comparison and an addition, and its kernels also check the ids.

Training and the predictions of its time divide a batch into the same numbers of pieces: a batch of few
lookups has one thread, however many there are. Dense values become float32, unchanged or under log1p.
Integers under log1p, the values of the Criteo logs, have a faster kernel with a table of the small ones.
Lookups of multi-hot features become bags in sample order. A bag is the lookups of one feature in one sample,
number ``sample * num_features + feature``. One-hot features have one lookup per bag and need none of this.

Shapes: F tables, N lookups, U distinct rows, L lookups of a table (for devices: rows with a long list), D
digits, R values of a digit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .id_tables import mix64
from .kernel import inlined_kernel, kernel
from .simd import prefetch

# ruff: noqa: N815  (arrays carry shape suffixes)


_NOTHING = np.empty(0, np.int32)


class BatchLookups(NamedTuple):
    """The lookups of a batch in sample order, and where those of each table are."""

    ids_N: NDArray[np.int32]
    """Id of each lookup."""
    positions_N: NDArray[np.int32]
    """Positions in ``ids_N`` of the lookups of one table after the other, ascending in each; empty where
    each sample has one lookup in each table, so that lookup i of table f is at ``i * F + f``."""
    offsets_F1: NDArray[np.int64]
    """Lookups of the tables before each one, from 0."""
    num_rows_F: NDArray[np.int64]
    """Rows of each table, at most 2**31."""


@kernel
def _positions_by_table(bags_N: NDArray[np.int64], offsets_F1: NDArray[np.int64], found: Any) -> None:
    """Write the positions of the lookups of each table, ascending; ``offsets_F1`` counts them. Exact."""
    num_tables = offsets_F1.shape[0] - 1
    ends = offsets_F1.copy()
    for position in range(bags_N.shape[0]):
        table = bags_N[position] % num_tables
        found[ends[table]] = np.int32(position)
        ends[table] += 1


def of_matrix(ids_N: NDArray[np.int32], num_rows_F: NDArray[np.int64]) -> BatchLookups:
    """Return lookups of which each sample has one in each table, by sample, then table."""
    num_tables = num_rows_F.shape[0]
    offsets = np.arange(num_tables + 1) * (ids_N.shape[0] // max(num_tables, 1))
    return BatchLookups(ids_N, _NOTHING, offsets, num_rows_F)


def of_bags(
    ids_N: NDArray[np.int32],
    bags_N: NDArray[np.int64],
    num_rows_F: NDArray[np.int64],
) -> BatchLookups:
    """Return lookups that name their bag, ``sample * F + table``, ascending."""
    num_tables = num_rows_F.shape[0]
    counts = np.bincount(bags_N % max(num_tables, 1), minlength=num_tables)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    positions = np.empty(ids_N.shape[0], np.int32)
    _positions_by_table(bags_N, offsets, positions)
    return BatchLookups(ids_N, positions, offsets, num_rows_F)


@kernel
def _find_distinct(
    rows_N: NDArray[np.int64],
    workspace: NDArray[np.int32],
    distinct_N: NDArray[np.int64],
    inverse_N: NDArray[np.int32],
) -> int:
    """Write what `find_distinct` returns, and return the number of distinct rows.

    Open addressing with linear probing in a ``workspace`` of a power of two of cells: one pass, no sort, 512
    KiB of workspace at 53 k lookups.
    """
    mask = np.uint64(workspace.size - 1)
    workspace[:] = -1
    num_distinct = 0
    for lookup in range(rows_N.size):
        # The low bits of a hash choose a cell, since neighboring rows must not fill neighboring cells.
        row = rows_N[lookup]
        cell = mix64(np.uint64(row)) & mask
        # Probe until the row or a free cell is found; a cell holds a position in ``distinct_N``.
        found = workspace[cell]
        while found >= 0 and distinct_N[found] != row:
            cell = (cell + np.uint64(1)) & mask
            found = workspace[cell]
        if found < 0:
            found = np.int32(num_distinct)
            workspace[cell] = found
            distinct_N[num_distinct] = row
            num_distinct += 1
        inverse_N[lookup] = found
    return num_distinct


def find_distinct(rows_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Return the distinct rows in order of first appearance, and each lookup's position among them; exact.

    Args:
        rows_N: (num_lookups,), each at least 0.

    Returns:
        (num_distinct,) rows and (num_lookups,) positions: ``distinct[inverse]`` is ``rows_N``.
    """
    # Between two and four cells per lookup, so that probes stay short.
    num_cells = 1 << max(1, int(2 * rows_N.size - 1).bit_length())
    workspace = np.empty(num_cells, np.int32)
    distinct = np.empty(rows_N.size, np.int64)
    inverse = np.empty(rows_N.size, np.int32)
    num_distinct = _find_distinct(rows_N, workspace, distinct, inverse)
    return distinct[:num_distinct], inverse


MOST_DIGIT_BITS = 11
"""2,048 counters, 16 KiB: they stay in the first-level cache."""
_LEAST_DIGIT_BITS = 4
_MOST_DIGITS = 8
ROW_SHIFT = 32
LOW_BITS = (1 << 32) - 1


class LookupsByRow(NamedTuple):
    """The lookups of a batch, row after row."""

    order_N: NDArray[np.int32]
    """The lookups of each row, ascending: positions among the lookups of the batch."""
    rows_U: NDArray[np.int32]
    """Ids of the distinct rows, ascending in each table, table after table."""
    starts_U1: NDArray[np.int32]
    """Beginning of each row's lookups in ``order``, and the end of the last."""
    first_F1: NDArray[np.int64]
    """Beginning of each table's rows in ``rows``, and the end of the last."""

    @property
    def num_rows(self) -> int:
        """Distinct rows of the batch."""
        return int(self.rows_U.size)

    @property
    def counts_U(self) -> NDArray[np.int32]:  # noqa: N802
        """Lookups of each distinct row."""
        return np.diff(self.starts_U1)


@kernel
def sort_by_digits(
    keys_2L: NDArray[np.int64], num_keys: int, counts_DR: NDArray[np.int64], num_digits: int, width: int
) -> int:
    """Sort keys ``id << 32 | position`` by id, stably; ``keys_2L[result]`` are sorted. Exact.

    Args:
        keys_2L: (2, at least ``num_keys``); the keys are in the first half, and both are written.
        num_keys: keys to sort.
        counts_DR: how often each value of each digit of the ids occurs; written.
        num_digits: digits of an id.
        width: bits of a digit.
    """
    low = np.int64((1 << width) - 1)
    # One pass a digit, the lowest first.
    # The keys go back and forth between two halves; counters become the first position of each digit's value.
    half = 0
    for digit in range(num_digits):
        counts = counts_DR[digit]
        total = np.int64(0)
        for i in range(low + 1):
            count = counts[i]
            counts[i] = total
            total += count
        source = keys_2L[half]
        target = keys_2L[1 - half]
        shift = np.int64(ROW_SHIFT + digit * width)
        # In their order, so that equal digits keep the order of the digits below them.
        for i in range(num_keys):
            key = source[i]
            value = np.uint64((key >> shift) & low)
            target[np.uint64(counts[value])] = key
            counts[value] += 1
        half = 1 - half
    return half


@kernel
def _sort_table(
    batch: BatchLookups,
    table: int,
    keys_2L: NDArray[np.int64],
    counts_DR: NDArray[np.int64],
) -> int:
    """Sort the lookups of one table by id, stably: ``keys_2L[result]`` are ``id << 32 | position``.

    Args:
        batch: the lookups.
        table: which of the tables.
        keys_2L: (2, at least the lookups of the table), written.
        counts_DR: (_MOST_DIGITS, 2 ** MOST_DIGIT_BITS), workspace.

    Returns:
        Which half of ``keys`` is sorted; -1 - the position of a lookup whose id is outside the table.
    """
    first = batch.offsets_F1[table]
    num_lookups = batch.offsets_F1[table + 1] - first
    num_tables = batch.num_rows_F.shape[0]
    # Digits of equal width, few where there are few lookups: counters are summed up for each table.
    # How many bits the largest id has.
    bits = 0
    while (batch.num_rows_F[table] - 1) >> bits > 0:
        bits += 1
    most = _LEAST_DIGIT_BITS
    while num_lookups >> most > 0 and most < MOST_DIGIT_BITS:
        most += 1
    num_digits = (bits + most - 1) // most
    width = 0
    if num_digits:
        width = (bits + num_digits - 1) // num_digits
    low = np.int64((1 << width) - 1)

    # One pass reads the ids, checks them and counts every digit.
    counts_DR[:num_digits, : low + 1] = 0
    for i in range(num_lookups):
        position = i * num_tables + table
        if batch.positions_N.shape[0]:
            position = np.int64(batch.positions_N[first + i])
        row = np.int64(batch.ids_N[position])
        if row < 0 or row >= batch.num_rows_F[table]:
            return -1 - int(position)
        keys_2L[0, i] = (row << ROW_SHIFT) | position
        for digit in range(num_digits):
            counts_DR[digit, np.uint64((row >> (digit * width)) & low)] += 1

    return sort_by_digits(keys_2L, num_lookups, counts_DR, num_digits, width)


@kernel
def _group_lookups(
    batch: BatchLookups,
    keys_2L: NDArray[np.int64],
    counts_DR: NDArray[np.int64],
    found: LookupsByRow,
) -> int:
    """Fill ``found``, whose ``rows`` and ``starts`` are long enough for a distinct row per lookup.

    Returns:
        -1 - the position of a lookup whose id is outside its table, or the number of distinct rows. Exact.
    """
    # Tables one after another; a row begins where the sorted id differs from the one before.
    num_rows = 0
    for table in range(batch.num_rows_F.shape[0]):
        first = batch.offsets_F1[table]
        found.first_F1[table] = num_rows
        half = _sort_table(batch, table, keys_2L, counts_DR)
        if half < 0:
            return half
        keys = keys_2L[half]
        last = np.int64(-1)
        for i in range(batch.offsets_F1[table + 1] - first):
            row = keys[i] >> ROW_SHIFT
            found.order_N[first + i] = np.int32(keys[i] & LOW_BITS)
            if row != last:
                found.rows_U[num_rows] = np.int32(row)
                found.starts_U1[num_rows] = np.int32(first + i)
                num_rows += 1
                last = row
    # One start more than rows, so that each row's lookups end where the next one's begin.
    found.first_F1[batch.num_rows_F.shape[0]] = num_rows
    found.starts_U1[num_rows] = np.int32(batch.ids_N.shape[0])
    return num_rows


def group_lookups(batch: BatchLookups) -> LookupsByRow:
    """Return the lookups of a batch by row.

    Raises:
        IndexError: the id of a lookup is outside its table; its position is the only argument.
    """
    num_lookups = batch.ids_N.shape[0]
    most = int(np.diff(batch.offsets_F1).max(initial=0))
    found = LookupsByRow(
        np.empty(num_lookups, np.int32),
        np.empty(num_lookups, np.int32),
        np.empty(num_lookups + 1, np.int32),
        np.empty(batch.num_rows_F.shape[0] + 1, np.int64),
    )
    keys_2L = np.empty((2, most), np.int64)
    counts_DR = np.empty((_MOST_DIGITS, 1 << MOST_DIGIT_BITS), np.int64)
    num_rows = _group_lookups(batch, keys_2L, counts_DR, found)
    if num_rows < 0:
        raise IndexError(-1 - num_rows)
    # Copies, because most of what was allocated for rows is not used.
    return found._replace(
        rows_U=found.rows_U[:num_rows].copy(), starts_U1=found.starts_U1[: num_rows + 1].copy()
    )


LONG_LOOKUPS = 256
"""Lookups of a row in a batch above which its list is long: a GPU sums it in several programs. The host does
not: its threads divide the rows of a batch, and a row has the lookups of one table at most."""

_POSITION_BITS = np.uint64(31)
"""Bits of a position among the lookups of a batch."""


class PackedLookups(NamedTuple):
    """Places for the lists of a batch, each at least as long as needed."""

    order_N: NDArray[Any]
    """uint16 or int32; sample of each lookup."""
    starts_U: NDArray[Any]
    """uint16 or int32; where the lookups of each row begin among those of its table."""
    long_rows_L: NDArray[np.int32]
    """Positions among the rows of a table of those with more than `LONG_LOOKUPS` lookups."""
    long_offsets_F1: NDArray[np.int32]
    staged_offsets_F1: NDArray[np.int32]
    """Rows before each table that do not live on the fast tier."""


@kernel
def pack_lookups(
    lookups: LookupsByRow,
    num_samples: int,
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    packed: PackedLookups,
) -> None:
    """Write lookups as numbers within their tables, one lookup of each table in a sample.

    Args:
        lookups: of a batch, by position ``sample * num_tables + table``.
        num_samples: of the batch.
        first_F: (num_tables,); first id of each table that lives on the fast tier.
        last_F: (num_tables,); one past its last.
        packed: written.

    Error:
        Exact: a position is below 2**31, and ``scale`` is off 2**shift / num_tables by less than 1, so that
        the error of the quotient is below 2**31 / 2**shift <= 1 / num_tables.
    """
    num_tables = lookups.first_F1.shape[0] - 1
    # Division by a multiplication and a shift: seven times as fast.
    shift = _POSITION_BITS
    while (np.uint64(1) << (shift - _POSITION_BITS)) < np.uint64(num_tables):
        shift += np.uint64(1)
    scale = (np.uint64(1) << shift) // np.uint64(max(num_tables, 1)) + np.uint64(1)
    for i in range(lookups.order_N.shape[0]):
        packed.order_N[i] = (np.uint64(lookups.order_N[i]) * scale) >> shift
    num_long = 0
    num_staged = 0
    for table in range(num_tables):
        packed.long_offsets_F1[table] = num_long
        packed.staged_offsets_F1[table] = num_staged
        first_row = lookups.first_F1[table]
        lookups_before = table * num_samples
        for row in range(first_row, lookups.first_F1[table + 1]):
            start = lookups.starts_U1[row]
            packed.starts_U[row] = start - lookups_before
            # Rows with long lists, and rows without a place on the fast tier.
            if lookups.starts_U1[row + 1] - start > LONG_LOOKUPS:
                packed.long_rows_L[num_long] = row - first_row
                num_long += 1
            num = lookups.rows_U[row]
            num_staged += num < first_F[table] or num >= last_F[table]
    packed.long_offsets_F1[num_tables] = num_long
    packed.staged_offsets_F1[num_tables] = num_staged


@inlined_kernel
def slot_of(row: int, first: int, last: int, base: int) -> int:
    """Return the slot of a row on a tier with rows ``first`` to ``last``, or -1."""
    return base + row - first if first <= row < last else -1


@kernel
def locate_lookups(
    ids_N: NDArray[np.int32],
    bags_N: NDArray[np.int64],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Write the slot of every lookup on a tier that holds ids ``first`` to ``last`` of each table.

    Args:
        ids_N: (num_lookups,), in sample order.
        bags_N: (num_lookups,); bag of each, its feature is ``bag % num_features``; empty where each sample
            has one lookup in each table.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_N: (num_lookups,), written; -1 where the row is not on this tier.

    Returns:
        How many lookups are not on this tier, ids outside any table among them. Exact.
    """
    num_absent = 0
    num_features = np.uint64(first_F.size)  # the remainder of unsigned numbers takes half the time
    feature = np.uint64(0)
    for i in range(ids_N.size):
        if bags_N.size:
            feature = np.uint64(bags_N[i]) % num_features
        row = np.int64(ids_N[i])
        slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
        num_absent += slot < 0
        slots_N[i] = slot
        feature += np.uint64(1)
        if feature == num_features:
            feature = np.uint64(0)
    return num_absent


@kernel
def locate_distinct_rows(
    rows_U: NDArray[np.int32],
    offsets_F1: NDArray[np.int64],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_U: NDArray[np.int64],
) -> int:
    """Do as `locate_lookups`, for rows given table after table.

    Args:
        rows_U: (num_distinct,), ids.
        offsets_F1: (num_features + 1,); where the rows of each table begin in ``rows``.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_U: (num_distinct,), written; -1 where the row is not on this tier.

    Returns:
        How many rows are not on this tier. Exact.
    """
    num_absent = 0
    for feature in range(first_F.size):
        for i in range(offsets_F1[feature], offsets_F1[feature + 1]):
            row = np.int64(rows_U[i])
            slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
            num_absent += slot < 0
            slots_U[i] = slot
    return num_absent


def first_stray_lookup(ids_BF: NDArray[np.int32], limit_F: NDArray[np.int64]) -> int:
    """Return the position of the first lookup whose id is not in [0, limit) of its table, or -1.

    Args:
        ids_BF: (num_samples, num_features).
        limit_F: (num_features,); one past the last id allowed.

    Returns:
        ``sample * num_features + feature``. Exact.
    """
    # As an unsigned number a negative id is beyond every limit.
    is_stray_BF = ids_BF.view(np.uint32) >= limit_F.astype(np.uint32)
    return int(is_stray_BF.argmax()) if is_stray_BF.any() else -1


MOST_TILE_SAMPLES = 512
"""Samples of a tile at most: few enough that its activations stay in the caches of a core."""
_LEAST_TILE_SAMPLES = 256
_FEW_TILES = 4
"""Tiles are made smaller for so many threads, but not below the least size: each tile has a separate
gradient, which is written and added."""


def num_tiles_of(num_samples: int) -> int:
    """Return the tiles of the dense layers, a power of two; an empty batch has one.

    Args:
        num_samples: samples of a share of the batch, 0 or more.
    """
    found = 1
    while num_samples > found * MOST_TILE_SAMPLES or (
        found < _FEW_TILES and num_samples >= 2 * found * _LEAST_TILE_SAMPLES
    ):
        found *= 2
    return found


def part_of_rank(num_samples: int, rank: int, num_ranks: int) -> tuple[int, int]:
    """Return the first and the last-plus-one sample of a rank: as even parts as whole samples allow."""
    return num_samples * rank // num_ranks, num_samples * (rank + 1) // num_ranks


_VALUES_AHEAD = np.uint64(64)
"""Prefetch distance, values."""


def log1p_table(num_entries: int) -> NDArray[np.float32]:
    """Return log1p of 0, 1, ... computed in float64 and rounded once: the same on any machine."""
    return np.log1p(np.arange(num_entries, dtype=np.float64)).astype(np.float32)


@kernel
def transform_dense(
    values: NDArray[np.int32],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) of some samples as float32, 0 where missing.

    Args:
        values: (num_samples,).
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        table: log1p of the small values, as `log1p_table` computes it.
        out: (num_chosen,) out; may be a strided column.

    Source:
        Naumov et al., arXiv 1906.00091, as its released preprocessing does it.
    """
    has_nulls = is_valid.shape[0] > 0
    num_chosen = np.uint64(chosen.shape[0])
    # Places are unsigned: each signed one would be compared with 0, to count from the end. 1.4 times as fast.
    for place in range(num_chosen):
        # Prefetch a later value: if few are chosen, most of the time is waiting for memory.
        if place + _VALUES_AHEAD < num_chosen:
            prefetch(values, np.uint64(chosen[place + _VALUES_AHEAD]))
        i = np.uint64(chosen[place])
        value = np.uint64(max(values[i], 0))
        if has_nulls:  # by arithmetic: a branch for each value is often mispredicted
            value *= np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))
        is_small = value < np.uint64(table.shape[0])
        out[place] = table[value] if is_small else np.float32(np.log1p(np.float64(value)))


@kernel
def transform_values(
    values: NDArray[np.float64],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    is_log: bool,
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) in float64, or x itself, of some samples, rounded once; 0 where missing.

    Args:
        values: (num_samples,), float64 or int32.
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        is_log: whether it is log1p and not the value itself, which a float32 must be able to hold.
        out: (num_chosen,) out; may be strided.
    """
    has_nulls = is_valid.shape[0] > 0
    for place in range(chosen.shape[0]):
        i = chosen[place]
        value = float(values[i])
        if has_nulls and not (is_valid[i >> 3] >> np.uint8(i & 7)) & 1:
            value = 0.0
        if is_log:
            value = float(np.log1p(value)) if value > 0 else 0.0
        out[place] = np.float32(value)
