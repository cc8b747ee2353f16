"""The copy of all hot rows at a switch."""

from __future__ import annotations

import pytest
import torch

from hotset.train.execution.replicator import Replicator
from hotset.train.rows.step_plan import HotCopy
from hotset.train.rows.tiers import Layout, Tier

NUM_ROWS, NUM_HOT = [4, 3, 6], [2, 0, 5]


def make_tiers() -> tuple[Tier, Tier]:
    fast, slow = (Tier(Layout.of([0, 0, 0], last), 3, 2, num_staging=1) for last in (NUM_HOT, NUM_ROWS))
    for tier, sign in ((fast, 1), (slow, -1)):
        numbers = torch.arange(tier.weights_SD.numel(), dtype=torch.float32)
        tier.weights_SD.copy_(sign * numbers.view_as(tier.weights_SD))
        tier.state_SW.copy_(sign * torch.arange(tier.state_SW.numel()).view_as(tier.state_SW))
    return fast, slow


@pytest.mark.parametrize("direction", ["to_fast", "to_slow"])
def test_weights_and_state_of_every_hot_row_are_copied_and_nothing_else(direction: HotCopy) -> None:
    fast, slow = make_tiers()
    fast_before, slow_before = make_tiers()
    Replicator(fast, slow).copy(direction)
    pairs = [(table, row) for table in range(3) for row in range(NUM_HOT[table])]
    for name in ("weights_SD", "state_SW"):
        expected_fast, expected_slow = getattr(fast_before, name).clone(), getattr(slow_before, name).clone()
        for table, row in pairs:
            on_fast = fast.layout.slots_of_table(table).start + row
            on_slow = slow.layout.slots_of_table(table).start + row
            if direction == "to_fast":
                expected_fast[on_fast] = getattr(slow_before, name)[on_slow]
            else:
                expected_slow[on_slow] = getattr(fast_before, name)[on_fast]
        assert torch.equal(getattr(fast, name), expected_fast)
        assert torch.equal(getattr(slow, name), expected_slow)


def test_a_copy_is_all_hot_rows_with_their_state() -> None:
    assert Replicator(*make_tiers()).num_rows_F.sum() == 7
