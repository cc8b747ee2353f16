"""Scores of samples with weights, groups and several labels, added up batch by batch.

Seconds and bytes by kind of work.

Runs on logs with weights, groups and down-sampled negatives: scores, predictions and exports.
"""

from __future__ import annotations

import json
import tempfile
import tracemalloc
from collections.abc import Sequence
from contextlib import closing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from numpy.typing import NDArray

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError
from hotset.stats.metrics import probabilities
from hotset.tests.support.scored_runs import serving_inputs_of
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.config import ExportConfig, TrainConfig, read_config
from hotset.train.config_parts import RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import Predictor, answers_of, load_model
from hotset.train.metrics import (
    _WORDS_IN_MEMORY,
    CLICKS,
    Answers,
    Meter,
    Quality,
    SampleScores,
    Scores,
    words_for,
)
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.run_folder.weights import read_weights
from hotset.train.serving.export import build_graph
from hotset.train.serving.predict import RunTables

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


def quality_of_clicks(
    logit_N: NDArray[np.float32],
    label_N: NDArray[np.float32],
    is_hot_N: NDArray[np.bool_],
    has_oov_N: NDArray[np.bool_],
) -> Quality:
    samples = {"answer": logit_N, "label": label_N[:, None], "is_hot": is_hot_N, "has_oov": has_oov_N}
    return quality_of(samples, CLICKS, (), batch_size=7)


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


def test_scores_of_a_group_are_those_of_its_samples_alone(rng: np.random.Generator) -> None:
    logit_N = rng.normal(-1, 1, 200).astype(np.float32)
    label_N = (rng.random(200) < 0.3).astype(np.float32)
    is_hot_N, has_oov_N = rng.random(200) < 0.4, rng.random(200) < 0.2
    whole = quality_of_clicks(logit_N, label_N, is_hot_N, has_oov_N)
    for group, chosen in (("hot", is_hot_N), ("mixed", ~is_hot_N), ("oov", has_oov_N)):
        alone = quality_of_clicks(logit_N[chosen], label_N[chosen], is_hot_N[chosen], has_oov_N[chosen])
        found: Scores = getattr(whole, group)
        for name in ("auc", "pr_auc", "log_loss", "normalized_entropy", "calibration", "accuracy"):
            assert getattr(found, name) == pytest.approx(getattr(alone, name), rel=1e-12)
        assert found.num_samples == alone.num_samples == chosen.sum()


def test_calibration_is_the_mean_prediction_over_the_click_rate() -> None:
    logit_N = np.zeros(8, np.float32)
    label_N = np.array([1, 1, 0, 0, 0, 0, 0, 0], np.float32)
    none = np.zeros(8, np.bool_)
    quality = quality_of_clicks(logit_N, label_N, none, none)
    assert quality.calibration == 2.0 and quality.log_loss == pytest.approx(np.log(2))
    assert quality.accuracy == 0.75  # a logit of exactly 0 predicts no click
    assert quality.hot == quality.oov == Scores()


def test_without_clicks_only_some_scores_are_defined() -> None:
    none = np.zeros(3, np.bool_)
    quality = quality_of_clicks(np.ones(3, np.float32), np.zeros(3, np.float32), none, none)
    assert quality.auc is quality.pr_auc is quality.normalized_entropy is quality.calibration is None
    assert quality.log_loss is not None and quality.accuracy == 0.0


def test_memory_does_not_grow_with_the_samples() -> None:
    tracemalloc.start()
    words_for(_WORDS_IN_MEMORY + 1, None, 1)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 1 << 20


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="none has no room for the scores"):
        words_for(_WORDS_IN_MEMORY + 1, tmp_path / "none", 1)


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


SCHEMA = """
format = "csv"
label = "click"
weight = "w"
group = "user"
dense = ["age"]

[sparse]
user = "text"
item = "text"
"""
NUM_LOGGED = 1200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of users with weights, its shards, and a run."""
    folder = tmp_path_factory.mktemp("weighted")
    rng = np.random.default_rng(3)
    user_N, item_N = rng.integers(0, 60, NUM_LOGGED), rng.integers(0, 30, NUM_LOGGED)
    chance_N = 1 / (1 + np.exp(-np.sin(user_N) - 2 * np.cos(item_N) + 1))
    pl.DataFrame(
        {
            "click": (rng.random(NUM_LOGGED) < chance_N).astype(np.int8),
            # A user that is missing is no group.
            "user": [f"u{user}" if user else None for user in user_N],
            "item": [f"i{item}" for item in item_N],
            "age": rng.integers(0, 90, NUM_LOGGED),
            "w": rng.choice([0.0, 0.25, 1.0, 3.7], NUM_LOGGED),
        }
    ).write_csv(folder / "log.csv")
    preprocess(folder, "data", SCHEMA)
    hotset.fit(folder / "data", folder / "run", threads=1, progress=False)
    return folder


def preprocess(folder: Path, name: str, schema: str, **settings: Any) -> None:
    (folder / f"{name}.toml").write_text(schema)
    hotset.preprocess(
        folder / "log.csv",
        folder / name,
        schema=folder / f"{name}.toml",
        batch_size=64,
        embedding_dim=4,
        eval_fraction=0.4,
        workers=1,
        progress=False,
        **settings,
    )


def scored_samples(run: Path, data: Path) -> pl.DataFrame:
    """Return logit, label, weight and group of the samples of the test part."""
    config, shards = read_config(run), ShardSet.open(data)
    loaded = load_model(run, config, read_weights(run), shards.tables, shards.batch_size)
    predictor = Predictor(shards, *loaded, answers=answers_of(config))
    parts: list[pl.DataFrame] = []
    with closing(predictor.logits()) as batches:
        for batch, logit_B in batches:
            columns: dict[str, Any] = {"logit": logit_B, "label": batch.label_B.numpy()}
            parts.append(pl.DataFrame(columns | dict(batch.of_samples)))
    return pl.concat(parts)


def naive_auc(samples: pl.DataFrame) -> float | None:
    logit_N, label_N, weight_N = (
        samples[name].to_numpy().astype(np.float64) for name in ("logit", "label", "weight")
    )
    is_click_N = label_N == 1
    product_CO = weight_N[is_click_N][:, None] * weight_N[~is_click_N]
    difference_CO = logit_N[is_click_N][:, None] - logit_N[~is_click_N]
    won_CO = product_CO * (np.sign(difference_CO) + 1) / 2
    return float(won_CO.sum() / product_CO.sum()) if product_CO.sum() else None


def test_scores_of_a_run_are_weighted_and_by_group(folder: Path) -> None:
    found = hotset.evaluate(folder / "run", folder / "data", progress=False)
    samples = scored_samples(folder / "run", folder / "data").filter(pl.col("weight") > 0)
    assert found.num_samples == samples.height < NUM_LOGGED * 2 / 5
    assert found.total_weight == pytest.approx(samples["weight"].cast(pl.Float64).sum(), rel=1e-12)
    assert found.auc == pytest.approx(naive_auc(samples), rel=1e-12)
    groups = samples.filter("has_group").partition_by("group")
    pairs = [(naive_auc(group), float(group["weight"].to_numpy().sum(dtype=np.float64))) for group in groups]
    defined = [(auc, weight) for auc, weight in pairs if auc is not None]
    assert found.num_groups == len(defined) < len(groups)
    assert found.gauc == pytest.approx(
        sum(auc * weight for auc, weight in defined) / sum(weight for _, weight in defined), rel=1e-12
    )
    summary = json.loads((folder / "run/summary.json").read_text())
    assert {name: summary[name] for name in ("auc", "gauc", "num_groups", "total_weight")} == {
        name: getattr(found, name) for name in ("auc", "gauc", "num_groups", "total_weight")
    }


def test_ranks_share_the_batches_and_have_the_scores_of_one_process(folder: Path) -> None:
    shards, config = ShardSet.open(folder / "data"), TrainConfig(threads=1, micro_batches=2)

    def work(ranks: Ranks) -> Quality:
        return build_trainer(shards, config, ranks=ranks).predictor.score()

    wanted = work(OneRank())
    assert wanted.gauc is not None and run_thread_ranks(2, work) == [wanted, wanted]


def test_a_log_without_them_has_the_scores_of_before(folder: Path) -> None:
    preprocess(folder, "plain", SCHEMA.replace('weight = "w"\ngroup = "user"', ""))
    found = hotset.evaluate(folder / "run", folder / "plain", progress=False).to_dict()
    assert not {"total_weight", "gauc", "num_groups", "labels"} & found.keys()
    assert found["num_samples"] == NUM_LOGGED * 2 / 5
    weighted = hotset.evaluate(folder / "run", folder / "data", progress=False)
    assert found["auc"] != weighted.auc
    # Groups alone change no other score.
    preprocess(folder, "grouped", SCHEMA.replace('weight = "w"', ""))
    grouped = hotset.evaluate(folder / "run", folder / "grouped", progress=False).to_dict()
    assert grouped.pop("gauc") > 0.5 and grouped.pop("num_groups") > 10
    assert grouped == found


@pytest.fixture(scope="module")
def down_sampled(folder: Path) -> Path:
    """A run on the same data that is told that the log kept a tenth of the negatives."""
    hotset.fit(folder / "data", folder / "down", threads=1, negative_rate=0.1, progress=False)
    return folder / "down"


def test_a_rate_of_negatives_changes_no_weight(down_sampled: Path, folder: Path) -> None:
    found = (down_sampled / "weights.safetensors").read_bytes()
    assert found == (folder / "run/weights.safetensors").read_bytes()
    assert json.loads((down_sampled / "config.json").read_text())["config"]["negative_rate"] == 0.1


def test_predictions_are_recalibrated_by_the_published_formula(down_sampled: Path, folder: Path) -> None:
    p, q = (
        hotset.predict(run, folder / "log.csv", progress=False)["probability"].to_numpy().astype(np.float64)
        for run in (folder / "run", down_sampled)
    )
    np.testing.assert_allclose(q, p / (p + (1 - p) / 0.1), rtol=1e-6)
    assert q.mean() < p.mean() / 2


def test_scores_of_a_down_sampled_log_are_those_of_the_whole_one(down_sampled: Path, folder: Path) -> None:
    found = hotset.evaluate(down_sampled, folder / "data", progress=False)
    samples = scored_samples(down_sampled, folder / "data").with_columns(
        pl.col("weight").cast(pl.Float64) * pl.when(pl.col("label") == 1).then(1).otherwise(10)
    )
    q, weight, label = (
        each.to_numpy().astype(np.float64)
        for each in (
            pl.Series(probabilities(samples["logit"].to_numpy())),
            samples["weight"],
            samples["label"],
        )
    )
    assert found.calibration == pytest.approx((q * weight).sum() / (weight * label).sum(), rel=1e-6)
    assert found.auc == pytest.approx(naive_auc(samples.filter(pl.col("weight") > 0)), rel=1e-9)
    assert found.total_weight == pytest.approx(weight.sum(), rel=1e-6)
    summary = json.loads((down_sampled / "summary.json").read_text())
    assert (summary["calibration"], summary["log_loss"]) == (found.calibration, found.log_loss)
    # Data that kept all negatives is scored as it is, by the same predictions.
    whole = hotset.evaluate(down_sampled, folder / "data", negative_rate=1, progress=False)
    assert whole.total_weight == hotset.evaluate(folder / "run", folder / "data", progress=False).total_weight
    assert whole.calibration is not None and found.calibration is not None
    assert whole.calibration < found.calibration / 2


def test_an_export_is_recalibrated_too(down_sampled: Path, folder: Path) -> None:
    tables = RunTables.open(down_sampled)
    log = pl.read_csv(folder / "log.csv").head(50)
    inputs = serving_inputs_of(tables.schema).for_torch(log.to_dict(as_series=False))
    probability_B, _ = build_graph(tables, ExportConfig())(*inputs)
    wanted = hotset.predict(down_sampled, log, progress=False)["probability"].to_numpy()
    np.testing.assert_allclose(probability_B.numpy(), wanted, rtol=1e-5)


@pytest.mark.parametrize("rate", [0.0, -1.0, 1.5])
def test_a_rate_that_is_no_share_is_refused(rate: float, folder: Path) -> None:
    with pytest.raises(ConfigError, match=f"negative_rate must be above 0 and at most 1, got {rate}"):
        hotset.evaluate(folder / "run", folder / "data", negative_rate=rate, progress=False)
    with pytest.raises(ConfigError, match=f"negative_rate must be above 0 and at most 1, got {rate}"):
        hotset.fit(folder / "data", folder / "no", negative_rate=rate, progress=False)


def test_a_rate_that_changes_nothing_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="negative_rate is 1, and so changes nothing"):
        hotset.fit(folder / "data", folder / "no", negative_rate=1, progress=False)


def test_every_label_of_a_run_is_scored_where_it_is_there(folder: Path) -> None:
    log = pl.read_csv(folder / "log.csv")
    rng = np.random.default_rng(4)
    buy = pl.Series("buy", rng.random(log.height) < 0.3) & (log["click"] == 1)
    is_known = pl.Series(rng.random(log.height) < 0.7)
    log = log.with_columns(pl.when(is_known).then(buy.cast(pl.Int8)).alias("buy"))
    (folder / "labels").mkdir()
    log.write_csv(folder / "labels/log.csv")
    preprocess(folder / "labels", "data", SCHEMA.replace('label = "click"', 'labels = ["click", "buy"]'))
    data, run = folder / "labels/data", folder / "labels/run"
    hotset.fit(data, run, threads=1, evaluate_every=5, progress=False)
    found = hotset.evaluate(run, data, progress=False)
    config, shards = read_config(run), ShardSet.open(data)
    predictor = Predictor(
        shards,
        *load_model(run, config, read_weights(run), shards.tables, shards.batch_size),
        answers=answers_of(config),
    )
    with closing(predictor.logits()) as batches:
        parts = [(logit_BL, shards.labels_of(batch, config.labels), batch) for batch, logit_BL in batches]
    assert found.labels is not None and list(found.labels) == ["click", "buy"]
    for number, name in enumerate(found.labels):
        samples = pl.concat(
            pl.DataFrame({"logit": logit_BL[:, number], "label": label_BL[:, number]}).with_columns(
                pl.Series("weight", batch.of_samples["weight"])
            )
            for logit_BL, label_BL, batch in parts
        ).filter(pl.col("label").is_not_nan(), pl.col("weight") > 0)
        scores = found.labels[name]
        assert scores.num_samples == samples.height
        assert scores.auc == pytest.approx(naive_auc(samples), rel=1e-12)
    assert found.auc == found.labels["click"].auc and found.gauc == found.labels["click"].gauc
    # They are in all records of the run.
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    last = [line["evaluation"] for line in lines if "evaluation" in line][-1]
    assert last["labels"] == found.to_dict()["labels"]
    assert json.loads((run / "summary.json").read_text())["labels"] == found.to_dict()["labels"]
    with pytest.raises(ConfigError, match="--negative-rate recalibrates the probability of a single label"):
        hotset.fit(data, folder / "labels/no", negative_rate=0.1, progress=False)


@pytest.mark.slow
@pytest.mark.parametrize("best_by", ["gauc", "buy:auc", "buy:log-loss"])
def test_the_weights_kept_are_those_that_are_best_by_a_score(
    best_by: str, folder: Path, tmp_path: Path
) -> None:
    log = pl.read_csv(folder / "log.csv")
    log.with_columns(buy=pl.col("click") * (pl.col("age") > 40)).write_csv(tmp_path / "log.csv")
    labels = SCHEMA.replace('label = "click"', 'labels = ["click", "buy"]')
    preprocess(tmp_path, "data", labels, valid_fraction=0.3)
    settings: dict[str, Any] = {"best_by": best_by, "keep_best": True, "evaluate_every": 2, "epochs": 4}
    hotset.fit(tmp_path / "data", tmp_path / "run", embedding_lr=0.5, progress=False, **settings)
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    label, _, name = best_by.rpartition(":")
    scores = {
        line["step"]: line["validation"]["labels"][label or "click"][name.replace("-", "_")]
        for line in lines
        if "validation" in line
    }
    best = min(scores, key=lambda step: scores[step] if name == "log-loss" else -scores[step])
    summary = json.loads((tmp_path / "run/summary.json").read_text())
    assert len(scores) > 3 and summary["best_step"] == best
    kept = summary["validation"]["labels"][label or "click"][name.replace("-", "_")]
    assert kept == scores[best]


@pytest.mark.parametrize(
    ("best_by", "message"),
    [("buy:auc", "names 'buy', and the labels of the run are: none by a name"), ("gauc", "names no group")],
)
def test_a_best_score_that_there_is_not_is_refused(best_by: str, message: str, folder: Path) -> None:
    shards = ShardSet.open(folder / "data")
    shards.sample_columns = ("weight",)
    recipe = RecipeOptions(best_by=best_by)
    with pytest.raises(ConfigError, match=message):
        build_trainer(shards, TrainConfig(recipe=recipe))
