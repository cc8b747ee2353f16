"""How the memory is divided: within the limit, and refused in one line where it is too little."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hotset.pipeline.errors import GIB, KIB, MIB, ConfigError
from hotset.train.spill.spill_sizes import NUM_READERS, SpillShape, SpillSizes, choose_sizes, least_bytes
from hotset.train.spill.used_rows import UsedRows


def shape_of(
    fetches: int = 5000, items: int = 2000, *, dim: int = 16, width: int = 1, tables: tuple[int, ...] = ()
) -> SpillShape:
    tables = tables or (30_000_000, 900_000, 1000)
    used = UsedRows.all_of(sum(tables))
    return SpillShape(dim, width, tables, np.full(items, fetches, np.int64), used)


def bytes_taken(shape: SpillShape, sizes: SpillSizes) -> int:
    """All that a row store allocates, counted anew."""
    arenas = 2 * sizes.arena_rows * (4 * (shape.embedding_dim + shape.state_width) + 1)
    blocks = (sizes.num_buffers + NUM_READERS + 1) * sizes.block_bytes
    evaluation = sizes.evaluation_rows * (4 * shape.embedding_dim + 40)
    lists = sizes.group_first.nbytes + sizes.range_first.nbytes + 8 * (sizes.num_groups + sizes.num_ranges)
    return arenas + blocks + evaluation + lists + shape.used.num_bytes


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("limit", [32 * MIB, 100 * MIB, 512 * MIB, 4 * GIB])
@pytest.mark.parametrize("width", [0, 1, 33])
def test_memory_is_divided_within_the_limit(limit: int, width: int) -> None:
    shape = shape_of(width=width)
    sizes = choose_sizes(shape, limit)
    assert bytes_taken(shape, sizes) <= sizes.num_bytes <= limit
    # Most of the limit is used, in large blocks, and a group's rows fit in an arena.
    assert sizes.num_bytes > 0.8 * limit and (sizes.block_bytes >= 64 * KIB or limit < 100 * MIB)
    assert (np.diff(sizes.group_first) <= sizes.arena_rows).all()
    assert sizes.group_first[-1] == shape.fetches_of_items.sum() and sizes.range_first[-1] == shape.num_rows


def test_too_little_memory_is_refused_with_what_would_do() -> None:
    shape = shape_of()
    enough = least_bytes(shape)
    with pytest.raises(ConfigError, match="a transfer loads up to 5,000 of them") as caught:
        choose_sizes(shape, enough - KIB)
    assert f"--slow-bytes {enough // KIB}KiB would do" in str(caught.value.hint)
    assert bytes_taken(shape, choose_sizes(shape, enough)) <= enough


def test_a_row_wider_than_a_block_gets_blocks_of_its_own_size() -> None:
    shape = shape_of(10, 10, dim=100_000, width=0, tables=(100,))
    sizes = choose_sizes(shape, 64 * MIB)
    assert sizes.block_bytes >= shape.record_bytes and sizes.block_bytes % (4 * KIB) == 0


def test_nothing_to_fetch_needs_little() -> None:
    sizes = choose_sizes(SpillShape(16, 1, (10, 0), np.zeros(3, np.int64), UsedRows.all_of(10)), MIB)
    assert (sizes.num_groups, sizes.num_ranges) == (1, 1)


def test_rows_that_are_never_used_take_no_block() -> None:
    shape = shape_of(items=100)
    used = UsedRows(shape.num_rows)
    used.add(np.arange(0, shape.num_rows, 100))
    few = replace(shape, used=used)
    limit = 16 * MIB
    dense = choose_sizes(shape, limit)
    sizes = choose_sizes(few, limit)
    assert dense.block_bytes <= 16 * KIB and dense.num_ranges > 100
    assert sizes.block_bytes >= 64 * KIB and sizes.num_ranges < 20
    assert bytes_taken(few, sizes) <= sizes.num_bytes <= limit
    assert least_bytes(few) < least_bytes(shape)
