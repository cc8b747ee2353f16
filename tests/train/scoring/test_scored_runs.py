"""Runs on logs with weights, groups and down-sampled negatives: scores, predictions and exports."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

import hotset
from hotset.pipeline.errors import ConfigError
from hotset.stats.metrics import probabilities
from hotset.tests.support.scored_runs import serving_inputs_of
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.config import ExportConfig, TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.evaluate import Predictor, answers_of, load_model
from hotset.train.metrics import Quality
from hotset.train.ranks.ranks import OneRank, Ranks
from hotset.train.recipe_options import RecipeOptions
from hotset.train.run_config import read_config
from hotset.train.run_folder.reader import read_weights
from hotset.train.serving.export import build_graph
from hotset.train.serving.run_tables import RunTables

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
NUM_SAMPLES = 1200


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log of users with weights, its shards, and a run."""
    folder = tmp_path_factory.mktemp("weighted")
    rng = np.random.default_rng(3)
    user_N, item_N = rng.integers(0, 60, NUM_SAMPLES), rng.integers(0, 30, NUM_SAMPLES)
    chance_N = 1 / (1 + np.exp(-np.sin(user_N) - 2 * np.cos(item_N) + 1))
    pl.DataFrame(
        {
            "click": (rng.random(NUM_SAMPLES) < chance_N).astype(np.int8),
            # A user that is missing is no group.
            "user": [f"u{user}" if user else None for user in user_N],
            "item": [f"i{item}" for item in item_N],
            "age": rng.integers(0, 90, NUM_SAMPLES),
            "w": rng.choice([0.0, 0.25, 1.0, 3.7], NUM_SAMPLES),
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
    config, shards = read_config(run), Shards.open(data)
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
    assert found.num_samples == samples.height < NUM_SAMPLES * 2 / 5
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
    shards, config = Shards.open(folder / "data"), TrainConfig(threads=1, micro_batches=2)

    def work(ranks: Ranks) -> Quality:
        return build_trainer(shards, config, ranks=ranks).predictor.score()

    wanted = work(OneRank())
    assert wanted.gauc is not None and run_thread_ranks(2, work) == [wanted, wanted]


def test_a_log_without_them_has_the_scores_of_before(folder: Path) -> None:
    preprocess(folder, "plain", SCHEMA.replace('weight = "w"\ngroup = "user"', ""))
    found = hotset.evaluate(folder / "run", folder / "plain", progress=False).to_dict()
    assert not {"total_weight", "gauc", "num_groups", "labels"} & found.keys()
    assert found["num_samples"] == NUM_SAMPLES * 2 / 5
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
    config, shards = read_config(run), Shards.open(data)
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
    shards = Shards.open(folder / "data")
    shards.sample_columns = ("weight",)
    recipe = RecipeOptions(best_by=best_by)
    with pytest.raises(ConfigError, match=message):
        build_trainer(shards, TrainConfig(recipe=recipe))
