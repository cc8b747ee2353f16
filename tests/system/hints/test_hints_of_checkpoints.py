"""Hints of runs that are resumed."""

from __future__ import annotations

import json
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from hotset.pipeline.errors import install_hint
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.tests.support.shard_factory import write_shards
from hotset.train.checkpoints.files import ReservedRoom
from hotset.train.checkpoints.tensors import refuse_other_shape
from hotset.train.config import CheckpointSettings, TrainConfig
from hotset.train.data.batch_order import RecordedOrder, ResumedOrder
from hotset.train.data.shards import Shards
from hotset.train.execution.row_parts import RowsPart
from hotset.train.recipe_options import Interval, parse_interval
from hotset.train.resuming import source_run
from hotset.train.resuming.resume import RunCheckpoints
from hotset.train.resuming.source_run import _open_maps, _read_map, _refuse_not_finite, _refuse_other_sizes
from hotset.train.run import train
from hotset.train.run_folder.files import locked
from hotset.train.run_folder.reader import read_config

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


@follows("train/checkpoints/files.py::newest_whole")
def test_a_run_whose_checkpoints_are_damaged_begins_again(shell: Shell) -> None:
    interrupt("other")
    for path in Path("other/checkpoints").glob("*.json"):
        path.write_text("{}")
    assert "remove its folder to train from the start" in shell.refused(*TRAIN, "other")
    shutil.rmtree("other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder/files.py::recorded_description#2")
def test_an_unfinished_run_is_resumed_with_its_settings(shell: Shell) -> None:
    interrupt("other")
    hint = shell.refused(*TRAIN, "other", "--seed", "5")
    assert hint.startswith("give the settings of that run to resume it, or another --out")
    shell.works(*TRAIN, "other")
    shell.works(*TRAIN, "another", "--seed", "5")


@follows("train/run_folder/files.py::recorded_description")
def test_an_unfinished_run_without_readable_settings_is_removed(shell: Shell) -> None:
    interrupt("other")
    Path("other/config.json").write_text("not JSON")
    assert shell.refused(*TRAIN, "other") == "give another --out, or remove the folder"
    shutil.rmtree("other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder/files.py::_of_removed_option")
def test_an_option_of_a_run_that_is_gone(shell: Shell) -> None:
    interrupt("other")
    found = json.loads(Path("other/config.json").read_bytes())
    found["config"]["window"] = 7
    Path("other/config.json").write_text(json.dumps(found))
    assert shell.refused(*TRAIN, "other") == "give another --out, or remove the folder"
    shutil.rmtree("other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder/files.py::locked")
def test_a_run_in_use_is_waited_for(shell: Shell) -> None:
    interrupt("other")
    with locked(Path("other")):
        assert "the same command then resumes" in shell.refused(*TRAIN, "other")
    shell.works(*TRAIN, "other")


@follows("train/checkpoints/files.py::ReservedRoom.__init__")
def test_a_run_on_a_small_disk_goes_without_checkpoints(shell: Shell) -> None:
    hint = hint_of(lambda: ReservedRoom(Path(), 1 << 60))
    assert hint.endswith("--checkpoint-every off")
    shell.works(*TRAIN, "other", *hint.split()[-2:])


@follows(
    "train/recipe_options.py::parse_interval",
    "train/recipe_options.py::parse_interval#2",
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
    "train/checkpoints/tensors.py::refuse_other_shape",
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


def write_map(old: str, new: str) -> None:
    """Map the ids of one folder to those of another, which gets the map."""
    before, after = (Manifest.read(Path(name, "vocabulary")) for name in (old, new))
    map_ids(before, after, Path(new, "id_map"))


def another_day(shell: Shell) -> None:
    """Extend ``data`` by a day, with the map of its ids, as ``more``."""
    shell.works("generate", "--samples", "300", "--seed", "9", "--scale", "100", "--out", "day.tsv")
    preprocess = ["preprocess", "log.tsv", "day.tsv", "--out", "more", "--batch-size", "128", "-q"]
    shell.works(*preprocess, "--hot-bytes", "64KiB")
    write_map("data", "more")


@follows("train/resuming/source_run.py::_open_maps")
def test_another_vocabulary_gets_its_map(shell: Shell) -> None:
    another_day(shell)
    shutil.move("more/id_map", "id_map")
    start = ("train", "more", "--threads", "1", "--init-from", "run", "--out", "next")
    assert shell.refused(*start).startswith("extend the DIR that the run was trained on")
    shutil.move("id_map", "more/id_map")
    shell.works(*start)


@follows(
    "train/resuming/source_run.py::_open_maps#2",
    "train/resuming/source_run.py::_open_maps#3",
    "train/resuming/source_run.py::_open_maps#4",
)
def test_a_map_of_other_ids_is_made_again(shell: Shell) -> None:
    another_day(shell)
    start = ("train", "more", "--threads", "1", "--init-from", "run", "--out", "next")
    right = shutil.move("more/id_map", "id_map")
    shutil.copytree("more/shards", "more/id_map")
    hint = shell.refused(*start)
    assert hint.endswith("`hotset preprocess --extend`")
    shutil.rmtree("more/id_map")
    before, after = (Manifest.read(Path(name, "vocabulary")) for name in ("more", "data"))
    map_ids(before, after, Path("more/id_map"))
    assert shell.refused(*start) == hint
    shutil.rmtree("more/id_map")
    shutil.copytree(right, "more/id_map")
    # Without fingerprints of vocabularies the numbers of rows tell.
    other = read_config(Path("run"))
    shards = Shards.open(Path("more"))
    tables = (replace(other.tables[0], num_rows=1), *other.tables[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_run, "vocabulary_of", lambda shards: None)
        assert hint == hint_of(
            lambda: _open_maps(Path("run"), replace(other, vocabulary=None, tables=tables), shards)
        )
    shell.works(*start)


@follows("train/resuming/source_run.py::_read_map", "train/resuming/source_run.py::_read_map#2")
def test_a_damaged_map_is_made_again(shell: Shell) -> None:
    another_day(shell)
    path = Path("more/id_map/C1.arrow")
    whole = path.read_bytes()
    middle = len(whole) // 2
    path.write_bytes(whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :])
    start = ("train", "more", "--threads", "1", "--init-from", "run", "--out", "next")
    hint = shell.refused(*start)
    assert hint.startswith("restore it from a copy, or extend a copy of the old DIR again")
    path.write_bytes(whole)
    manifest = Manifest.read(Path("more/id_map"))
    table = next(table for table in read_config(Path("run")).tables if table.name == "C1")
    assert hint == hint_of(lambda: _read_map(manifest, table, 1))
    shutil.rmtree("more/id_map")
    write_map("data", "more")
    shell.works(*start)


@follows(
    "train/resuming/source_run.py::_refuse_other_sizes",
    "train/resuming/source_run.py::_refuse_other_sizes#2",
    "train/resuming/source_run.py::_refuse_other_model",
    "train/resuming/source_run.py::_of_unfinished",
    "train/resuming/source_run.py::_refuse_not_finite",
)
def test_a_run_that_does_not_fit_is_not_started_from(shell: Shell) -> None:
    start = (*TRAIN, "next", "--init-from", "run")
    write_shards(Path("tables/shards"))
    hint = shell.refused("train", "tables", "--out", "next", "--init-from", "run")
    assert hint.endswith("or leave --init-from out")
    config = read_config(Path("run"))
    shards = Shards.open(Path("data"))
    assert hint == hint_of(lambda: _refuse_other_sizes(Path("run"), replace(config, num_dense=1), shards))
    hint = shell.refused(*start, "--bottom-mlp", "64,32,16")
    assert hint == "give the options of --model that the run was trained with"
    interrupt("begun")
    shutil.rmtree("begun/checkpoints")
    assert shell.refused(*TRAIN, "next", "--init-from", "begun") == "run its command again, which finishes it"
    no_number = np.full((1, 1), np.nan, np.float32)
    nothing = RowsPart(np.zeros(1, np.int32), np.zeros(1, np.int32), no_number, no_number)
    assert hint_of(lambda: _refuse_not_finite(nothing, "C1")) == "start from another run"
    shell.works(*TRAIN, "begun")
    shell.works(*TRAIN, "next", "--init-from", "begun")


@follows("train/run_log.py::RunLog._refuse")
def test_a_run_that_diverged_goes_on_from_its_checkpoint(shell: Shell) -> None:
    rates = ("--dense-lr", "1e30", "--embedding-lr", "1e-9", "--checkpoint-every", "1")
    with pytest.MonkeyPatch.context() as patch:
        take = RunCheckpoints.take

        def take_and_wait(self: Any, *arguments: Any, **words: Any) -> None:
            take(self, *arguments, **words)
            self._writer._end.exception()

        patch.setattr(RunCheckpoints, "take", take_and_wait)
        hint = shell.refused(*TRAIN, "other", *rates)
    assert "--init-from other" in hint and "--dense-lr 1e+29" in hint


@follows("train/run_folder/files.py::TensorboardEvents.__init__")
def test_the_extra_of_tensorboard_is_installed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    hint = shell.refused("train", "data", "--out", "next", "--tensorboard", "tb", "--threads", "1")
    assert hint == install_hint("tensorboard")
