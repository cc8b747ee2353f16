"""Which columns hold times, in which unit or format, and what becomes of them."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.infer_column import InferredColumn, infer_column
from hotset.pipeline.infer_times import formats_of, infer_times
from hotset.tests.support.logs.text_spans import spans_of

NUM_ROWS = 120

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
    assert times is not None and times.is_certain and (times.features, times.form.unit) == (BOTH, unit)
    falling = of(numbers[::-1])
    found = inferred(falling)
    assert found.kind == "integer" and found.is_used and found.times is None
    assert f'if these are times, write: c = [{{ kind = "hour", unit = "{unit}"' in found.note
    for name in ("ts", "event_time", "Timestamp"):
        assert inferred(falling, name).times is not None
    assert inferred(falling, "tsar").times is None
    assert infer_times("c", of(numbers[:150]), ["c"]) is None, "few distinct ones are rather categories"


def test_other_values_are_no_times() -> None:
    few = ["1413849600"] * 60 + ["1413849601"] * 60
    for texts in (["2024-05-06"] * 60 + ["soon"] * 60, ["2024-05-06x"] * 9, few, ["1", "2"], [""] * 3):
        assert infer_times("c", spans_of(texts), ["c"]) is None


def test_names_of_features_collide_with_no_column() -> None:
    times = inferred(spans_of([str(time) for time in STEPS]), names=("c_hour", "c_hour_")).times
    assert times is not None and times.features == (("c_hour__", "hour"), ("c_weekday", "weekday"))
    assert not inferred(spans_of([str(time) for time in STEPS]), "c" * 199).is_used


FIRST = datetime.datetime(2023, 11, 14, 22, 13, 20, tzinfo=datetime.UTC)
MOMENTS = [FIRST + datetime.timedelta(seconds=977 * row) for row in range(400)]


@pytest.mark.parametrize(
    ("format", "wanted"),
    [
        ("%Y-%m-%d %H:%M:%S.%f UTC", None),
        ("%Y/%m/%d %H:%M:%S", None),
        ("%d/%b/%Y:%H:%M:%S +0000", "%d/%b/%Y:%H:%M:%S %z"),
        ("%m/%d/%Y %I:%M:%S %p", "%m/%d/%Y %I:%M:%S %p"),
        ("%d.%m.%Y %H:%M", "%d.%m.%Y %H:%M"),
        ("%a %b %d %H:%M:%S +0000 %Y", "%a %b %d %H:%M:%S %z %Y"),
        ("%a, %d %b %Y %H:%M:%S GMT", "%a, %d %b %Y %H:%M:%S %Z"),
        ("%b %d, %Y %I:%M %p", "%b %d, %Y %I:%M %p"),
        ("%B %d %Y %H:%M:%S", "%B %d %Y %H:%M:%S"),
        ("%Y%m%d%H%M%S000", "%Y%m%d%H%M%S%f"),
        ("%Y%m%d%H%M%S", "%Y%m%d%H%M%S"),
        ("%Y%m%d %H:%M:%S", "%Y%m%d %H:%M:%S"),
        ("%y%m%d%H", "%y%m%d%H"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_times_in_text_are_known_by_their_format(format: str, wanted: str | None, order: int) -> None:
    texts = [moment.strftime(format) for moment in MOMENTS][::order]
    found = inferred(spans_of(texts), "event_time")
    assert found.times is not None and found.times.form.format == wanted
    assert [kind for _, kind in found.times.features] == ["hour", "weekday"]
    assert found.times.is_ascending == (order == 1) and found.times.is_moment


def test_dates_in_digits_are_times_if_there_are_many() -> None:
    texts = [moment.strftime("%Y%m%d") for moment in [FIRST + datetime.timedelta(row) for row in range(60)]]
    for values in (spans_of(texts), pa.array([int(text) for text in texts])):
        times = inferred(values).times
        assert times is not None and times.features == BOTH[1:] and times.form.format == "%Y%m%d"
    assert inferred(spans_of(texts[:5])).times is None, "codes may look like dates"
    assert inferred(spans_of(["20231114"] * 200)).kind == "integer"


def test_month_and_day_that_cannot_be_told_apart_give_no_weekday() -> None:
    texts = [f"0{row % 5 + 1}/0{row % 7 + 1}/2024 {row % 24:02}:30" for row in range(NUM_ROWS)]
    found = inferred(spans_of(texts))
    assert found.times is not None and found.times.features == BOTH[:1] and not found.times.is_moment
    assert "no weekday, for its format may be '%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in found.note
    dates = inferred(spans_of([text.split()[0] for text in texts]))
    assert not dates.is_used and "its format may be '%m/%d/%Y' or '%d/%m/%Y'" in dates.note
    # In the order of a log only one of them never goes back.
    steps = [f"{row // 20 + 1}/{row // 10 % 2 + 1}/2024 0:00" for row in range(NUM_ROWS)]
    told = inferred(spans_of(steps)).times
    assert told is not None and told.form.format == "%m/%d/%Y %H:%M" and told.is_moment


def test_behind_the_year_comes_the_month() -> None:
    texts = [f"2024.{row % 5 + 1:02}.{row % 7 + 1:02} {row % 24:02}:30" for row in range(NUM_ROWS)]
    times = inferred(spans_of(texts)).times
    assert times is not None and times.form.format == "%Y.%m.%d %H:%M" and len(times.features) == 2


def test_times_before_1970_are_no_times_of_samples() -> None:
    for year, is_moment in ((1965, False), (1970, True)):
        times = inferred(
            spans_of([f"{year}-01-{row % 28 + 1:02} {row % 24:02}:30" for row in range(300)])
        ).times
        assert times is not None and times.features == BOTH and times.is_moment == is_moment


def test_a_clock_may_be_a_duration() -> None:
    texts = [f"{row % 24:02}:{row % 60:02}" for row in range(NUM_ROWS)]
    assert inferred(spans_of(texts), "length").times is None
    times = inferred(spans_of(texts), "local_time").times
    assert times is not None and [kind for _, kind in times.features] == ["hour"] and not times.is_moment


def test_seconds_may_be_fractions_and_early_ones_need_a_name() -> None:
    for values in (
        pa.array([1.6e9 + 0.25 + 977 * row for row in range(NUM_ROWS)]),
        spans_of([f"{1.6e9 + 0.25 + 977 * row}" for row in range(NUM_ROWS)]),
    ):
        times = inferred(values).times
        assert times is not None and times.form.unit == "s"
    early = spans_of([str(874_724_710 + 99_991 * (row * 7 % 120)) for row in range(NUM_ROWS)])
    assert inferred(early, "timestamp").times is not None and infer_times("user", early, ["user"]) is None


def test_what_is_no_time_has_no_format() -> None:
    for text in (
        "1020",
        "12",
        "43_1007",
        "1.2.3",
        "hello 12",
        "10.0.0.1",
        "",
        "12:30:45:10 12:30",
        "100%",
        "7/8",
    ):
        fitting = [format for format in formats_of(text) if inferred(spans_of([text] * 2)).times is not None]
        assert fitting == [], text
