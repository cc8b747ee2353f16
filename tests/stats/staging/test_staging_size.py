"""Slots and prefetch depth fit each other, whatever the widths."""

from __future__ import annotations

import pytest

from hotset.stats.staging.staging_size import (
    WidthSizes,
    deepest_prefetch,
    default_staging_bytes,
    slots_of_widths,
)

NARROW = WidthSizes(num_hot=10, num_cold=9_000, row_bytes=64, num_in_batch=100)
WIDE = WidthSizes(num_hot=5, num_cold=1_000, row_bytes=256, num_in_batch=90)


def test_the_hot_rows_set_the_default_where_they_are_many() -> None:
    many = WidthSizes(num_hot=5_000, num_cold=9_000, row_bytes=64, num_in_batch=100)
    assert default_staging_bytes([many], None) == 5_000 * 64
    assert deepest_prefetch([many], 5_000 * 64) == 2


@pytest.mark.parametrize("prefetch", [None, 0, 1, 2, 4])
@pytest.mark.parametrize("widths", [[NARROW], [NARROW, WIDE], [WIDE, NARROW]])
def test_the_default_has_room_for_two_batches_for_each_one_ahead(
    prefetch: int | None, widths: list[WidthSizes]
) -> None:
    num_bytes = default_staging_bytes(widths, prefetch)
    wanted = 1 if prefetch is None else prefetch
    for slots, width in zip(slots_of_widths(widths, num_bytes), widths, strict=True):
        assert slots >= min(2 * (wanted + 1) * width.num_in_batch, width.num_cold)
    assert deepest_prefetch(widths, num_bytes) >= min(wanted, 2)


def test_the_depth_follows_the_slots() -> None:
    found = [deepest_prefetch([NARROW], slots * 64) for slots in (50, 399, 400, 599, 600, 9_000)]
    assert found == [0, 0, 1, 1, 2, 2]


def test_a_slot_for_every_cold_row_allows_any_depth() -> None:
    few = WidthSizes(num_hot=1, num_cold=150, row_bytes=64, num_in_batch=100)
    assert deepest_prefetch([few], 150 * 64) == 2
    assert default_staging_bytes([few], None) < 160 * 64


def test_without_cold_rows_there_is_nothing_to_choose() -> None:
    assert default_staging_bytes([WidthSizes(7, 0, 64, 0)], None) == 7 * 64
    assert deepest_prefetch([WidthSizes(7, 0, 64, 0)], 0) == 2
