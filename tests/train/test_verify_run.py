"""Verifying a run: flipped bits, edits whose checksums all fit again, and checkpoints.

What is listed as not found would take another training to tell, and docs/commands.md says so.
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

from hotset.tests.support.edits.sealed_edits import Edit, both, of_order, of_tensors, seal_again, set_key
from hotset.tests.support.resealed import reseal_checkpoints
from hotset.tests.support.shard_factory import write_shards
from hotset.train.checkpoints.files import record_paths
from hotset.train.checkpoints.resume import Interrupted
from hotset.train.config import TrainConfig
from hotset.train.config_parts import RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.files import CHECKPOINTS, RUN_FILES
from hotset.train.verify_run import faults_against_shards, verify_run
from hotset.workflows.cli import main

CONFIG, SUMMARY = "config.json", "summary.json"
WEIGHTS, STATES = "weights.safetensors", "states.safetensors"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards with a validation part, and a run on them."""
    folder = tmp_path_factory.mktemp("data")
    write_shards(folder / "shards", num_validation=30)
    settings = TrainConfig(
        placement="hybrid", threads=1, epochs=2, log_every=4, evaluate_every=6, embedding_optimizer="adagrad"
    )
    train(folder, settings, folder / "run")
    return folder


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data / "run", tmp_path / "run"))


def test_a_run_that_nobody_edited_has_no_fault(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["verify", str(data / "run")]) == 0
    assert capsys.readouterr().out == f"{data / 'run'}: OK, all checks passed\n"
    assert main(["verify", str(data / "run"), "--shards", str(data)]) == 0


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


def scaled(factor: float) -> Callable[[float], float]:
    return lambda value: value * factor


def written(name: str, data: bytes) -> Edit:
    def edit(run: Path) -> None:
        (run / name).write_bytes(data)

    return edit


def swapped_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["C1"][[0, 1]] = tensors["C1"][[1, 0]]


ALONE: dict[str, tuple[Edit, str]] = {
    "no config": (written(CONFIG, b"{}"), "config.json is damaged"),
    "no summary": (written(SUMMARY, b"[]"), "summary.json is damaged"),
    "a deep summary": (written(SUMMARY, b"[" * 100_000), "summary.json is damaged"),
    "no order": (written("batch_order.npy", b"damaged"), "batch_order.npy is damaged"),
    "no choice": (set_key(CONFIG, "config.cache_policy", None), "want one of lru, lfu, dataset"),
    "out of range": (set_key(CONFIG, "config.prefetch", -1), "prefetch is -1, want 0 or more"),
    "no number": (set_key(CONFIG, "config.threads", True), "threads is True, want a whole number"),
    "a size as text": (set_key(CONFIG, "config.hot_bytes", "1MiB"), "want a whole number"),
    "of the recipe": (set_key(CONFIG, "config.recipe.warmup_steps", 1e308), "recipe.warmup_steps is 1e+308"),
    "epochs": (set_key(CONFIG, "config.epochs", 3), "it has not each batch once in each epoch"),
    "layers": (set_key(CONFIG, "dense_model.top_widths", [8, 8]), "dense.top"),
    "dense features": (set_key(CONFIG, "num_dense", 12), "dense.bottom.0.weight"),
    "row width": (set_key(CONFIG, "tables.1.embedding_dim", 8), "C2 has the shape"),
    "rows": (set_key(CONFIG, "tables.1.num_rows", lambda value: value + 1), "C2 has the shape"),
    "name of a table": (set_key(CONFIG, "tables.1.name", "C99"), "C2 has the shape"),
    "weight that is no number": (
        of_tensors(WEIGHTS, lambda t: t["C2"][3].fill_(np.nan)),
        "C2 holds values that are not finite",
    ),
    "shape of a table": (of_tensors(WEIGHTS, lambda t: t.update(C1=t["C1"][:-1])), "C1 has the shape"),
    "type of a table": (of_tensors(WEIGHTS, lambda t: t.update(C1=t["C1"].double())), "C1 holds F64"),
    "missing table": (of_tensors(WEIGHTS, lambda t: t.pop("C1")), "C1 has the shape None"),
    "another table": (of_tensors(WEIGHTS, lambda t: t.update(C99=t["C1"].clone())), "C99 has the shape"),
    "steps": (set_key(SUMMARY, "num_steps", 9), "it has 16 steps, summary.json has 9"),
    "batch twice": (of_order(lambda order: np.where(order == 3, 4, order)), "each batch once"),
    "batch below 0": (of_order(lambda order: order - 1), "each batch once"),
    "batch too many": (of_order(lambda order: np.append(order, 0)), "it has 17 steps"),
    "order of other numbers": (
        lambda run: np.save(run / "batch_order.npy", np.array([0.5, 1.5])),
        "it is no list of batches",
    ),
}
"""Edits that the run's own files give away, and what is said of them."""


@pytest.mark.parametrize("name", ALONE)
def test_what_the_files_of_a_run_give_away(name: str, run: Path) -> None:
    edit, expected = ALONE[name]
    edit(run)
    seal_again(run)
    faults = verify_run(run)
    assert any(expected in fault for fault in faults)
    assert all(str(run) in fault and "\n" not in fault for fault in faults)


BESIDE_SHARDS: dict[str, Edit] = {
    "seed": set_key(CONFIG, "config.seed", 5),
    "shards": set_key(CONFIG, "shards", "0" * 32),
    "order of the batches": of_order(lambda order: np.concatenate([order[1::-1], order[2:]])),
    "batch that is not there": both(
        of_order(lambda order: np.where(order == order.max(), 10**6, order)), set_key(SUMMARY, "stopped", "x")
    ),
    "training samples": set_key(SUMMARY, "num_training_samples", lambda value: value + 1),
    "two rows": of_tensors(WEIGHTS, swapped_rows),
    "a row": of_tensors(WEIGHTS, lambda t: t["C1"][0].add_(0.5)),
    "a layer": of_tensors(WEIGHTS, lambda t: t["dense.bottom.0.weight"].mul_(1.01)),
    "AUC": set_key(SUMMARY, "auc", scaled(0.999)),
    "no AUC": set_key(SUMMARY, "auc", None),
    "AUC of hot samples": set_key(SUMMARY, "hot.auc", scaled(0.999)),
    "mixed samples": set_key(SUMMARY, "mixed.num_samples", 1),
    "calibration": set_key(SUMMARY, "calibration", scaled(0.999)),
    "AUC of the validation part": set_key(SUMMARY, "validation.auc", scaled(0.999)),
}
"""Edits that the shards give away."""


@pytest.mark.parametrize("name", BESIDE_SHARDS)
def test_what_the_shards_of_a_run_give_away(
    name: str, run: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    BESIDE_SHARDS[name](run)
    seal_again(run)
    assert verify_run(run) == []
    assert main(["verify", str(run), "--shards", str(data), "--json"]) == 1
    faults = json.loads(capsys.readouterr().out)["faults"]
    assert faults and all(str(run) in fault and "\n" not in fault for fault in faults)


def unused_row(data: Path) -> tuple[str, int]:
    """A row that no sample of the evaluation parts looks up."""
    shards = ShardSet.open(data)
    batches = [shards.evaluation_batch(number).ids_BF for number in range(shards.num_evaluation_batches)]
    for table, used in zip(shards.tables, np.concatenate(batches).T, strict=True):
        if left := set(range(table.num_rows)) - set(used.tolist()):
            return table.name, left.pop()
    raise AssertionError("every row is looked up")


def of_an_unused_row(run: Path, data: Path) -> None:
    table, row = unused_row(data)
    of_tensors(WEIGHTS, lambda t: t[table][row].add_(0.5))(run)


NOT_FOUND: dict[str, Callable[[Path, Path], Any]] = {
    "learning rate": lambda run, _: set_key(CONFIG, "config.embedding_lr", 0.5)(run),
    "state": lambda run, _: of_tensors(STATES, lambda t: t["C1"][0].add_(0.5))(run),
    "losses": lambda run, _: (run / "metrics.jsonl").write_text('{"step": 4, "samples": 8, "loss": 0.5}\n'),
    "speed": lambda run, _: set_key(SUMMARY, "samples_per_second", 1e6)(run),
    "a row that no evaluated sample looks up": of_an_unused_row,
}
"""Edits that only another training would give away."""


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_another_training_would_give_away(name: str, run: Path, data: Path) -> None:
    """No edit of this list is found: where one is, it belongs to another list, and to the docs."""
    NOT_FOUND[name](run, data)
    seal_again(run)
    assert verify_run(run) == []
    assert list(faults_against_shards(run, data)) == []


def test_a_run_that_stopped_early_may_have_a_part_of_an_epoch(data: Path, tmp_path: Path) -> None:
    train(data, TrainConfig(threads=1, recipe=RecipeOptions(max_steps=5)), tmp_path / "run")
    assert verify_run(tmp_path / "run") == []
    assert list(faults_against_shards(tmp_path / "run", data / "shards")) == []


def test_an_order_that_losses_decided_is_left_alone(data: Path, tmp_path: Path) -> None:
    train(data, TrainConfig(placement="fae", threads=1), tmp_path / "fae")
    assert list(faults_against_shards(tmp_path / "fae", data)) == []
    train(data, TrainConfig(threads=1), tmp_path / "replayed", RunOptions(replay=tmp_path / "fae"))
    assert list(faults_against_shards(tmp_path / "replayed", data)) == []


def test_a_run_with_other_hot_rows_is_scored_by_them(tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", order="original")
    train(tmp_path, TrainConfig(threads=1), tmp_path / "run")
    assert list(faults_against_shards(tmp_path / "run", tmp_path)) == []


def test_other_shards_are_named(data: Path, tmp_path: Path) -> None:
    write_shards(tmp_path / "shards", seed=1)
    (fault,) = faults_against_shards(data / "run", tmp_path)
    assert fault.startswith(f"{tmp_path / 'shards'} is not what {data / 'run'} was trained on")


@pytest.mark.parametrize(
    ("folder", "arguments", "error"),
    [
        ("run", ["--inputs", "log"], "--inputs belongs to a folder of preprocess"),
        ("run", ["--other-vocabulary", "x"], "--other-vocabulary belongs to a folder of preprocess"),
        ("", ["--shards", "x"], "--shards are those of a training run"),
    ],
)
def test_options_of_the_other_kind_of_folder_are_refused(
    folder: str, arguments: list[str], error: str, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["verify", str(data / folder), *arguments]) == 1
    assert capsys.readouterr().err.startswith(f"error: {error}")


def test_scores_of_another_processor_or_device_may_differ_in_their_last_digits(data: Path, run: Path) -> None:
    set_key(SUMMARY, "calibration", scaled(1 + 1e-7))(run)
    assert list(faults_against_shards(run, data)) == []
    set_key(SUMMARY, "calibration", scaled(1 + 1e-5))(run)
    assert list(faults_against_shards(run, data)) != []
    set_key(CONFIG, "config.device", "cuda:0")(run)
    seal_again(run)
    assert list(faults_against_shards(run, data)) == []
    set_key(SUMMARY, "calibration", scaled(1.01))(run)
    assert list(faults_against_shards(run, data)) != []


@pytest.fixture(scope="module")
def stopped_once(data: Path) -> Path:
    """A run that Ctrl-C stopped after three steps, with a checkpoint of them."""

    def progress(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if stage == "train" and done >= 3 * 32:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        train(
            data,
            TrainConfig(placement="all-fast", threads=1),
            data / "stopped",
            RunOptions(progress=progress),
        )
    return data / "stopped"


def flipped(pattern: str) -> Edit:
    """Flip a bit in the newest file of a name."""

    def edit(run: Path) -> None:
        path = max((run / CHECKPOINTS).glob(pattern))
        damaged = bytearray(path.read_bytes())
        damaged[-3] ^= 1
        path.write_bytes(damaged)

    return edit


def of_record(run: Path) -> None:
    set_key(record_paths(run / CHECKPOINTS)[0].relative_to(run).as_posix(), "run", "0" * 32)(run)
    reseal_checkpoints(run)


def test_a_run_that_was_stopped_has_a_checkpoint_that_is_whole(stopped_once: Path) -> None:
    (state,) = verify_run(stopped_once)
    assert state.endswith("it is unfinished, and its command resumes it from step 3")


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (flipped("step-*.json"), "is damaged"),
        (flipped("dense-*"), "is damaged"),
        (flipped("rows-*"), "is damaged"),
        (of_record, "is of a run with other settings"),
        (set_key(CONFIG, "config.seed", 7), "is of a run with other settings"),
    ],
    ids=["record", "layers", "rows", "settings", "config"],
)
def test_damaged_checkpoints_are_named(edit: Edit, expected: str, stopped_once: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(stopped_once, tmp_path / "run"))
    edit(run)
    fault, state = verify_run(run)
    assert str(run) in fault and expected in fault
    assert state.endswith("it is unfinished, and it has no checkpoint that is whole")
