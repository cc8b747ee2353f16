"""Which columns are taken for times, and what is proposed for them."""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.preview.infer_column import InferredColumn, infer_column
from hotset.pipeline.preview.infer_times import infer_times
from hotset.tests.support.logs.text_spans import spans_of

BOTH = (("c_hour", "hour"), ("c_weekday", "weekday"))
START = datetime.datetime(2024, 5, 6)
NUM_ROWS = 120
STEPS = [START + datetime.timedelta(hours=5 * (row // 2)) for row in range(NUM_ROWS)]


def inferred(values: Any, name: str = "c", names: tuple[str, ...] = ()) -> InferredColumn:
    num_rows = len(values) if isinstance(values, pa.Array) else values.starts.shape[0]
    return infer_column(name, values, num_rows, [name, *names])


@pytest.mark.parametrize("layout", ["%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S.%fZ"])
def test_written_times_become_hour_and_weekday(layout: str) -> None:
    found = inferred(spans_of([time.strftime(layout) for time in STEPS] + [""]))
    assert found.is_used and found.times is not None
    assert (found.times.features, found.times.unit) == (BOTH, None)
    assert found.note == "hour and weekday of times, in UTC"


def test_dates_have_no_hour_and_a_single_moment_is_no_feature() -> None:
    dates = [time.strftime("%Y-%m-%d") for time in STEPS]
    times = inferred(spans_of(dates)).times
    assert times is not None and times.features == (("c_weekday", "weekday"),)
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
    for texts in (["2024-05-06"] * 60 + ["soon"] * 60, ["1", "2"], [""] * 3):
        assert infer_times("c", spans_of(texts), ["c"]) is None
    assert infer_times("c", pa.array([1.6e9 + row for row in range(NUM_ROWS)]), ["c"]) is None


def test_names_of_features_collide_with_no_column() -> None:
    times = inferred(spans_of([str(time) for time in STEPS]), names=("c_hour", "c_hour_")).times
    assert times is not None and times.features == (("c_hour__", "hour"), ("c_weekday", "weekday"))
    assert not inferred(spans_of([str(time) for time in STEPS]), "c" * 199).is_used
