"""Hints of `train` and `evaluate`: shards, runs and the machine."""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.tests.support.resealed import reseal, write_manifest
from hotset.tests.support.shard_factory import write_shards
from hotset.train.build_embeddings import open_device
from hotset.train.data.batch_order import RecordedOrder
from hotset.train.data.shards import Shards, with_hot_bytes
from hotset.train.dense.gradients import choose_dense_dtype
from hotset.train.evaluate import refuse_other_tables
from hotset.train.rows import tiers
from hotset.train.run_config import RunConfig
from hotset.train.run_folder import files as run_files
from hotset.train.run_folder import files as run_writer
from hotset.train.run_folder import reader
from hotset.train.spill.row_store import BlockFile
from hotset.train.spill.run_plan import mapped_zeros

TRAIN = ("train", "data", "--threads", "1", "--out")


def change_manifest(folder: str, change: Callable[[dict[str, Any]], object]) -> None:
    """Change a manifest and seal it again."""
    parts = json.loads(Path(folder, "manifest.json").read_text())
    change(parts)
    write_manifest(Path(folder), parts)


def damage(path: Path) -> None:
    """Turn the end of a file round, so that its size stays."""
    whole = path.read_bytes()
    path.write_bytes(whole[:-300] + whole[-300:][::-1])


def first_file(kind: str) -> Path:
    """Return the first shard of a kind."""
    return sorted(Path("data/shards").glob(f"{kind}*.arrow"))[0]


def retrained(shell: Shell, out: str = "again") -> None:
    """Train on what is there now."""
    shell.works(*TRAIN, out)


@follows("train/data/shards.py::Shards.refuse_damage")
def test_damaged_shards_are_packed_again(shell: Shell) -> None:
    path = first_file("mixed")
    whole = path.read_bytes()
    path.write_bytes(whole[:2000] + bytes([whole[2000] ^ 1]) + whole[2001:])
    shell.obey(shell.refused(*TRAIN, "other"))
    retrained(shell)


def test_shards_that_cannot_be_read_are_packed_again(shell: Shell) -> None:
    damage(first_file("mixed"))
    shell.obey(shell.refused(*TRAIN, "other"))
    retrained(shell)


@follows("train/data/shard_file.py::ShardFile.__init__", "train/data/shards.py::Shards._read")
def test_shards_unlike_their_manifest_are_packed_again(shell: Shell) -> None:
    change_manifest("data/shards", lambda parts: parts["files"][0].update(batches=999))
    shell.obey(shell.refused(*TRAIN, "other"))
    # Fewer samples in a batch than the manifest says.
    path = first_file("evaluation")
    table = pa.ipc.open_file(path.read_bytes())
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        for number in range(table.num_record_batches):
            writer.write_batch(table.get_batch(number).slice(0, 3))
    change_manifest("data/shards", lambda parts: _as_it_is(parts, path))
    shards = Shards.open(Path("data"))
    shell.obey(hint_of(lambda: shards.evaluation_batch(0)))
    retrained(shell)


def _as_it_is(parts: dict[str, Any], path: Path) -> None:
    entry = next(entry for entry in parts["files"] if entry["path"] == path.name)
    entry["bytes"] = path.stat().st_size


@follows("train/data/shards.py::Shards._refuse_stray", "train/data/shards.py::Shards.evaluation_batch")
def test_stray_ids_and_lost_columns_are_packed_again(shell: Shell) -> None:
    shards = Shards.open(Path("data"))
    shards._read = lambda position: SimpleNamespace(is_hot_B=None)  # type: ignore[method-assign, assignment, return-value]
    assert hint_of(lambda: shards.evaluation_batch(0)).startswith("`rm -r data/shards && hotset pack data`")

    def stray(columns: dict[str, Any]) -> None:
        columns["ids"][0][0] = 10**6

    reseal(Path("data/shards"), stray, first_file("mixed").name)
    shell.obey(shell.refused(*TRAIN, "other", "--placement", "all-fast"))
    retrained(shell)


def _lacks_a_key(shards: Shards) -> None:
    raise KeyError("mixed")


@follows("train/data/shards.py::Shards.__init__#2", "train/data/shards.py::Shards.open#2")
def test_manifests_of_shards_that_cannot_be(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    change_manifest("data/shards", lambda parts: parts.update(version=99))
    shell.obey(shell.refused(*TRAIN, "other"))
    with monkeypatch.context() as patched:
        patched.setattr(Shards, "_positions_by_kind", _lacks_a_key)
        shell.obey(shell.refused(*TRAIN, "other"))
    retrained(shell)


@follows("train/data/shards.py::Shards.open")
def test_a_folder_that_is_not_of_shards(shell: Shell) -> None:
    assert "the folder that preprocess wrote" in shell.refused("train", "data/plan", "--out", "other")
    retrained(shell)


@follows("train/data/shards.py::Shards.__init__")
def test_a_log_without_labels(shell: Shell) -> None:
    shell.works("generate", "--samples", "300", "--no-label", "--out", "unlabeled.tsv")
    shell.works("preprocess", "unlabeled.tsv", "--no-label", "--out", "unlabeled")
    hint = shell.refused("train", "unlabeled", "--out", "other")
    assert hint.startswith("only `hotset predict RUN LOG ")
    # The run of another log predicts this one.
    shell.works("train", "data", "--out", "labeled", "--max-steps", "1")
    command = shlex.split(hint.split("`")[1].removeprefix("hotset "))
    mine = {"RUN": "labeled", "LOG": "unlabeled.tsv", "FILE": "scores.parquet"}
    shell.works(*(mine.get(word, word) for word in command))


@follows("train/data/shard_file.py::UnchangedFile._changed")
def test_shards_that_change_while_they_are_used(shell: Shell) -> None:
    shards = Shards.open(Path("data"))
    for path in Path("data/shards").glob("*.arrow"):
        path.write_bytes(path.read_bytes())
    hint = hint_of(lambda: shards.training_batch(0))
    assert hint.endswith("and leave it alone while it is trained on")
    shell.obey(hint)
    retrained(shell)


@follows("train/data/shards.py::with_hot_bytes", "train/data/shards.py::with_hot_bytes#2")
def test_another_budget_for_shards(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "other", "--hot-bytes", "32KiB")
    assert hint == "leave --hot-bytes out, or pack with --order original"
    shell.works("pack", "data", "--redo", "--order", "original")
    shell.works(*TRAIN, "other", "--hot-bytes", "32KiB")
    alone = Shards.open(write_shards(Path("alone/shards"), order="original"))
    assert "the folder that preprocess wrote" in hint_of(lambda: with_hot_bytes(alone, 1000, "sgd"))


@follows("train/data/batch_order.py::read_batch_order")
def test_an_order_to_replay(shell: Shell) -> None:
    assert hint_of(lambda: RecordedOrder.of_run(Path("data"), 4, 1)) == "give the folder of a finished run"
    shards = Shards.open(Path("data"))
    RecordedOrder.of_run(Path("run"), shards.num_training_batches, 1)


@follows(
    "train/evaluate.py::refuse_other_tables",
    "train/evaluate.py::refuse_other_tables#2",
    "train/evaluate.py::refuse_other_tables#3",
)
def test_a_run_on_other_shards(shell: Shell) -> None:
    shell.works("preprocess", "log.tsv", "--min-count", "3", "--out", "fewer")
    assert "shards of the same vocabulary" in shell.refused("evaluate", "run", "fewer")
    config = reader.read_config(Path("run"))
    shards: Any = Shards.open(Path("data"))
    for change in ({"tables": shards.tables[:-1]}, {"num_dense": 1}):
        others: Any = SimpleNamespace(
            manifest=shards.manifest,
            tables=shards.tables,
            embedding_dim=shards.embedding_dim,
            num_dense=shards.num_dense,
        )
        others.__dict__.update(change)
        assert "shards of the same vocabulary" in hint_of(partial(refuse_other_tables, config, others))
    shell.works("evaluate", "run", "data")


@follows("train/run_folder/files.py::refuse_occupied")
def test_a_run_is_in_the_way(shell: Shell) -> None:
    assert shell.refused(*TRAIN, "run") == "give another --out, or remove the folder"
    retrained(shell)
    shutil.rmtree("run")
    retrained(shell, "run")


@follows("train/run_folder/reader.py::read_config", "train/run_folder/reader.py::read_config#2")
def test_a_run_is_given(shell: Shell) -> None:
    wanted = "give the folder that a finished training run wrote (its --out)"
    assert shell.refused("evaluate", "data", "data") == wanted
    Path("run/config.json").write_text("{")
    assert shell.refused("evaluate", "run", "data") == wanted
    retrained(shell)
    shell.works("evaluate", "again", "data")


@follows(
    "train/run_folder/files.py::plain_file",
    "train/run_folder/files.py::plain_file#2",
    "train/run_folder/reader.py::read_manifest",
    "train/run_config.py::RunConfig.read",
)
def test_files_of_a_run(shell: Shell) -> None:
    wanted = "give the folder that a finished training run wrote (its --out)"
    assert hint_of(lambda: run_files.plain_file(Path("run/nothing"))) == wanted
    assert hint_of(lambda: run_files.plain_file(Path("run"))) == wanted
    assert hint_of(lambda: RunConfig.read({}, "config.json")) == wanted
    change_manifest("run", lambda parts: parts.update(stage="pack"))
    assert shell.refused("evaluate", "run", "data") == wanted
    retrained(shell)
    shell.works("evaluate", "again", "data")


@follows(
    "train/run_folder/reader.py::refuse_changed_files",
    "train/run_folder/reader.py::refuse_other_weights",
    "train/run_folder/reader.py::_not_finite",
)
def test_damaged_weights_are_trained_again(shell: Shell) -> None:
    config = reader.read_config(Path("run"))
    weights = reader.read_weights(Path("run"))
    other = torch.nn.Linear(2, 2)
    assert "train again" in hint_of(lambda: reader.refuse_other_weights(Path("run"), weights, config, other))
    nan: Any = {"C1": torch.tensor([float("nan")])}
    assert "lower learning rates" in hint_of(lambda: reader.read_finite(Path("run"), nan, "C1"))
    path = Path("run/weights.safetensors")
    whole = path.read_bytes()
    path.write_bytes(whole[:-4] + bytes(4))
    assert "take the run from a copy, or train again" in shell.refused("evaluate", "run", "data")
    path.write_bytes(whole)
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


@follows(
    "train/build_embeddings.py::open_device",
    "train/build_embeddings.py::open_device#2",
    "train/build_embeddings.py::open_device#3",
)
def test_a_device_is_named(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert shell.refused(*TRAIN, "other", "--device", "gpu") == "--device is cpu or cuda"
    hint = shell.refused(*TRAIN, "other", "--device", "cuda")
    shell.works(*TRAIN, "other", *hint.removeprefix("use ").split())
    with monkeypatch.context() as patched:
        patched.setattr("torch.cuda.is_available", lambda: True)
        patched.setattr("torch.cuda.device_count", lambda: 1)
        patched.setattr("torch.cuda.set_device", lambda device: None)
        assert "cuda:0" in hint_of(lambda: open_device("cuda:1"))
        assert open_device("cuda:0").index == 0


@follows("train/run_log.py::divergence")
def test_rates_that_are_too_high(shell: Shell) -> None:
    hint = shell.refused(*TRAIN, "other", "--dense-lr", "1e30", "--embedding-lr", "1e30")
    assert "lower --embedding-lr or --dense-lr, and give another --out or remove the folder" in hint
    shutil.rmtree("other")
    shell.works(*TRAIN, "other", "--dense-lr", "0.001", "--embedding-lr", "0.01")


@follows("train/run_folder/files.py::refuse_missing_folder")
def test_a_missing_folder_is_created(shell: Shell) -> None:
    shell.obey(hint_of(lambda: run_files.refuse_missing_folder(Path("my disk/x"))))
    run_files.refuse_missing_folder(Path("my disk/x"))


def full_disk(*_: object) -> None:
    """Fail as a write to a full disk does."""
    raise OSError(28, "No space left on device")


@follows("train/rows/tiers.py::refuse_more_rows_than_memory", "train/rows/tiers.py::mapped_rows")
def test_more_rows_than_memory(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    shell.works("generate", "--samples", "4000", "--out", "long.tsv")
    shell.works("preprocess", "long.tsv", "--hot-bytes", "64KiB", "--out", "large")
    monkeypatch.setattr("hotset.train.rows.tiers.available_bytes", lambda: 2 << 20)
    arguments = ["train", "large", "--placement", "hybrid", "--threads", "1", "--out"]
    hint = shell.refused(*arguments, "a")
    assert "keeps the other rows in a file" in hint
    shell.works(*arguments, "b", *hint.split()[:2])
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full_disk)
        hint = hint_of(lambda: tiers.mapped_rows(10, 4, Path()))
    assert hint == "write --out to a larger disk, or raise --slow-bytes"
    assert tiers.mapped_rows(10, 4, Path()).shape == (10, 4)


@follows(
    "train/spill/row_store.py::BlockFile.__init__",
    "train/spill/row_store.py::BlockFile._fault",
    "train/spill/run_plan.py::_no_room",
    "train/spill/run_plan.py::choose_all_sizes",
)
def test_rows_on_disk(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "give another --slow-dir"
    with monkeypatch.context() as patched:
        patched.setattr("os.posix_fallocate", full_disk)
        assert hint_of(lambda: BlockFile(Path(), 4096, 1)).startswith(wanted)
        assert hint_of(lambda: mapped_zeros(Path(), 1000, np.int64)).startswith(wanted)
    assert str(BlockFile(Path(), 4096, 1)._fault("read", "broken").hint).startswith(wanted)
    shell.works("generate", "--samples", "4000", "--out", "long.tsv")
    shell.works("preprocess", "long.tsv", "--hot-bytes", "64KiB", "--out", "large")
    Path("disk").mkdir()
    arguments = ["train", "large", "--slow-dir", "disk", "--threads", "1"]
    enough = shell.refused(*arguments, "--slow-bytes", "16KiB", "--out", "a").split()[:2]
    shell.works(*arguments, *enough, "--out", "b")


@follows("train/dense/gradients.py::choose_dense_dtype")
def test_a_type_that_this_machine_is_slow_with(shell: Shell) -> None:
    hint = hint_of(lambda: choose_dense_dtype("bf16", "cpu", frozenset()))
    for name in hint.removeprefix("use --dense-dtype ").split(" or "):
        shell.works(*TRAIN, name, "--dense-dtype", name)
