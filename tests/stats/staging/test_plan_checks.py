"""The checker of step plans: it passes what planners make, and nothing that the naive machine refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.staging.next_uses import next_uses
from hotset.stats.staging.plan_checks import PlanChecker, PlanFaultError
from hotset.stats.staging.staging_planner import lookahead_planner
from hotset.stats.staging.step_plans import Residents, RowStream, StepPlans

NUM_ROWS = 40
NUM_SLOTS = 8
LISTS = (
    "slots",
    "fetch_rows",
    "fetch_slots",
    "fetch_is_first",
    "write_back_rows",
    "write_back_slots",
    "after",
)
Epoch = tuple[list[NDArray[np.int64]], StepPlans, Residents]


def draw_epochs(seed: int, *, splits: bool) -> list[Epoch]:
    """Two epochs of small batches and their plans; some batches have more rows than slots with ``splits``."""
    luck = np.random.default_rng(seed)
    most = 12 if splits else 6
    planner = lookahead_planner(NUM_ROWS, NUM_SLOTS, prefetch=2, splits=splits)
    epochs = []
    for _ in range(2):
        batches = [luck.permutation(NUM_ROWS)[: luck.integers(0, most)].astype(np.int64) for _ in range(30)]
        stream = RowStream.of(batches, [np.ones(batch.size, np.int64) for batch in batches])
        uses = next_uses(stream.offsets, stream.rows, NUM_ROWS)
        plans = planner.plan(RowStream(stream.offsets, stream.rows, stream.lookups, uses))
        more, residents = planner.finish()
        assert not more.num_steps
        epochs.append((batches, plans, residents))
    return epochs


def check(epochs: list[Epoch]) -> None:
    """Check epochs as a whole, and then step by step; raises PlanFaultError."""
    whole = PlanChecker(NUM_ROWS, NUM_SLOTS)
    single = PlanChecker(NUM_ROWS, NUM_SLOTS)
    for batches, plans, residents in epochs:
        whole.begin_epoch()
        whole.check(plans)
        whole.check_residents(residents)
        single.begin_epoch()
        for step, rows in enumerate(batches):
            single.check_step(plans, step, rows)


def values_read(epochs: list[Epoch]) -> list[list[int]]:
    """Return what each step reads, naively: a row's value is the number of steps that updated it.

    Raises:
        IndexError: a slot or row is outside its array.
    """
    home = [0] * NUM_ROWS
    read = []
    for batches, plans, residents in epochs:
        held: list[int] = [-1] * NUM_SLOTS
        for step, rows in enumerate(batches):
            for entry in range(*plans.write_back_offsets[step : step + 2].tolist()):
                row, slot = int(plans.write_back_rows[entry]), int(plans.write_back_slots[entry])
                home[_inside(row, NUM_ROWS)] = held[_inside(slot, NUM_SLOTS)]
            if plans.is_split[step]:
                read.append([home[row] for row in rows])
                for row in rows:
                    home[row] += 1
                continue
            for entry in range(*plans.fetch_offsets[step : step + 2].tolist()):
                row, slot = int(plans.fetch_rows[entry]), int(plans.fetch_slots[entry])
                value = 0 if plans.fetch_is_first[entry] else home[_inside(row, NUM_ROWS)]
                held[_inside(slot, NUM_SLOTS)] = value
            slots = [
                _inside(int(slot), NUM_SLOTS) for slot in plans.slots[slice(*plans.offsets[step : step + 2])]
            ]
            read.append([held[slot] for slot in slots])
            for slot in slots:
                held[slot] += 1
        for row, slot in zip(residents.rows.tolist(), residents.slots.tolist(), strict=True):
            home[_inside(row, NUM_ROWS)] = held[_inside(slot, NUM_SLOTS)]
    return [*read, home]


def _inside(index: int, size: int) -> int:
    if not 0 <= index < size:
        raise IndexError(index)
    return index


@pytest.mark.parametrize("splits", [False, True])
@pytest.mark.parametrize("seed", range(10))
def test_plans_of_planners_pass(seed: int, splits: bool) -> None:
    check(draw_epochs(seed, splits=splits))


@pytest.mark.parametrize("splits", [False, True])
def test_a_changed_number_is_refused_or_changes_no_value(splits: bool) -> None:
    luck = np.random.default_rng(7)
    num_refused = 0
    for seed in range(300):
        epochs = draw_epochs(seed % 20, splits=splits)
        wanted = values_read(epochs)
        number = int(luck.integers(2))
        batches, plans, residents = epochs[number]
        name = LISTS[luck.integers(len(LISTS))]
        values: Any = getattr(plans, name).copy()
        if not values.size:
            continue
        place = luck.integers(values.size)
        drawn = [-1, 0, 1, values[place] + 1, values[place] - 1, luck.integers(NUM_ROWS), 2**30]
        values[place] = drawn[luck.integers(len(drawn))]
        epochs[number] = (batches, replace(plans, **{name: values}), residents)
        try:
            check(epochs)
        except PlanFaultError:
            num_refused += 1
            continue
        assert values_read(epochs) == wanted, (seed, name, place)
    assert num_refused > 100


def test_other_rows_and_residents_are_refused() -> None:
    batches, plans, residents = draw_epochs(3, splits=False)[0]
    step = next(number for number, rows in enumerate(batches) if rows.size > 1)
    checker = PlanChecker(NUM_ROWS, NUM_SLOTS)
    for earlier in range(step):
        checker.check_step(plans, earlier, batches[earlier])
    with pytest.raises(PlanFaultError, match=f"step {step}: its slots do not hold the rows"):
        checker.check_step(plans, step, batches[step][::-1].copy())
    checker = PlanChecker(NUM_ROWS, NUM_SLOTS)
    with pytest.raises(PlanFaultError, match="step 4: it does not follow the step before, want 0"):
        checker.check(replace(plans, first_step=4))
    checker.check(plans)
    with pytest.raises(PlanFaultError, match="other rows are left"):
        checker.check_residents(Residents(residents.rows[1:], residents.slots[1:]))
