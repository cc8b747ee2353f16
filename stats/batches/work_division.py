"""How many pieces the work of a batch is cut into, which threads take one after another.

Training cuts by these numbers, and predictions of its time count with them: a batch of few lookups has one
thread, however many there are.
"""

from __future__ import annotations

MOST_TILE_SAMPLES = 512
"""Samples of a tile at most: few enough that its activations stay in the caches of a core."""
_LEAST_TILE_SAMPLES = 256
_FEW_TILES = 4
"""Smaller tiles than the largest are cut for so many threads, but none below the least size: each tile costs
a gradient of its own, which is written and added."""
LEAST_RANGE_LOOKUPS = 16_384
"""Lookups of a range of rows at least, some 0.4 ms of work; to wake a thread takes a tenth of that."""
_RANGES_PER_THREAD = 2
"""Ranges per thread at most: one that comes late, from the step of the dense layers, takes fewer."""


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


def most_row_ranges(num_threads: int) -> int:
    """Return the ranges of distinct rows that are cut for so many threads at most."""
    return 1 if num_threads == 1 else num_threads * _RANGES_PER_THREAD


def num_row_ranges(num_lookups: int, most: int) -> int:
    """Return the ranges of distinct rows, each with about as many lookups.

    Args:
        num_lookups: lookups of the batch, 0 or more.
        most: ranges at most, 1 or more.
    """
    return max(1, min(most, num_lookups // LEAST_RANGE_LOOKUPS))
