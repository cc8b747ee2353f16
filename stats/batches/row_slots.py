"""Planning kernels: what a batch's look-ups need, and the order batches are visited in.

Ids are ranks, so where a row lives is a comparison and an addition; only rows away from their home
are listed. All kernels are exact, run over one batch's ids (tens of thousands of look-ups, 1-3 ns each)
and serve the trainer, the schedules made before it and the simulations alike.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64, mix64_pair


@numba.njit(cache=True, nogil=True)
def locate_rows(
    ids_BF: NDArray[np.int32],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Write the slot of every look-up on a tier that holds ids ``first`` to ``last`` of each table.

    Args:
        ids_BF: (num_samples, num_features); one look-up each.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_N: (num_samples * num_features,), written; -1 where the row is not on this tier.

    Returns:
        How many look-ups are not on this tier, ids outside any table among them. Exact.
    """
    num_features = ids_BF.shape[1]
    num_absent = 0
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = np.int64(ids_BF[sample, feature])
            slot = np.int64(-1)
            if first_F[feature] <= row < last_F[feature]:
                slot = base_F[feature] + row - first_F[feature]
            else:
                num_absent += 1
            slots_N[sample * num_features + feature] = slot
    return num_absent


@numba.njit(cache=True, nogil=True)
def first_stray_lookup(ids_BF: NDArray[np.int32], limit_F: NDArray[np.int64]) -> int:
    """The position of the first look-up whose id is not in [0, limit) of its table, or -1.

    Args:
        ids_BF: (num_samples, num_features).
        limit_F: (num_features,); one past the last id allowed.

    Returns:
        ``sample * num_features + feature``. Exact.
    """
    num_features = ids_BF.shape[1]
    for sample in range(ids_BF.shape[0]):
        for feature in range(num_features):
            row = ids_BF[sample, feature]
            if row < 0 or row >= limit_F[feature]:
                return sample * num_features + feature  # type: ignore[no-any-return]
    return -1


@numba.njit(cache=True, nogil=True)
def distinct_rows(
    rows_N: NDArray[np.int64],
    scratch: NDArray[np.int32],
    distinct_N: NDArray[np.int64],
    inverse_N: NDArray[np.int32],
) -> int:
    """List the distinct rows of a batch's look-ups in order of first appearance, exactly.

    Open addressing with linear probing: one pass, no sort, 512 KiB of scratch at 53 k look-ups.

    Args:
        rows_N: (num_lookups,), each at least 0, any order.
        scratch: (a power of two, at least 2 * num_lookups); overwritten.
        distinct_N: (num_lookups,), the first ``num_distinct`` are written.
        inverse_N: (num_lookups,), written; ``distinct_N[inverse_N]`` is ``rows_N``.

    Returns:
        num_distinct.
    """
    mask = np.uint64(scratch.size - 1)
    scratch[:] = -1
    num_distinct = 0
    for lookup in range(rows_N.size):
        row = rows_N[lookup]
        cell = mix64(np.uint64(row)) & mask
        found = scratch[cell]
        while found >= 0 and distinct_N[found] != row:
            cell = (cell + np.uint64(1)) & mask
            found = scratch[cell]
        if found < 0:
            found = np.int32(num_distinct)
            scratch[cell] = found
            distinct_N[num_distinct] = row
            num_distinct += 1
        inverse_N[lookup] = found
    return num_distinct


def find_distinct(rows_N: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int32]]:
    """Distinct rows in order of first appearance, and each look-up's place among them.

    Args:
        rows_N: (num_lookups,), each at least 0.

    Returns:
        (num_distinct,) rows and (num_lookups,) places: ``distinct[inverse]`` is ``rows_N``.
    """
    num_cells = 1 << max(1, int(2 * rows_N.size - 1).bit_length())
    scratch = np.empty(num_cells, np.int32)
    distinct = np.empty(rows_N.size, np.int64)
    inverse = np.empty(rows_N.size, np.int32)
    num_distinct = distinct_rows(rows_N, scratch, distinct, inverse)
    return distinct[:num_distinct], inverse


@numba.njit(cache=True, nogil=True)
def _shuffle_keys(seed: np.uint64, keys_N: NDArray[np.uint64]) -> None:
    """Write a 64-bit key for each position of the stream ``seed``; sorting them shuffles."""
    for position in range(keys_N.size):
        keys_N[position] = mix64_pair(seed, np.uint64(position))


def shuffled(num_batches: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """A permutation of ``num_batches`` that depends on (seed, epoch) alone."""
    keys_N = np.empty(num_batches, np.uint64)
    _shuffle_keys(np.uint64(mix64_pair(np.uint64(seed), np.uint64(epoch))), keys_N)
    return np.argsort(keys_N, kind="stable").astype(np.int32)


def spread_evenly(hot_only: NDArray[np.int32], mixed: NDArray[np.int32]) -> NDArray[np.int32]:
    """Merge two sequences so that each keeps its order and is spread evenly over the whole.

    Args:
        hot_only: (num_hot_only,); batch numbers, any.
        mixed: (num_mixed,); likewise.

    Returns:
        (num_hot_only + num_mixed,); in every stretch the share of hot-only batches is the overall one,
        to within one batch.
    """
    middle_of_hot_only = (np.arange(hot_only.size) + 0.5) * mixed.size
    middle_of_mixed = (np.arange(mixed.size) + 0.5) * hot_only.size
    order = np.argsort(np.concatenate([middle_of_hot_only, middle_of_mixed]), kind="stable")
    return np.concatenate([hot_only, mixed])[order].astype(np.int32)


def epoch_order(is_hot_only: NDArray[np.bool_], seed: int, epoch: int, *, spread: bool) -> NDArray[np.int32]:
    """The order in which epoch ``epoch`` visits the training batches.

    Args:
        is_hot_only: (num_batches,); kind of each batch.
        seed: of the run.
        epoch: from 0.
        spread: spread the hot-only batches evenly between the mixed ones (shards of order ``grouped``)
            rather than shuffle all together (``original``).

    Returns:
        (num_batches,); a permutation, a function of the arguments alone.
    """
    order = shuffled(is_hot_only.size, seed, epoch)
    if not spread:
        return order
    return spread_evenly(order[is_hot_only[order]], order[~is_hot_only[order]])
