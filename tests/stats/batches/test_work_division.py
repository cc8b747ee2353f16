"""Numbers of tiles and ranges of rows."""

from __future__ import annotations

import pytest

from hotset.stats.batches.work_division import (
    LEAST_RANGE_LOOKUPS,
    MOST_TILE_SAMPLES,
    most_row_ranges,
    num_row_ranges,
    num_tiles_of,
)


@pytest.mark.parametrize("num_samples", [0, 1, 255, 511, 512, 1023, 1024, 2047, 2049, 16_384, 16_385])
def test_tiles_are_the_fewest_powers_of_two_that_are_small_enough_and_serve_a_few_threads(
    num_samples: int,
) -> None:
    # The naive way: of all powers of two the first with tiles of at most 512 samples, or more of them, up to
    # four, as long as each has 256.
    powers = [1 << power for power in range(12)]
    fewest = next(count for count in powers if num_samples <= count * MOST_TILE_SAMPLES)
    for_threads = max(count for count in powers[:3] if count == 1 or num_samples >= 256 * count)
    assert num_tiles_of(num_samples) == max(fewest, for_threads)


def test_few_lookups_are_one_range_and_many_are_two_for_each_thread() -> None:
    most = most_row_ranges(2)
    assert most == 4
    lookups = [LEAST_RANGE_LOOKUPS * times - 1 for times in (1, 2, 3, 4, 5, 100)]
    assert [num_row_ranges(count, most) for count in lookups] == [1, 1, 2, 3, 4, 4]
    assert num_row_ranges(0, most) == num_row_ranges(10**9, most_row_ranges(1)) == 1
