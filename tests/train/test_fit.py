"""Training from Python: settings by name, a user's module, and what a finished run gives back.

Shards from Python: tables, batches of every kind, and counts.

A finished run in use from Python: predictions of logs and frames, and an export.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn

import hotset
from hotset.pipeline.errors import HotsetError
from hotset.pipeline.folders.manifest import Manifest
from hotset.stats.metrics import probabilities
from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, prepared_lists, run_on_lists
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import LinearNet
from hotset.train import fit as serve
from hotset.train.data import shards as inner
from hotset.train.fit import FittedRun

SPEC = ShardSpec(batch_size=16, num_hot_only=40, num_mixed=90, num_evaluation=40)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", SPEC)
    return folder


@pytest.fixture(scope="module")
def fitted(data: Path, tmp_path_factory: pytest.TempPathFactory) -> FittedRun:
    out = tmp_path_factory.mktemp("fitted") / "run"
    return hotset.fit(str(data), str(out), model=LinearNet, model_args={"scale": 2.0}, threads=1)


def recorded(run: FittedRun) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((run.folder / "config.json").read_text())
    return config


def test_settings_are_given_by_name_or_in_a_config(data: Path, tmp_path: Path) -> None:
    config = hotset.TrainConfig(placement="cache", threads=1, seed=3)
    found = recorded(
        hotset.fit(
            data, tmp_path / "run", config=config, model="dcnv2", cross_layers=1, seed=4, warmup_steps=3
        )
    )
    assert found["model"] == "dcnv2" and found["config"]["cross_layers"] == 1
    assert (found["config"]["placement"], found["config"]["seed"]) == ("cache", 4)
    assert found["config"]["recipe"]["warmup_steps"] == 3


def test_a_class_is_recorded_so_that_its_run_can_be_evaluated(data: Path, fitted: FittedRun) -> None:
    assert recorded(fitted)["model"] == f"{LinearNet.__module__}:LinearNet"
    assert hotset.evaluate(fitted.folder, data).auc == fitted.summary.auc
    assert hotset.evaluate(fitted, data).log_loss == fitted.summary.log_loss


def test_the_trained_module_comes_back(fitted: FittedRun, data: Path) -> None:
    for module in (fitted.load_model(), hotset.load_model(fitted.folder)):
        assert isinstance(module, LinearNet) and module.scale == 2.0 and not module.training
    fresh = LinearNet(hotset.ModelInputs(2, (hotset.TableInput("C1", 1, 12),), 4))
    weights = fitted.load_model().state_dict()
    assert weights["layer.weight"].shape == fresh.state_dict()["layer.weight"].shape
    assert weights["layer.weight"].isfinite().all()


def test_what_functions_return_is_shown_in_a_line_and_as_html(fitted: FittedRun, data: Path) -> None:
    auc = f"auc={fitted.summary.auc:.4f}"
    assert repr(fitted).startswith(f"FittedRun({str(fitted.folder)!r}, lookahead, ") and auc in repr(fitted)
    quality = hotset.evaluate(fitted, data)
    assert repr(quality).startswith(f"RunQuality({auc}, log_loss=0.") and "\n" not in repr(quality)
    shards = hotset.Shards(data)
    assert repr(shards).startswith(f"Shards({str(shards.folder)!r}, 3 tables, ")
    for shown in (fitted, quality, shards):
        html = shown._repr_html_()
        assert html.count("<table") == html.count("</table>") == 1
    assert f"<td>{quality.hot.num_samples:,}</td>" in quality._repr_html_()


def test_a_run_is_opened_as_it_was_fitted(fitted: FittedRun, data: Path, tmp_path: Path) -> None:
    again = FittedRun.open(str(fitted.folder), model=LinearNet)
    # What made the run is recorded by the command alone.
    assert again.summary == fitted.summary and again.model is LinearNet
    assert torch.equal(again.table("C2"), fitted.table("C2"))
    plain = hotset.fit(data, tmp_path / "run", threads=1, progress=False)
    assert FittedRun.open(plain.folder).summary == plain.summary
    (plain.folder / "summary.json").write_text('{"transfers": {}}')
    with pytest.raises(HotsetError, match=r"summary\.json is damaged: "):
        FittedRun.open(plain.folder)
    with pytest.raises(HotsetError, match="does not exist"):
        FittedRun.open(tmp_path / "absent")


def test_tables_come_back(fitted: FittedRun) -> None:
    assert fitted.table("C2").shape == (40, 4)
    with pytest.raises(hotset.HotsetError, match="has no table 'C22'") as refused:
        fitted.table("C22")
    assert refused.value.hint == "did you mean 'C2'?"


def test_a_module_is_trained_from_the_weights_it_has_and_stays_as_it_is(data: Path, tmp_path: Path) -> None:
    own = LinearNet(hotset.ModelInputs(2, (hotset.TableInput("C1", 1, 12),), 4))
    before = own.layer.weight.detach().clone()
    run = hotset.fit(data, tmp_path / "run", model=own, dense_lr=1e-9, embedding_lr=1e-9, threads=1)
    assert torch.equal(own.layer.weight, before)
    trained: Any = run.load_model()
    torch.testing.assert_close(trained.layer.weight, before, rtol=0, atol=1e-6)
    assert hotset.evaluate(run, data).auc == run.summary.auc


def test_a_function_makes_the_module(data: Path, tmp_path: Path) -> None:
    run = hotset.fit(data, tmp_path / "run", model=lambda inputs: LinearNet(inputs, 3.0), threads=1)
    loaded: Any = run.load_model()
    assert loaded.scale == 3.0
    with pytest.raises(hotset.HotsetError, match="cannot be imported: it was made inside a program"):
        hotset.load_model(run.folder)


def test_models_of_hotset_come_back_too(data: Path, tmp_path: Path) -> None:
    run = hotset.fit(data, tmp_path / "run", top_mlp=(6,), threads=1)
    assert run.load_model().state_dict()["top.0.bias"].shape == (6,)


@pytest.mark.parametrize(
    ("settings", "message", "hint"),
    [
        ({"epoch": 2}, "there is no setting 'epoch'", "did you mean 'epochs'?"),
        ({"exchang": "int8"}, "there is no setting 'exchang'", "did you mean 'exchange'?"),
        ({"exchange": "int7"}, "exchange must be none, fp16, bf16, int8, auto or bounded:E", None),
        ({"epochs": 0}, "epochs must be 1 or more", None),
        ({"epochs": "2"}, "epochs must be a whole number, got '2'", None),
        ({"model_args": {"hidden": [object()]}}, "model_args must have numbers, texts and lists", None),
        ({"batch_size": 64}, "there is no setting 'batch_size'", "it is a setting of hotset.preprocess"),
        ({"model": "dcn"}, "model must be one of", "did you mean 'dcnv2'?"),
    ],
)
def test_settings_are_checked(
    settings: dict[str, Any], message: str, hint: str | None, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(hotset.HotsetError, match=message) as refused:
        hotset.fit(data, tmp_path / "run", **settings)
    assert refused.value.hint == hint and not (tmp_path / "run").exists()


UNTYPED: Any = hotset
"""The functions as a program without a type checker calls them."""


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda data, out: UNTYPED.fit(None, out), "want a path, got None"),
        (lambda data, out: UNTYPED.fit(data, 3), "want a path, got 3"),
        (lambda data, out: UNTYPED.fit(data, out, config=3), "config must be a TrainConfig, got 3"),
        (lambda data, out: UNTYPED.fit(data, out, recipe=3), "recipe must be a RecipeOptions, got 3"),
        (lambda data, out: UNTYPED.evaluate(3, data), "want a path, got 3"),
        (lambda data, out: UNTYPED.Shards(3), "want a path, got 3"),
        (lambda data, out: UNTYPED.ShardDataset(data, seed="x"), "seed must be a whole number, got 'x'"),
        (
            lambda data, out: UNTYPED.preprocess(None, out),
            "want a path or a frame of Polars, pandas or Arrow",
        ),
        (lambda data, out: UNTYPED.statistics(data, series="feature"), "no series 'feature'"),
    ],
)
def test_values_of_other_types_are_refused_in_one_line(
    call: Callable[[Any, Any], object], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(hotset.HotsetError, match=message):
        call(data, tmp_path / "out")


class Noisy(LinearNet):
    """Dropout and batch normalization: what depends on the step and on the batches before it."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(inputs.num_dense)
        self.drop = nn.Dropout(0.5)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        return super().forward(self.drop(self.norm(dense)), embeddings)


@pytest.mark.parametrize("placement", ["all-fast", "lookahead"])
def test_an_interrupted_run_is_resumed_by_the_same_call(placement: str, data: Path, tmp_path: Path) -> None:
    def run(name: str, **more: Any) -> bytes:
        settings = {"placement": placement, "epochs": 2, "threads": 1, "checkpoint_every": 3, **more}
        hotset.fit(data, tmp_path / name, model=Noisy, **settings)
        return (tmp_path / name / "weights.safetensors").read_bytes()

    def interrupt(stage: str, done: int, *_: object) -> None:
        if done > 150:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run("interrupted", progress=interrupt)
    assert run("interrupted") == run("unbroken")


def test_a_run_starts_from_another(data: Path, fitted: FittedRun, tmp_path: Path) -> None:
    rates: dict[str, Any] = {"dense_lr": 1e-9, "embedding_lr": 1e-9, "threads": 1}
    settings: dict[str, Any] = {"model": LinearNet, "model_args": {"scale": 2.0}, **rates}
    run = hotset.fit(data, tmp_path / "run", init_from=fitted.folder, **settings)
    torch.testing.assert_close(run.table("C3"), fitted.table("C3"), rtol=0, atol=1e-6)
    weights = [each.load_model().state_dict()["layer.weight"] for each in (run, fitted)]
    torch.testing.assert_close(*weights, rtol=0, atol=1e-6)


@pytest.fixture(scope="module")
def listed_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_lists(tmp_path_factory.mktemp("lists")).data


def test_tables_and_sizes_are_those_of_the_manifest(listed_data: Path) -> None:
    shards = hotset.Shards(listed_data)
    totals = Manifest.read(listed_data / "shards").totals
    assert shards.folder == listed_data / "shards" and shards.batch_size == 16 and shards.num_dense == 4
    assert shards.num_samples == {"training": 150, "evaluation": NUM_EVALUATION}
    found = shards.tables
    assert found["table"].to_list() == [table["name"] for table in totals["tables"]]
    assert found["num_hot"].to_list() == [table["num_hot"] for table in totals["tables"]]
    assert set(found.filter(found["is_multi_hot"])["table"]) == {"tags", "seen", "codes"}


def test_batches_have_every_feature_by_name(listed_data: Path) -> None:
    shards = hotset.Shards(str(listed_data))
    wanted = inner.ShardSet.open(listed_data)
    found = list(shards.batches("evaluation"))
    assert sum(batch["label"].size for batch in found) == NUM_EVALUATION
    one_hot = [table.name for table in wanted.tables if not table.is_multi_hot]
    for number, batch in enumerate(found):
        other = wanted.evaluation_batch(number)
        np.testing.assert_array_equal(batch["dense"], other.dense_BK.numpy())
        np.testing.assert_array_equal(np.stack([batch[name] for name in one_hot], axis=1), other.ids_BF)
        offsets, ids = batch["codes"]
        assert offsets[-1] == ids.size and offsets.size == batch["label"].size + 1
        assert batch["is_hot"].dtype == np.bool_
    kinds = [len(list(shards.batches(kind))) for kind in ("hot_only", "mixed", "training")]
    assert kinds[0] + kinds[1] == kinds[2] == wanted.num_training_batches


def test_counts_are_those_of_the_training_part(listed_data: Path) -> None:
    shards = hotset.Shards(listed_data)
    counts = np.zeros_like(shards.counts("site"))
    for batch in shards.batches():
        counts += np.bincount(batch["site"], minlength=counts.size)
    np.testing.assert_array_equal(counts, shards.counts("site"))


def test_what_is_not_there_is_refused(listed_data: Path, tmp_path: Path) -> None:
    shards = hotset.Shards(listed_data)
    unknown: Any = "validation"
    with pytest.raises(hotset.HotsetError, match="there are no batches 'validation'"):
        next(shards.batches(unknown))
    with pytest.raises(hotset.HotsetError, match="has no table 'sites'") as refused:
        shards.counts("sites")
    assert refused.value.hint == "did you mean 'site'?"
    shutil.copytree(listed_data / "shards", tmp_path / "shards")
    with pytest.raises(hotset.HotsetError, match="has no vocabulary next to it"):
        hotset.Shards(tmp_path).counts("site")


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"))


def test_logs_and_frames_get_the_same_predictions(scored: ScoredRun) -> None:
    found = hotset.predict(str(scored.run), str(scored.log))
    wanted = probabilities(scored.evaluated()).astype(np.float32)
    assert found.schema == pl.Schema({"probability": pl.Float32})
    np.testing.assert_array_equal(found["probability"].to_numpy(), wanted)
    assert scored.lines is not None
    names = list(scored.lines.kinds)
    columns = {name: [row[number] for row in scored.lines.rows] for number, name in enumerate(names)}
    frame = pl.DataFrame(columns, strict=False)
    assert hotset.predict(scored.run, frame, batch_size=16, threads=2).equals(found)
    assert hotset.predict(scored.run, frame.drop("y").clear()).height == 0
    with pytest.raises(hotset.HotsetError, match="the table has no column 'site'"):
        hotset.predict(scored.run, frame.drop("site"))


def test_the_module_of_a_fitted_run_goes_along(tmp_path: Path) -> None:
    scored = prepared_lists(tmp_path)
    run = hotset.fit(scored.data, scored.run, model=lambda inputs: LinearNet(inputs), threads=1)
    wanted = probabilities(scored.evaluated(LinearNet)).astype(np.float32)
    np.testing.assert_array_equal(hotset.predict(run, scored.log)["probability"].to_numpy(), wanted)
    # From shards alone the vocabulary is given.
    shutil.rmtree(scored.run / "vocabulary")
    found = hotset.predict(scored.run, scored.log, model=LinearNet, vocabulary=scored.data)
    np.testing.assert_array_equal(found["probability"].to_numpy(), wanted)


def test_settings_go_by_name(scored: ScoredRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hotset.HotsetError, match="there is no setting 'batch'"):
        hotset.predict(scored.run, scored.log, batch=3)  # type: ignore[call-overload]
    called = []
    monkeypatch.setattr(serve, "export_run", lambda *given, **named: called.append((given, named)))
    assert hotset.export(scored.run, str(tmp_path / "out"), row_type="int8") == tmp_path / "out"
    ((run, out, config), named) = called[0]
    assert (run, out, config.row_type) == (scored.run, tmp_path / "out", "int8")
    assert named["vocabulary"] is None and named["model_source"] is None
