"""Ids of categories as a log has them, their inverse, and the definition that predictions have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
import torch
import xxhash

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError, InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.frames import array_of
from hotset.pipeline.schema.schema_file import schema_of
from hotset.pipeline.stages.category_ids import CategoryIds

SCHEMA = """
label = "label"
format = "parquet"
missing = ["none"]
[dense]
price = "float"
[sparse]
user = "text"
item = "integer"
big = "unsigned"
code = "hex8"
at = { kind = "hour", name = "hour" }
tags = { kind = "text", list = true, table = "user" }
"""
NUM = 60


def frame() -> pl.DataFrame:
    rng = np.random.default_rng(1)
    numbers = rng.zipf(1.4, NUM) % 20
    return pl.DataFrame(
        {
            "label": rng.integers(0, 2, NUM),
            "price": rng.random(NUM),
            "user": [None if number == 3 else f"user-{number}" for number in numbers],
            "item": [None if number == 4 else int(number) - 5 for number in numbers],
            "big": [2**64 - 1 - int(number) for number in numbers],
            "code": [f"{int(number) * 1_000_003:08x}" for number in numbers],
            "at": [f"2026-01-{1 + number:02} {number:02}:00:00" for number in numbers],
            "tags": [[f"user-{number}", "t" * (1 + number)] for number in numbers],
        }
    )


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("categories")
    (folder / "log.toml").write_text(SCHEMA)
    settings: dict[str, Any] = {"schema": folder / "log.toml", "texts": 5, "min_count": 2, "progress": False}
    return Path(hotset.preprocess(frame(), folder / "data", eval_fraction=0.0, **settings))


def opened(data: Path, name: str) -> CategoryIds:
    schema = ColumnsTotals.of(Manifest.read(data / "columns")).schema
    assert schema is not None
    return CategoryIds(Manifest.read(data / "vocabulary"), schema_of(schema), name)


TABLES = ("user", "item", "big", "code", "hour")


@pytest.mark.parametrize("name", TABLES)
def test_categories_and_ids_are_inverse(data: Path, name: str) -> None:
    found = opened(data, name)
    every = np.arange(found.table.num_rows)
    categories = found.categories(every)
    nobody = {found.table.missing_id, found.table.oov_id}
    assert {row for row, each in enumerate(categories.to_pylist()) if each is None} == nobody
    own = np.array([row for row in every.tolist() if row not in nobody])
    np.testing.assert_array_equal(found.ids(found.categories(own)), own)
    assert found.ids(categories)[found.table.missing_id] == found.table.missing_id
    shards = hotset.Shards(data)
    assert shards.categories(name, every).to_list() == categories.to_pylist()
    np.testing.assert_array_equal(shards.ids(name, shards.categories(name, own)), own)


def test_ids_are_those_of_the_samples(data: Path) -> None:
    """The batches of the shards have each value's id, whatever its feature."""
    shards, log = hotset.Shards(data), frame()
    wanted = {name: sorted(shards.ids(name, log[name]).tolist()) for name in ("user", "item", "big", "code")}
    wanted["hour"] = sorted(shards.ids("hour", [int(each[11:13]) for each in log["at"]]).tolist())
    wanted["tags"] = sorted(shards.ids("tags", log["tags"].explode()).tolist())
    found: dict[str, list[int]] = {name: [] for name in wanted}
    for batch in shards.batches():
        for name, ids in found.items():
            ids += (batch[name][1] if name == "tags" else batch[name]).tolist()
    assert {name: sorted(ids) for name, ids in found.items()} == wanted


def test_texts_that_are_not_kept_are_named_by_their_hash(data: Path) -> None:
    found = opened(data, "user")
    texts = [each for each in found.categories(np.arange(found.table.num_rows)).to_pylist() if each]
    hashed = [text for text in texts if text.startswith("#")]
    assert 0 < len(hashed) < len(texts)
    every = [
        text for number in range(1, 21) for text in (f"user-{number}", f"user-{number - 1}", "t" * number)
    ]
    known = {f"#{xxhash.xxh3_64_intdigest(text.encode()):016x}": text for text in every}
    assert (
        found.ids(pa.array(hashed)).tolist() == found.ids(pa.array([known[each] for each in hashed])).tolist()
    )


def test_values_are_read_as_those_of_a_log(data: Path) -> None:
    item = opened(data, "item")
    whole = item.ids(pa.array([1, 2]))
    for values in (["1", "2.0"], [1.0, 2.0], np.array([1, 2], np.int8), pl.Series([1, 2])):
        np.testing.assert_array_equal(item.ids(array_of(values)), whole)
    np.testing.assert_array_equal(item.ids(array_of(torch.tensor([1, 2]))), whole)
    missing = item.ids(array_of([None, "none", ""])).tolist()
    assert missing == [item.table.missing_id] * 3
    assert item.ids(array_of(np.array([np.nan, 1.0]))).tolist() == [item.table.missing_id, whole[0]]
    assert item.ids(array_of([10**9])).tolist() == [item.table.oov_id]
    assert item.find(array_of([10**9])).tolist() == [-1]
    with pytest.raises(InputError, match=r"^x: row 3, column 'category': found 1.5, want an integer from -2"):
        item.find(array_of([1.0, 1.5]), source="x", first_row=1)
    with pytest.raises(
        InputError, match=r"column 'category' is int64, want 8 hex digits.*\nhint: .* are hex8$"
    ):
        opened(data, "code").ids(array_of([1]))


def test_what_is_no_list_is_refused(data: Path) -> None:
    shards = hotset.Shards(data)
    for values in ("user-1", 3, None):
        with pytest.raises(ConfigError, match="want a list, an array or a column of a frame, got"):
            shards.ids("user", values)
    with pytest.raises(HotsetError, match="the values cannot be read as one column: "):
        shards.ids("user", [1, "a"])
    with pytest.raises(ConfigError, match="ids must be whole numbers, got double"):
        shards.categories("user", [1.5])
    with pytest.raises(ConfigError, match=r"table item has no id 99\nhint: its ids go from 0 to"):
        shards.categories("item", [0, 99])
    with pytest.raises(ConfigError, match=r"has no table 'itm'\nhint: did you mean 'item'\?"):
        shards.ids("itm", [1])
