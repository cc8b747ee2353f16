"""Kernels that move rows between slots, arenas and blocks of the spill file, exactly.

A record in a block is one word that says where the row belongs, then its weights and its optimizer state, as
float32. In the block of a group the word is the place in the arena of the group; in that of a range of rows
it is the row's position in the range.

Shapes: S slots, D embedding_dim, W words of optimizer state, A places of an arena, N rows listed, G groups, H
ranges, K buffers of V words each.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...stats.kernel import kernel

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
