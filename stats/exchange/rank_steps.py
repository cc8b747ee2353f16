"""The rows of each step that concern one rank, cut out of the plan of an epoch.

A row concerns the ranks that look it up in the step, and those where it lives before and after it. These
alone send, receive or serve it: the messages of a rank are the same whether they are listed from all rows of
a step or from those that concern it. Of a row whose home the step gives or changes, the other ranks note the
new home, so that every rank knows where each row lives after any step.

A vector may travel a step early, while the step before is computed, where that step does not update its row:
where it does not use it.

Shapes: U entries of all batches, S steps, N rows that concern a rank, P rows whose home others change,
W ranks.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..kernel import inlined_kernel, kernel
from .home_moves import NO_HOME
from .rank_masks import Masks

NEVER_USED = -2
"""The last step of a row that no step has used; the step before step 0 is -1."""


class PlannedUses(NamedTuple):
    """The distinct rows of each batch, the ranks that use them, and their homes in one epoch."""

    offsets: NDArray[np.int64]
    """(num_batches + 1,); where the rows of each batch begin."""
    keys_U: NDArray[np.int32]
    """Ascending in a batch."""
    masks_U: Masks
    """The ranks that use each; at least one."""
    before_U: NDArray[np.uint8]
    """The rank where each lives when the step begins; `NO_HOME` at its first use."""
    after_U: NDArray[np.uint8]
    """The rank where it lives from then on."""
    is_early_U: NDArray[np.uint8]
    """1 where its vector may travel a step early."""


class RankSteps(NamedTuple):
    """The rows of consecutive steps that concern one rank."""

    starts_S1: NDArray[np.int64]
    keys_N: NDArray[np.int32]
    """Ascending in a step."""
    masks_N: Masks
    before_N: NDArray[np.uint8]
    after_N: NDArray[np.uint8]
    is_early_N: NDArray[np.uint8]
    passed_starts_S1: NDArray[np.int64]
    passed_keys_P: NDArray[np.int32]
    """Rows that do not concern the rank, whose home the step gives or changes; ascending in a step."""
    passed_homes_P: NDArray[np.uint8]
    """That home."""

    @property
    def num_steps(self) -> int:
        """Steps of the part."""
        return int(self.starts_S1.size) - 1


@kernel
def _mark_early(
    keys_U: NDArray[np.int32],
    before_U: NDArray[np.uint8],
    number: int,
    last_step_K: NDArray[np.int32],
    is_early_U: NDArray[np.uint8],
) -> None:
    for i in range(keys_U.shape[0]):
        row = np.int64(keys_U[i])
        is_early_U[i] = before_U[i] != NO_HOME and last_step_K[row] != number - 1


def mark_early(
    keys: NDArray[np.int32], before: NDArray[np.uint8], number: int, last_steps: NDArray[np.int32]
) -> NDArray[np.uint8]:
    """Return 1 for each row of a step whose vector may travel during the step before, (num_rows,). Exact.

    Args:
        keys: (num_rows,), of the step.
        before: (num_rows,), where each lives when the step begins; `NO_HOME` at its first use.
        number: of the step in the run.
        last_steps: (num_keys,), the last step before it that used each row, `NEVER_USED` before the first, as
            `volume.count_crossings` notes it.
    """
    is_early_U = np.empty(keys.size, np.uint8)
    _mark_early(keys, before, number, last_steps, is_early_U)
    return is_early_U


@inlined_kernel
def concerns(mask: np.uint64, before: int, after: int, rank: int) -> bool:
    return before == rank or after == rank or mask >> np.uint64(rank) & np.uint64(1) != np.uint64(0)


@kernel
def _count_rows(
    uses: PlannedUses,
    batches_S: NDArray[np.int64],
    rank: int,
    starts_S1: NDArray[np.int64],
    passed_starts_S1: NDArray[np.int64],
) -> None:
    for step in range(batches_S.shape[0]):
        num_rows = np.int64(0)
        num_passed = np.int64(0)
        for i in range(uses.offsets[batches_S[step]], uses.offsets[batches_S[step] + 1]):
            before, after = uses.before_U[i], uses.after_U[i]
            if concerns(np.uint64(uses.masks_U[i]), before, after, rank):
                num_rows += 1
            elif before != after:
                num_passed += 1
        starts_S1[step + 1] = starts_S1[step] + num_rows
        passed_starts_S1[step + 1] = passed_starts_S1[step] + num_passed


@kernel
def _cut_rows(uses: PlannedUses, batches_S: NDArray[np.int64], rank: int, found: RankSteps) -> None:
    for step in range(batches_S.shape[0]):
        end = found.starts_S1[step]
        passed_end = found.passed_starts_S1[step]
        for i in range(uses.offsets[batches_S[step]], uses.offsets[batches_S[step] + 1]):
            before, after = uses.before_U[i], uses.after_U[i]
            if concerns(np.uint64(uses.masks_U[i]), before, after, rank):
                found.keys_N[end] = uses.keys_U[i]
                found.masks_N[end] = uses.masks_U[i]
                found.before_N[end] = before
                found.after_N[end] = after
                found.is_early_N[end] = uses.is_early_U[i]
                end += 1
            elif before != after:
                found.passed_keys_P[passed_end] = uses.keys_U[i]
                found.passed_homes_P[passed_end] = after
                passed_end += 1


def cut_rank(uses: PlannedUses, batches: NDArray[np.int64], rank: int) -> RankSteps:
    """Return the rows of some steps that concern a rank. Exact.

    Args:
        uses: of the epoch.
        batches: (num_steps,), the batch of each step.
        rank: whose rows they are.
    """
    starts_S1, passed_starts_S1 = (np.zeros(batches.size + 1, np.int64) for _ in range(2))
    _count_rows(uses, batches, rank, starts_S1, passed_starts_S1)
    num_rows, num_passed = int(starts_S1[-1]), int(passed_starts_S1[-1])
    before_N, after_N, is_early_N = (np.empty(num_rows, np.uint8) for _ in range(3))
    found = RankSteps(
        starts_S1,
        np.empty(num_rows, np.int32),
        np.empty(num_rows, uses.masks_U.dtype),
        before_N,
        after_N,
        is_early_N,
        passed_starts_S1,
        np.empty(num_passed, np.int32),
        np.empty(num_passed, np.uint8),
    )
    _cut_rows(uses, batches, rank, found)
    return found


def first_steps(steps: RankSteps, num_steps: int) -> RankSteps:
    """Return the first steps of some, as views."""
    rows, passed = int(steps.starts_S1[num_steps]), int(steps.passed_starts_S1[num_steps])
    return RankSteps(
        steps.starts_S1[: num_steps + 1],
        steps.keys_N[:rows],
        steps.masks_N[:rows],
        steps.before_N[:rows],
        steps.after_N[:rows],
        steps.is_early_N[:rows],
        steps.passed_starts_S1[: num_steps + 1],
        steps.passed_keys_P[:passed],
        steps.passed_homes_P[:passed],
    )
