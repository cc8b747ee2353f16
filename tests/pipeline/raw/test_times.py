"""Hours and weekdays of times against Python's datetime: text, integers and Arrow's own types."""

from __future__ import annotations

import datetime
import re
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hotset.pipeline.raw.column_values import read_column
from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING
from hotset.pipeline.raw.times import TICKS, parse_times
from hotset.tests.support.logs.text_spans import spans_of

UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"(\d{4})-(\d\d)-(\d\d)(?:[ T](\d\d):(\d\d)(?::(\d\d)(?:\.\d+)?)?(?:Z|([+-])(\d\d)(?::?(\d\d))?)?)?",
    re.ASCII,
)
TIMES = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31))
LAYOUTS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%MZ")


def naive_seconds(text: str) -> int | None:
    """Seconds since 1970 in UTC, rounded down; None where the text is no time."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        date = [int(part or 0) for part in found.groups()[:6]]
        hours, minutes = int(found[8] or 0), int(found[9] or 0)
        if hours > 23 or minutes > 59:
            return None
        year, month, day, hour, minute, second = date
        time = datetime.datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    east = datetime.timedelta(hours=hours, minutes=minutes) * (-1 if found[7] == "-" else 1)
    return (time - EPOCH) // datetime.timedelta(seconds=1) - east // datetime.timedelta(seconds=1)


def naive_feature(kind: str, seconds: int) -> int:
    time = EPOCH + datetime.timedelta(seconds=seconds)
    return time.hour if kind == "hour" else time.isoweekday()


def check_texts(texts: list[str]) -> None:
    spans = spans_of(texts)
    seconds = np.empty(len(texts), np.int64)
    states = np.empty(len(texts), np.uint8)
    parse_times(spans.text, spans.starts, spans.stops, seconds, states)
    for text, found, state in zip(texts, seconds.tolist(), states.tolist(), strict=True):
        wanted = naive_seconds(text)
        assert state == (MISSING if not text else BAD if wanted is None else GOOD), text
        assert found == (wanted or 0), text


ODD_ONES = [
    "", "2024-02-29", "2023-02-29", "1900-02-29", "2000-02-29", "2024-13-01", "2024-00-10", "2024-01-32",
    "2024-04-31", "0000-01-01", "0001-01-01", "9999-12-31 23:59:59", "2024-1-01", "2024-01-01 24:00",
    "2024-01-01 23:60", "2024-01-01 23:59:60", "2024-01-01T", "2024-01-01 1:00", "2024-01-01_10:00",
    "2024-01-01 10:00:00.", "2024-01-01 10:00:00.5", "2024-01-01 10:00+", "2024-01-01 10:00+05:30",
    "2024-01-01 10:00-0530", "2024-01-01 10:00+05", "2024-01-01 10:00+5", "2024-01-01 10:00+05:3",
    "2024-01-01 10:00+24:00", "2024-01-01 10:00+05:60", "2024-01-01 10:00Z", "2024-01-01 10:00z",
    "2024-01-01Z", "2024-01-01 10:00 ", " 2024-01-01", "2024-01-01 10", "2024-01-01 10:00:0",
    "2024/01/01", "-2024-01-01",
]  # fmt: skip


def test_odd_times_are_read_or_refused_as_the_naive_twin_does() -> None:
    check_texts(ODD_ONES)


@given(st.lists(st.tuples(TIMES, st.sampled_from(LAYOUTS)), max_size=5))
@example([])
def test_written_times_are_those_of_datetime(times: list[tuple[datetime.datetime, str]]) -> None:
    # Python writes a year before 1000 with fewer than four digits.
    check_texts([time.strftime(layout.replace("%Y", f"{time.year:04}")) for time, layout in times])


@given(st.lists(st.text("0123456789-:+ TZ.", max_size=25), max_size=5))
def test_other_text_is_refused_as_the_naive_twin_does(texts: list[str]) -> None:
    check_texts(texts)


@pytest.mark.parametrize("kind", ["hour", "weekday"])
def test_features_are_those_of_the_moment(kind: str, rng: np.random.Generator) -> None:
    seconds = [*rng.integers(-(10**10), 10**10, 40).tolist(), -1, 0, 86_399, 86_400]
    wanted = [naive_feature(kind, second) for second in seconds]
    assert read_column(spans_of([str(second) for second in seconds]), kind, "s").values.tolist() == wanted
    texts = [(EPOCH + datetime.timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S") for second in seconds]
    assert read_column(spans_of(texts), kind).values.tolist() == wanted
    # The last tick of a second is still in it, before 1970 too.
    for unit, ticks in TICKS.items():
        last = [second * ticks + ticks - 1 for second in seconds if abs(second) < 2**33]
        found = read_column(pa.array(last, pa.int64()), kind, unit).values.tolist()
        assert found == [naive_feature(kind, tick // ticks) for tick in last]
        stamps = pa.array(last, pa.int64()).cast(pa.timestamp(unit, tz="Asia/Tokyo"))
        assert read_column(stamps, kind).values.tolist() == found, "a time zone is only how a moment is shown"
    days = [second // 86_400 for second in seconds]
    wanted = [naive_feature(kind, day * 86_400) for day in days]
    assert read_column(pa.array(days, pa.int32()).cast(pa.date32()), kind).values.tolist() == wanted
    assert (
        read_column(pa.array(days, pa.int32()).cast(pa.date32()).cast(pa.date64()), kind).values.tolist()
        == wanted
    )


@pytest.mark.parametrize(
    "values",
    [
        pa.array([None, 7], pa.timestamp("ms")),
        pa.array([None, None], pa.int64()),
        spans_of(["", "2024-05-06"]),
    ],
)
def test_missing_times_stay_missing(values: Any) -> None:
    found = read_column(values, "hour")
    assert found.states[0] == MISSING and found.values[0] == 0
