"""A run beside its shards: other shards are named, orders that losses or other runs decided are left alone.

`tests/train/run_folder/test_run_edits.py` tests which edits are found.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hotset.tests.support.edits.sealed_edits import seal_again, set_key
from hotset.tests.support.shard_factory import write_shards
from hotset.train.check_against_shards import faults_against_shards
from hotset.train.config import TrainConfig
from hotset.train.options.recipe_options import RecipeOptions
from hotset.train.run import train
from hotset.workflows.cli import main


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", num_validation=30)
    train(folder, TrainConfig(placement="fae", threads=1), folder / "run")
    return folder


def test_an_order_that_losses_decided_is_left_alone(data: Path) -> None:
    assert list(faults_against_shards(data / "run", data)) == []
    train(data, TrainConfig(threads=1), data / "replayed", replay=data / "run")
    assert list(faults_against_shards(data / "replayed", data)) == []


def test_a_run_that_stopped_has_a_part_of_the_order(data: Path) -> None:
    train(data, TrainConfig(threads=1, recipe=RecipeOptions(max_steps=5)), data / "short")
    assert list(faults_against_shards(data / "short", data / "shards")) == []


def test_a_run_with_other_hot_rows_is_scored_by_them(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", order="original")
    train(tmp_path, TrainConfig(threads=1), tmp_path / "run")
    assert list(faults_against_shards(tmp_path / "run", tmp_path)) == []


def test_other_shards_are_named(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", seed=1)
    (fault,) = faults_against_shards(data / "run", tmp_path)
    assert fault.startswith(f"{tmp_path / 'shards'} is not what {data / 'run'} was trained on")


def test_the_command_checks_a_run_beside_its_shards(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(data / "run"), "--shards", str(data)]) == 0
    assert capsys.readouterr().out == f"{data / 'run'}: OK, all checks passed\n"
    run = shutil.copytree(data / "run", tmp_path / "run")
    auc = json.loads((run / "summary.json").read_text())["auc"] * 0.999
    for name in ("summary.json", "metrics.jsonl"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace(f'"auc": {auc / 0.999}', f'"auc": {auc}'))
    seal_again(run)
    assert main(["verify", str(run)]) == 0
    assert main(["verify", str(run), "--shards", str(data)]) == 1
    assert "summary.json: auc is" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("folder", "arguments", "error"),
    [
        ("run", ["--inputs", "log"], "--inputs belongs to a folder of preprocess"),
        ("run", ["--scratch", "x"], "--scratch belongs to a folder of preprocess"),
        ("run", ["--other-vocabulary", "x"], "--other-vocabulary belongs to a folder of preprocess"),
        ("", ["--shards", "x"], "--shards are those of a training run"),
    ],
)
def test_options_of_the_other_kind_of_folder_are_refused(
    folder: str, arguments: list[str], error: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(data / folder), *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {error}")


def test_scores_of_another_processor_or_device_may_differ_in_their_last_digits(
    data: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(data / "run", tmp_path / "run"))
    set_key("summary.json", "calibration", lambda value: value * (1 + 1e-7))(run)
    assert list(faults_against_shards(run, data)) == []
    set_key("summary.json", "calibration", lambda value: value * (1 + 1e-5))(run)
    assert list(faults_against_shards(run, data)) != []
    set_key("config.json", "config.device", "cuda:0")(run)
    seal_again(run)
    assert list(faults_against_shards(run, data)) == []
    set_key("summary.json", "calibration", lambda value: value * 1.01)(run)
    assert list(faults_against_shards(run, data)) != []
