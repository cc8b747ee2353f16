"""What a column is, by its first rows: kinds, notes, what is left out, and which columns hold times."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.infer_column import InferredColumn, infer_column, infer_times
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
        (["1.5", "02"], "text"),
        (["1e400", "2"], "text"),
        (["00000001", "12345678"], "hex8"),
        (["12345678", "23456789"], "integer"),
        (["1.0", "2.0", ""], "integer"),
        (["", ""], "text"),
        ([str(2**64), "1"], "text"),
        ([str(2**64 - 1), "5"], "unsigned"),
        ([str(2**64 - 1), "-5"], "text"),
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


def test_a_name_that_cannot_stand_in_a_schema_is_left_out() -> None:
    values = spans_of(["1", "2"])
    twice = infer_column("c", values, 2, ["c", "d", "c"])
    assert (twice.note, twice.is_readable) == ("there are two columns of that name", False)
    assert not infer_column("../c", values, 2, ["../c"]).is_used
    assert infer_column("label", values, 2, ["label"]).is_used


BOTH = (("c_hour", "hour"), ("c_weekday", "weekday"))
START = datetime.datetime(2024, 5, 6)

STEPS = [START + datetime.timedelta(hours=5 * (row // 2)) for row in range(NUM_ROWS)]


def inferred(values: Any, name: str = "c", names: tuple[str, ...] = ()) -> InferredColumn:
    num_rows = len(values) if isinstance(values, pa.Array) else values.starts.shape[0]
    return infer_column(name, values, num_rows, [name, *names])


def test_a_single_moment_is_no_feature() -> None:
    found = inferred(spans_of(["2024-05-06 10:00"] * NUM_ROWS))
    assert (found.is_used, found.note) == (False, "times with the same hour and weekday in every row")
    assert inferred(spans_of(["2024-05-06 10:00"] * 3)).is_used, "of few rows it may be an accident"


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), pa.date64(), pa.date32()])
def test_arrow_tells_its_times(kind: Any) -> None:
    times = inferred(pa.array([None, *STEPS], pa.timestamp("us")).cast(kind)).times
    is_date = pa.types.is_date(kind)
    assert times is not None and times.features == (BOTH[1:] if is_date else BOTH)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("is_text", [True, False])
def test_integers_are_times_where_they_ascend_or_are_called_so(unit: str, is_text: bool) -> None:
    ticks = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    numbers = [(1_600_000_000 + row // 2 * 600) * ticks for row in range(2 * NUM_ROWS)]

    def of(numbers: list[int]) -> Any:
        return spans_of([str(number) for number in numbers]) if is_text else pa.array(numbers)

    times = infer_times("c", of(numbers), ["c"])
    assert times is not None and times.is_certain and (times.features, times.unit) == (BOTH, unit)
    falling = of(numbers[::-1])
    found = inferred(falling)
    assert found.kind == "integer" and found.is_used and found.times is None
    assert f'if these are Unix times, write: [{{ kind = "hour", unit = "{unit}"' in found.note
    for name in ("ts", "event_time", "Timestamp"):
        assert inferred(falling, name).times is not None
    assert inferred(falling, "tsar").times is None
    assert infer_times("c", of(numbers[:150]), ["c"]) is None, "few distinct ones are rather categories"


def test_other_values_are_no_times() -> None:
    few = ["1413849600"] * 60 + ["1413849601"] * 60
    for texts in (["2024-05-06"] * 60 + ["soon"] * 60, ["2024-05-06x"] * 9, few, ["1", "2"], [""] * 3):
        assert infer_times("c", spans_of(texts), ["c"]) is None
    assert infer_times("c", pa.array([1.6e9 + row for row in range(NUM_ROWS)]), ["c"]) is None


def test_names_of_features_collide_with_no_column() -> None:
    times = inferred(spans_of([str(time) for time in STEPS]), names=("c_hour", "c_hour_")).times
    assert times is not None and times.features == (("c_hour__", "hour"), ("c_weekday", "weekday"))
    assert not inferred(spans_of([str(time) for time in STEPS]), "c" * 199).is_used
