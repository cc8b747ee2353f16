"""Frames of other libraries become Arrow tables, and what comes back is of their kind.

Files of vectors: every form that is read gives the same blocks, and what is wrong is one line.

Ids of categories as a log has them, their inverse, and the definition that predictions have.
"""

from __future__ import annotations

import os
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import torch
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from hotset.pipeline.errors import ConfigError, HotsetError, InputError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import ColumnsTotals
from hotset.pipeline.formats import user_data
from hotset.pipeline.formats.user_data import (
    CategoryIds,
    VectorFile,
    array_of,
    like_frame,
    table_of,
    write_frame,
)
from hotset.pipeline.schema.schema_file import schema_of

COLUMNS = {"user": [3, 1, 2], "site": ["a", "b", None]}


@pytest.mark.parametrize(
    "frame",
    [
        COLUMNS,
        pl.DataFrame(COLUMNS),
        pl.LazyFrame(COLUMNS),
        pa.table(COLUMNS),
        pa.RecordBatch.from_pydict(COLUMNS),
    ],
    ids=["dictionary", "polars", "lazy", "arrow", "batch"],
)
def test_a_frame_becomes_a_table_and_a_file(frame: Any, tmp_path: Path) -> None:
    assert table_of(frame).to_pydict() == COLUMNS
    files = [tmp_path / "a.parquet", tmp_path / "b.parquet"]
    for file in files:
        write_frame(frame, file)
    assert pq.read_table(files[0]).to_pydict() == COLUMNS
    assert files[0].read_bytes() == files[1].read_bytes()


@pytest.mark.parametrize("kind", [pl.Categorical, pl.Enum(["a", "b", "c"])], ids=["categorical", "enum"])
def test_categoricals_of_polars_are_written_as_their_texts(kind: Any, tmp_path: Path) -> None:
    texts = pl.DataFrame(
        {"site": ["a", None, "c", "b", "a"], "tags": [["c", None], [], None, ["a", "b"], ["b"]]},
        schema={"site": pl.String, "tags": pl.List(pl.String)},
    )
    codes = texts.cast({"site": kind, "tags": pl.List(kind)})
    for frame in (codes, codes.lazy(), codes[1:4], pl.concat([codes, codes[2:]], rechunk=False), codes[:0]):
        write_frame(frame, tmp_path / "a.parquet")
        wanted = frame.lazy().collect().cast(texts.schema)
        assert pl.read_parquet(tmp_path / "a.parquet").equals(wanted)
    # Codes of another order, as another process has them, give the same bytes.
    written = []
    for order in (["a", "b", "c"], ["c", "b", "a"]):
        write_frame(texts.cast({"site": pl.Enum(order)}), tmp_path / "a.parquet")
        written.append((tmp_path / "a.parquet").read_bytes())
    assert written[0] == written[1]


def test_columns_that_parquet_lacks_are_written_or_named(tmp_path: Path) -> None:
    runs = pa.table({"user": pc.run_end_encode(pa.array([3, 3, 3, 1]))})
    write_frame(runs, tmp_path / "a.parquet")
    assert pq.read_table(tmp_path / "a.parquet").to_pydict() == {"user": [3, 3, 3, 1]}
    stray = pa.table({"span": pa.array([None], pa.month_day_nano_interval())})
    with pytest.raises(InputError, match=r"the frame cannot be written as Parquet: .*interval"):
        write_frame(stray, tmp_path / "a.parquet")


def test_what_comes_back_is_of_the_kind_that_was_given() -> None:
    assert isinstance(like_frame(pa.table(COLUMNS), {"p": [1.0]}), pa.Table)
    for other in (pl.DataFrame(COLUMNS), COLUMNS, "log.tsv"):
        assert isinstance(like_frame(other, {"p": [1.0]}), pl.DataFrame)


def test_a_frame_of_pandas_keeps_its_index(monkeypatch: pytest.MonkeyPatch) -> None:
    class DataFrame:
        """What is used of pandas, which the tests do not need."""

        def __init__(self, columns: dict[str, Any], index: Any = None) -> None:
            self.columns = columns
            self.index = index

    monkeypatch.setitem(sys.modules, "pandas", SimpleNamespace(DataFrame=DataFrame))
    found = like_frame(DataFrame(COLUMNS, index=[7, 8, 9]), {"p": [0.1, 0.2, 0.3]})
    assert isinstance(found, DataFrame) and found.index == [7, 8, 9] and list(found.columns) == ["p"]


def test_pandas_is_read() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    assert table_of(pandas.DataFrame(COLUMNS, index=[5, 6, 7])).to_pydict() == COLUMNS


def test_what_is_no_frame_is_refused() -> None:
    objects = pl.DataFrame({"user": pl.Series([object()], dtype=pl.Object)})
    with pytest.raises(InputError, match="column 'user' of the frame is of Python objects"):
        table_of(objects.lazy())
    with pytest.raises(ConfigError, match="want a path or a frame of Polars, pandas or Arrow, got int"):
        table_of(3)
    with pytest.raises(InputError, match="the frame cannot be read as an Arrow table"):
        table_of({"user": [1, "x", object()]})


VECTORS = np.arange(21, dtype=np.float32).reshape(7, 3) / 8
CATEGORIES = ["a", "b", "", "dd", "ü", "f", "g"]


def lists(kind: Any, values: Any = VECTORS) -> Any:
    return pa.array([row.tolist() for row in values], kind)


def write(path: Path, columns: dict[str, Any]) -> Path:
    pq.write_table(pa.table(columns), path, row_group_size=3)
    return path


FORMS: dict[str, Callable[[Path], Path]] = {
    "list": lambda path: write(path, {"category": CATEGORIES, "vector": lists(pa.list_(pa.float32()))}),
    "large": lambda path: write(path, {"v": lists(pa.large_list(pa.float64())), "category": CATEGORIES}),
    "fixed": lambda path: write(path, {"category": CATEGORIES, "e": lists(pa.list_(pa.float32(), 3))}),
    "half": lambda path: write(path, {"category": CATEGORIES, "e": lists(pa.list_(pa.float16(), 3))}),
    "dims": lambda path: write(path, {"category": CATEGORIES, **dict(zip("xyz", VECTORS.T, strict=True))}),
    "named": lambda path: write(path, {"item": CATEGORIES, "v": lists(pa.list_(pa.float32()))}),
    "npz": lambda path: save(path, categories=np.array(CATEGORIES), vectors=VECTORS),
    "deflated": lambda path: save(
        path, np.savez_compressed, categories=np.array(CATEGORIES), vectors=VECTORS
    ),
    "swapped": lambda path: save(path, categories=np.array(CATEGORIES), vectors=VECTORS.astype(">f8")),
    "more": lambda path: save(path, categories=np.array(CATEGORIES), vectors=VECTORS, other=np.ones(2)),
}


def save(path: Path, how: Callable[..., None] = np.savez, **arrays: Any) -> Path:
    with open(path, "wb") as file:
        how(file, **arrays)
    return path


def read(path: Path, dim: int = 3) -> tuple[list[str], Any]:
    blocks = list(VectorFile(path, dim, ("category", "item")).blocks())
    categories = [text for found, _ in blocks for text in found.to_pylist()]
    return categories, np.concatenate([vectors for _, vectors in blocks])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("rows", [2, 100])
def test_every_form_has_the_same_rows(
    form: str, rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_data, "_MOST_ROWS", rows)
    categories, vectors = read(FORMS[form](tmp_path / "file"))
    assert categories == CATEGORIES
    assert vectors.dtype == np.float32
    np.testing.assert_array_equal(vectors, VECTORS)


def test_integers_and_missing_categories_are_what_they_are(tmp_path: Path) -> None:
    path = write(tmp_path / "a", {"category": pa.array([3, None], pa.int8()), "v": lists(None, VECTORS[:2])})
    (found, _), *_ = VectorFile(path, 3).blocks()
    assert found.to_pylist() == [3, None] and found.type == pa.int8()
    path = save(tmp_path / "b", categories=np.array([2**63], ">u8"), vectors=VECTORS[:1])
    (found, _), *_ = VectorFile(path, 3).blocks()
    assert found.to_pylist() == [2**63]


def test_an_empty_file_has_no_rows(tmp_path: Path) -> None:
    path = save(tmp_path / "a", categories=np.zeros(0, "<U1"), vectors=VECTORS[:0])
    assert list(VectorFile(path, 3).blocks()) == []


def changed(row: int, value: float) -> Any:
    vectors = VECTORS.astype(np.float64)
    vectors[row, 1] = value
    return vectors


def with_none(place: int) -> list[Any]:
    found: list[Any] = VECTORS.tolist()
    found[place] = None
    return found


def with_lacking(place: int) -> list[Any]:
    found: list[Any] = VECTORS.tolist()
    found[place][1] = None
    return found


BAD: dict[str, tuple[Callable[[Path], Path], str]] = {
    "text": (lambda path: plain(path, b"category,x\n1,2\n"), "is neither Parquet nor .npz of NumPy"),
    "npy": (lambda path: plain(path, b"\x93NUMPY\1\0"), "is neither Parquet nor .npz of NumPy"),
    "width": (lambda path: save(path, categories=np.zeros(7), vectors=VECTORS[:, :2]), "have 2 numbers, the"),
    "lengths": (
        lambda path: write(path, {"category": [1, 2], "v": [[1.0, 2.0, 3.0], [1.0]]}),
        "its vectors have 1 numbers, the table 3",
    ),
    "dims": (lambda path: write(path, {"category": [1], "x": [1.0], "y": [1.0]}), "its vectors have 2 numb"),
    "nan": (
        lambda path: write(path, {"category": CATEGORIES, "v": lists(None, changed(4, np.nan))}),
        "row 5",
    ),
    "overflow": (
        lambda path: save(path, categories=np.zeros(7), vectors=changed(6, 1e39)),
        "row 7: a vector is not finite",
    ),
    "null": (lambda path: write(path, {"category": CATEGORIES, "v": with_none(5)}), "row 6: a vector is mis"),
    "element": (
        lambda path: write(path, {"category": CATEGORIES, "v": with_lacking(4)}),
        "row 5: a vector is",
    ),
    "cell": (
        lambda path: write(path, {"category": [1, 2], "x": [1.0, None], "y": [1.0, 2.0], "z": [1.0, 2.0]}),
        "row 2: a vector is missing",
    ),
    "ints": (
        lambda path: write(path, {"category": [1], "v": [[1, 2, 3]]}),
        "has list<element: int64> in column 'v', want floats",
    ),
    "int array": (
        lambda path: save(path, categories=np.zeros(2), vectors=np.ones((2, 3), int)),
        "has vectors of int64 and shape",
    ),
    "column": (lambda path: write(path, {"id": [1], "v": [[1.0] * 3]}), "has no column 'category' or 'item'"),
    "two lists": (
        lambda path: write(path, {"category": [1], "v": [[1.0]], "w": [[1.0]]}),
        "columns v, w: wan",
    ),
    "arrays": (lambda path: save(path, vectors=VECTORS), "has vectors.npy, want arrays categories"),
    "counts": (
        lambda path: save(path, categories=np.zeros(6), vectors=VECTORS),
        "has 6 categories and 7 vec",
    ),
    "objects": (
        lambda path: save(path, categories=np.array([1, "a"], object), vectors=VECTORS[:2]),
        "has objects of Python as",
    ),
    "columns": (
        lambda path: save(path, categories=np.zeros(7), vectors=np.asfortranarray(VECTORS)),
        "has vectors column by column",
    ),
    "shape": (
        lambda path: save(path, categories=np.zeros((7, 1)), vectors=VECTORS),
        "and shape .7, 1., want",
    ),
    "damaged zip": (lambda path: cut(FORMS["npz"](path), -20), "cannot be read: "),
    "flipped": (lambda path: flipped(FORMS["npz"](path), b"NUMPY"), "cannot be read: "),
    "flipped value": (lambda path: flipped(FORMS["npz"](path), VECTORS[5].tobytes()), "cannot be read: "),
    "damaged footer": (lambda path: cut(FORMS["list"](path), -9), "cannot be read: "),
    "short array": (lambda path: shortened(path), "an array ends before its last row"),
}


def plain(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def cut(path: Path, stop: int) -> Path:
    return plain(path, path.read_bytes()[:stop])


def flipped(path: Path, near: bytes) -> Path:
    content = bytearray(path.read_bytes())
    content[content.index(near)] ^= 1
    return plain(path, bytes(content))


def shortened(path: Path) -> Path:
    """An archive whose vectors have fewer rows than their header says."""
    FORMS["npz"](path)
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    members["vectors.npy"] = members["vectors.npy"][:-4]
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


@pytest.mark.parametrize("case", BAD)
def test_what_is_wrong_is_one_line(case: str, tmp_path: Path) -> None:
    make, wanted = BAD[case]
    path = make(tmp_path / "file")
    with pytest.raises(InputError, match=wanted) as caught:
        read(path)
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_no_file_is_waited_for(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"absent does not exist$"):
        VectorFile(tmp_path / "absent", 3)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match=r"pipe is no plain file$"):
        VectorFile(tmp_path / "pipe", 3)


@settings(max_examples=60, deadline=None)
@given(st.sampled_from(["list", "dims", "npz", "deflated"]), st.data())
def test_a_damaged_file_is_read_or_refused_in_one_line(form: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = FORMS[form](Path(folder) / "file")
        content = bytearray(path.read_bytes())
        for _ in range(data.draw(st.integers(1, 3))):
            content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
        stop = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
        path.write_bytes(content[:stop])
        try:
            _, vectors = read(path)
        except InputError as error:
            assert str(path) in str(error) and "\n" not in str(error)
        else:
            assert vectors.shape[1] == 3 and np.isfinite(vectors).all()


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
