"""Rows that move between ranks: read and written wherever they lie while a step runs.

A row is in its slot of the fast tier, its own or a staged one; where the slow tier serves the step, or the
rows come in passes, in its slot there. Both are on the host.

Shapes: N rows that move, D floats of a row, W floats of its state.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..rows.tiers import Tier
from .embeddings import WidthStep
from .executor import Executor


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


def _places(
    executor: Executor, step: WidthStep, positions_N: NDArray[np.int32]
) -> Iterator[tuple[Tier, NDArray[np.bool_], NDArray[np.int64]]]:
    """Yield each tier, which of the rows lie there, and the slots of these."""
    slots_N = executor.fast_slots(step.lookups, step.plan)[positions_N]
    is_fast_N = slots_N >= 0
    yield executor.fast, is_fast_N, slots_N[is_fast_N]
    slow_U, _ = executor.slow.layout.slots_of(step.lookups)
    yield executor.slow, ~is_fast_N, slow_U[positions_N[~is_fast_N]]
