"""Metrics reach TensorBoard's writer once each; where it is installed, its own reader finds them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from hotset.pipeline.errors import HotsetError, MissingExtraError, install_hint
from hotset.tests.support.shard_factory import write_shards
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings
from hotset.train.config import TrainConfig
from hotset.train.options.interval import Interval
from hotset.train.run import train
from hotset.train.run_folder.tensorboard_events import TensorboardEvents

LINES: list[dict[str, Any]] = [
    {"step": 100, "samples": 2_000, "loss": 0.5},
    {"step": 300, "evaluation": {"auc": 0.75, "num_samples": 7, "pr_auc": None, "hot": {"auc": 0.5}}},
]


class Writer:
    """Stands for torch's writer: a file of a line for each number."""

    def __init__(self, folder: str, filename_suffix: str) -> None:
        self._path = Path(folder) / f"events.out.tfevents.1{filename_suffix}"
        self._path.write_text("")

    def add_scalar(self, tag: str, value: float, step: int) -> None:
        with self._path.open("a") as file:
            file.write(f"{step} {tag} {value}\n")

    def flush(self) -> None:
        """Nothing is held."""


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", SimpleNamespace(SummaryWriter=Writer))


def written(folder: Path) -> list[str]:
    (path,) = folder.glob("events.out.tfevents.*")
    return path.read_text().splitlines()


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
    settings = CheckpointSettings(checkpoint_every=Interval(steps=3))

    class Killed(BaseException):
        pass

    def progress(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done >= 100:
            raise Killed

    arguments: dict[str, Any] = {"checkpoints": settings, "tensorboard": tmp_path / "tb"}
    with pytest.raises(Killed):
        train(data, config, tmp_path / "run", progress=progress, **arguments)
    train(data, config, tmp_path / "run", **arguments)
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
