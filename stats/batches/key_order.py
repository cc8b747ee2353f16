"""The order of samples by their keys, which are hashes: evenly spread numbers need no comparing sort.

Keys are counted into about as many buckets as there are keys, by the distance to the smallest of them, and
placed bucket by bucket; a bucket then holds one or two keys, which one pass over all of them puts in order.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ..kernel import kernel

MOST_KEYS = 2**31
"""Keys whose places are counted in 32 bits."""
_MOST_OF_BUCKET = 64
"""Keys of a bucket beyond which they are not evenly spread, and a sort that compares is quicker."""


def num_buckets(num_keys: int) -> int:
    """Return how many buckets `sort_spread_keys` takes for so many keys: a power of two, as many or more."""
    return 1 << max(num_keys - 1, 0).bit_length()


def order_keys(
    keys: NDArray[np.uint64],
    next_places: NDArray[np.uint32],
    sorted_keys: NDArray[np.uint64],
    order: NDArray[np.int64],
) -> None:
    """Write the positions of the keys, the smallest key first; exact for any keys, quick for spread ones.

    Args:
        keys: (num_keys,), distinct.
        next_places: (num_buckets(num_keys),), a workspace.
        sorted_keys: (num_keys,), a workspace.
        order: (num_keys,) out.
    """
    next_places[:] = 0
    is_sorted = 0 < keys.shape[0] < MOST_KEYS and sort_spread_keys(keys, next_places, sorted_keys, order)
    if not is_sorted:
        order[:] = np.argsort(keys)


@kernel
def sort_spread_keys(
    keys: NDArray[np.uint64],
    next_places: NDArray[np.uint32],
    sorted_keys: NDArray[np.uint64],
    order: NDArray[np.int64],
) -> bool:
    """Sort keys by counting them into buckets; False, with nothing sorted, where one bucket gets too many.

    Args:
        keys: (num_keys,), one or more.
        next_places: (num_buckets,) in and out, zeros; a power of two.
        sorted_keys: (num_keys,) out, ascending.
        order: (num_keys,) out, positions of the sorted keys in ``keys``.

    Source:
        Dobosiewicz, "Sorting by distributive partitioning", Inf. Process. Lett. 7 (1978).
    """
    num_keys = np.uint64(keys.shape[0])
    smallest = keys[0]
    largest = keys[0]
    for i in range(num_keys):
        smallest = min(smallest, keys[i])
        largest = max(largest, keys[i])

    # The bucket is what is above the lowest bits of the distance to the smallest key.
    shift = np.uint64(0)
    while ((largest - smallest) >> shift) >= np.uint64(next_places.shape[0]):
        shift += np.uint64(1)
    for i in range(num_keys):
        next_places[(keys[i] - smallest) >> shift] += np.uint32(1)

    # Counts become the place of each bucket's first key.
    place = np.uint32(0)
    most = np.uint32(0)
    for bucket in range(next_places.shape[0]):
        count = next_places[bucket]
        most = max(most, count)
        next_places[bucket] = place
        place += count
    if most > _MOST_OF_BUCKET:
        return False
    for i in range(num_keys):
        bucket_of_key = (keys[i] - smallest) >> shift
        place = next_places[bucket_of_key]
        next_places[bucket_of_key] = place + np.uint32(1)
        sorted_keys[place] = keys[i]
        order[place] = np.int64(i)

    # Insertion, which moves a key within its bucket only.
    for i in range(1, keys.shape[0]):
        key = sorted_keys[i]
        position = order[i]
        to = i
        while to > 0 and sorted_keys[to - 1] > key:
            sorted_keys[to] = sorted_keys[to - 1]
            order[to] = order[to - 1]
            to -= 1
        sorted_keys[to] = key
        order[to] = position
    return True
