"""The numbers of each step, against those made anew, in the order of the run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.train.config import Optimizers
from hotset.train.gpu_kernels.batch_lists import BatchRoom
from hotset.train.gpu_kernels.dense_rule import DenseRule
from hotset.train.options.recipe_options import RecipeOptions
from hotset.train.recipe.learning_rates import LearningRates, StepRates
from hotset.train.rows.row_optimizers import RowOptimizer
from hotset.train.steps.packed_batch import PackedRoom
from hotset.train.steps.sent_rates import SentRates

SCHEDULES: dict[str, dict[str, Any]] = {
    "constant": {},
    "warm-up": {"warmup_steps": 3},
    "cosine": {"warmup_steps": 2, "lr_schedule": "cosine"},
    "of the rows alone": {"lr_schedule": "linear", "lr_schedule_of": "rows"},
}
FULL = Optimizers(embedding_optimizer="sgd", embedding_lr=0.1, dense_optimizer="sgd", dense_lr=0.3)


def room_for(optimizers: Sequence[RowOptimizer]) -> PackedRoom:
    sizes = tuple(optimizer.step_rates(0.0).size for optimizer in optimizers)
    return PackedRoom(8, 2, tuple(BatchRoom(8, 3, 0, 0, 0) for _ in optimizers), sizes, 0)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("names", [("sgd",), ("adam",), ("sgd", "adam", "adagrad")])
def test_numbers_are_those_made_anew_for_each_step(schedule: str, names: tuple[str, ...]) -> None:
    optimizers = [RowOptimizer(name, 0.1) for name in names]
    room = room_for(optimizers)
    rule = DenseRule("adam")
    counted: list[int] = []

    def next_dense(rate: float) -> NDArray[np.float32]:
        counted.append(1)
        return rule.rates(rate, len(counted))

    sent = SentRates(room, optimizers, next_dense)
    rates = LearningRates(RecipeOptions(**SCHEDULES[schedule]), FULL, 9)
    for step in range(9):
        found_R = sent.of(rates.of_step(step))
        anew = LearningRates(RecipeOptions(**SCHEDULES[schedule]), FULL, 9).of_step(step)
        dense, *rows = room.rate_places
        np.testing.assert_array_equal(found_R[dense], rule.rates(anew.dense, step + 1))
        for place, optimizer in zip(rows, optimizers, strict=True):
            np.testing.assert_array_equal(found_R[place], optimizer.step_rates(anew.rows))


def test_places_are_those_of_the_sections() -> None:
    room = room_for([RowOptimizer("adam", 0.1), RowOptimizer("sgd", 0.1)])
    for name, place in zip(("dense_rates", "rates0", "rates1"), room.rate_places, strict=True):
        section = room.sections[name]
        assert section.count == place.stop - place.start
        assert section.first_byte == room.rates.first_byte + 4 * place.start
    assert room.rates.stop_byte == room.sections["rates1"].stop_byte


def test_rows_follow_rates_of_equal_numbers_that_are_other_objects() -> None:
    """Rates may come from elsewhere than a schedule."""
    optimizers = [RowOptimizer("sgd", 0.1)]
    sent = SentRates(room_for(optimizers), optimizers, None)
    (dense, rows) = room_for(optimizers).rate_places
    for rate in (0.5, 0.25, 0.25, 0.5):
        found_R = sent.of(StepRates(9.0, rate))
        assert found_R[rows].tolist() == [rate] and not found_R[dense].any()
