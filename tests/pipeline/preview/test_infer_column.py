"""Columns inferred from their first rows: kinds, notes, and what is left out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.preview.infer_column import InferredColumn, infer_column, label_among
from hotset.tests.support.logs.text_spans import spans_of

NUM_ROWS = 120


def of_text(texts: list[str], name: str = "c") -> InferredColumn:
    return infer_column(name, spans_of(texts), len(texts), [name])


def of_arrow(values: list[Any], kind: Any) -> InferredColumn:
    return infer_column("c", pa.array(values, kind), len(values), ["c"])


@pytest.mark.parametrize(
    ("texts", "kind"),
    [
        (["1", "-2", ""], "integer"),
        ([str(2**63), "1"], "unsigned"),
        (["0a1b2c3d", "ffffffff"], "hex8"),
        (["1.5", "2e3"], "float"),
        (["a", "b"], "text"),
        (["007", "12"], "text"),
        (["1.0", "2.0"], "integer"),
        (["", ""], "text"),
        ([str(2**64), "1"], "text"),
    ],
)
def test_the_plainest_kind_that_no_value_contradicts_is_taken(texts: list[str], kind: str) -> None:
    found = of_text(texts)
    assert (found.kind, found.is_used) == (kind, True)
    assert found.num_missing == texts.count("") and found.num_distinct == len({*texts} - {""})


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        ([1, 2, None], pa.int16(), "integer"),
        ([2**63, 1], pa.uint64(), "unsigned"),
        ([0.5, None], pa.float32(), "float"),
        (["a", None], pa.string(), "text"),
        ([True, None], pa.bool_(), "integer"),
        ([[1], []], pa.list_(pa.int64()), "integer"),
        ([["a"], None], pa.list_(pa.string()), "text"),
    ],
)
def test_parquet_columns_have_kinds_too(values: list[Any], kind: Any, wanted: str) -> None:
    found = of_arrow(values, kind)
    assert (found.kind, found.is_used, found.is_list) == (wanted, True, pa.types.is_list(kind))


def test_true_and_false_are_named_so() -> None:
    assert of_arrow([True, False, None, None], pa.bool_()).note == "true or false, 50% missing"


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["5"] * NUM_ROWS, "every row has the same value"),
        ([f"u{number}" for number in range(NUM_ROWS)], "every row has another value"),
        ([*(f"u{number}" for number in range(NUM_ROWS)), ""], "no value occurs twice"),
        ([""] * NUM_ROWS, "every value is missing"),
    ],
)
def test_what_teaches_a_model_nothing_is_left_out_of_many_rows(texts: list[str], note: str) -> None:
    found = of_text(texts)
    assert (found.is_used, found.is_readable, found.note) == (False, True, note)
    assert of_text(texts[:99]).is_used, "of few rows it may be an accident"


def test_a_float_may_differ_in_every_row_and_negative_ones_keep_their_sign() -> None:
    texts = [f"{number}.25" for number in range(NUM_ROWS)]
    assert of_text(texts).note == "120 distinct" and of_text(texts).is_transformed
    found = of_text(["-0.5", *texts])
    assert found.note == "121 distinct, 1% negative" and not found.is_transformed
    huge = of_text(["-1e39", *texts])  # no float32 without the logarithm
    assert huge.note == "121 distinct, 1% negative, which log1p turns into 0" and huge.is_transformed


def test_text_that_looks_like_lists_is_offered_as_such() -> None:
    texts = [f"a{number % 7}|b{number % 11}|" for number in range(NUM_ROWS)]
    assert 'looks like a list: { kind = "text", list = true, separator = "|" }' in of_text(texts).note
    numbers = [f"{number % 7};{number % 11}" for number in range(NUM_ROWS)]
    assert 'kind = "integer", list = true, separator = ";"' in of_text(numbers).note
    titles = ["plain"] * 90 + [f"one, two {number}" for number in range(30)]
    assert "list" not in of_text(titles).note, "a comma now and then is no list"


@pytest.mark.parametrize(
    ("kind", "values", "note"),
    [
        (pa.time32("s"), [0], "time32[s] is not supported"),
        (pa.struct([("a", pa.int8())]), [{"a": 1}], "struct<a: int8> is not supported"),
        (pa.duration("s"), [0], "duration[s] is not supported"),
        (pa.list_(pa.bool_()), [[True]], "is not supported"),
    ],
)
def test_types_that_ingest_refuses_are_left_out_with_the_reason(
    kind: Any, values: list[Any], note: str
) -> None:
    found = of_arrow(values, kind)
    assert note in found.note and "\n" not in found.note and not (found.is_used or found.is_readable)


def test_a_name_that_cannot_stand_in_a_schema_is_left_out() -> None:
    values = spans_of(["1", "2"])
    twice = infer_column("c", values, 2, ["c", "d", "c"])
    assert (twice.note, twice.is_readable) == ("there are two columns of that name", False)
    assert not infer_column("../c", values, 2, ["../c"]).is_used
    assert infer_column("label", values, 2, ["label"]).is_used


def test_the_label_is_a_column_of_zeros_and_ones_without_gaps() -> None:
    columns: list[tuple[str, Any]] = [
        ("gaps", spans_of(["0", "1", ""])),
        ("three", spans_of(["0", "1", "2"])),
        ("flag", spans_of(["1", "0", "1"])),
        ("Click", pa.array([0, 1, 1], pa.int8())),
        ("lists", pa.array([[0], [1], [1]], pa.list_(pa.int64()))),
    ]
    names = [name for name, _ in columns]
    inferred = [infer_column(name, values, 3, names) for name, values in columns]
    assert label_among(inferred, columns) == "Click", "a telling name goes before the first that fits"
    assert label_among(inferred[:3], columns) == "flag"
    assert label_among(inferred[:2], columns) is None
