"""Tables in memory are read as logs are (`columnar_parts`); a column that is not of the schema is refused."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.errors import InputError
from hotset.pipeline.raw.columnar_parts import TableParts
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import read_schema, schema_named

SCHEMA = read_schema(
    """
format = "csv"
label = "y"
[dense]
price = "float"
[sparse]
tags = { kind = "integer", list = true, separator = ";" }
site = "hex8"
"""
)
COLUMNS: dict[str, Any] = {
    "site": ["0000beef", None, "x", "1"],
    "unused": [1, 2, 3, 4],
    "tags": [[1, 2], None, [], [3]],
    "price": [1, 2, 3, None],
}


def parts_of(columns: dict[str, Any], schema: Schema = SCHEMA) -> list[Any]:
    parts = TableParts(pa.table(columns), schema, rows_of_part=2)
    return [part.read() for part in parts.iterate({})]


def test_rows_are_cut_into_parts_with_the_first_fault_of_each() -> None:
    parts = parts_of(COLUMNS)
    assert [part.num_samples for part in parts] == [2, 0]
    columns = {name: column.to_pylist() for name, column in parts[0].columns.items()}
    assert columns == {"price": [1.0, 2.0], "tags": [[1, 2], [None]], "site": [0xBEEF, None]}
    assert parts[0].fault is None and parts[1].fault is not None
    assert parts[1].fault.text == ", column 'site': found 'x', want 8 hex digits, or nothing"


def test_lists_may_be_text_as_in_the_csv_of_the_schema() -> None:
    (part, _) = parts_of(COLUMNS | {"tags": ["1;2", None, "", "3"]})
    assert part.columns["tags"].to_pylist() == [[1, 2], [None]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"price": None}, "the table has no column 'price'"),
        ({"tags": [12] * 4}, "the table: column 'tags' is int64, want a list of an integer"),
        ({"site": [1.5] * 4}, "the table: column 'site' is double, want 8 hex digits"),
    ],
)
def test_another_column_is_refused(change: dict[str, Any], message: str) -> None:
    columns = {name: values for name, values in (COLUMNS | change).items() if values is not None}
    with pytest.raises(InputError, match=message):
        TableParts(pa.table(columns), SCHEMA, rows_of_part=2)


def test_columns_of_criteo_are_named_as_its_features_are() -> None:
    schema = schema_named("criteo-kaggle")
    columns: dict[str, Any] = {name: [1] for name in schema.dense}
    columns |= {name: ["0000beef"] for name in schema.sparse}
    (part,) = parts_of(columns, schema)
    assert part.fault is None and part.columns["C26"].to_pylist() == [0xBEEF]
