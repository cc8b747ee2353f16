"""Scores of samples with weights, groups and several labels, added up batch by batch."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.errors import HotsetError
from hotset.train.metrics import Answers, Quality, ScoreCounter, Scores
from hotset.train.scoring.sample_scores import SampleScores

NUM_SAMPLES = 400
TWO_LABELS = Answers(labels=("click", "buy"))
SCORES = [each.name for each in fields(Scores)]
NAMES = ("auc", "pr_auc", "log_loss", "normalized_entropy", "calibration", "accuracy")


@pytest.fixture
def samples(rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Samples with two labels, a fifth of each missing, weights of which some are 0, and groups."""
    label_NL = (rng.random((NUM_SAMPLES, 2)) < 0.4).astype(np.float32)
    label_NL[rng.random((NUM_SAMPLES, 2)) < 0.2] = np.nan
    return {
        "answer": rng.integers(-9, 9, (NUM_SAMPLES, 2)).astype(np.float32) / 4,
        "label": label_NL,
        "is_hot": rng.random(NUM_SAMPLES) < 0.5,
        "has_oov": rng.random(NUM_SAMPLES) < 0.3,
        "weight": rng.integers(0, 4, NUM_SAMPLES).astype(np.float32),
        "group": rng.integers(0, 2**64, 30, np.uint64)[rng.integers(0, 30, NUM_SAMPLES)],
        "has_group": rng.random(NUM_SAMPLES) < 0.9,
    }


def quality_of(
    samples: dict[str, NDArray[Any]],
    answers: Answers = TWO_LABELS,
    columns: Sequence[str] = ("weight", "group"),
    negative_rate: float | None = None,
    batch_size: int = 32,
) -> Quality:
    counter = SampleScores(samples["is_hot"].size, answers, columns, negative_rate)
    of_samples = [name for name in ("weight", "group") if name in columns]
    of_samples += ["has_group"] if "group" in columns else []
    for start in range(0, samples["is_hot"].size, batch_size):
        part = {name: column[start : start + batch_size] for name, column in samples.items()}
        named = {name: part[name] for name in of_samples}
        counter.add(part["answer"], part["label"], part["is_hot"], part["has_oov"], named)
    return counter.quality()


def chosen(samples: dict[str, NDArray[Any]], kept: NDArray[Any]) -> dict[str, NDArray[Any]]:
    return {name: column[kept] for name, column in samples.items()}


def of_label(samples: dict[str, NDArray[Any]], label: int) -> dict[str, NDArray[Any]]:
    columns = {name: samples[name][:, label : label + 1] for name in ("answer", "label")}
    return samples | columns


def test_weights_of_one_give_the_bits_of_the_plain_counter(samples: dict[str, NDArray[Any]]) -> None:
    samples["label"] = np.nan_to_num(samples["label"])
    samples["weight"][:] = 1
    counter = ScoreCounter(NUM_SAMPLES)
    for start in range(0, NUM_SAMPLES, 32):
        part = chosen(samples, np.arange(start, min(start + 32, NUM_SAMPLES)))
        counter.add(part["answer"][:, 0], part["label"][:, 0], part["is_hot"], part["has_oov"])
    assert quality_of(of_label(samples, 0), Answers(), ()) == counter.quality()
    weighted = quality_of(of_label(samples, 0), Answers(), ("weight",))
    assert (weighted.total_weight, weighted.hot.total_weight) == (NUM_SAMPLES, samples["is_hot"].sum())
    assert [getattr(weighted, name) for name in NAMES] == [getattr(counter.quality(), name) for name in NAMES]


def test_each_label_is_scored_by_the_samples_that_have_it(samples: dict[str, NDArray[Any]]) -> None:
    whole = quality_of(samples)
    assert whole.labels is not None and list(whole.labels) == ["click", "buy"]
    for number, name in enumerate(("click", "buy")):
        kept = ~np.isnan(samples["label"][:, number]) & (samples["weight"] > 0)
        alone = quality_of(of_label(chosen(samples, kept), number), Answers(labels=(name,)))
        assert alone.labels is None
        for each in SCORES:
            found, wanted = (getattr(scores, each) for scores in (whole.labels[name], alone))
            assert found == (wanted if wanted is None else pytest.approx(wanted, rel=1e-12))
        assert whole.labels[name].num_samples == kept.sum()
    # The other scores are those of the first label.
    assert all(getattr(whole, each) == getattr(whole.labels["click"], each) for each in SCORES)


def test_a_weight_of_two_is_the_sample_twice(samples: dict[str, NDArray[Any]]) -> None:
    times_N = samples["weight"].astype(np.int64)
    often = chosen(samples, np.repeat(np.arange(NUM_SAMPLES), times_N))
    often["weight"][:] = 1
    weighted, repeated = quality_of(samples), quality_of(often)
    for group in ("hot", "mixed", "oov", None):
        found, wanted = (each if group is None else getattr(each, group) for each in (weighted, repeated))
        assert found.auc == wanted.auc and found.gauc == wanted.gauc
        assert found.total_weight == wanted.total_weight == wanted.num_samples > found.num_samples
        for name in NAMES:
            assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-12)


def test_areas_depend_neither_on_batches_nor_on_the_order(
    samples: dict[str, NDArray[Any]], rng: np.random.Generator
) -> None:
    samples["weight"] = rng.lognormal(0, 3, NUM_SAMPLES).astype(np.float32)
    found = {
        (quality.auc, quality.pr_auc, quality.gauc, quality.total_weight)
        for batch_size in (1, 32, NUM_SAMPLES)
        for quality in [quality_of(chosen(samples, rng.permutation(NUM_SAMPLES)), batch_size=batch_size)]
    }
    assert len(found) == 1


def test_scores_in_a_file_are_those_in_memory(
    samples: dict[str, NDArray[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = quality_of(samples)
    monkeypatch.setattr("hotset.train.metrics._WORDS_IN_MEMORY", 10)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert quality_of(samples) == wanted
    assert list(tmp_path.iterdir()) == []  # the file has no name
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    with pytest.raises(HotsetError, match="no room for the scores") as caught:
        quality_of(samples)
    assert "free 64 bytes" in str(caught.value.hint)


def test_a_sample_without_a_group_counts_in_all_scores_but_that_of_groups(
    samples: dict[str, NDArray[Any]],
) -> None:
    whole, grouped = quality_of(samples), quality_of(chosen(samples, samples["has_group"]))
    assert (whole.gauc, whole.num_groups) == (grouped.gauc, grouped.num_groups) != (None, None)
    assert whole.num_samples > grouped.num_samples and whole.auc != grouped.auc
    assert whole.hot.gauc is None


def test_a_down_sampled_log_has_the_scores_of_the_whole_one(
    samples: dict[str, NDArray[Any]], rng: np.random.Generator
) -> None:
    whole = chosen(of_label(samples, 0), ~np.isnan(samples["label"][:, 0]))
    # Every negative stands four times in the whole log, and once in the one that kept a quarter of them.
    times_N = np.where(whole["label"][:, 0] == 1, 1, 4)
    often = chosen(whole, np.repeat(np.arange(times_N.size), times_N))
    found = quality_of(whole, Answers(), ("weight",), negative_rate=0.25)
    wanted = quality_of(often, Answers(), ("weight",))
    assert found.auc == wanted.auc and found.total_weight == wanted.total_weight
    for name in NAMES:
        assert getattr(found, name) == pytest.approx(getattr(wanted, name), rel=1e-12)
    # Without weights, too.
    assert quality_of(whole, Answers(), (), negative_rate=0.25).total_weight == times_N.sum()


def test_values_have_a_squared_error_and_a_calibration(samples: dict[str, NDArray[Any]]) -> None:
    samples["label"] *= 2.5
    answers = Answers(labels=("seconds",), predicts="value")
    found = quality_of(of_label(samples, 1), answers)
    kept = ~np.isnan(samples["label"][:, 1]) & (samples["weight"] > 0)
    answer_N, label_N, weight_N = (
        column[kept].astype(np.float64)
        for column in (samples["answer"][:, 1], samples["label"][:, 1], samples["weight"])
    )
    wanted = np.average((answer_N - label_N) ** 2, weights=weight_N)
    assert found.mean_squared_error == pytest.approx(wanted, rel=1e-12)
    wanted = np.average(answer_N, weights=weight_N) / np.average(label_N, weights=weight_N)
    assert found.calibration == pytest.approx(wanted, rel=1e-12)
    assert found.auc is found.log_loss is found.gauc is None and found.num_samples == kept.sum()


def test_no_samples_have_no_scores(samples: dict[str, NDArray[Any]]) -> None:
    samples["label"][:, 1] = np.nan
    found = quality_of(samples)
    assert found.labels is not None and found.auc is not None
    assert found.labels["buy"] == Scores(num_groups=0)
    samples["weight"][:] = 0
    assert replace(quality_of(samples), labels=None).num_samples == 0


def test_a_prediction_that_is_no_number_is_refused(samples: dict[str, NDArray[Any]]) -> None:
    samples["answer"][7, 1] = np.nan
    with pytest.raises(HotsetError, match="the weights have diverged"):
        quality_of(samples)


def test_records_name_only_scores_that_there_are(samples: dict[str, NDArray[Any]]) -> None:
    plain = quality_of(of_label(samples, 0), Answers(), ()).to_dict()
    assert list(plain) == [*NAMES, "num_samples", "hot", "mixed", "oov"]
    found = quality_of(samples).to_dict()
    assert found.keys() - plain.keys() == {"total_weight", "gauc", "num_groups", "labels"}
    assert found["labels"].keys() == {"click", "buy"}
    assert found["labels"]["buy"].keys() == {*NAMES, "num_samples", "total_weight", "gauc", "num_groups"}
    shown = quality_of(samples)._repr_html_()
    assert "<th>buy</th>" in shown and "<td>gauc</td>" in shown and "mean_squared_error" not in shown
    assert "gauc=" in repr(quality_of(samples))
    assert found["hot"].keys() == {*NAMES, "num_samples", "total_weight"}
