"""Scores of groups of samples, added up batch by batch.

Scores in a file: they are those in memory, which does not grow.

Seconds and bytes by kind of work.
"""

from __future__ import annotations

import tempfile
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import HotsetError
from hotset.train.metrics import _WORDS_IN_MEMORY, Meter, Quality, ScoreCounter, Scores, words_for


def quality_of(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_],
    has_oov_N: NDArray[np.bool_],
    batch_size: int = 7,
) -> Quality:
    counter = ScoreCounter(logit_N.size)
    for start in range(0, logit_N.size, batch_size):
        part = slice(start, start + batch_size)
        counter.add(logit_N[part], label_N[part], is_hot_N[part], has_oov_N[part])
    return counter.quality()


def test_scores_of_a_group_are_those_of_its_samples_alone(rng: np.random.Generator) -> None:
    logit_N = rng.normal(-1, 1, 200).astype(np.float32)
    label_N = (rng.random(200) < 0.3).astype(np.float32)
    is_hot_N, has_oov_N = rng.random(200) < 0.4, rng.random(200) < 0.2
    whole = quality_of(logit_N, label_N, is_hot_N, has_oov_N)
    for group, chosen in (("hot", is_hot_N), ("mixed", ~is_hot_N), ("oov", has_oov_N)):
        alone = quality_of(logit_N[chosen], label_N[chosen], is_hot_N[chosen], has_oov_N[chosen])
        found: Scores = getattr(whole, group)
        for name in ("auc", "pr_auc", "log_loss", "normalized_entropy", "calibration", "accuracy"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-12)
        assert found.num_samples == alone.num_samples == chosen.sum()


def test_calibration_is_the_mean_prediction_over_the_click_rate() -> None:
    logit_N = np.zeros(8, np.float32)
    label_N = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.float32)
    none = np.zeros(8, np.bool_)
    quality = quality_of(logit_N, label_N, none, none)
    assert quality.calibration == 2.0 and quality.log_loss == pytest.approx(np.log(2))
    assert quality.accuracy == 0.75  # a logit of exactly 0 predicts no click
    assert quality.hot == quality.oov == Scores()


def test_without_clicks_only_some_scores_are_defined() -> None:
    none = np.zeros(3, np.bool_)
    quality = quality_of(np.ones(3, np.float32), np.zeros(3, np.float32), none, none)
    assert quality.auc is quality.pr_auc is quality.normalized_entropy is quality.calibration is None
    assert quality.log_loss is not None and quality.accuracy == 0.0


def test_a_prediction_that_is_no_number_is_refused() -> None:
    none = np.zeros(2, np.bool_)
    with pytest.raises(HotsetError, match="the weights have diverged"):
        ScoreCounter(2).add(np.array([0, np.nan], np.float32), np.zeros(2, np.float32), none, none)


def test_scores_in_a_file_are_those_in_memory(
    rng: np.random.Generator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logit_N = rng.integers(-3, 3, 2000).astype(np.float32)
    label_N, is_hot_N, has_oov_N = (rng.random((3, 2000)) < 0.4).astype(np.bool_)
    arrays = (logit_N, label_N.astype(np.float32), is_hot_N, has_oov_N)
    wanted = quality_of(*arrays)
    # An AUC by its definition: pairs of a click and another sample, a tie counting one half.
    clicks, others = logit_N[label_N], logit_N[~label_N]
    above = (clicks[:, None] > others).mean() + (clicks[:, None] == others).mean() / 2
    assert wanted.auc == pytest.approx(above, rel=1e-12)
    monkeypatch.setattr("hotset.train.metrics._WORDS_IN_MEMORY", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert quality_of(*arrays) == wanted
    assert list(tmp_path.iterdir()) == []  # the file has no name


def test_memory_does_not_grow_with_the_samples() -> None:
    tracemalloc.start()
    words_for(_WORDS_IN_MEMORY + 1, None)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="none has no room for the scores"):
        words_for(_WORDS_IN_MEMORY + 1, tmp_path / "none")


@pytest.fixture
def meter(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A meter whose clock ticks one second a look."""
    ticks = iter(range(10_000))
    monkeypatch.setattr("hotset.stats.compile_notice.perf_counter", lambda: float(next(ticks)))
    return Meter(torch.device("cpu"))


def test_seconds_go_to_the_kind_of_work(meter: Meter) -> None:
    for kind in ("hot_only", "mixed", "mixed", "hot_only", None):
        meter.enter(kind)
    assert meter.seconds == {
        "hot_only": 2.0,
        "mixed": 1.0,
        "switch": 0.0,
        "flush": 0.0,
        "evaluation": 0.0,
        "checkpoint": 0.0,
    }


def test_work_inside_other_work_is_not_counted_twice(meter: Meter) -> None:
    meter.enter("mixed")
    with meter.during("evaluation"):
        meter.moved(to_fast=5)
    meter.moved(to_fast=3, to_slow=2)
    meter.enter(None)
    assert meter.seconds["mixed"] == 2.0 and meter.seconds["evaluation"] == 1.0
    assert meter.training_seconds == 2.0
    assert meter.training_bytes() == (3, 2)
    assert meter.bytes_to_fast["evaluation"] == 5


def test_a_stopped_clock_counts_nothing(meter: Meter) -> None:
    meter.moved(to_fast=7)
    with meter.during("evaluation"):
        pass
    assert meter.training_bytes() == (0, 0)
    assert meter.seconds["evaluation"] == 1.0


def test_laps_are_added_up_while_the_clock_runs(meter: Meter) -> None:
    for _ in range(150):
        meter.enter("hot_only")
        meter.enter("mixed")
    assert meter.seconds["hot_only"] + meter.seconds["mixed"] > 250
