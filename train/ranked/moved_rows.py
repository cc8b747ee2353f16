"""Rows that cross between ranks apart from the lookups of a step: those that move, and vectors sent early.

A row is in its slot of the fast tier, its own or a staged one; where the slow tier serves the step, or the
rows come in passes, in its slot there. Both are on the host.

A row that is read for the step to come, and that the present one does not use, may not be where that step
will find it: its transfer may wait, run, or be done. What it fetches is read on the slow tier, where an
earlier one wrote it back and where nothing writes it before that step; every other row is in its slot since
an earlier transfer, and stays there. Between two epochs, and where rows come in passes, a row may be in
another slot still, so it is looked for while transfers pause.

Shapes: N rows that cross, D floats of a row, W floats of its state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray

from ..execution.executor import Executor
from ..execution.row_width import WidthStep
from ..rows.tiers import Tier


def read_states(executor: Executor, step: WidthStep, positions_N: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the optimizer states of some rows of a step, (N, W).

    Args:
        executor: of their width.
        step: being run, between its transfers and its update.
        positions_N: of the rows among the distinct rows of the step.
    """
    found_NW = np.empty((positions_N.size, executor.fast.state_SW.shape[1]), np.float32)
    for tier, is_there_N, slots_N in _places(executor, step, positions_N):
        found_NW[is_there_N] = tier.state_SW.numpy()[slots_N]
    return found_NW


def write_rows(
    executor: Executor,
    step: WidthStep,
    positions_N: NDArray[np.int32],
    weights_ND: NDArray[np.float32],
    state_NW: NDArray[np.float32],
) -> None:
    """Set weights and states of some rows of a step, before its update; as in `read_states`."""
    for tier, is_there_N, slots_N in _places(executor, step, positions_N):
        tier.weights_SD.numpy()[slots_N] = weights_ND[is_there_N]
        tier.state_SW.numpy()[slots_N] = state_NW[is_there_N]


def read_ahead(executor: Executor, step: WidthStep, positions_N: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the weights of some rows of a step to come, (N, D), which the present one does not use.

    Args:
        executor: of their width.
        step: the next one, whose transfer follows that of the present one; not in passes.
        positions_N: of the rows among the distinct rows of the step; all have been used before.
    """
    assert step.plan.split is None
    slots_N = executor.fast_slots(step.lookups, step.plan)[positions_N]
    if step.plan.transfer is not None:
        slots_N[np.isin(slots_N, step.plan.transfer.fetch.slots_N)] = -1
    is_fast_N = slots_N >= 0
    found_ND = np.empty((positions_N.size, executor.fast.weights_SD.shape[1]), np.float32)
    found_ND[is_fast_N] = executor.fast.weights_SD.numpy()[slots_N[is_fast_N]]
    slow_U, _ = executor.slow.layout.slots_of(step.lookups)
    found_ND[~is_fast_N] = executor.slow.weights_SD.numpy()[slow_U[positions_N[~is_fast_N]]]
    return found_ND


def read_newest(executor: Executor, step: WidthStep, positions_N: NDArray[np.int32]) -> NDArray[np.float32]:
    """Return the same wherever the rows are; valid while no transfer runs."""
    lookups = step.lookups
    tables_U = np.repeat(np.arange(lookups.first_F1.size - 1), np.diff(lookups.first_F1))
    fast = executor.fast
    weights_ND = torch.empty(positions_N.size, fast.weights_SD.shape[1])
    state_NW = torch.empty(positions_N.size, fast.state_SW.shape[1])
    ids_N = lookups.rows_U[positions_N].astype(np.int64)
    is_copied_N = executor.copy_newest(
        tables_U[positions_N], ids_N, executor.staged.by_row(), weights_ND, state_NW
    )
    assert is_copied_N.all(), "rows of several ranks are in memory"
    return weights_ND.numpy()


def _places(
    executor: Executor, step: WidthStep, positions_N: NDArray[np.int32]
) -> Iterator[tuple[Tier, NDArray[np.bool_], NDArray[np.int64]]]:
    """Yield each tier, which of the rows lie there, and the slots of these."""
    slots_N = executor.fast_slots(step.lookups, step.plan)[positions_N]
    is_fast_N = slots_N >= 0
    yield executor.fast, is_fast_N, slots_N[is_fast_N]
    slow_U, _ = executor.slow.layout.slots_of(step.lookups)
    yield executor.slow, ~is_fast_N, slow_U[positions_N[~is_fast_N]]
