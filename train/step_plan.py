"""The step plan: what has to be where for one batch. A record of data; placements make it, the executor
runs it.

Only what is away from home is listed: a look-up of a row that lives on the fast tier needs no entry,
its slot is a base plus its id. Rows of the slow tier are named by their slots there.
"""
# ruff: noqa: N815  (tensors carry shape suffixes)

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HotCopy = Literal["to_fast", "to_slow"]


@dataclass(frozen=True, slots=True)
class Moves:
    """Rows that change tiers, weights and state as one."""

    rows_N: NDArray[np.int64]
    """Slots on the slow tier, none twice."""
    slots_N: NDArray[np.int64]
    """Slots on the fast tier, none twice."""


@dataclass(frozen=True, slots=True)
class Staged:
    """Look-ups of rows that live on the slow tier and stand in staging slots during this step."""

    positions_N: NDArray[np.int64]
    """Positions in the batch, ascending."""
    slots_N: NDArray[np.int64]
    """Slots on the fast tier."""


@dataclass(frozen=True, slots=True)
class InPlace:
    """Look-ups whose vectors go up and whose gradients come down; the rows stay on the slow tier."""

    rows_N: NDArray[np.int64]
    """Slots on the slow tier of the vectors that travel: one a look-up, or one a distinct row."""
    inverse_N: NDArray[np.int32] | None = None
    """Which of ``rows_N`` each look-up reads, where each distinct row travels once."""
    positions_N: NDArray[np.int64] | None = None
    """Positions of the look-ups, ascending; None: all of the batch. A part of them in evaluation only."""


@dataclass(frozen=True, slots=True)
class StepPlan:
    """What the executor does around one batch, in the order of the fields."""

    copy_hot: HotCopy | None = None
    """Copy every hot row between the tiers first (the switch of FAE)."""
    write_back: Moves | None = None
    """Staged rows that go back to the slow tier."""
    fetch: Moves | None = None
    """Rows that come into staging slots, after the write-back."""
    staged: Staged | None = None
    """Look-ups that read staging slots."""
    in_place: InPlace | None = None
    """Look-ups of rows that do not move."""


NOTHING_TO_MOVE = StepPlan()
"""The step plan of a batch all of whose rows live on the fast tier."""
