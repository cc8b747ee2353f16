"""Files of vectors: every form that is read gives the same blocks, and what is wrong is one line."""

from __future__ import annotations

import os
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import InputError
from hotset.pipeline.formats import vector_file
from hotset.pipeline.formats.vector_file import VectorFile

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
    monkeypatch.setattr(vector_file, "_MOST_ROWS", rows)
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
