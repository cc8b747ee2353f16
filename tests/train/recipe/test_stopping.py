"""When a run stops, and which evaluation is the best."""

from __future__ import annotations

import json
from typing import Any

import pytest

from hotset.train.metrics.scores import Scores
from hotset.train.options.recipe_options import RecipeOptions
from hotset.train.recipe.stopping import Stopping


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


def test_plateau_lowers_the_rates_after_evaluations_without_progress() -> None:
    found = stopping(lr_schedule="plateau", plateau_patience=2)
    reductions = []
    for step, auc in enumerate([0.5, 0.4, 0.4, 0.4, 0.4, 0.6, 0.5, 0.5]):
        found.note_evaluation(step, Scores(auc=auc))
        reductions.append(found.num_reductions)
    assert reductions == [0, 0, 1, 1, 2, 2, 2, 3] and found.reason is None
    again = stopping(lr_schedule="plateau", plateau_patience=2)
    again.restore(json.loads(json.dumps(found.state())))
    assert again.num_reductions == 3


def test_a_lower_log_loss_is_better() -> None:
    found = stopping(patience=1, best_by="log-loss")
    assert found.note_evaluation(1, Scores(auc=0.5, log_loss=0.5))
    assert found.note_evaluation(2, Scores(auc=0.4, log_loss=0.4))
    assert not found.note_evaluation(3, Scores(auc=0.9, log_loss=0.45)) and found.reason is not None


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
