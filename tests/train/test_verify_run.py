"""Scores and lines that hang together, each check by itself; `test_run_edits` edits whole runs.

Verifying a run: every file of it, by its bytes and by what it means.

Tests `verify_run` and `verify_run`, too, as `tests/train/test_run_edits.py` does.

A run beside its shards: other shards are named, orders that losses or other runs decided are left alone.

`tests/train/test_run_edits.py` tests which edits are found.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hotset.pipeline.errors import HotsetError
from hotset.tests.support.edits.sealed_edits import Edit, seal_again, set_key
from hotset.tests.support.resealed import reseal_checkpoints
from hotset.tests.support.shard_factory import write_shards
from hotset.train.checkpoints.files import CHECKPOINTS, record_paths
from hotset.train.config import TrainConfig
from hotset.train.recipe_options import RecipeOptions
from hotset.train.resuming.resume import Interrupted
from hotset.train.run import train
from hotset.train.run_folder.files import RUN_FILES
from hotset.train.verify_run import check_log, faults_against_shards, parse_object, verify_run
from hotset.workflows.cli import main


def scores(**changes: Any) -> dict[str, Any]:
    """Scores of 3 hot and 1 mixed samples."""
    found: dict[str, Any] = {
        "auc": 0.5,
        "log_loss": 0.7,
        "accuracy": 0.75,
        "num_samples": 4,
        "hot": {"log_loss": 0.6, "accuracy": 1.0, "num_samples": 3},
        "mixed": {"log_loss": 1.0, "accuracy": 0.0, "num_samples": 1},
        "oov": {"num_samples": 0},
    }
    return found | changes


def log_of(*lines: dict[str, Any]) -> list[str]:
    return [json.dumps(line) for line in lines]


def test_a_log_says_how_a_run_ended() -> None:
    log = check_log(
        log_of(
            {"step": 2, "samples": 64, "loss": 0.7},
            {"step": 3, "samples": 90, "loss": 0.5},
            {"step": 3, "validation": scores()},
            {"step": 3, "evaluation": scores(auc=None)},
        ),
        "x",
        32,
    )
    assert (log.step, log.num_samples) == (3, 90)
    assert log.validation == scores() and log.evaluation == scores(auc=None)
    assert check_log([], "x", None).num_samples is None


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"num_samples": 5, "log_loss": None, "accuracy": None}, "5 samples, of which 3 hot and 1 mixed"),
        ({"log_loss": 0.71}, "log_loss is 0.71, of its groups 0.7"),
        ({"accuracy": 0.5}, "accuracy is 0.5, of its groups 0.75"),
        ({"auc": -0.1}, "auc is -0.1"),
        ({"pr_auc": 1.1}, "pr_auc is 1.1"),
        ({"calibration": float("inf") * -1}, "calibration is -inf"),
        ({"accuracy": True}, "accuracy is True"),
        ({"num_samples": -4}, "num_samples is -4"),
        ({"oov": {"num_samples": 0, "auc": 2}}, "oov is damaged: auc is 2"),
    ],
)
def test_scores_that_do_not_hang_together_are_named(changes: dict[str, Any], fault: str) -> None:
    with pytest.raises(HotsetError, match="x, line 1, evaluation") as caught:
        check_log(log_of({"step": 1, "evaluation": scores(**changes)}), "x", None)
    assert fault in str(caught.value)


@pytest.mark.parametrize(
    ("lines", "fault"),
    [
        ([{"step": 2}, {"step": 1}], "line 2, is damaged: it is of step 1, the one before of 2"),
        ([{"step": 1.5}], "it is of step 1.5"),
        ([{"step": 1, "loss": 0.5}], "samples is None"),
        ([{"step": 1, "loss": 0.5, "samples": 33}], "33 samples at step 1"),
        ([{"step": 1, "loss": 0.5, "samples": 5}, {"step": 2, "loss": 0.5, "samples": 5}], "5 samples at"),
        ([{"step": 1, "loss": None, "samples": 5}], "loss is None"),
    ],
)
def test_lines_that_no_run_writes_are_named(lines: list[dict[str, Any]], fault: str) -> None:
    with pytest.raises(HotsetError) as caught:
        check_log(log_of(*lines), "x", 32)
    assert fault in str(caught.value)


@pytest.mark.parametrize("text", ["[1]", "{", "[" * 100_000, b"\xff"])
def test_what_is_no_object_is_named(text: str | bytes) -> None:
    with pytest.raises(HotsetError, match=r"^x is damaged: "):
        parse_object(text, "x")


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards")
    train(folder, TrainConfig(placement="all-fast", threads=1), folder / "run")
    return folder / "run"


@pytest.fixture
def run(trained_once: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained_once, tmp_path / "run"))


def test_a_whole_run_has_no_fault(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert verify_run(run) == []
    assert main(["verify", str(run)]) == 0
    assert capsys.readouterr().out == f"{run}: OK, all checks passed\n"


@pytest.mark.parametrize("name", RUN_FILES)
def test_a_flipped_bit_in_any_file_is_named(name: str, run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flipped = bytearray((run / name).read_bytes())
    flipped[-3] ^= 1
    (run / name).write_bytes(flipped)
    assert main(["verify", str(run), "--json"]) == 1
    (fault,) = json.loads(capsys.readouterr().out)["faults"]
    assert fault.startswith(f"{run / name} is damaged: its checksum is")


def test_files_that_are_missing_or_too_many_are_named(run: Path) -> None:
    (run / "metrics.jsonl").unlink()
    (run / "notes.txt").write_text("mine")
    missing, more = verify_run(run)
    assert "metrics.jsonl cannot be read" in missing and "notes.txt is no part of the run" in more


def test_a_run_without_a_manifest_is_named(run: Path) -> None:
    (run / "manifest.json").unlink()
    (fault,) = verify_run(run)
    assert "has no manifest.json" in fault


def test_weights_that_are_sealed_again_are_held_against_the_config(run: Path) -> None:
    weights = load_file(run / "weights.safetensors")
    weights["C2"][3, 1] = float("nan")
    save_file(weights, run / "weights.safetensors")
    seal_again(run)
    (fault,) = verify_run(run)
    assert "C2 holds values that are not finite" in fault


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("summary.json", b"[]"),
        ("metrics.jsonl", b"{}\n["),
        ("batch_order.npy", b"damaged"),
        ("config.json", b"{}"),
    ],
)
def test_files_that_no_run_writes_are_named(name: str, text: bytes, run: Path) -> None:
    (run / name).write_bytes(text)
    seal_again(run)
    (fault,) = verify_run(run)
    assert name in fault and "is damaged" in fault


def test_an_order_of_other_numbers_is_named(run: Path) -> None:
    np.save(run / "batch_order.npy", np.array([0.5, 1.5]))
    seal_again(run)
    assert verify_run(run) == [f"{run / 'batch_order.npy'} is damaged: it is no list of batches"]


def change(path: Path, key: str, value: object) -> None:
    """Set a value in a JSON object; dots in ``key`` stand between keys."""
    whole = parts = json.loads(path.read_bytes())
    *outer, last = key.split(".")
    for name in outer:
        parts = parts[name]
    parts[last] = value
    path.write_text(json.dumps(whole))


@pytest.mark.parametrize(
    ("name", "key", "value", "fault"),
    [
        ("config.json", "config.cache_policy", None, "cache_policy is None, want one of lru, lfu, dataset"),
        ("config.json", "config.prefetch", -1, "prefetch is -1, want 0 or more"),
        ("config.json", "config.threads", True, "threads is True, want a whole number"),
        ("config.json", "config.hot_bytes", "1MiB", "hot_bytes is '1MiB', want a whole number"),
        ("config.json", "config.recipe.plateau_patience", 1e308, "recipe.plateau_patience is 1e+308"),
        ("config.json", "config.epochs", 2, "it has not each batch once in each epoch"),
        ("summary.json", "num_steps", 9, "it has 8 steps, summary.json has 9"),
        ("summary.json", "auc", 0.75, "auc is 0.75, and 0."),
        ("summary.json", "mixed.num_samples", 1, "mixed is "),
    ],
)
def test_values_that_disagree_are_found_though_every_checksum_fits(
    name: str, key: str, value: object, fault: str, run: Path
) -> None:
    change(run / name, key, value)
    seal_again(run)
    (found,) = verify_run(run)
    assert fault in found and "is damaged" in found


def test_an_epoch_with_a_batch_twice_and_a_log_that_goes_back_are_found(run: Path) -> None:
    order = np.load(run / "batch_order.npy")
    order[order == 3] = 4
    np.save(run / "batch_order.npy", order)
    lines = (run / "metrics.jsonl").read_text().splitlines()
    (run / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 2, "loss": 0.5}', ""]))
    seal_again(run)
    twice, back = verify_run(run)
    assert "it has not each batch once in each epoch" in twice
    assert "metrics.jsonl, line" in back and "it is of step 2, the one before of 8" in back


def test_a_run_that_stopped_early_may_have_a_part_of_an_epoch(trained_once: Path, tmp_path: Path) -> None:
    recipe = RecipeOptions(max_steps=5)
    train(trained_once.parent, TrainConfig(threads=1, recipe=recipe), tmp_path / "run")
    assert verify_run(tmp_path / "run") == []


def test_a_score_that_is_no_number_is_no_fault(run: Path) -> None:
    score = json.loads((run / "summary.json").read_text())["pr_auc"]
    for name in ("summary.json", "metrics.jsonl"):
        text = (run / name).read_text()
        (run / name).write_text(text.replace(f'"pr_auc": {score}', '"pr_auc": NaN'))
    seal_again(run)
    assert verify_run(run) == []


@pytest.fixture(scope="module")
def stopped_once(trained_once: Path) -> Path:
    """A run that Ctrl-C stopped after three steps, with a checkpoint of them."""

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        if stage == "train" and done >= 3 * 32:
            os.kill(os.getpid(), signal.SIGINT)

    settings = TrainConfig(placement="all-fast", threads=1, embedding_optimizer="adagrad", log_every=2)
    with pytest.raises(Interrupted):
        train(trained_once.parent, settings, trained_once.parent / "stopped", progress=progress)
    return trained_once.parent / "stopped"


def of_record(key: str, value: object) -> Edit:
    """Set a value in the record of the newest checkpoint."""

    def edit(run: Path) -> None:
        change(record_paths(run / CHECKPOINTS)[0], key, value)

    return edit


def of_files(kind: str, change: Callable[[dict[str, torch.Tensor]], object]) -> Edit:
    """Change the tensors in the files of a kind."""

    def edit(run: Path) -> None:
        for path in (run / CHECKPOINTS).glob(f"{kind}-*.safetensors"):
            tensors = load_file(path)
            change(tensors)
            save_file(tensors, path)

    return edit


CHECKPOINT_EDITS: dict[str, Edit] = {
    "settings": of_record("run", "0" * 32),
    "samples": of_record("state.num_samples", 10**6),
    "fewer samples than steps": of_record("state.num_samples", 1),
    "a loss": of_record("state.metrics", ['{"step": 2, "samples": 64, "loss": -1}']),
    "a step": of_record("state.metrics", ['{"step": "2", "samples": 64, "loss": 1}']),
    "a line": of_record("state.metrics", ["["]),
    "batches of the steps": of_files("dense", lambda tensors: tensors.pop("run.batches")),
    "a row outside its table": of_files("rows", lambda tensors: tensors["ids"].fill_(10**6)),
    "a row below 0": of_files("rows", lambda tensors: tensors["ids"].fill_(-1)),
    "a table": of_files("rows", lambda tensors: tensors["tables"].fill_(9)),
    "a weight": of_files("rows", lambda tensors: tensors["weights"].fill_(np.nan)),
    "a width": of_files("rows", lambda tensors: tensors.update(state=tensors["state"][:, :1].contiguous())),
    "the config": lambda run: change(run / "config.json", "config.seed", 7),
}


def test_a_run_that_was_stopped_has_a_checkpoint_that_is_whole(stopped_once: Path) -> None:
    (state,) = verify_run(stopped_once)
    assert state.endswith("it is unfinished, and its command resumes it from step 3")


@pytest.mark.parametrize("name", CHECKPOINT_EDITS)
def test_what_a_checkpoint_gives_away_though_every_checksum_fits(
    name: str, stopped_once: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped_once, tmp_path / "run"))
    CHECKPOINT_EDITS[name](run)
    reseal_checkpoints(run)
    fault, state = verify_run(run)
    assert str(run) in fault and "\n" not in fault
    assert state.endswith("it is unfinished, and it has no checkpoint that is whole")


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
