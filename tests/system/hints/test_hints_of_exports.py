"""Hints about shards for other programs."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

from hotset.pipeline.export import csv_writer
from hotset.tests.support.hints import Shell, follows, hint_of
from hotset.train.data.dataset import ShardDataset


@follows("pipeline/folders/disk.py::new_folder")
def test_a_folder_that_exists_is_left_alone(shell: Shell) -> None:
    Path("out").mkdir()
    Path("out/mine").touch()
    hint = shell.refused("export-shards", "data", "--out", "out")
    assert hint == "remove it, or give another --out"
    shell.works("export-shards", "data", "--out", "other")


@follows("pipeline/export.py::NamedBatches.__init__")
def test_the_folder_of_preprocess_is_exported(shell: Shell) -> None:
    hint = shell.refused("export-shards", "data/plan", "--out", "out")
    assert hint == "give the folder that preprocess wrote (its --out), or its shards/"
    shell.works("export-shards", "data", "--out", "out")
    shell.works("export-shards", "data/shards", "--out", "out2")


def preprocessed(shell: Shell, schema: str, rows: list[dict[str, object]]) -> None:
    """Preprocess ``rows`` into ``mine``."""
    pa.parquet.write_table(pa.Table.from_pylist(rows), "mine.parquet")
    Path("mine.toml").write_text(f'format = "parquet"\n{schema}')
    shell.works("preprocess", "mine.parquet", "--schema", "mine.toml", "--out", "mine")


@follows("pipeline/export.py::refuse_other_logs")
def test_logs_with_lists_go_into_parquet(shell: Shell) -> None:
    rows: list[dict[str, object]] = [{"y": n % 2, "a": n, "tags": [n, n + 1]} for n in range(40)]
    preprocessed(
        shell, 'label = "y"\n[sparse]\na = "integer"\ntags = { kind = "integer", list = true }\n', rows
    )
    hint = shell.refused("export-shards", "mine", "--to", "fuxictr", "--out", "out")
    assert hint == "take --to parquet"
    shell.works("export-shards", "mine", "--to", "parquet", "--out", "out")


@follows("pipeline/export.py::refuse_other_logs#2")
def test_logs_without_labels_go_into_parquet(shell: Shell) -> None:
    preprocessed(shell, '[sparse]\na = "integer"\n', [{"a": n} for n in range(40)])
    hint = shell.refused("export-shards", "mine", "--to", "fuxictr", "--out", "out")
    assert hint == "take --to parquet"
    shell.works("export-shards", "mine", "--to", "parquet", "--out", "out")


@follows("pipeline/export.py::_flat")
def test_empty_lists_go_into_parquet(tmp_path: Path) -> None:
    schema = pa.schema([("tags", pa.list_(pa.int32()))])

    def write() -> None:
        with csv_writer(tmp_path / "out.csv", schema) as writer:
            writer(pa.record_batch([pa.array([[1], []], schema.field("tags").type)], schema=schema))

    # Shards of such a log come from Parquet only, where a list without elements is one.
    assert hint_of(write) == "take --to parquet"


@follows("train/data/dataset.py::_refuse_equal_names")
def test_a_feature_called_like_the_offsets_of_another_is_renamed(shell: Shell) -> None:
    rows: list[dict[str, object]] = [{"y": n % 2, "tags": [n, n + 1], "tags_offsets": n} for n in range(40)]
    lists = 'label = "y"\n[sparse]\ntags = { kind = "integer", list = true }\n'
    preprocessed(shell, f'{lists}tags_offsets = "integer"\n', rows)
    hint = hint_of(lambda: ShardDataset("mine"))
    assert hint == "give the feature another name in the schema: `name`"
    shutil.rmtree("mine")
    preprocessed(shell, f'{lists}tags_offsets = {{ kind = "integer", name = "first" }}\n', rows)
    assert {"tags_offsets", "first"} < set(next(iter(ShardDataset("mine"))))


@follows("train/data/dataset.py::_keyed_jagged")
def test_torchrec_is_installed_by_its_name(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchrec", None)
    assert hint_of(lambda: next(iter(ShardDataset("data", keyed_jagged=True)))) == "pip install torchrec"
