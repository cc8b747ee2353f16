"""Edits of a run whose checksums all fit again: which of them verify finds, and which it cannot.

What is listed as not found would take another training to tell, and docs/commands.md says so.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.edits.sealed_edits import (
    Edit,
    both,
    of_order,
    of_tensors,
    seal_again,
    set_key,
    set_line,
    without_line,
)
from hotset.tests.support.resealed import reseal
from hotset.train.config import TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.run import train
from hotset.train.verify_run import faults_against_shards, verify_run

CONFIG, METRICS, SUMMARY = "config.json", "metrics.jsonl", "summary.json"
WEIGHTS, STATES = "weights.safetensors", "states.safetensors"
LAST_LINE = {"evaluation": -1, "validation": -2}
"""The lines of the log, counted from its end, with the last scores of each part."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with all stages, and a run on it with a validation part."""
    folder = tmp_path_factory.mktemp("data")
    generate(GenerateConfig(samples=600, scale=300), folder / "log.tsv", workers=1)
    config = PreprocessConfig(
        count=CountConfig(eval_fraction=0.3, valid_fraction=0.2),
        split=SplitConfig(embedding_dim=4, hot_bytes=ByteSize(20_000)),
        pack=PackConfig(batch_size=32),
    )
    preprocess([folder / "log.tsv"], config, folder, Resources(workers=1))
    settings = TrainConfig(placement="hybrid", threads=1, epochs=2, log_every=4, evaluate_every=6)
    train(folder, settings, folder / "run")
    return folder


def both_logs(key: str, value: Any, part: str = "evaluation") -> Edit:
    """The last scores in the log and in the summary."""
    prefix = "validation." if part == "validation" else ""
    edits = set_line(LAST_LINE[part], f"{part}.{key}", value), set_key(SUMMARY, f"{prefix}{key}", value)
    return both(*edits)


def scaled(factor: float) -> Any:
    return lambda value: value * factor


def swapped_hot_rows(tensors: dict[str, torch.Tensor]) -> None:
    tensors["C1"][[0, 1]] = tensors["C1"][[1, 0]]


def change_vocabulary(run: Path, change: Any, *, tell: bool) -> None:
    """Change the kept vocabulary and seal it again; with ``tell`` the config names it, too."""
    reseal(run / "vocabulary", change, "C1.arrow")
    if tell:
        fingerprint = Manifest.read(run / "vocabulary").fingerprint
        set_key(CONFIG, "vocabulary", fingerprint)(run)


def swap_categories(columns: dict[str, Any]) -> None:
    first, second = [place for place, value in enumerate(columns["category"]) if value is not None][:2]
    values = columns["category"]
    values[first], values[second] = values[second], values[first]


def repeat_category(columns: dict[str, Any]) -> None:
    first, second = [place for place, value in enumerate(columns["category"]) if value is not None][:2]
    columns["category"][second] = columns["category"][first]


ALONE: dict[str, Edit] = {
    "epochs": set_key(CONFIG, "config.epochs", 3),
    "placement": set_key(CONFIG, "config.placement", "all-fast"),
    "row optimizer": set_key(CONFIG, "config.embedding_optimizer", "adam"),
    "no row optimizer's state": set_key(CONFIG, "config.embedding_optimizer", "sgd"),
    "setting of the layers": set_key(CONFIG, "config.top_mlp", [8, 8]),
    "setting of the pooling": set_key(CONFIG, "config.pooling", "mean"),
    "layers": set_key(CONFIG, "dense_model.top_widths", [8, 8]),
    "model": set_key(CONFIG, "model", "terabyte"),
    "type of the products": set_key(CONFIG, "dense_dtype", "bf16"),
    "smaller batches": set_key(CONFIG, "batch_size", 16),
    "row width": set_key(CONFIG, "embedding_dim", 8),
    "dense features": set_key(CONFIG, "num_dense", 12),
    "hot rows": set_key(CONFIG, "tables.2.num_hot", lambda value: value - 1),
    "rows": set_key(CONFIG, "tables.2.num_rows", lambda value: value + 1),
    "name of a table": set_key(CONFIG, "tables.2.name", "C99"),
    "kind of a table": set_key(CONFIG, "tables.2.is_multi_hot", True),
    "order of tables": set_key(CONFIG, "tables", lambda tables: [tables[1], tables[0], *tables[2:]]),
    "fingerprint of the vocabulary": set_key(CONFIG, "vocabulary", "0" * 32),
    "setting of a wrong type": set_key(CONFIG, "config.prefetch", "3"),
    "weight that is no number": of_tensors(WEIGHTS, lambda t: t["C1"][0].fill_(np.nan)),
    "shape of a table": of_tensors(WEIGHTS, lambda t: t.update(C1=t["C1"][:-1])),
    "type of a table": of_tensors(WEIGHTS, lambda t: t.update(C1=t["C1"].double())),
    "missing table": of_tensors(WEIGHTS, lambda t: t.pop("C1")),
    "another table": of_tensors(WEIGHTS, lambda t: t.update(C99=t["C1"].clone())),
    "shape of a layer": of_tensors(WEIGHTS, lambda t: t.update({"dense.bottom.0.bias": torch.zeros(3)})),
    "state that is no number": of_tensors(STATES, lambda t: t["C1"][0].fill_(np.inf)),
    "state below 0": of_tensors(STATES, lambda t: t["C1"][0].fill_(-1)),
    "shape of a state": of_tensors(STATES, lambda t: t.update(C1=t["C1"][:-1])),
    "missing state": of_tensors(STATES, lambda t: t.pop("C1")),
    "state of no table": of_tensors(STATES, lambda t: t.update(C99=t["C1"].clone())),
    "state of no layer": of_tensors(STATES, lambda t: t.update({"optimizer.x.weight step": torch.ones(())})),
    "loss below 0": set_line(0, "loss", -0.5),
    "loss that is no number": set_line(0, "loss", float("nan")),
    "loss that is text": set_line(0, "loss", "0.5"),
    "more samples than batches": set_line(0, "samples", 10**6),
    "samples that fall": set_line(2, "samples", 100),
    "samples of the last line": set_line(-3, "samples", lambda value: value - 1),
    "step that falls": set_line(1, "step", 1),
    "last losses removed": without_line(-3),
    "last evaluation removed": without_line(-1),
    "last validation removed": without_line(-2),
    "AUC in the log": set_line(-1, "evaluation.auc", 0.8),
    "AUC in the summary": set_key(SUMMARY, "auc", 0.8),
    "AUC above 1": both_logs("auc", 1.5),
    "AUC that is text": both_logs("auc", "0.8"),
    "log loss in both": both_logs("log_loss", scaled(0.99)),
    "accuracy in both": both_logs("accuracy", scaled(0.99)),
    "accuracy of hot samples in both": both_logs("hot.accuracy", scaled(0.99)),
    "hot samples in both": both_logs("hot.num_samples", lambda value: value + 1),
    "samples in both": both_logs("num_samples", lambda value: value + 1),
    "validation in both": both_logs("log_loss", scaled(0.99), "validation"),
    "validation in the summary": set_key(SUMMARY, "validation.auc", 0.8),
    "validation of the summary removed": set_key(SUMMARY, "validation", None),
    "log loss on the way": set_line(1, "validation.log_loss", scaled(0.99)),
    "rows in the summary": set_key(SUMMARY, "num_rows", lambda value: value + 1),
    "hot rows in the summary": set_key(SUMMARY, "num_hot_rows", lambda value: value + 1),
    "steps in the summary": set_key(SUMMARY, "num_steps", lambda value: value + 1),
    "samples in the summary": set_key(SUMMARY, "num_training_samples", lambda value: value + 1),
    "placement in the summary": set_key(SUMMARY, "placement", "fae"),
    "bytes in the summary": set_key(SUMMARY, "bytes_to_fast", lambda value: value + 1),
    "bytes by kind": set_key(SUMMARY, "bytes_to_slow_by_kind.mixed", lambda value: value + 1),
    "speed below 0": set_key(SUMMARY, "samples_per_second", -1.0),
    "best step": set_key(SUMMARY, "best_step", 10**6),
    "stopped": set_key(SUMMARY, "stopped", "the time was over"),
    "test losses": set_key(SUMMARY, "test_losses", [0.5]),
    "batch twice": of_order(lambda order: np.where(order == 3, 4, order)),
    "batch below 0": of_order(lambda order: order - 1),
    "batch too many": of_order(lambda order: np.append(order, 0)),
    "batch that is not there": of_order(lambda order: np.where(order == order.max(), 10**6, order)),
    "vocabulary of another log": lambda run: change_vocabulary(run, swap_categories, tell=False),
    "category twice": lambda run: change_vocabulary(run, repeat_category, tell=True),
}
"""Edits that the run's own files give away."""

BESIDE_SHARDS: dict[str, Edit] = {
    "seed": set_key(CONFIG, "config.seed", 5),
    "shards": set_key(CONFIG, "shards", "0" * 32),
    "larger batches": set_key(CONFIG, "batch_size", 64),
    "hot rows of two tables": both(
        set_key(CONFIG, "tables.2.num_hot", lambda value: value - 1),
        set_key(CONFIG, "tables.3.num_hot", lambda value: value + 1),
    ),
    "schema": set_key(CONFIG, "schema", "criteo-1tb"),
    "order of the batches": of_order(lambda order: np.concatenate([order[1::-1], order[2:]])),
    "two rows": of_tensors(WEIGHTS, swapped_hot_rows),
    "a row": of_tensors(WEIGHTS, lambda t: t["C1"][0].add_(0.5)),
    "a layer": of_tensors(WEIGHTS, lambda t: t["dense.bottom.0.weight"].mul_(1.01)),
    "AUC in both": both_logs("auc", scaled(0.999)),
    "AUC of hot samples in both": both_logs("hot.auc", scaled(0.999)),
    "calibration in both": both_logs("calibration", scaled(0.999)),
    "AUC of the validation part": both_logs("auc", scaled(0.999), "validation"),
    "two categories": lambda run: change_vocabulary(run, swap_categories, tell=True),
}
"""Edits that the shards give away."""

NOT_FOUND: dict[str, Edit] = {
    "learning rate": set_key(CONFIG, "config.embedding_lr", 0.5),
    "threads": set_key(CONFIG, "threads", 2),
    "staging area": set_key(CONFIG, "config.staging_bytes", 999),
    "state": of_tensors(STATES, lambda t: t["C1"][0].add_(0.5)),
    "states removed": lambda run: (run / STATES).unlink(),
    "loss": set_line(0, "loss", 0.5),
    "losses on the way removed": without_line(0),
    "AUC on the way": set_line(1, "validation.auc", 0.5),
    "speed": set_key(SUMMARY, "samples_per_second", 1e6),
    "what made the run": set_key(SUMMARY, "provenance", {"commit": "0" * 40}),
    "bytes of a kind and in all": both(
        set_key(SUMMARY, "bytes_to_slow_by_kind.mixed", lambda value: value + 1),
        set_key(SUMMARY, "bytes_to_slow", lambda value: value + 1),
    ),
}
"""Edits that only another training would give away."""


@pytest.fixture
def run(data: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(data / "run", tmp_path / "run"))


def test_a_run_that_nobody_edited_has_no_fault(data: Path) -> None:
    assert verify_run(data / "run") == []
    assert list(faults_against_shards(data / "run", data)) == []


@pytest.mark.parametrize("name", ALONE)
def test_what_the_files_of_a_run_give_away(name: str, run: Path) -> None:
    ALONE[name](run)
    seal_again(run)
    faults = verify_run(run)
    assert faults and all(str(run) in fault and "\n" not in fault for fault in faults)


@pytest.mark.parametrize("name", BESIDE_SHARDS)
def test_what_the_shards_of_a_run_give_away(name: str, run: Path, data: Path) -> None:
    BESIDE_SHARDS[name](run)
    seal_again(run)
    assert verify_run(run) == []
    faults = list(faults_against_shards(run, data))
    assert faults and all(str(run) in fault and "\n" not in fault for fault in faults)


@pytest.mark.slow
@pytest.mark.parametrize("name", NOT_FOUND)
def test_what_only_another_training_would_give_away(name: str, run: Path, data: Path) -> None:
    """No edit of this list is found: where one is, it belongs to another list, and to the docs."""
    NOT_FOUND[name](run)
    seal_again(run)
    assert verify_run(run) == []
    assert list(faults_against_shards(run, data)) == []


def test_a_row_that_no_evaluated_sample_looks_up_is_not_found(run: Path, data: Path) -> None:
    table, row = unused_row(data)
    of_tensors(WEIGHTS, lambda t: t[table][row].add_(0.5))(run)
    seal_again(run)
    assert verify_run(run) == []
    assert list(faults_against_shards(run, data)) == []


def unused_row(data: Path) -> tuple[str, int]:
    """A row that no sample of the evaluation parts looks up."""
    shards = Shards.open(data)
    used: list[set[int]] = [set() for _ in shards.tables]
    for number in range(shards.num_evaluation_batches):
        for table, ids in enumerate(shards.evaluation_batch(number).ids_BF.T):
            used[table] |= set(ids.tolist())
    for each, ids in zip(shards.tables, used, strict=True):
        for row in range(each.num_rows):
            if row not in ids:
                return each.name, row
    raise AssertionError("every row is looked up")


def test_every_line_of_the_log_is_where_the_edits_expect_it(data: Path) -> None:
    lines = [json.loads(line) for line in (data / "run" / METRICS).read_text().splitlines()]
    kinds = ["loss" if "loss" in line else next(iter(line.keys() - {"step"})) for line in lines]
    assert kinds[:2] == ["loss", "validation"] and kinds[-3:] == ["loss", "validation", "evaluation"]
