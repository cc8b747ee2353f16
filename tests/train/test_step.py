"""Dense gradients are clipped; learning rates have slow twins; a run stops, and has a best evaluation."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
from hotset.train.config import Optimizers
from hotset.train.config_parts import RecipeOptions
from hotset.train.metrics import Quality, Scores
from hotset.train.step import DenseUpdate, LearningRates, Stopping, clip_gradients


@pytest.mark.parametrize("most", [0.5, 3.0, 1e9])
def test_clipping_agrees_with_that_of_torch(most: float, rng: np.random.Generator) -> None:
    shapes = ((7, 5), (5,), (1, 30))
    gradients = [torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in shapes]
    gradients[0] = gradients[0].t()  # as the flat parameters of a training step are stored
    parameters = [torch.nn.Parameter(torch.zeros_like(each)) for each in gradients]
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient.clone()
    torch.nn.utils.clip_grad_norm_(parameters, most)
    clip_gradients(gradients, most)
    for parameter, gradient in zip(parameters, gradients, strict=True):
        torch.testing.assert_close(gradient, parameter.grad, rtol=1e-5, atol=1e-7)


def test_a_short_gradient_keeps_its_bits() -> None:
    gradient = torch.tensor([0.3, 0.4])
    before = gradient.clone()
    clip_gradients([gradient], 0.51)
    assert torch.equal(gradient, before)
    clip_gradients([gradient], 0.25)
    assert gradient.norm().item() == pytest.approx(0.25)


def test_gradients_that_are_not_finite_and_none_at_all_are_left(rng: np.random.Generator) -> None:
    clip_gradients([], 1)
    gradient = torch.tensor([1.0, float("inf")])
    clip_gradients([gradient], 1)
    assert gradient.tolist() == [1.0, float("inf")]


def test_the_sum_of_squares_does_not_depend_on_threads(rng: np.random.Generator) -> None:
    gradient = torch.from_numpy(rng.normal(size=400_000).astype(np.float32))
    found = []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        copy = gradient.clone()
        clip_gradients([copy], 1.0)
        found.append(copy)
    torch.set_num_threads(before)
    assert torch.equal(*found)


def test_the_rate_of_a_step_is_given_to_every_optimizer() -> None:
    parameters = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizers = [torch.optim.SGD([each], lr=9.0) for each in parameters]
    update = DenseUpdate(parameters, optimizers, clip_gradient=1.0)
    for each in parameters:
        each.grad = torch.tensor([0.0, 5.0])
    update.prepare(0.5)
    for optimizer in optimizers:
        optimizer.step()
    # The norm is that of both parameters together.
    for each in parameters:
        assert each.detach().tolist() == pytest.approx([1, 1 - 0.5 / 2**0.5])


FULL = Optimizers(embedding_optimizer="sgd", embedding_lr=0.3, dense_optimizer="sgd", dense_lr=0.1)


def factors(num_steps: int, **fields: Any) -> list[float]:
    rates = LearningRates(RecipeOptions(**fields), FULL, num_steps)
    return [rates.factor(step) for step in range(num_steps)]


class DlrmScheduler:
    """The policy of facebookresearch/dlrm, step by step, where the decay follows warm-up."""

    def __init__(self, num_warmup: int, num_decay: int) -> None:
        self.num_warmup, self.num_decay = num_warmup, num_decay
        self.count, self.last = 0, 1.0

    def next(self) -> float:
        self.count += 1
        if self.count < self.num_warmup:
            self.last = 1.0 - (self.num_warmup - self.count) / self.num_warmup
        elif self.count < self.num_warmup + self.num_decay:
            self.last = ((self.num_decay - (self.count - self.num_warmup)) / self.num_decay) ** 2
        return self.last


@settings(derandomize=True, max_examples=60, deadline=None)
@given(warmup=st.integers(0, 12), decay=st.integers(1, 15))
def test_the_polynomial_is_that_of_dlrm(warmup: int, decay: int) -> None:
    found = factors(warmup + decay + 5, lr_schedule="polynomial", warmup_steps=warmup, decay_steps=decay)
    twin = DlrmScheduler(warmup, decay)
    wanted = [twin.next() for _ in found]
    end = warmup + decay - 1
    np.testing.assert_allclose(found[:end], wanted[:end], rtol=1e-12)
    # DLRM keeps the rate before the end, this the end.
    assert set(found[end:]) == {0.0}


def test_rates_that_stay_are_one_object() -> None:
    """What depends on the rates is computed again where the object is another."""
    rates = LearningRates(RecipeOptions(warmup_steps=3), FULL, 9)
    found = [rates.of_step(step) for step in (0, 0, 1, 2, 3, 8, 0)]
    assert found[0] is found[1] and found[3] is found[4] is found[5]
    assert len({id(each) for each in found[1:4]}) == 3 and found[6] == found[0]


@pytest.mark.parametrize(
    ("fields", "wanted"),
    [
        ({}, [1, 1, 1, 1]),
        ({"warmup_steps": 4}, [0.25, 0.5, 0.75, 1, 1, 1]),
        # A decay without steps of its own ends with the run.
        ({"warmup_steps": 2, "lr_schedule": "linear"}, [0.5, 1, 0.75, 0.5, 0.25, 0]),
        ({"lr_schedule": "linear", "final_lr": 0.2}, [0.8, 0.6, 0.4, 0.2]),
        ({"lr_schedule": "polynomial", "final_lr": 0.25}, [0.5625, 0.25, 0.25, 0.25]),
    ],
)
def test_warm_up_rises_by_equal_parts_and_decay_falls(fields: dict[str, Any], wanted: list[float]) -> None:
    assert factors(len(wanted), **fields) == pytest.approx(wanted)


def test_half_a_cosine_is_symmetric_and_ends_at_the_final_rate() -> None:
    found = factors(8, lr_schedule="cosine", final_lr=0.5)
    assert found[3] == pytest.approx(0.75) and found[-1] == 0.5
    assert found == sorted(found, reverse=True)
    assert [found[3 - i] + found[3 + i] for i in range(4)] == pytest.approx([1.5] * 4)


@pytest.mark.parametrize(("of", "dense", "rows"), [("all", 0.5, 0.5), ("dense", 0.5, 1), ("rows", 1, 0.5)])
def test_a_schedule_is_of_the_parameters_it_is_given_for(of: Any, dense: float, rows: float) -> None:
    options = RecipeOptions(warmup_steps=2, lr_schedule_of=of)
    found = LearningRates(options, FULL, 4).of_step(0)
    assert found.dense == 0.1 * dense
    assert found.rows == float(np.float32(np.float32(0.3) * rows))


def stopping(**fields: Any) -> Stopping:
    return Stopping(RecipeOptions(**fields))


def test_without_options_a_run_goes_on_and_knows_its_best() -> None:
    found = stopping()
    assert [found.note_evaluation(step, Scores(auc=auc)) for step, auc in ((1, 0.6), (2, 0.5), (3, 0.7))] == [
        True,
        False,
        True,
    ]
    found.note_step(10**9, is_time_over=False)
    assert (found.best_step, found.best_score, found.reason) == (3, 0.7, None)


def test_patience_counts_evaluations_without_a_better_score() -> None:
    found = stopping(patience=2)
    for step, auc in enumerate([0.5, 0.6, 0.6, 0.61, 0.6, 0.5]):
        assert found.reason is None
        found.note_evaluation(step, Scores(auc=auc))
    assert found.best_step == 3 and found.reason == "2 evaluations without progress (--patience 2)"


def test_values_are_best_by_their_squared_error() -> None:
    found = stopping(patience=2)
    for step, error in enumerate([0.9, 0.4, 0.5, 0.6]):
        found.note_evaluation(step, Scores(mean_squared_error=error))
    assert found.best_step == 1 and found.reason == "2 evaluations without progress (--patience 2)"


def test_plateau_lowers_the_rates_after_evaluations_without_progress() -> None:
    found = stopping(lr_schedule="plateau")
    reductions = []
    for step, auc in enumerate([0.5, 0.4, 0.4, 0.4, 0.4, 0.6, 0.5, 0.5]):
        found.note_evaluation(step, Scores(auc=auc))
        reductions.append(found.num_reductions)
    assert reductions == [0, 1, 2, 3, 4, 4, 5, 6] and found.reason is None
    again = stopping(lr_schedule="plateau")
    again.restore(json.loads(json.dumps(found.state())))
    assert again.num_reductions == 6


def test_a_lower_log_loss_is_better() -> None:
    found = stopping(patience=1, best_by="log-loss")
    assert found.note_evaluation(1, Scores(auc=0.5, log_loss=0.5))
    assert found.note_evaluation(2, Scores(auc=0.4, log_loss=0.4))
    assert not found.note_evaluation(3, Scores(auc=0.9, log_loss=0.45)) and found.reason is not None


@pytest.mark.parametrize(
    ("best_by", "best"), [("auc", 3), ("gauc", 1), ("buy:auc", 2), ("buy:log-loss", 3), ("click:auc", 3)]
)
def test_the_best_evaluation_may_be_of_another_label_or_score(best_by: str, best: int) -> None:
    found = stopping(patience=9, best_by=best_by)
    none = Scores()
    for step, auc, gauc, buy in (
        (1, 0.5, 0.7, (0.5, 0.3)),
        (2, 0.6, 0.6, (0.9, 0.4)),
        (3, 0.8, 0.5, (0.6, 0.2)),
    ):
        of_labels = {"click": Scores(auc=auc, gauc=gauc), "buy": Scores(auc=buy[0], log_loss=buy[1])}
        quality = Quality(auc=auc, gauc=gauc, hot=none, mixed=none, oov=none, labels=of_labels)
        found.note_evaluation(step, quality)
    assert found.best_step == best


@pytest.mark.parametrize("text", ["accuracy", "buy", "auc:buy", ""])
def test_a_score_that_none_is_best_by_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=f"best_by is '{text}', want auc, log-loss or gauc, for another"):
        RecipeOptions(best_by=text)


def test_a_target_a_number_of_steps_and_a_time_stop_a_run() -> None:
    found = stopping(stop_at_auc=0.8)
    found.note_evaluation(1, Scores(auc=0.79999))
    assert found.reason is None
    found.note_evaluation(2, Scores(auc=0.8))
    assert found.reason == "AUC 0.800000 has reached --stop-at-auc 0.8"
    found = stopping(max_steps=3)
    reasons = []
    for step in (1, 2, 3):
        found.note_step(step, is_time_over=False)
        reasons.append(found.reason)
    assert reasons == [None, None, "--max-steps 3"]
    now = [100.0]
    found = Stopping(RecipeOptions(max_time="2min"), lambda: now[0])
    now[0] += 119
    found.note_step(1, is_time_over=found.is_time_over)
    assert found.reason is None
    now[0] += 1
    found.note_step(2, is_time_over=found.is_time_over)
    assert found.reason == "--max-time 2min"


def test_an_undefined_score_is_no_evaluation() -> None:
    found = stopping(patience=1)
    assert not found.note_evaluation(1, Scores()) and found.reason is None and found.best_step is None


def test_a_state_in_json_goes_on() -> None:
    now = [5.0]
    options = RecipeOptions(patience=2, max_time="60s")
    first = Stopping(options, lambda: now[0])
    now[0] += 50
    first.note_evaluation(7, Scores(auc=0.6))
    first.note_evaluation(8, Scores(auc=0.5))
    state = json.loads(json.dumps(first.state()))
    now[0] += 1000  # between two processes
    second = Stopping(options, lambda: now[0])
    second.restore(state)
    assert dict(second.state()) == state and second.seconds == 50
    second.note_evaluation(9, Scores(auc=0.55))
    assert second.best_step == 7 and second.reason == "2 evaluations without progress (--patience 2)"
    for change in ({"best_step": "x"}, {"best_score": 1}, {"num_without_progress": None}, {"seconds": None}):
        with pytest.raises(ValueError, match=next(iter(change))):
            second.restore(state | change)
    with pytest.raises(KeyError):
        second.restore({})
