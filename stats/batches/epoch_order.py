"""The order in which an epoch visits the training batches.

A function of the seed, the epoch and the kinds of the batches alone, so that trainer, schedule and simulation
find the same order without passing it on.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..hashing import mix64_pair
from ..kernel import kernel


@kernel
def _shuffle_keys(seed: np.uint64, keys_N: NDArray[np.uint64]) -> None:
    """Write a 64-bit key for each position of the stream ``seed``; sorting them shuffles."""
    for position in range(keys_N.size):
        keys_N[position] = mix64_pair(seed, np.uint64(position))


def shuffled(num_batches: int, seed: int, epoch: int) -> NDArray[np.int32]:
    """Return a permutation of ``num_batches`` that depends on (seed, epoch) alone."""
    keys_N = np.empty(num_batches, np.uint64)
    _shuffle_keys(np.uint64(mix64_pair(np.uint64(seed), np.uint64(epoch))), keys_N)
    return np.argsort(keys_N, kind="stable").astype(np.int32)


def spread_evenly(hot_only: NDArray[np.int32], mixed: NDArray[np.int32]) -> NDArray[np.int32]:
    """Merge two sequences so that each keeps its order and is spread evenly over the whole.

    Args:
        hot_only: (num_hot_only,); batch numbers, any.
        mixed: (num_mixed,); likewise.

    Returns:
        (num_hot_only + num_mixed,); every run of consecutive batches has the overall share of hot-only ones,
        to within one batch.
    """
    # Cut the epoch into as many equal intervals as a kind has batches, and merge by the middles of the
    # intervals; both are multiplied by the product of the two numbers, which keeps them exact.
    middle_of_hot_only = (np.arange(hot_only.size) + 0.5) * mixed.size
    middle_of_mixed = (np.arange(mixed.size) + 0.5) * hot_only.size
    order = np.argsort(np.concatenate([middle_of_hot_only, middle_of_mixed]), kind="stable")
    return np.concatenate([hot_only, mixed])[order].astype(np.int32)


def epoch_order(is_hot_only: NDArray[np.bool_], seed: int, epoch: int, *, spread: bool) -> NDArray[np.int32]:
    """Return the order in which epoch ``epoch`` visits the training batches.

    Args:
        is_hot_only: (num_batches,); kind of each batch.
        seed: seed of the run.
        epoch: number of the epoch, from 0.
        spread: spread the hot-only batches evenly between the mixed ones (shards of order ``grouped``)
            rather than shuffle all together (``original``).

    Returns:
        (num_batches,); a permutation, a function of the arguments alone.
    """
    order = shuffled(is_hot_only.size, seed, epoch)
    if not spread:
        return order
    return spread_evenly(order[is_hot_only[order]], order[~is_hot_only[order]])
