"""Learning rates against slow, obvious twins and DLRM's own scheduler."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.train.config import Optimizers
from hotset.train.options.recipe_options import RecipeOptions
from hotset.train.recipe.learning_rates import LearningRates

FULL = Optimizers(embedding_optimizer="sgd", embedding_lr=0.3, dense_optimizer="sgd", dense_lr=0.1)


def factors(num_steps: int, **fields: Any) -> list[float]:
    rates = LearningRates(RecipeOptions(**fields), FULL, num_steps)
    return [rates.factor(step) for step in range(num_steps)]


class DlrmScheduler:
    """The policy of facebookresearch/dlrm, step by step."""

    def __init__(self, num_warmup: int, decay_start: int, num_decay: int) -> None:
        self.num_warmup, self.decay_start, self.num_decay = num_warmup, decay_start, num_decay
        self.count, self.last = 0, 1.0

    def next(self) -> float:
        self.count += 1
        if self.count < self.num_warmup:
            self.last = 1.0 - (self.num_warmup - self.count) / self.num_warmup
        elif self.decay_start <= self.count < self.decay_start + self.num_decay:
            self.last = ((self.num_decay - (self.count - self.decay_start)) / self.num_decay) ** 2
        elif self.count < self.decay_start:
            self.last = 1.0
        return self.last


@settings(derandomize=True, max_examples=60, deadline=None)
@given(warmup=st.integers(0, 12), gap=st.integers(0, 9), decay=st.integers(1, 15))
def test_the_polynomial_is_that_of_dlrm(warmup: int, gap: int, decay: int) -> None:
    start = warmup + gap
    found = factors(
        start + decay + 5,
        lr_schedule="polynomial",
        warmup_steps=warmup,
        decay_start=start,
        decay_steps=decay,
    )
    twin = DlrmScheduler(warmup, start, decay)
    wanted = [twin.next() for _ in found]
    np.testing.assert_allclose(found[: start + decay - 1], wanted[: start + decay - 1], rtol=1e-12)
    # DLRM keeps the rate before the end, this the end.
    assert set(found[start + decay - 1 :]) == {0.0}


def test_rates_that_stay_are_one_object() -> None:
    """What depends on the rates is computed again where the object is another."""
    rates = LearningRates(RecipeOptions(warmup_steps=3), FULL, 9)
    found = [rates.of_step(step) for step in (0, 0, 1, 2, 3, 8, 0)]
    assert found[0] is found[1] and found[3] is found[4] is found[5]
    assert len({id(each) for each in found[1:4]}) == 3 and found[6] == found[0]


def test_a_constant_rate_is_the_full_one_at_once() -> None:
    assert factors(4) == [1, 1, 1, 1]


def test_warm_up_rises_by_equal_parts() -> None:
    assert factors(6, warmup_steps=4) == [0.25, 0.5, 0.75, 1, 1, 1]


def test_a_decay_without_steps_of_its_own_ends_with_the_run() -> None:
    assert factors(6, warmup_steps=2, lr_schedule="linear") == [0.5, 1, 0.75, 0.5, 0.25, 0]
    assert factors(4, lr_schedule="linear", final_lr=0.2) == pytest.approx([0.8, 0.6, 0.4, 0.2])


def test_half_a_cosine_is_symmetric_and_ends_at_the_final_rate() -> None:
    found = factors(8, lr_schedule="cosine", final_lr=0.5)
    assert found[3] == pytest.approx(0.75) and found[-1] == 0.5
    assert found == sorted(found, reverse=True)
    assert [found[3 - i] + found[3 + i] for i in range(4)] == pytest.approx([1.5] * 4)


def test_a_polynomial_is_bounded_by_the_final_rate() -> None:
    assert factors(4, lr_schedule="polynomial", final_lr=0.25) == [0.5625, 0.25, 0.25, 0.25]
    assert factors(4, lr_schedule="polynomial", decay_power=1) == [0.75, 0.5, 0.25, 0]


@pytest.mark.parametrize(("of", "dense", "rows"), [("all", 0.5, 0.5), ("dense", 0.5, 1), ("rows", 1, 0.5)])
def test_a_schedule_is_of_the_parameters_it_is_given_for(of: Any, dense: float, rows: float) -> None:
    options = RecipeOptions(warmup_steps=2, lr_schedule_of=of)
    found = LearningRates(options, FULL, 4).of_step(0)
    assert found.dense == 0.1 * dense
    assert found.rows == float(np.float32(np.float32(0.3) * rows))
