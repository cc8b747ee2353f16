"""The log of a cell and the order of its batches: those of fae are of two kinds, in turns."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hotset.tests.support.planning.made_up_cells import TINY
from hotset.train.data.shards import Shards
from hotset.workflows.characterise.cell_batches import (
    WARM_UP_STEPS,
    num_steps_of,
    order_of,
    shards_of,
    steps_of_cycle,
)

FAE = replace(TINY, placement="fae", fast_share=0.2)


@pytest.mark.parametrize("placement", ["all-fast", "hybrid", "cache", "lookahead"])
def test_batches_follow_each_other_and_are_read_ahead(placement: str) -> None:
    cell = replace(TINY, placement=placement)
    order = order_of(cell)
    assert order.is_known and steps_of_cycle(cell) == 1
    assert [list(epoch) for epoch in order.epochs()] == [list(range(WARM_UP_STEPS + num_steps_of(cell)))]
    assert shards_of(cell).num_hot_batches == shards_of(cell).hot_rows_of_table == 0


def test_batches_of_fae_come_in_turns_and_each_once(tmp_path: Path) -> None:
    shards_of(FAE).write(tmp_path / "shards")
    opened = Shards.open(tmp_path)
    order = order_of(FAE)
    # Training decides this order as it goes, so that nothing may be read before its step.
    assert not order.is_known
    (numbers,) = [list(epoch) for epoch in order.epochs()]
    assert sorted(numbers) == list(range(opened.num_training_batches))
    kinds = opened.is_hot_only[numbers]
    assert not kinds[:WARM_UP_STEPS].any()
    cycles = kinds[WARM_UP_STEPS:].reshape(-1, steps_of_cycle(FAE))
    assert len(cycles) == num_steps_of(FAE) / 6
    assert (cycles == [True, True, True, False, False, False]).all()
    assert [table.num_hot for table in opened.tables] == [60] * 3
    ids = [opened.training_batch(number).ids_BF.max() for number in numbers]
    assert (np.array(ids) < 60)[kinds].all() and not (np.array(ids) < 60)[~kinds].any()
