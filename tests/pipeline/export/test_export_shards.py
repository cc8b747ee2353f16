"""Exported files hold the samples of the shards, split by split, each with its names and in order.

`named_batches`, `column_files`, `column_map`, and `fuxictr_files` are tested here, those of a
planner in `test_planner_files`.
"""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from hotset.pipeline.errors import ConfigError, HotsetError, ManifestError, ShardError
from hotset.pipeline.export.export_shards import ExportFormat, export_shards
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.preprocess import preprocess
from hotset.tests.support.logs.criteo_text import draw_samples, text_of, tree_of
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.naive.naive_export import naive_rows, stored
from hotset.tests.support.preprocess_runs import CONFIG
from hotset.tests.support.resealed import write_manifest
from hotset.tests.support.shard_factory import ShardSpec, write_shards

Columns = dict[str, list[Any]]


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with batches of both kinds, a validation and a test part."""
    folder = tmp_path_factory.mktemp("criteo")
    log = folder / "log.tsv"
    log.write_bytes(text_of(draw_samples(400, np.random.default_rng(5))))
    config = replace(CONFIG, count=CountConfig(eval_fraction=0.2, valid_fraction=0.1))
    preprocess((log,), config, folder / "dir", Resources(workers=1))
    return folder / "dir"


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A preprocessed log with lists, floats and texts."""
    folder = tmp_path_factory.mktemp("lists")
    log = draw_log(90, KINDS, np.random.default_rng(3))
    path = write_csv(folder / "log.csv", log)
    preprocess((path,), recipe(log, "csv"), folder / "dir", Resources(workers=1))
    return folder / "dir"


def columns_of(shards: Manifest, rows: list[tuple[Any, ...]]) -> Columns:
    """The columns that `rows` should become."""
    totals = shards.totals
    one_hot = [table["name"] for table in totals["tables"] if not table.get("is_multi_hot")]
    found: Columns = {"label": [int(row[0]) for row in rows]}
    found |= {name: [row[1][number] for row in rows] for number, name in enumerate(totals["dense"])}
    places = {name: number for number, name in enumerate(one_hot)}
    others = iter(range(3 if one_hot else 2, 99))
    for table in totals["tables"]:
        name = table["name"]
        place = places.get(name)
        number = next(others) if place is None else -1
        found[name] = [row[number] if place is None else row[2][place] for row in rows]
    return found


def exported(folder: Path, to: ExportFormat, out: Path, **fields: Any) -> Path:
    export_shards(Manifest.read(folder / "shards"), to, out, Resources(**({"workers": 1} | fields)))
    return out


@pytest.mark.parametrize("folder", ["criteo", "lists"])
def test_parquet_has_each_sample_in_order(
    folder: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    made = request.getfixturevalue(folder)
    shards = Manifest.read(made / "shards")
    out = exported(made, "parquet", tmp_path / "out")
    wanted = {split: columns_of(shards, rows) for split, rows in naive_rows(shards).items() if rows}
    names = {path.name for path in out.iterdir()}
    assert names == {f"{split}.parquet" for split in wanted} | {"columns.json"}
    for split, columns in wanted.items():
        table = pa.parquet.read_table(out / f"{split}.parquet")
        assert table.to_pydict() == columns
        kinds = {str(field.type) for field in table.schema}
        assert kinds <= {"int8", "float", "int32", "list<element: int32>"}
    assert len(wanted["train"]["label"]) > len(wanted["test"]["label"]) > 0
    assert json.loads((out / "columns.json").read_text())["samples"]["train"] == len(wanted["train"]["label"])


def test_both_kinds_of_batches_alternate(criteo: Path) -> None:
    shards = Manifest.read(criteo / "shards")
    assert min(len(stored(shards, "hot_only")), len(stored(shards, "mixed"))) > 2


@pytest.mark.parametrize("folder", ["criteo", "lists"])
def test_csv_has_what_parquet_has(folder: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    made = request.getfixturevalue(folder)
    shards = Manifest.read(made / "shards")
    out = exported(made, "csv", tmp_path / "out")
    for split, rows in naive_rows(shards).items():
        if not rows:
            continue
        columns = columns_of(shards, rows)
        with (out / f"{split}.csv").open(newline="") as file:
            header, *lines = csv.reader(file)
        assert header == list(columns)
        for name, texts in zip(header, zip(*lines, strict=True), strict=True):
            wanted = columns[name]
            if isinstance(wanted[0], list):
                assert [[int(part) for part in text.split("^")] for text in texts] == wanted
            else:
                assert [np.float32(text) for text in texts] == [np.float32(value) for value in wanted]


def test_fuxictr_has_ids_above_that_of_padding(criteo: Path, tmp_path: Path) -> None:
    shards = Manifest.read(criteo / "shards")
    plain = exported(criteo, "parquet", tmp_path / "plain")
    out = exported(criteo, "fuxictr", tmp_path / "criteo_x")
    found = json.loads((out / "feature_map.json").read_text())
    features = {name: spec for feature in found["features"] for name, spec in feature.items()}
    assert found["dataset_id"] == "criteo_x" and found["labels"] == ["label"] and len(features) == 39
    for split in ("train", "valid", "test"):
        here, there = (pa.parquet.read_table(folder / f"{split}.parquet") for folder in (out, plain))
        for table in shards.totals["tables"]:
            ids = here.column(table["name"]).to_numpy()
            assert (ids - 1 == there.column(table["name"]).to_numpy()).all()
            spec = features[table["name"]]
            assert 1 <= ids.min() <= ids.max() < spec["vocab_size"] == table["num_rows"] + 1
            assert spec["oov_idx"] == table["oov_id"] + 1


def test_threads_change_no_byte(criteo: Path, tmp_path: Path) -> None:
    for to in get_args(ExportFormat):
        alone, together = (exported(criteo, to, tmp_path / f"{to}-{n}" / "out", workers=n) for n in (1, 3))
        assert tree_of(alone) == tree_of(together)


def test_a_folder_is_whole_or_not_there(
    criteo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    calls = 0

    def interrupted(stage: str, done: int, total: int) -> None:
        nonlocal calls
        calls += 1
        if calls == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        exported(criteo, "parquet", out, progress=interrupted)
    assert list(tmp_path.iterdir()) == []
    # What a killed process left is no obstacle.
    (tmp_path / ".out.partial").mkdir()
    (tmp_path / ".out.partial" / "train.parquet").write_bytes(b"half of it")
    out.mkdir()
    exported(criteo, "parquet", out)
    before = tree_of(out)
    with pytest.raises(ManifestError, match=r"out exists$"):
        exported(criteo, "csv", out)
    assert tree_of(out) == before and [path.name for path in tmp_path.iterdir()] == ["out"]


def test_damaged_shards_and_wild_ids_are_refused(criteo: Path, tmp_path: Path) -> None:
    with pytest.raises(ManifestError, match="holds the stage 'split'"):
        export_shards(Manifest.read(criteo / "plan"), "parquet", tmp_path / "out")
    copy = tmp_path / "shards"
    copy.mkdir()
    for path in (criteo / "shards").iterdir():
        (copy / path.name).write_bytes(path.read_bytes())
    shards = Manifest.read(copy)
    path = copy / next(entry.path for entry in shards.files if entry.facts["kind"] == "mixed")
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    with pytest.raises(HotsetError, match=r"\.arrow is damaged: its checksum is"):
        export_shards(shards, "parquet", tmp_path / "out")
    # A table that has fewer rows than its ids say, sealed again.
    path.write_bytes((criteo / "shards" / path.name).read_bytes())
    parts = json.loads((copy / "manifest.json").read_text())
    first = parts["totals"]["tables"][0]
    parts["totals"]["num_rows"] -= first["num_rows"] - 1
    parts["totals"]["num_hot_rows"] -= first["num_hot"]
    first |= {"num_rows": 1, "num_hot": 0, "oov_id": 0, "missing_id": 0}
    write_manifest(copy, parts)
    with pytest.raises(ShardError, match=f"outside the 1 of {first['name']}$"):
        export_shards(Manifest.read(copy), "parquet", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_what_a_format_cannot_hold_is_refused_before_anything_is_written(lists: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"fuxictr holds one category a feature, and .* has lists"):
        exported(lists, "fuxictr", tmp_path / "out")
    assert list(tmp_path.iterdir()) == []


def test_logs_without_labels_are_refused(tmp_path: Path) -> None:
    shards = Manifest.read(write_shards(tmp_path / "shards", ShardSpec(has_label=False)))
    with pytest.raises(ConfigError, match=r"^fuxictr is for training, and the log has no labels$"):
        export_shards(shards, "fuxictr", tmp_path / "out")
    assert not (tmp_path / "out").exists()
