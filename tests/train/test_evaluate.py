"""Evaluating a finished run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError, ShardError
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import TrainConfig
from hotset.train.evaluate import evaluate
from hotset.train.run import train


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards and a run of each kind of placement on them."""
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards")
    for placement in ("all-fast", "fae"):
        train(folder, TrainConfig(placement=placement, threads=1), folder / placement)
    return folder


@pytest.mark.parametrize("placement", ["all-fast", "fae"])
def test_the_scores_are_those_of_the_end_of_training(placement: str, data: Path) -> None:
    found = evaluate(data / placement, data).to_dict()
    summary = json.loads((data / placement / "summary.json").read_text())
    assert found == {name: summary[name] for name in found}
    assert found.keys() == {"auc", "log_loss", "accuracy", "num_samples", "hot", "mixed"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_rows": (5, 41, 300)}, "table C2 of 41 rows, 4 wide, the run has C2 of 40 rows"),
        ({"num_rows": (5, 40), "num_hot": (5, 10)}, "has 2 tables, the run 3"),
        ({"embedding_dim": 8}, "table C1 of 5 rows, 8 wide, the run has C1 of 5 rows, 4 wide"),
        ({"num_dense": 1}, "has num_dense 1, the run 2"),
        ({"has_label": False}, "no labels"),
    ],
)
def test_shards_that_do_not_fit_the_run_are_refused(
    changes: dict[str, Any], message: str, data: Path, tmp_path: Path
) -> None:
    write_shards(tmp_path / "shards", **changes)
    with pytest.raises(ShardError, match=message):
        evaluate(data / "all-fast", tmp_path)


def test_other_samples_of_the_same_vocabulary_will_do(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", seed=5, num_evaluation=33, num_hot=(1, 2, 3), batch_size=10)
    assert evaluate(data / "all-fast", tmp_path).num_samples == 33


def test_shards_without_evaluation_samples_have_no_scores(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_evaluation=0)
    found = evaluate(data / "all-fast", tmp_path)
    assert (found.auc, found.log_loss, found.accuracy, found.num_samples) == (None, None, None, 0)


def copy_run(data: Path, target: Path) -> Path:
    target.mkdir()
    for path in (data / "all-fast").iterdir():
        (target / path.name).write_bytes(path.read_bytes())
    return target


def test_weights_of_another_run_are_refused(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", num_rows=(5, 41, 300))
    train(tmp_path, TrainConfig(threads=1), tmp_path / "other")
    run = copy_run(data, tmp_path / "run")
    (run / "weights.safetensors").write_bytes((tmp_path / "other" / "weights.safetensors").read_bytes())
    with pytest.raises(HotsetError, match="not those its config describes"):
        evaluate(run, data)


def test_a_config_that_lacks_its_tables_is_refused(data: Path, tmp_path: Path) -> None:
    run = copy_run(data, tmp_path / "run")
    (run / "config.json").write_text("{}")
    with pytest.raises(HotsetError, match="lacks 'tables'"):
        evaluate(run, data)


def test_an_unfinished_run_is_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="no training run"):
        evaluate(tmp_path, data)
