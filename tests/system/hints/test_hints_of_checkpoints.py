"""Hints of runs that are resumed."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.train.checkpoints.checkpoint_settings import CheckpointSettings, Interval, parse_interval
from hotset.train.checkpoints.dense_state import refuse_other_shape
from hotset.train.checkpoints.reserved_room import ReservedRoom
from hotset.train.config import TrainConfig
from hotset.train.data.batch_order import RecordedOrder, ResumedOrder
from hotset.train.run import train
from hotset.train.run_folder import locked

TRAIN = ("train", "data", "--threads", "1", "--out")


class Killed(BaseException):
    """Stands for a kill."""


def interrupt(out: str) -> None:
    """Begin the run of `TRAIN` and end it as if killed after its first checkpoint."""

    def die(*_: object) -> None:
        raise Killed

    every_step = CheckpointSettings(checkpoint_every=Interval(steps=1))
    with pytest.raises(Killed):
        train(Path("data"), TrainConfig(threads=1), Path(out), checkpoints=every_step, progress=die)


@follows("train/checkpoints/checkpoint_files.py::newest_whole")
def test_a_run_whose_checkpoints_are_damaged_begins_again(shell: Shell) -> None:
    interrupt("other")
    for path in Path("other/checkpoints").glob("*.json"):
        path.write_text("{}")
    assert "remove its folder to train from the start" in shell.refused(*TRAIN, "other")
    shutil.rmtree("other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder.py::refuse_other_settings#2")
def test_an_unfinished_run_is_resumed_with_its_settings(shell: Shell) -> None:
    interrupt("other")
    hint = shell.refused(*TRAIN, "other", "--seed", "5")
    assert hint.startswith("give the settings of that run to resume it, or another --out")
    shell.works(*TRAIN, "other")
    shell.works(*TRAIN, "another", "--seed", "5")


@follows("train/run_folder.py::refuse_other_settings")
def test_an_unfinished_run_without_readable_settings_is_removed(shell: Shell) -> None:
    interrupt("other")
    Path("other/config.json").write_text("not JSON")
    assert shell.refused(*TRAIN, "other") == "give another --out, or remove the folder"
    shutil.rmtree("other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder.py::locked")
def test_a_run_in_use_is_waited_for(shell: Shell) -> None:
    interrupt("other")
    with locked(Path("other")):
        assert "the same command then resumes" in shell.refused(*TRAIN, "other")
    shell.works(*TRAIN, "other")


@follows("train/checkpoints/reserved_room.py::ReservedRoom.__init__")
def test_a_run_on_a_small_disk_goes_without_checkpoints(shell: Shell) -> None:
    hint = hint_of(lambda: ReservedRoom(Path(), 1 << 60))
    assert hint.endswith("--checkpoint-every off")
    shell.works(*TRAIN, "other", *hint.split()[-2:])


@follows(
    "train/checkpoints/checkpoint_settings.py::parse_interval",
    "train/checkpoints/checkpoint_settings.py::parse_interval#2",
)
def test_intervals_are_written_as_the_hint_says(shell: Shell) -> None:
    hint = hint_of(lambda: parse_interval("often"))
    assert hint_of(lambda: parse_interval("0")) == hint
    assert shell.run(*TRAIN, "other", "--checkpoint-every", "often")[0] == 2
    for text in ("500", "30s", "10min", "2h", "off"):
        assert text in hint
        parse_interval(text)


@follows(
    "train/data/batch_order.py::ResumedOrder.epochs",
    "train/data/batch_order.py::ResumedOrder.epochs#2",
    "train/checkpoints/dense_state.py::refuse_other_shape",
)
def test_another_run_is_not_resumed() -> None:
    order = RecordedOrder(np.array([1, 0], np.int32))
    for done in ([0, 1], [1, 0, 1]):
        resumed = ResumedOrder(order, np.array(done, np.int32))
        hint = hint_of(lambda resumed=resumed: list(resumed.epochs()))  # type: ignore[misc]
        assert hint == "resume on the shards that the run was begun with"
    assert list(ResumedOrder(order, np.array([1], np.int32)).epochs()) == [[0]]
    hint = hint_of(lambda: refuse_other_shape("it", "bias", torch.zeros(1), torch.zeros(2)))
    assert hint == "give the model that the run was begun with"
