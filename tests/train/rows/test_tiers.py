"""Layouts and tiers, with rows in slots of their own and staging slots."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from hotset.train.data.batch import BatchIds
from hotset.train.rows.initial_values import InitialValues
from hotset.train.rows.tiers import Layout, Tier


def test_tables_stand_one_after_the_other() -> None:
    layout = Layout.of([0, 2, 0], [3, 6, 0])
    assert layout.base_F.tolist() == [0, 3, 7] and layout.num_own_slots == 7
    assert [layout.slots_of_table(table) for table in range(3)] == [slice(0, 3), slice(3, 7), slice(7, 7)]
    slots, num_absent = layout.locate(BatchIds.of_matrix(np.array([[2, 5, 0], [3, 2, 1]], np.int32)))
    assert slots.tolist() == [2, 6, -1, -1, 3, -1] and num_absent == 3


def test_a_range_that_ends_before_it_begins_is_refused() -> None:
    with pytest.raises(ValueError, match="before it begins"):
        Layout.of([3], [2])


def test_initial_values_do_not_depend_on_the_layout() -> None:
    num_rows = [6, 9]
    whole = Tier(Layout.of([0, 0], num_rows), 4, 0)
    cold = Tier(Layout.of([2, 5], num_rows), 4, 0, num_staging=3)
    for tier in (whole, cold):
        tier.initialize(InitialValues.of(11, [0, 1], num_rows))
    assert torch.equal(cold.weights_SD[:4], whole.weights_SD[2:6])
    assert torch.equal(cold.weights_SD[4:8], whole.weights_SD[6 + 5 :])


def test_tables_and_seeds_start_from_other_values() -> None:
    def values(seed: int) -> torch.Tensor:
        tier = Tier(Layout.of([0, 0], [5, 5]), 3, 0)
        tier.initialize(InitialValues.of(seed, [0, 1], [5, 5]))
        return tier.weights_SD

    first, second = values(0), values(1)
    assert not torch.equal(first[:5], first[5:]) and not torch.equal(first, second)
    assert first.abs().max() < np.sqrt(1 / 5)


def test_state_starts_at_zero_and_counts_in_a_row() -> None:
    tier = Tier(Layout.of([0], [4]), 3, 1, num_staging=2)
    assert tier.state_SW.shape == (6, 1) and not tier.state_SW.any()
    assert tier.row_bytes == 16
