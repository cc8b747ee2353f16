"""The batches of a cell and the order in which they are trained on.

Those of `fae` are hot-only ones and mixed ones in short turns, half of each, so that its cells measure both
kinds of steps and the copies between them; the batches of other placements follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from ...stats.prediction.access_rates import AccessRates, expected_unique_rows
from ...stats.step_model.zipf_rates import zipf_rates
from ...train.data.batch_order import BatchOrder, RecordedOrder
from ..bench.limited.drawn_shards import DrawnShards
from .cells import Cell

WARM_UP_STEPS = 3
TURN_STEPS = 3
"""Steps of one kind that follow each other."""
_LEAST_STEPS = 6
_MOST_STEPS = 24
_SAMPLES = 32_768
"""Samples that a cell trains on, where its steps are neither too few nor too many for that."""


def num_steps_of(cell: Cell) -> int:
    """Return the steps that are measured of a cell; of fae those of whole turns of both kinds."""
    wanted = min(max(_SAMPLES // cell.batch_size, _LEAST_STEPS), _MOST_STEPS)
    whole = steps_of_cycle(cell)
    return -(-wanted // whole) * whole


def steps_of_cycle(cell: Cell) -> int:
    """Return after how many steps the same kinds of batches come again."""
    return 2 * TURN_STEPS if cell.num_hot else 1


def num_hot_batches(cell: Cell) -> int:
    """Return how many of the batches are hot-only."""
    return num_steps_of(cell) // 2 if cell.num_hot else 0


def shards_of(cell: Cell) -> DrawnShards:
    """Return the log that is drawn for a cell."""
    return DrawnShards(
        num_tables=cell.num_tables,
        rows_of_table=cell.rows_of_table,
        hot_rows_of_table=cell.num_hot,
        num_hot_batches=num_hot_batches(cell),
        skew=cell.skew,
        num_dense=cell.num_dense,
        pooling=cell.pooling,
        batch_size=cell.batch_size,
        num_batches=WARM_UP_STEPS + num_steps_of(cell),
        # Shards have an evaluation part, which no cell reads: one sample is the least.
        num_evaluation=1,
        embedding_dim=cell.embedding_dim,
        optimizer=cell.optimizer,
    )


def rates_of_kinds(cell: Cell) -> list[AccessRates]:
    """Return the rates of rows in mixed batches, and in as many hot-only ones where there are any."""
    sizes = [cell.rows_of_table] + [cell.num_hot] * (num_hot_batches(cell) > 0)
    return [zipf_rates(cell.num_tables, size, cell.skew, cell.pooling) for size in sizes]


def distinct_of_kinds(cell: Cell) -> list[float]:
    """Return the expected distinct rows of a batch of each kind that live at one rank."""
    every = [rates.part(cell.ranks) for rates in rates_of_kinds(cell)]
    return [expected_unique_rows(each.rates, cell.batch_size, each.num_rows) for each in every]


def order_of(cell: Cell) -> BatchOrder:
    """Return the order of the batches of `shards_of`."""
    num_hot = num_hot_batches(cell)
    numbers = np.arange(WARM_UP_STEPS + num_steps_of(cell), dtype=np.int32)
    if not num_hot:
        return RecordedOrder(numbers)
    # Hot-only batches have the first numbers; mixed ones warm up, and end each cycle.
    hot, mixed = numbers[:num_hot], numbers[num_hot:]
    turns = np.stack([hot.reshape(-1, TURN_STEPS), mixed[WARM_UP_STEPS:].reshape(-1, TURN_STEPS)], axis=1)
    return TurnOrder((*mixed[:WARM_UP_STEPS].tolist(), *turns.ravel().tolist()))


class TurnOrder:
    """Batches in turns of both kinds, which are read one by one: fae decides its order as it goes.

    Args:
        numbers: training batch of each step, one epoch of them.
    """

    is_known = False

    def __init__(self, numbers: Sequence[int]) -> None:
        self._numbers = numbers

    def epochs(self) -> Iterator[Iterator[int]]:
        """Batch numbers of the one epoch."""
        yield iter(self._numbers)
