"""Hints of training that need more than a line of `hints.txt`: Python, several ranks, measured machines."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import shutil
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
from torch import nn

import hotset
import hotset.nn
from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.stages.rank import map_ids
from hotset.tests.support.hints import Shell, follows, hint_of, interrupt, write_map
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train import build_embeddings
from hotset.train.advice import MachineSpeeds
from hotset.train.build_embeddings import resolve, set_threads
from hotset.train.checkpoints import starting_rows
from hotset.train.checkpoints.best_weights import BestWeights
from hotset.train.checkpoints.files import refuse_other_shape
from hotset.train.checkpoints.resume import RunCheckpoints
from hotset.train.checkpoints.starting_rows import _open_maps, _read_map, _refuse_not_finite
from hotset.train.config import RunConfig, TrainConfig, read_config
from hotset.train.config_parts import ChosenExchange
from hotset.train.data import shards as shards_module
from hotset.train.data.batch import MicroBatches, RecordedOrder, ResumedOrder, SeededOrder
from hotset.train.data.dataset import ShardDataset
from hotset.train.data.shards import ShardSet, with_hot_bytes
from hotset.train.metrics import CLICKS, SampleScores, words_for
from hotset.train.model.gradients import choose_dense_dtype
from hotset.train.own_loop.lookups import SharedBatches
from hotset.train.placements.spill_plan import BlockFile, mapped_zeros
from hotset.train.ranks.messages import check_tables_of_bounds
from hotset.train.ranks.ranks import OneRank, Ranks, check_equal_settings, join_ranks
from hotset.train.rows import tiers
from hotset.train.rows.embeddings import RowsPart
from hotset.train.run_folder import files as run_files
from hotset.train.run_folder import files as run_writer
from hotset.train.run_folder import weights
from hotset.train.run_folder.files import ReservedRoom, claimed
from hotset.train.run_log import read_summary
from hotset.train.torchrec.sharding import codecs_of, count_uses, plan_sharding
from hotset.workflows import characterise as module
from hotset.workflows.characterise import Cell, CellFile, CellRun

TRAIN = ("train", "data", "--threads", "1", "--out")
TINY = Cell(batch_size=16, num_dense=4, num_tables=2, rows_of_table=60, embedding_dim=4, mlp_width=8)


def change_manifest(folder: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and seal it again."""
    parts = json.loads(Path(folder, "manifest.json").read_text())
    change(parts)
    write_manifest(Path(folder), parts)


def first_file(kind: str) -> Path:
    """Return the first shard of a kind."""
    return sorted(Path("data/shards").glob(f"{kind}*.arrow"))[0]


def retrained(shell: Shell, out: str = "again") -> None:
    """Train on what is there now."""
    shell.works(*TRAIN, out)


@follows("train/data/shards.py::ShardSet._refuse_stray")
def test_stray_ids_are_packed_again(shell: Shell) -> None:
    def stray(columns: dict[str, Any]) -> None:
        columns["ids"][0][0] = 10**6

    reseal(Path("data/shards"), stray, first_file("mixed").name)
    shell.obey(shell.refused(*TRAIN, "other", "--placement", "all-fast"))
    retrained(shell)


def set_threads_and_fork() -> None:
    set_threads(2)
    fork = multiprocessing.get_context("fork")
    for number, wanted in ((2, 1), (1, 0)):
        process = fork.Process(target=set_threads, args=(number,))
        process.start()
        process.join()
        assert process.exitcode == wanted


@follows("train/build_embeddings.py::set_threads")
def test_a_forked_process_lacks_the_threads_of_its_parent(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(build_embeddings, "_process_of_threads", os.getppid())
        assert hint_of(lambda: set_threads(2)) == 'start it by multiprocessing.get_context("spawn")'
    process = multiprocessing.get_context("spawn").Process(target=set_threads_and_fork)
    process.start()
    process.join()
    assert process.exitcode == 0


@follows("train/run_log.py::RunLog.refuse_shards")
def test_a_run_that_met_a_damaged_batch_is_resumed(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shards_module, "_HASHED_FIRST_BYTES", 0)
    opened = ShardSet.open(Path("data"))
    order = next(SeededOrder(opened.is_hot_only, 0, 1, is_grouped=opened.is_grouped).epochs())
    position = opened._training[order[-1]]
    file = opened._files[position.file]
    stored = file._stored.batch(position.file, position.index)
    whole = bytearray(file.path.read_bytes())
    whole[stored.start + stored.layout.buffers["dense", "values"].start] ^= 1
    file.path.write_bytes(whole)
    run = (*TRAIN, "other", "--placement", "all-fast")
    hint = shell.refused(*run)
    assert hint.endswith("give it the options that it had; then the same command resumes the run")
    shell.obey(hint.replace("pack data", "pack data --batch-size 128"))
    shell.works(*run)


@follows("train/data/shard_file.py::UnchangedFile._fault")
def test_shards_that_change_while_they_are_used(shell: Shell) -> None:
    shards = ShardSet.open(Path("data"))
    for path in Path("data/shards").glob("*.arrow"):
        path.write_bytes(path.read_bytes())
    hint = hint_of(lambda: shards.training_batch(0))
    assert hint.endswith("and leave it alone while it is trained on")
    shell.obey(hint)
    retrained(shell)


@follows("train/data/shards.py::with_hot_bytes#2")
def test_another_budget_for_shards_without_their_plan(shell: Shell) -> None:
    alone = ShardSet.open(write_shards(Path("alone/shards"), order="original"))
    assert "the folder that preprocess wrote" in hint_of(lambda: with_hot_bytes(alone, 1000, "sgd"))


@follows("train/data/batch.py::read_batch_order")
def test_an_order_to_replay(shell: Shell) -> None:
    assert hint_of(lambda: RecordedOrder.of_run(Path("data"), 4, 1)) == "give the folder of a finished run"
    shards = ShardSet.open(Path("data"))
    RecordedOrder.of_run(Path("run"), shards.num_training_batches, 1)


@follows("train/run_folder/weights.py::refuse_other_tables refuse_other_tables#2")
def test_a_run_on_other_shards(shell: Shell) -> None:
    config = read_config(Path("run"))
    shards: Any = ShardSet.open(Path("data"))
    for change in ({"tables": shards.tables[:-1]}, {"num_dense": 1}):
        others: Any = SimpleNamespace(
            manifest=shards.manifest,
            tables=shards.tables,
            embedding_dim=shards.embedding_dim,
            num_dense=shards.num_dense,
        )
        others.__dict__.update(change)
        hint = "give the shards of the run"
        assert hint_of(partial(weights.refuse_other_tables, config, others, hint)) == hint
    write_shards(Path("others/shards"))
    assert "shards of the same vocabulary" in shell.refused("evaluate", "run", "others")
    shell.works("evaluate", "run", "data")


@follows(
    "train/run_folder/weights.py::open_weights train/config.py::RunConfig.read train/run_log.py::read_summary"
)
def test_files_of_a_run(shell: Shell) -> None:
    wanted = "give the folder that a finished training run wrote (its --out)"
    assert hint_of(lambda: weights.read_weights(Path("run/nothing"))) == wanted
    Path("run/nothing/weights.safetensors").mkdir(parents=True)
    assert hint_of(lambda: weights.read_weights(Path("run/nothing"))) == wanted
    shutil.rmtree("run/nothing")
    assert hint_of(lambda: RunConfig.read({}, "config.json")) == wanted
    whole = Path("run/summary.json").read_text()
    Path("run/summary.json").write_text('{"transfers": {}}')
    assert hint_of(lambda: read_summary(Path("run"))) == wanted
    Path("run/summary.json").write_text(whole)
    shell.works("evaluate", "run", "data")


@follows("train/run_folder/weights.py::refuse_other_weights _not_finite")
def test_damaged_weights_are_trained_again(shell: Shell) -> None:
    config = read_config(Path("run"))
    found = weights.read_weights(Path("run"))
    other = torch.nn.Linear(2, 2)
    assert "train again" in hint_of(lambda: weights.refuse_other_weights(Path("run"), found, config, other))
    nan: Any = {"C1": torch.tensor([float("nan")])}
    assert "lower learning rates" in hint_of(lambda: weights.read_finite(Path("run"), nan, "C1"))
    shell.works("evaluate", "run", "data")


@follows("train/run_folder/files.py::explained")
def test_a_disk_without_room_for_a_run(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full_disk)
        assert hint_of(lambda: run_writer.RunFolder(Path("run"), 100)) == "write --out to a larger disk"

    def write() -> None:
        with run_files.explained(Path("run/metrics.jsonl")):
            full_disk()

    assert hint_of(write).startswith("free disk space, and run the same command")
    retrained(shell)


@follows("train/run_folder/files.py::refuse_missing_folder")
def test_a_missing_folder_is_created(shell: Shell) -> None:
    shell.obey(hint_of(lambda: run_files.refuse_missing_folder(Path("my disk/x"))))
    run_files.refuse_missing_folder(Path("my disk/x"))


def full_disk(*_: object) -> None:
    """Fail as a write to a full disk does."""
    raise OSError(28, "No space left on device")


@follows("train/rows/tiers.py::disk_space")
def test_a_disk_without_room_for_rows(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full_disk)
        hint = hint_of(lambda: tiers.mapped_rows(10, 4, Path()))
    assert hint == "write --out to a larger disk, or raise --slow-bytes"
    assert tiers.mapped_rows(10, 4, Path()).shape == (10, 4)


@follows("train/placements/spill_plan.py::BlockFile._fault")
def test_rows_on_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "give another --slow-dir"
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full_disk)
        assert hint_of(lambda: BlockFile(Path(), 4096, 1)).startswith(wanted)
        assert hint_of(lambda: mapped_zeros(Path(), 1000, np.int64)).startswith(wanted)
    assert str(BlockFile(Path(), 4096, 1)._fault("read", "broken").hint).startswith(wanted)


@follows("train/model/gradients.py::choose_dense_dtype")
def test_a_type_that_this_machine_is_slow_with(shell: Shell) -> None:
    hint = hint_of(lambda: choose_dense_dtype("bf16", "cpu", frozenset()))
    for name in hint.removeprefix("use --dense-dtype ").split(" or "):
        shell.works(*TRAIN, name, "--dense-dtype", name)


@follows("train/run_folder/files.py::claimed")
def test_a_run_in_use_is_waited_for(shell: Shell) -> None:
    interrupt("other")
    with claimed(Path("other")):
        assert "the same command then resumes" in shell.refused(*TRAIN, "other")
    shell.works(*TRAIN, "other")


@follows("train/run_folder/files.py::ReservedRoom.__init__")
def test_a_run_on_a_small_disk_goes_without_checkpoints(shell: Shell) -> None:
    hint = hint_of(lambda: ReservedRoom(Path(), 1 << 60))
    assert hint.endswith("--checkpoint-every off")
    shell.works(*TRAIN, "other", *hint.split()[-2:])


@follows(
    "train/data/batch.py::ResumedOrder.epochs ResumedOrder.epochs#2 "
    "train/checkpoints/files.py::refuse_other_shape"
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


def another_day(shell: Shell) -> None:
    """Extend ``data`` by a day, with the map of its ids, as ``more``."""
    shell.works("generate", "--samples", "300", "--seed", "9", "--scale", "100", "--out", "day.tsv")
    preprocess = ["preprocess", "log.tsv", "day.tsv", "--out", "more", "--batch-size", "128", "-q"]
    shell.works(*preprocess, "--hot-bytes", "64KiB")
    write_map("data", "more")


@follows("train/checkpoints/starting_rows.py::_open_maps#2 _open_maps#3 _open_maps#4")
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
    shards = ShardSet.open(Path("more"))
    tables = (replace(other.tables[0], num_rows=1), *other.tables[1:])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(starting_rows, "vocabulary_of", lambda shards: None)
        assert hint == hint_of(
            lambda: _open_maps(Path("run"), replace(other, vocabulary=None, tables=tables), shards)
        )
    shell.works(*start)


@follows("train/checkpoints/starting_rows.py::_read_map _read_map#2")
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


@follows("train/checkpoints/starting_rows.py::_refuse_not_finite")
def test_a_run_that_does_not_fit_is_not_started_from(shell: Shell) -> None:
    write_shards(Path("tables/shards"))
    hint = shell.refused("train", "tables", "--out", "next", "--init-from", "run")
    assert hint.endswith("or leave --init-from out")
    no_number = np.full((1, 1), np.nan, np.float32)
    nothing = RowsPart(np.zeros(1, np.int32), np.zeros(1, np.int32), no_number, no_number)
    assert hint_of(lambda: _refuse_not_finite(nothing, "C1")) == "start from another run"
    shell.works(*TRAIN, "next", "--init-from", "run")


@follows("train/run_log.py::RunLog._refuse#2")
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


@follows("train/metrics.py::refuse_not_a_number")
def test_diverged_weights_ask_for_lower_rates(shell: Shell) -> None:
    none = np.zeros(1, np.bool_)
    answer = np.full((1, 1), np.nan, np.float32)
    hint = hint_of(lambda: SampleScores(1, CLICKS, ()).add(answer, answer, none, none, {}))
    assert hint == "train again with lower --embedding-lr or --dense-lr"
    shell.works(*TRAIN, "other", "--embedding-lr", "0.01", "--dense-lr", "0.001")


@follows("train/metrics.py::words_for")
def test_scores_want_room_on_the_disk(shell: Shell, tmp_path: Path) -> None:
    folder = tmp_path / "full"
    hint = hint_of(lambda: words_for(5_000_000, folder, 1))
    assert hint == "free 8 bytes of disk space there for each sample that is evaluated"
    folder.mkdir()
    assert words_for(5_000_000, folder, 1).size == 5_000_000


@follows("train/checkpoints/best_weights.py::BestWeights._is_whole")
def test_damaged_best_weights_are_left_out(shell: Shell) -> None:
    Path("best-000000003.safetensors").write_bytes(b"x")
    best = BestWeights(Path("."), 2, OneRank())
    best.restore({"step": 3, "xxh3_128": "0" * 32})
    trainer: Any = SimpleNamespace(step=9)
    hint = hint_of(lambda: best.load(trainer))
    assert hint == "remove it and give the same command again: it keeps the weights of the last step"
    Path("best-000000003.safetensors").unlink()
    assert not best.load(trainer)


@follows("train/build_model.py::explained")
def test_verbose_shows_where_the_code_of_a_user_fails(shell: Shell) -> None:
    whole = Path("nets.py").read_text()
    Path("nets.py").write_text(whole.replace("super().__init__()", "raise KeyError(hidden)"))
    hint = shell.refused(*TRAIN, "new", "--model", "nets:Net")
    assert hint == "--verbose shows where the error was raised"
    status, _, err = shell.run(*TRAIN, "new", "--model", "nets:Net", hint.split()[0])
    assert status == 1 and 'nets.py", line 6, in __init__' in err
    Path("nets.py").write_text(whole)
    shell.works(*TRAIN, "new", "--model", "nets:Net")


@follows("train/build_model.py::import_named")
def test_a_class_made_inside_a_program_is_given_from_python(shell: Shell) -> None:
    class Inner(nn.Module):
        def __init__(self, inputs: hotset.ModelInputs) -> None:
            super().__init__()
            self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)

        def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
            logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
            return logits.squeeze(1)

    hotset.fit("data", "new", model=Inner, threads=1)
    hint = shell.refused("evaluate", "new", "data")
    assert hint.startswith("give it from Python as model=, or put the class in a separate file")
    hotset.evaluate("new", "data", model=Inner)


@follows("pipeline/settings.py::refuse_unknown train/fit.py::FittedRun.table")
def test_settings_and_tables_are_named_in_python(shell: Shell) -> None:
    hint = hint_of(lambda: hotset.fit("data", "new", threads=1, epoch=1))  # type: ignore[call-arg]
    assert hint == "did you mean 'epochs'?"
    run = hotset.fit("data", "new", threads=1, epochs=1)
    hint = hint_of(partial(run.table, "C01"))
    run.table(hint.split("'")[1])


@follows("train/data/dataset.py::Shards.batches Shards.counts")
def test_names_that_were_meant_are_taken_from_python(shell: Shell) -> None:
    shards = hotset.Shards("data")
    kind: Any = "hotonly"
    assert hint_of(lambda: next(shards.batches(kind))) == "did you mean 'hot_only'?"
    next(shards.batches("hot_only"))
    assert hint_of(lambda: shards.counts("C22x")) == "did you mean 'C22'?"
    assert shards.counts("C2").sum() > 0
    predict = partial(hotset.predict, "run", "log.tsv")
    assert hint_of(lambda: predict(batchsize=9)) == "did you mean 'batch_size'?"
    assert hotset.predict("run", "log.tsv", batch_size=9).height == 600
    preprocess = partial(hotset.preprocess, "log.tsv", "other", workers=1)
    assert hint_of(lambda: preprocess(batchsize=9)) == "did you mean 'batch_size'?"  # type: ignore[call-arg]
    preprocess(batch_size=9)


@follows(
    "pipeline/formats/user_data.py::table_of check_frame write_frame _refuse_objects "
    "workflows/library.py::_files_of"
)
def test_frames_are_given_as_hints_say(shell: Shell) -> None:
    frame = pl.DataFrame({"click": [0, 1] * 90, "age": [3, 4, 5] * 60, "country": ["a", "b"] * 90})
    hint = hint_of(lambda: hotset.preprocess(frame, "framed", schema="criteo-kaggle", workers=1))
    first_line = hint.partition("begins with ")[2]
    Path("framed.toml").write_text(
        f'{first_line}\nlabel = "click"\ndense = ["age"]\n[sparse]\ncountry = "text"\n'
    )
    hotset.preprocess(frame, "framed", schema="framed.toml", workers=1)
    wrong: Any = 3
    objects = frame.with_columns(pl.Series("country", ["a", "b"] * 90, dtype=pl.Object))
    hint = hint_of(lambda: hotset.preprocess(objects, "typed", schema="framed.toml", workers=1))
    assert hint == "make the column again with a type, such as polars.String"
    typed = objects.with_columns(pl.Series("country", objects["country"].to_list(), dtype=pl.String))
    hotset.preprocess(typed, "typed", schema="framed.toml", workers=1)
    # A column that no schema names may have values of several types, or ones that only Arrow has.
    mixed = frame.to_dict(as_series=False) | {"note": [1, "x"] * 90}
    spans = frame.to_arrow().append_column("note", pa.nulls(180, pa.month_day_nano_interval()))
    for columns in (mixed, spans):
        hint = hint_of(partial(hotset.preprocess, columns, "fewer", schema="framed.toml", workers=1))
        assert hint.startswith("leave out columns that are no features")
    hotset.preprocess(spans.drop_columns("note"), "fewer", schema="framed.toml", workers=1)
    assert hint_of(lambda: hotset.predict("run", wrong)).startswith("give the path as text")
    assert hotset.predict("run", "log.tsv").height == 600


@follows(
    "pipeline/formats/user_data.py::VectorFile._misfit VectorFile._refuse_width "
    "pipeline/formats/user_data.py::CategoryIds.__init__ CategoryIds.find CategoryIds.categories "
    "train/checkpoints/starting_rows.py::open_given_tables open_given_tables#2 _look_up"
)
def test_vectors_and_categories_are_given_as_hints_say(shell: Shell) -> None:
    shards = hotset.Shards("data")
    hint = hint_of(lambda: shards.ids("C22x", ["68fd1e64"]))
    shards.ids(hint.split("'")[1], ["68fd1e64"])
    assert hint_of(lambda: shards.ids("C2", [7])) == "categories of C2 are hex8"
    assert hint_of(lambda: shards.categories("C2", [10**6])).startswith("its ids go from 0 to ")
    category = shards.categories("C2", range(9)).drop_nulls().to_numpy()[:2].astype(str)
    given: dict[str, Any] = {"category": category, "vector": np.zeros((2, 16), np.float32)}
    fit = partial(hotset.fit, "data", "new", threads=1)
    assert hint_of(lambda: fit(init_tables={"C22x": given})) == "did you mean 'C22'?"
    twice = given | {"category": category[[0, 0]]}
    assert hint_of(lambda: fit(init_tables={"C2": twice})) == "keep one vector for each category of C2"
    bare = Path(shutil.copytree("data/shards", "bare/shards")).parent
    hint = hint_of(lambda: hotset.fit(bare, "new", threads=1, init_tables={"C2": given}))
    assert hint == "give the folder that preprocess wrote (its --out)"
    np.savez("wrong.npz", names=category, vectors=given["vector"])
    hint = hint_of(lambda: fit(init_tables={"C2": "wrong.npz"}))
    assert hint.endswith("numpy.savez(FILE, categories=..., vectors=...)")
    np.savez("narrow.npz", categories=category, vectors=np.zeros((2, 8), np.float32))
    option = hint_of(lambda: fit(init_tables={"C2": "narrow.npz"})).split(",")[0].split()[-2:]
    shell.works("preprocess", "log.tsv", "--out", "narrow", *option)
    hotset.fit("narrow", "narrow/run", threads=1, init_tables={"C2": "narrow.npz"})
    np.savez("right.npz", categories=category, vectors=given["vector"])
    fit(init_tables={"C2": "right.npz"})


def free_port() -> str:
    """Return a port that nobody listens at."""
    with socket.socket() as opened:
        opened.bind(("127.0.0.1", 0))
        return str(opened.getsockname()[1])


def launched(monkeypatch: pytest.MonkeyPatch, rank: int, num_ranks: int) -> None:
    """Set the variables that torchrun sets."""
    values = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    for name, value in (values | {"RANK": str(rank), "WORLD_SIZE": str(num_ranks)}).items():
        monkeypatch.setenv(name, value)


@follows("train/ranks/ranks.py::join_ranks _lost_ranks")
def test_a_process_becomes_a_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # Rank 1 waits for rank 0, which was started by hand; its error is the first one.
    launched(monkeypatch, rank=1, num_ranks=2)
    assert hint_of(lambda: join_ranks(timeout_seconds=0.1)) == "look for the first error among the ranks"
    monkeypatch.delenv("RANK")
    assert hint_of(join_ranks).endswith("or set them as torchrun does")
    launched(monkeypatch, rank=0, num_ranks=1)
    ranks = join_ranks()
    try:
        assert ranks.gather(torch.tensor([7]))[0].tolist() == [7]
    finally:
        ranks.close()


@follows("train/own_loop/lookups.py::loop_ranks SharedBatches.held")
def test_ranks_of_a_loop_of_ones_own_join_first_and_have_equal_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards")
    launched(monkeypatch, rank=0, num_ranks=2)
    hint = hint_of(lambda: hotset.nn.Embeddings(folder))
    assert hint.startswith('call torch.distributed.init_process_group("gloo") before')

    def read(ranks: Ranks) -> str:
        shared = SharedBatches(ranks)
        if ranks.rank == 0:
            return hint_of(lambda: shared.held([{}], [ShardSet.open(folder).training_batch(0)]))
        shared.end()
        return ""

    hint, _ = run_thread_ranks(2, read)
    assert hint.startswith("hotset.ShardDataset(data, rank=…, world_size=…) gives all ranks the same number")
    sizes = [len(list(ShardDataset(folder, rank=rank, world_size=2))) for rank in range(2)]
    assert sizes[0] == sizes[1]


@follows("train/data/dataset.py::ShardDataset.load_state_dict")
def test_a_state_of_other_workers_goes_through_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_shards(tmp_path / "shards")
    state = ShardDataset(folder).state_dict() | {"workers": 2, "position": 1}
    states = {"first": state, "second": state}
    with monkeypatch.context() as patched:
        patched.setattr("hotset.train.data.dataset._worker", lambda: (0, 3))
        hint = hint_of(lambda: ShardDataset(folder).load_state_dict(state))
    assert hint == "dataset.load_state_dict(loader.state_dict()), then a new loader, takes any number"
    dataset = ShardDataset(folder)
    dataset.load_state_dict(states)
    assert len(list(dataset)) == len(dataset) - 2


@follows(
    "train/own_loop/row_gradients.py::RowGradients.check_finite "
    "train/own_loop/embedding_module.py::Embeddings.__reduce_ex__ _row_optimizers"
)
def test_a_loop_of_ones_own_goes_on_without_a_gradient_and_without_a_copy(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards")
    assert hint_of(lambda: hotset.nn.Embeddings(folder, tables={"C33": {}})) == "did you mean 'C3'?"
    embeddings = hotset.nn.Embeddings(folder, placement="hybrid", tables={"C3": {}})
    first, second = list(ShardDataset(folder))[:2]
    (embeddings(first)["C1"].sum() * float("nan")).backward()
    assert "zero_grad() drops this gradient" in hint_of(embeddings.step)
    embeddings.zero_grad()
    embeddings(second)["C1"].sum().backward()
    embeddings.step()
    assert "load_state_dict(emb.state_dict())" in hint_of(lambda: copy.deepcopy(embeddings))
    other = hotset.nn.Embeddings(folder, placement="hybrid")
    other.load_state_dict(embeddings.state_dict())


@follows("train/own_loop/embedding_module.py::Embeddings._refuse_large Embeddings._refuse_pending")
def test_a_loop_of_ones_own_adds_gradients_of_several_batches(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards")
    batches = list(ShardDataset(folder))[:4]
    large = hotset.nn.Embeddings(folder, placement="hybrid-uva")
    reading = large.read_ahead(batches, batches_per_step=2)
    assert hint_of(lambda: next(reading)) == "another placement runs such a step in passes"

    embeddings = hotset.nn.Embeddings(folder, placement="hybrid")

    def backward(batch: dict[str, Any]) -> None:
        sum(each.sum() for each in embeddings(batch).values()).backward()

    reading = embeddings.read_ahead(batches)
    backward(next(reading))
    hint = hint_of(lambda: next(reading))
    assert "call step() after each batch, or zero_grad()" in hint and "batches_per_step=K" in hint
    embeddings.zero_grad()
    for batch in embeddings.read_ahead(batches):
        backward(batch)
        embeddings.step()
    reading = embeddings.read_ahead(batches, batches_per_step=2)
    for _ in range(2):
        backward(next(reading))
        backward(next(reading))
        embeddings.step()


@follows("train/own_loop/embedding_module.py::Embeddings.read_ahead Embeddings._current_of")
def test_a_loop_of_ones_own_that_broke_off_is_ended_by_the_next(tmp_path: Path) -> None:
    folder = write_shards(tmp_path / "shards")
    batches = list(ShardDataset(folder))[:4]
    embeddings = hotset.nn.Embeddings(folder, placement="hybrid")
    kept = embeddings.read_ahead(batches)
    next(kept)
    assert "a new one over read_ahead ends it" in hint_of(lambda: embeddings(batches[2]))
    for batch in embeddings.read_ahead(batches):
        embeddings(batch)
    hint = hint_of(lambda: next(kept))
    assert hint == "evaluate on batches as they are, without read_ahead"
    embeddings.eval()
    for batch in batches:
        embeddings(batch)


@follows("train/data/batch.py::MicroBatches.__post_init__")
def test_a_batch_has_a_sample_for_each_share() -> None:
    hint = hint_of(lambda: MicroBatches(3, 4))
    assert hint == "preprocess with a larger --batch-size, or use fewer micro-batches or ranks"
    MicroBatches(4, 4)
    MicroBatches(3, 3)


@follows("train/data/batch.py::MicroBatches.__post_init__#2")
def test_ranks_take_equally_many_shares() -> None:
    hint = hint_of(lambda: MicroBatches(100, 6, 0, 4))
    assert hint == "--micro-batches 4 gives each rank one"
    MicroBatches(100, int(hint.split()[1]), 0, 4)


@follows("train/ranks/ranks.py::check_equal_settings")
def test_all_ranks_get_the_same_options() -> None:
    plans = [b"a" * 16, b"b" * 16]

    def hint(ranks: Ranks) -> str:
        return hint_of(lambda: check_equal_settings(ranks, {"plan": plans[ranks.rank]}))

    assert set(run_thread_ranks(2, hint)) == {
        "give all ranks the same DIR (its shards/), options and version of hotset"
    }
    run_thread_ranks(2, lambda ranks: check_equal_settings(ranks, {"plan": plans[0]}))


@follows("train/build_embeddings.py::resolve")
def test_an_option_of_one_process_is_left_out(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    hint = hint_of(lambda: resolve(shards, TrainConfig(slow_bytes=ByteSize(1000)), 2))
    assert hint == "leave --slow-bytes out"
    assert resolve(shards, TrainConfig(), 2).micro_batches == 2


@follows("train/build_embeddings.py::resolve#2")
def test_ranks_compute_on_the_cpu(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    hint = hint_of(lambda: resolve(shards, TrainConfig(device="cuda"), 2))
    assert hint == "--engine torchrec trains on several devices; or use --device cpu, or start one process"
    resolve(shards, TrainConfig(device="cpu"), 2)


@follows("train/torchrec/sharding.py::codecs_of codecs_of#2")
@pytest.mark.filterwarnings("ignore")
def test_torchrec_sends_fp16_where_it_has_no_other_codec() -> None:
    for exchange in ("bounded:0.03", "bf16"):
        hint = hint_of(partial(codecs_of, exchange, torch.device("cpu")))
        assert hint == "use --exchange fp16"
    if find_spec("torchrec") is not None:
        assert codecs_of("fp16", torch.device("cpu"))


@follows("train/torchrec/sharding.py::plan_sharding")
@pytest.mark.skipif(find_spec("torchrec") is None, reason="needs TorchRec, see scripts/install-torchrec")
@pytest.mark.filterwarnings("ignore")
def test_a_table_that_torchrec_cannot_place_gets_constraints(tmp_path: Path) -> None:
    from torchrec import EmbeddingCollection, EmbeddingConfig
    from torchrec.distributed.embedding import EmbeddingCollectionSharder
    from torchrec.distributed.planner import ParameterConstraints

    shards = ShardSet.open(write_shards(tmp_path / "data"))
    table = EmbeddingConfig(name="C3", num_embeddings=300, embedding_dim=4, feature_names=["C3"])
    model = EmbeddingCollection(tables=[table], device=torch.device("meta"))

    def plan(kind: str) -> Any:
        return plan_sharding(
            model,
            [EmbeddingCollectionSharder(fused_params={})],
            shards,
            (5, 40, 0),
            count_uses(shards, [2])[0],
            device=torch.device("cpu"),
            optimizer="sgd",
            constraints={"C3": ParameterConstraints(sharding_types=[kind], compute_kernels=["fused"])},
        )

    assert "give constraints of your own" in hint_of(partial(plan, "grid_shard"))
    assert plan("table_wise")


@follows("train/build_embeddings.py::_resolve_torchrec")
def test_an_option_of_the_own_engine_is_left_out(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    asked = TrainConfig(engine="torchrec", placement="cache")
    assert hint_of(lambda: resolve(shards, asked, 2)) == "leave --placement out, or leave --engine out"
    resolve(shards, replace(asked, placement="lookahead"), 2)
    resolve(shards, replace(asked, engine="hotset"), 2)


@follows("train/build_embeddings.py::_resolve_torchrec#2")
def test_rows_have_an_optimizer_that_torchrec_has(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    asked = TrainConfig(engine="torchrec", embedding_optimizer="adam")
    hint = hint_of(lambda: resolve(shards, asked, 2))
    assert hint == "give --embedding-optimizer sgd, adagrad or rowwise-adagrad"
    for name in ("sgd", "adagrad", "rowwise-adagrad"):
        resolve(shards, TrainConfig(engine="torchrec", embedding_optimizer=name), 2)


@follows("train/torchrec/embeddings.py::")
def test_torchrec_is_installed_by_a_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    monkeypatch.delitem(sys.modules, "hotset.train.torchrec.embeddings", raising=False)
    hint = hint_of(lambda: import_module("hotset.train.torchrec.embeddings"))
    assert hint == "scripts/install-torchrec installs it"


@follows("train/build_embeddings.py::_resolve_torchrec#3")
def test_what_torchrec_has_not_is_for_the_own_engine(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards"))
    asked = TrainConfig(engine="torchrec", freeze=("C1",))
    assert hint_of(lambda: resolve(shards, asked, 2)) == "leave --engine out"
    resolve(shards, replace(asked, engine="hotset"), 2)


@follows("train/ranks/messages.py::check_tables_of_bounds")
def test_a_bound_is_of_a_table_of_the_shards(tmp_path: Path) -> None:
    tables = ShardSet.open(write_shards(tmp_path / "shards")).tables
    hint = hint_of(lambda: check_tables_of_bounds(ChosenExchange("bounded:0.1,nope=0.2"), tables))
    assert hint == f"tables are {', '.join(table.name for table in tables)}"
    check_tables_of_bounds(ChosenExchange(f"bounded:0.1,{tables[0].name}=0.2"), tables)


@pytest.fixture
def small_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tiny cells, so that measuring takes a second."""
    dense = (replace(TINY, mlp_width=64), TINY)
    monkeypatch.setattr(module, "_DENSE_CELLS", dense)
    monkeypatch.setattr(module, "_PROBE_SECONDS", 0.0)
    monkeypatch.setattr(module, "cells", lambda most_bytes: list(dense))


@pytest.mark.usefixtures("small_machine")
@follows("train/advice.py::MachineSpeeds.read")
def test_a_machine_is_measured_where_there_is_none(shell: Shell) -> None:
    Path("other.json").write_text("{}")
    hint = shell.refused("advise", "data", "--speeds", "other.json")
    shell.obey(hint, FILE="machine.json")
    assert MachineSpeeds.read(Path("machine.json")).threads >= 1
    shell.works("advise", "data", "--speeds", "machine.json")


@pytest.mark.usefixtures("small_machine")
@follows("workflows/characterise.py::CellFile.read CellFile.read#2")
def test_cells_of_another_machine(shell: Shell) -> None:
    measure = ("characterise", "--minutes", "0.001", "--out")
    cells = Path("machine.cells.jsonl")
    cells.write_text('{"format": "hotset cells"}\n')
    assert shell.refused(*measure, "machine.json") == "give another --out, or delete the file"
    shell.works(*measure, "another.json")
    cells.write_text("{\n")
    assert shell.refused(*measure, "machine.json") == "delete it, and measure its cells again"
    cells.unlink()
    shell.works(*measure, "machine.json")


@follows("workflows/characterise.py::CellFile.add")
def test_cells_are_kept_where_the_disk_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = CellFile(tmp_path / "machine.cells.jsonl", {"threads": 1})
    runs = [
        CellRun(cell=replace(TINY, batch_size=size), step_seconds=1.0, low=1.0, high=1.0) for size in (16, 32)
    ]
    file.add(runs[0])

    def refuse(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(Path, "open", refuse)
        hint = hint_of(lambda: file.add(runs[1]))
    assert hint == "free disk space, and run the same command: finished cells are kept"
    assert file.read() == runs[:1]
    file.add(runs[1])
    assert file.read() == runs
