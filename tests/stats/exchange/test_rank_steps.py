"""Rows that concern a rank: cut out of all, they make the messages of all; tests `rank_step_checks`, too."""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.stats.exchange.home_moves import NO_HOME
from hotset.stats.exchange.messages import list_messages
from hotset.stats.exchange.rank_masks import mask_type
from hotset.stats.exchange.rank_step_checks import (
    add_digests,
    contradictions,
    count_rank_messages,
    first_faulty_step,
    first_wrong_home,
)
from hotset.stats.exchange.rank_steps import (
    NEVER_USED,
    PlannedUses,
    RankSteps,
    cut_ranks,
    first_steps,
    mark_early,
)
from hotset.stats.exchange.volume import NOTHING, StepRows, count_crossings


class Epoch(NamedTuple):
    """Batches of an epoch, their order, and where each row lives after it."""

    uses: PlannedUses
    order: NDArray[np.int64]
    num_ranks: int
    num_keys: int
    homes_K: NDArray[np.uint8]


@st.composite
def drawn_epoch(draw: st.DrawFn) -> Epoch:
    """Rows with users and homes that follow from step to step, in batches that are run in any order."""
    num_ranks, num_keys = draw(st.sampled_from([2, 3, 8, 64])), 5
    rank = st.integers(0, num_ranks - 1)
    keys = st.lists(st.integers(0, num_keys - 1), max_size=num_keys, unique=True).map(sorted)
    batches = draw(st.lists(keys, max_size=5))
    order = draw(st.permutations(range(len(batches))))
    starts = np.cumsum([0, *map(len, batches)])
    masks, before, after, is_early = (np.zeros(starts[-1], np.uint64) for _ in range(4))
    homes = np.full(num_keys, NO_HOME, np.uint8)
    last: dict[int, int] = {}
    for number, batch in enumerate(order):
        for i, key in enumerate(batches[batch], starts[batch]):
            users = draw(st.frozensets(rank, min_size=1, max_size=4))
            masks[i] = sum(1 << user for user in users)
            before[i] = homes[key]
            is_new = homes[key] == NO_HOME
            after[i] = draw(rank if is_new else st.sampled_from(sorted({int(homes[key]), *users})))
            is_early[i] = not is_new and last[key] != number - 1
            homes[key] = after[i]
            last[key] = number
    flat = np.array([key for batch in batches for key in batch], np.int32)
    uses = PlannedUses(
        starts.astype(np.int64),
        flat,
        masks.astype(mask_type(num_ranks)),
        before.astype(np.uint8),
        after.astype(np.uint8),
        is_early.astype(np.uint8),
    )
    return Epoch(uses, np.array(order, np.int64), num_ranks, num_keys, homes)


def cut_rank(uses: PlannedUses, order: NDArray[np.int64], rank: int, num_ranks: int) -> RankSteps:
    return cut_ranks(uses, order, num_ranks)[rank]


def step_rows(uses: PlannedUses, batch: int) -> StepRows:
    part = slice(uses.offsets[batch], uses.offsets[batch + 1])
    return StepRows(uses.keys_U[part], uses.masks_U[part], uses.before_U[part], uses.after_U[part])


def rows_of(steps: RankSteps, step: int) -> StepRows:
    part = slice(steps.starts_S1[step], steps.starts_S1[step + 1])
    return StepRows(steps.keys_N[part], steps.masks_N[part], steps.before_N[part], steps.after_N[part])


def named(rows: StepRows, rank: int, num_ranks: int) -> Any:
    """All messages of a rank by the keys of their rows."""
    return [
        (lists.starts_W1.tolist(), rows.rows_U[lists.positions].tolist(), lists.is_move.tolist())
        for lists in list_messages(rows, rank, num_ranks)
    ]


@given(drawn_epoch())
@settings(max_examples=60, deadline=None)
def test_the_rows_of_a_rank_make_its_messages(epoch: Epoch) -> None:
    uses, order, num_ranks, num_keys, homes_K = epoch
    total = NOTHING
    last_steps = np.full(num_keys, NEVER_USED, np.int32)
    for number, batch in enumerate(order.tolist()):
        rows = step_rows(uses, batch)
        part = slice(uses.offsets[batch], uses.offsets[batch + 1])
        marks = mark_early(rows.rows_U, rows.before_U, number, last_steps)
        assert marks.tolist() == uses.is_early_U[part].tolist()
        total += count_crossings(rows, number, last_steps)
    early_and_moves = np.zeros(2, np.int64)
    for rank in range(num_ranks):
        steps = cut_rank(uses, order, rank, num_ranks)
        counts_SLW = count_rank_messages(steps, rank, num_ranks)
        for step, batch in enumerate(order.tolist()):
            whole = step_rows(uses, batch)
            assert named(rows_of(steps, step), rank, num_ranks) == named(whole, rank, num_ranks)
            lists = list_messages(whole, rank, num_ranks)
            assert counts_SLW[step].tolist() == [
                np.diff(lists[kind].starts_W1).tolist() for kind in (0, 1, 2, 3)
            ]
            # A row that does not concern the rank is noted where its home changes.
            passed = slice(steps.passed_starts_S1[step], steps.passed_starts_S1[step + 1])
            others = [i for i, key in enumerate(whole.rows_U) if key not in rows_of(steps, step).rows_U]
            changed = [i for i in others if whole.before_U[i] != whole.after_U[i]]
            assert steps.passed_keys_P[passed].tolist() == whole.rows_U[changed].tolist()
            assert steps.passed_homes_P[passed].tolist() == whole.after_U[changed].tolist()
        assert first_faulty_step(steps, rank, num_ranks, num_keys) is None
        known_K = np.full(num_keys, NO_HOME, np.uint8)
        assert first_wrong_home(steps, rank, known_K, early_and_moves) is None
        assert known_K.tolist() == homes_K.tolist()
    assert early_and_moves.tolist() == [total.early, total.moves]


@given(drawn_epoch(), st.data())
@settings(max_examples=40, deadline=None)
def test_ranks_that_do_not_fit_together_are_found(epoch: Epoch, data: st.DataObject) -> None:
    every = cut_ranks(epoch.uses, epoch.order, epoch.num_ranks)

    def found() -> list[tuple[int, int]]:
        digests = np.zeros((epoch.num_ranks, 5, epoch.num_ranks), np.uint64)
        for rank, steps in enumerate(every):
            add_digests(steps, epoch.order.astype(np.int32), 7, 0, rank, digests[rank])
        return contradictions(digests)

    assert found() == []
    # A row that crosses, and that one of its ranks takes for another.
    rank = data.draw(st.integers(0, epoch.num_ranks - 1))
    counts_SLW = count_rank_messages(every[rank], rank, epoch.num_ranks)
    if counts_SLW.any():
        step = int(counts_SLW.any(axis=(1, 2)).argmax())
        part = slice(every[rank].starts_S1[step], every[rank].starts_S1[step + 1])
        every[rank].keys_N[part] += 100
        assert any(rank in pair for pair in found())


@given(drawn_epoch(), st.integers(0, 5))
@settings(max_examples=30, deadline=None)
def test_the_first_steps_are_those_of_a_shorter_epoch(epoch: Epoch, num_steps: int) -> None:
    steps = cut_rank(epoch.uses, epoch.order, 1, epoch.num_ranks)
    num_steps = min(num_steps, steps.num_steps)
    found = first_steps(steps, num_steps)
    wanted = cut_rank(epoch.uses, epoch.order[:num_steps], 1, epoch.num_ranks)
    assert [each.tolist() for each in found] == [each.tolist() for each in wanted]


def one_row(**changed: Any) -> RankSteps:
    """A step of rank 1 of 3: row 4 of 9 lives at rank 0 and is looked up by ranks 1 and 2; row 7 moves."""
    fields: dict[str, Any] = {
        "starts_S1": np.array([0, 1], np.int64),
        "keys_N": np.array([4], np.int32),
        "masks_N": np.array([6], np.uint8),
        "before_N": np.zeros(1, np.uint8),
        "after_N": np.zeros(1, np.uint8),
        "is_early_N": np.ones(1, np.uint8),
        "passed_starts_S1": np.array([0, 1], np.int64),
        "passed_keys_P": np.array([7], np.int32),
        "passed_homes_P": np.array([2], np.uint8),
    }
    return RankSteps(**{name: np.array(changed.get(name, each), each.dtype) for name, each in fields.items()})


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keys_N", [9]),
        ("keys_N", [-1]),
        ("masks_N", [0]),
        ("masks_N", [8 + 2]),
        ("masks_N", [4]),
        ("before_N", [3]),
        ("after_N", [NO_HOME]),
        ("is_early_N", [2]),
        ("passed_keys_P", [9]),
        ("passed_keys_P", [-1]),
        ("passed_homes_P", [3]),
    ],
)
def test_numbers_that_no_rank_has_are_found(name: str, value: list[int]) -> None:
    assert first_faulty_step(one_row(), 1, 3, 9) is None
    assert first_faulty_step(one_row(**{name: value}), 1, 3, 9) == 0


def test_a_first_use_cannot_travel_early_and_keys_ascend() -> None:
    assert first_faulty_step(one_row(before_N=[NO_HOME]), 1, 3, 9) == 0
    assert first_faulty_step(one_row(before_N=[NO_HOME], is_early_N=[0]), 1, 3, 9) is None
    twice = {"starts_S1": [0, 2], "keys_N": [4, 4]} | {
        name: getattr(one_row(), name).repeat(2) for name in ("masks_N", "before_N", "after_N", "is_early_N")
    }
    assert first_faulty_step(one_row(**twice), 1, 3, 9) == 0
    assert first_faulty_step(one_row(**twice | {"keys_N": [4, 5]}), 1, 3, 9) is None


def test_a_row_that_lives_elsewhere_is_found() -> None:
    homes = np.zeros(9, np.uint8)
    assert first_wrong_home(one_row(), 1, homes) is None
    assert homes[7] == 2
    homes[4] = 1
    assert first_wrong_home(one_row(), 1, homes) == 0


def test_the_bounds_of_parts_do_not_change_them() -> None:
    rng = np.random.default_rng(0)
    starts = np.cumsum([0, *rng.integers(0, 6, 40)])
    size = int(starts[-1])
    keys = np.concatenate([np.sort(rng.choice(50, stop - first, False)) for first, stop in pairwise(starts)])
    homes = rng.integers(0, 4, (2, size)).astype(np.uint8)
    masks = rng.integers(1, 16, size).astype(np.uint8)
    early = np.zeros(size, np.uint8)
    uses = PlannedUses(starts.astype(np.int64), keys.astype(np.int32), masks, homes[0], homes[1], early)
    order = rng.permutation(40)
    whole = cut_rank(uses, order, 2, 4)
    parts = [cut_rank(uses, each, 2, 4) for each in np.split(order, [7, 7, 30])]
    for name in ("keys_N", "masks_N", "before_N", "after_N", "passed_keys_P", "passed_homes_P"):
        joined = np.concatenate([getattr(part, name) for part in parts])
        np.testing.assert_array_equal(joined, getattr(whole, name))
