"""Opens the row stores of a run whose cold rows do not fit in memory, once all its epochs are planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..placements.plan_queue import PlanQueue
from ..spill.row_store import RowStore
from ..spill.run_plan import EpochPlans, RunFetches, find_fetches
from ..spill.spill_sizes import SpillShape, choose_all_sizes
from ..spill.spilled_tier import SpilledTier
from .row_width import RowWidth

PLANNING_SHARE = 4
"""One part in so many of the memory may be taken by a list of all cold rows while the run is planned. Two are
needed at a time; one that does not fit lies in a mapped file."""


@dataclass(frozen=True, slots=True)
class SpillLimits:
    """The memory that cold rows of all widths may take, and where the others lie."""

    memory_bytes: int
    folder: Path

    @property
    def planning_bytes(self) -> int:
        """Memory for a list of all cold rows."""
        return self.memory_bytes // PLANNING_SHARE


def open_stores(
    widths: Sequence[RowWidth],
    epochs: Sequence[Sequence[PlanQueue]],
    limits: SpillLimits,
    restored: Sequence[NDArray[np.int64]],
) -> None:
    """Divide the memory, tell the plans where rows come from and go to, and open the store of each width.

    Args:
        widths: those with cold rows on the slow tier.
        epochs: of each epoch the plans of all widths.
        limits: of all widths together.
        restored: of each width the rows of a checkpoint, ascending, which the stores are given before the
            first step.

    Raises:
        ConfigError: the memory is too little; the hint names what would do.
        HotsetError: the disk is too small.
    """
    # Widths without cold rows have nothing to spill.
    spilling = [
        (width, [of_widths[number] for of_widths in epochs], rows_U)
        for number, (width, rows_U) in enumerate(zip(widths, restored, strict=True))
        if width.placement.slow.num_own_slots
    ]
    # The sizes follow from what the plans fetch, so these are read before memory is divided.
    found = [_fetches_of(width, queues, rows_U, limits) for width, queues, rows_U in spilling]
    shapes = [_shape_of(width, fetches) for (width, _, _), fetches in zip(spilling, found, strict=True)]
    divided = choose_all_sizes(shapes, limits.memory_bytes)
    # Each plan learns where its rows come from and go to, then the store of the width can be opened.
    for (width, queues, rows_U), fetches, shape, sizes in zip(spilling, found, shapes, divided, strict=True):
        before, *of_epochs = fetches.epochs
        for queue, of_epoch in zip(queues, of_epochs, strict=True):
            queue.set_fetches(of_epoch)
        store = RowStore(shape, sizes, fetches.rows, limits.folder)
        _slow_tier(width).open(store, rows_U, before.of_residents)


def _fetches_of(
    width: RowWidth, queues: Sequence[PlanQueue], restored_U: NDArray[np.int64], limits: SpillLimits
) -> RunFetches:
    # Restored rows are those that an epoch without a step, before all others, writes back.
    plans = [EpochPlans((), restored_U)]
    plans += [EpochPlans(queue.chunks, queue.flush.write_back.rows_N) for queue in queues]
    num_rows = width.placement.slow.num_own_slots
    return find_fetches(plans, num_rows, limits.folder, limits.planning_bytes, restored_U)


def _shape_of(width: RowWidth, fetches: RunFetches) -> SpillShape:
    slow = _slow_tier(width)
    counts = slow.layout.last_F - slow.layout.first_F
    state_width = slow.state_SW.shape[1]
    rows_of_tables = tuple(counts.tolist())
    return SpillShape(
        width.embedding_dim, state_width, rows_of_tables, fetches.fetches_of_items, fetches.used
    )


def _slow_tier(width: RowWidth) -> SpilledTier:
    slow = width.executor.slow
    assert isinstance(slow, SpilledTier)
    return slow
