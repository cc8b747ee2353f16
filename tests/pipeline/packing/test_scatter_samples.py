"""Parts reserve rows of a file that no other part gets, whatever the order they come in."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pytest

from hotset.pipeline.packing.scatter_samples import Buffers, starts_of


@pytest.mark.parametrize(("counts", "starts"), [([5], [0]), ([2, 0, 3], [0, 2, 2]), ([0, 4], [0, 0])])
def test_files_of_a_group_lie_one_behind_the_other(counts: list[int], starts: list[int]) -> None:
    assert starts_of(counts) == starts


def test_reserved_rows_never_overlap_and_fill_each_file(rng: np.random.Generator) -> None:
    # Three files in the group, of which the second holds nothing, and one of another group.
    wanted = rng.integers(0, 5, (40, 4))
    wanted[:, 1] = 0
    totals = wanted.sum(axis=0)
    firsts = np.array([0, totals[0], -1, totals[0]])
    nothing = np.empty(0, np.int32)
    buffers = Buffers(
        rows=nothing.reshape(0, 1),
        keys=np.empty(0, np.uint64),
        bag_starts=np.empty(0, np.int64),
        bags=nothing,
        next_row=firsts.copy(),
        next_lookup=2 * firsts,
        lock=Lock(),
    )
    with ThreadPoolExecutor(4) as pool:
        reserved = list(pool.map(lambda counts: buffers.reserve(counts, 2 * counts), wanted))
    taken = sorted(
        row
        for (rows, _), counts in zip(reserved, wanted, strict=True)
        for file in (0, 1, 3)
        for row in range(rows[file], rows[file] + counts[file])
    )
    assert taken == list(range(totals[0] + totals[3]))
    assert all((lookups[[0, 1, 3]] == 2 * rows[[0, 1, 3]]).all() for rows, lookups in reserved)
    assert all(rows[2] == -1 for rows, _ in reserved) and buffers.next_row[2] == -1
