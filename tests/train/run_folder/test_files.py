"""The folder of a run: written aside, finished by its summary.

Metrics reach TensorBoard's writer once each; where it is installed, its own reader finds them.
"""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import HotsetError, MissingExtraError, install_hint
from hotset.pipeline.folders.manifest import RecordError
from hotset.tests.support.processes.made_up_tensorboard import STUB, written
from hotset.tests.support.processes.stopped_runs import train_until
from hotset.tests.support.shard_factory import write_shards
from hotset.train.config import RunConfig, TrainConfig, read_config
from hotset.train.run import RunOptions, train
from hotset.train.run_folder import files
from hotset.train.run_folder.files import (
    CHECKPOINTS,
    RunFolder,
    TensorboardEvents,
    is_unfinished,
    remove_begun,
    without_removed,
)
from hotset.train.run_folder.weights import Weights, read_weights

CONFIG: dict[str, Any] = {
    "shards": "0" * 32,
    "threads": 1,
    "model": "small",
    "embedding_dim": 3,
    "num_dense": 2,
    "tables": [{"name": "C1", "num_rows": 2, "embedding_dim": 3, "num_hot": 1}],
    "config": {"seed": 0, "embedding_optimizer": "sgd", "dense_optimizer": "adam"},
    "batch_size": 32,
    "dense_model": {"kind": "dlrm"},
}


def test_what_was_written_is_read_back(tmp_path: Path) -> None:
    folder = RunFolder.begin(tmp_path / "run", CONFIG)
    weights = {"dense.top.0.bias": torch.arange(3.0), "C1": torch.arange(6.0).view(2, 3)}
    folder.log({"step": 1})
    folder.log({"step": 2})
    folder.save_weights(Weights.of_run(weights, {}))
    folder.save_batch_order([1, 0])
    folder.finish({"auc": 0.5})
    assert read_config(folder.path) == RunConfig.from_json(CONFIG)
    found = read_weights(folder.path)
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
    assert [
        json.loads(line)["step"] for line in (folder.path / "metrics.jsonl").read_text().splitlines()
    ] == [1, 2]
    assert np.load(folder.path / "batch_order.npy").tolist() == [1, 0]
    assert len({path.stat().st_mode for path in folder.path.iterdir()}) == 1
    assert {path.name for path in folder.path.iterdir()} == {
        "config.json",
        "metrics.jsonl",
        "weights.safetensors",
        "batch_order.npy",
        "summary.json",
        "manifest.json",
    }


def test_tables_may_be_views_of_one_tensor(tmp_path: Path) -> None:
    tier = torch.arange(12.0).view(6, 2)
    folder = RunFolder.begin(tmp_path / "run", {})
    folder.save_weights(Weights.of_run({"C1": tier[:2], "C2": tier[2:]}, {}))
    assert torch.equal(read_weights(folder.path)["C2"], tier[2:])


def test_a_folder_with_something_in_it_is_refused(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(HotsetError, match="is not empty") as refused:
        RunFolder.begin(tmp_path, {})
    assert refused.value.hint is not None and "--out" in refused.value.hint
    run = RunFolder.begin(tmp_path / "run", {})
    with pytest.raises(HotsetError, match="holds an unfinished run"):
        RunFolder.begin(tmp_path / "run", {})
    run.finish({})
    with pytest.raises(HotsetError, match="holds a finished run"):
        RunFolder.begin(tmp_path / "run", {})


def test_a_run_that_is_removed_stays_one_until_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    RunFolder.begin(tmp_path, {})
    (tmp_path / CHECKPOINTS).mkdir()

    def killed(path: Path) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("shutil.rmtree", killed)
        remove_begun(tmp_path)
    assert is_unfinished(tmp_path)
    remove_begun(tmp_path)
    assert not list(tmp_path.iterdir())


def test_an_empty_folder_will_do_and_a_file_will_not(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    RunFolder.begin(tmp_path / "empty", {})
    (tmp_path / "file").write_text("")
    with pytest.raises(HotsetError, match="cannot be written"):
        RunFolder.begin(tmp_path / "file", {})
    with pytest.raises(HotsetError, match="cannot be written") as refused:
        RunFolder.begin(tmp_path / "file/run", {})
    assert refused.value.hint == "give a folder that can be written"


def test_an_unfinished_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="no training run"):
        read_config(tmp_path)
    RunFolder.begin(tmp_path / "run", {})
    with pytest.raises(HotsetError, match="unfinished"):
        read_config(tmp_path / "run")


@pytest.mark.parametrize("text", ["", "[1]", "{"])
def test_a_damaged_config_is_refused(text: str, tmp_path: Path) -> None:
    folder = RunFolder.begin(tmp_path / "run", {})
    folder.finish({})
    (folder.path / "config.json").write_text(text)
    with pytest.raises(HotsetError, match=r"config\.json"):
        read_config(folder.path)


def test_damaged_weights_are_refused(tmp_path: Path) -> None:
    with pytest.raises(HotsetError, match="cannot be read"):
        read_weights(tmp_path)
    (tmp_path / "weights.safetensors").write_bytes(b"\0" * 20)
    with pytest.raises(HotsetError, match="cannot be read"):
        read_weights(tmp_path)


def test_a_full_disk_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = RunFolder.begin(tmp_path / "run", {})

    def full(source: object, target: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(HotsetError, match=r"weights\.safetensors cannot be written: No space left on device"):
        folder.save_weights(Weights.of_run({"C1": torch.zeros(2, 2)}, {}))
    assert not (tmp_path / "run" / "summary.json").exists()


def test_room_for_the_weights_is_taken_before_training_and_given_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[int] = []
    monkeypatch.setattr(os, "posix_fallocate", lambda _, start, count: taken.append(count))
    folder = RunFolder.begin(tmp_path / "run", CONFIG, weight_bytes=400)
    assert taken == [400] and sorted(path.name for path in (tmp_path / "run").iterdir()) == ["config.json"]
    folder.save_weights(Weights.of_run({"a": torch.zeros(100)}, {}))
    assert folder._room is None


def test_a_disk_too_small_for_the_weights_is_refused_before_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", is_full)
    monkeypatch.setattr("hotset.train.run.train_steps", lambda *_: pytest.fail("trained"))
    shards = write_shards(tmp_path / "shards")
    for _ in range(2):  # the folder is left empty, so the same command may be tried again
        with pytest.raises(HotsetError, match=r"run has no room for .* of weights: No space left"):
            train(shards, TrainConfig(threads=1), tmp_path / "run")


LINES: list[dict[str, Any]] = [
    {"step": 100, "samples": 2_000, "loss": 0.5},
    {"step": 300, "evaluation": {"auc": 0.75, "num_samples": 7, "pr_auc": None, "hot": {"auc": 0.5}}},
]


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, module in STUB.items():
        monkeypatch.setitem(sys.modules, name, module)


def test_each_number_of_a_line_has_its_step(tmp_path: Path, writer: None) -> None:
    events = TensorboardEvents(tmp_path / "tb", [json.dumps(LINES[0])])
    events.add(LINES[1])
    assert written(tmp_path / "tb") == [
        "100 train/loss 0.5",
        "300 evaluation/auc 0.75",
        "300 evaluation/hot/auc 0.5",
    ]


def test_a_resumed_run_has_every_line_once(tmp_path: Path, writer: None) -> None:
    data = write_shards(tmp_path / "shards")
    config = TrainConfig(placement="all-fast", epochs=2, log_every=2, threads=1)
    train_until(100, data, config, tmp_path / "run", every=3, tensorboard=tmp_path / "tb")
    train(data, config, tmp_path / "run", RunOptions(tensorboard=tmp_path / "tb"))
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    losses = [f"{line['step']} train/loss {line['loss']}" for line in lines if "loss" in line]
    assert [line for line in written(tmp_path / "tb") if " train/loss " in line] == losses


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path, writer: None) -> None:
    (tmp_path / "tb").write_text("")
    with pytest.raises(HotsetError, match="tb cannot be written"):
        TensorboardEvents(tmp_path / "tb", [])


def test_the_extra_is_named_where_it_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingExtraError, match="--tensorboard needs tensorboard") as caught:
        TensorboardEvents(tmp_path / "tb", [])
    assert caught.value.hint == install_hint("tensorboard")


@pytest.mark.slow
def test_tensorboard_reads_what_was_written(tmp_path: Path) -> None:
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = TensorboardEvents(tmp_path, [])
    for line in LINES:
        events.add(line)
    found = accumulator.EventAccumulator(str(tmp_path))
    found.Reload()
    assert sorted(found.Tags()["scalars"]) == ["evaluation/auc", "evaluation/hot/auc", "train/loss"]
    assert [(event.step, event.value) for event in found.Scalars("evaluation/auc")] == [(300, 0.75)]


RUN = Path("run")


def test_settings_are_renamed_and_those_at_their_defaults_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_RENAMED", {"parts": "pieces"})
    monkeypatch.setattr(files, "_REMOVED", {"old": 3, "older": None})
    description = {"config": {"seed": 1, "parts": 2, "old": 3, "recipe": {"older": None}}, "model": "dlrm"}
    kept = {"config": {"seed": 1, "pieces": 2, "recipe": {}}, "model": "dlrm"}
    assert without_removed(RUN, description) == kept
    assert description["config"]["old"] == 3  # type: ignore[index]
    with pytest.raises(HotsetError, match="run was begun with --old 4, an option that this version does not"):
        without_removed(RUN, {"config": {"old": 4}})
    with pytest.raises(HotsetError, match="--older 5"):
        without_removed(RUN, {"config": {"recipe": {"older": 5}}})


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("decay", "step", "--exchange-decay step"),
        ("homes", "moving", "--homes moving"),
        ("sync_every", 8, "--sync-every 8"),
    ],
)
def test_codecs_are_continued_with_a_linear_decay_or_none(name: str, value: Any, option: str) -> None:
    exchange = {"vectors": "int8", "decay": "linear", "sync_rows": 0, "sync_every": None, "homes": "by-use"}
    assert without_removed(RUN, {"exchange": exchange}) == {"exchange": {"vectors": "int8"}}
    assert without_removed(RUN, {"exchange": exchange | {"decay": "none"}})["exchange"] == {"vectors": "int8"}
    with pytest.raises(HotsetError, match=option):
        without_removed(RUN, {"exchange": exchange | {name: value}})


def test_reserved_room_is_taken_and_given_back(tmp_path: Path) -> None:
    room = files.ReservedRoom(tmp_path, 1 << 20, "weights")
    number = room._file
    assert os.fstat(number).st_blocks >= 2048
    room.give(1 << 19)
    assert os.fstat(number).st_size == 1 << 19
    # The file has no name: its room is free once nothing holds it.
    del room
    with pytest.raises(OSError):
        os.fstat(number)


def test_an_optimizer_that_no_run_has_is_refused() -> None:
    with pytest.raises(RecordError, match="embedding_optimizer is 'sgd2'"):
        RunConfig.from_json(CONFIG | {"config": CONFIG["config"] | {"embedding_optimizer": "sgd2"}})
