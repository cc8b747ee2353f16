"""Frames of other libraries become Arrow tables, and what comes back is of their kind."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import ConfigError, InputError
from hotset.pipeline.frames import like_frame, table_of, write_frame

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
