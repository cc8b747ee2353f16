"""Plans cut at any step pass the checker, and their slots hold the rows that each batch looks up."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.staging.next_uses import next_uses
from hotset.stats.staging.plan_checks import PlanChecker
from hotset.stats.staging.staging_planner import lookahead_planner
from hotset.stats.staging.step_plans import RowStream
from hotset.train.placements.cut_plans import from_step, steps_of, up_to_step, with_residents

NUM_ROWS = 40
NUM_SLOTS = 8
NUM_STEPS = 30


@pytest.mark.parametrize("most", [6, 12])
@pytest.mark.parametrize("cut", [0, 1, 9, 10, 17, 29, 30])
def test_an_epoch_goes_on_at_any_step(cut: int, most: int, rng: np.random.Generator) -> None:
    planner = lookahead_planner(NUM_ROWS, NUM_SLOTS, prefetch=2, splits=True)
    batches = [rng.permutation(NUM_ROWS)[: rng.integers(1, most)].astype(np.int64) for _ in range(NUM_STEPS)]
    stream = RowStream.of(batches)
    uses = next_uses(stream.offsets, stream.rows, NUM_ROWS)
    whole = planner.plan(RowStream(stream.offsets, stream.rows, stream.lookups, uses))
    _, residents = planner.finish()
    # As they lie on disk: in chunks.
    chunks = [steps_of(whole, 0, 10), steps_of(whole, 10, 11), steps_of(whole, 11, NUM_STEPS)]

    checker = PlanChecker(NUM_ROWS, NUM_SLOTS)
    checker.begin_epoch()
    for plans in up_to_step(chunks, cut):
        checker.check(plans)
    left = from_step(chunks, cut)
    if not left:
        assert cut == NUM_STEPS
        return
    left[0] = with_residents(left[0], checker.residents())
    checker.begin_epoch()
    for plans in left:
        for step in range(plans.num_steps):
            checker.check_step(plans, step, batches[cut + plans.first_step + step])
    checker.check_residents(residents)
