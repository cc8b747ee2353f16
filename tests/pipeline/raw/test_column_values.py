"""Text categories as numbers, against xxhash one by one; labels, decimals and missing values.

Hours and weekdays of times against Python's datetime: text, integers and Arrow's own types.
"""

from __future__ import annotations

import datetime
import decimal
import re
import uuid
import zoneinfo
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.raw.column_values import (
    LIMITS,
    TICKS,
    Values,
    hash_text,
    local_seconds,
    other_kind,
    parse_times,
    plain,
    read_column,
)
from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING, ListForm, TextLists
from hotset.pipeline.schema.schema import Form
from hotset.tests.support.logs.text_columns import texts_of


def test_hashes_are_those_of_each_text_alone(rng: np.random.Generator) -> None:
    texts = [rng.bytes(int(length)) for length in rng.integers(0, 300, 200)] * 2 + [b"", b"\0", b"a" * 5000]
    assert hash_text(texts_of(texts))[0].tolist() == [xxhash.xxh3_64_intdigest(each) for each in texts]


def test_distinct_texts_are_counted() -> None:
    _, found = hash_text(texts_of(["a", "b", "a", "", "ab", "ab"]))
    assert found.texts.to_pylist() == [b"a", b"b", b"", b"ab"] and found.counts.tolist() == [2, 1, 1, 2]
    assert found.hashes.tolist() == [xxhash.xxh3_64_intdigest(each) for each in found.texts.to_pylist()]


def test_no_texts_give_no_hashes() -> None:
    assert hash_text(texts_of([]))[0].shape == (0,)


def test_the_hash_is_pinned() -> None:
    """Vocabularies are made of it."""
    found, _ = hash_text(texts_of(["hotset"]))
    assert found.tolist() == [xxhash.xxh3_64_intdigest(b"hotset", seed=0)]
    assert xxhash.xxh3_64_hexdigest(b"") == "2d06800538d394c2"


@given(
    st.lists(st.sampled_from(["", "7", "-2", "0a1b2c3d", "x" * 40, "é"]) | st.none(), min_size=1, max_size=6),
    st.lists(st.integers(0, 5) | st.none(), max_size=30),
    st.integers(0, 4),
)
def test_numbered_texts_are_read_as_their_texts_are(
    texts: list[str | None], numbers: list[int | None], skipped: int
) -> None:
    """Texts may occur twice among the distinct ones, be missing there, or be used by no row."""
    indices = pa.array([None if each is None else each % len(texts) for each in numbers], pa.int32())
    numbered = pa.DictionaryArray.from_arrays(indices, pa.array(texts, pa.string()))[skipped:]
    for kind in ("text", "integer", "hex8", "float"):
        found = read_column(plain(numbered), kind)
        wanted = read_column(plain(pa.array(numbered.to_pylist(), pa.string())), kind)
        assert found.values.tolist() == wanted.values.tolist()
        assert found.states.tolist() == wanted.states.tolist()
        if found.texts is not None and wanted.texts is not None:
            assert found.texts.texts.to_pylist() == wanted.texts.texts.to_pylist()
            assert found.texts.counts.tolist() == wanted.texts.counts.tolist()


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.bool_()])
def test_numbered_values_of_other_types_are_read_too(kind: pa.DataType) -> None:
    values = pa.array([1, 0, None, 1], pa.int64()).cast(kind)
    assert plain(values.dictionary_encode()).to_pylist() == values.to_pylist()


LABELS: dict[str, tuple[Form, list[str], list[int | str | None]]] = {
    "numbers and words": (
        Form(),
        ["1", "0", "", "true", "False", "TRUE", "1.0", "1.000000000000000000e+00", "0e5", "-0"],
        [1, 0, None, 1, 0, 1, 1, 1, 0, 0],
    ),
    "others": (Form(), ["2", "-1", "yes", "0.5", "t", "1e400", "nan"], ["bad"] * 7),
    "above a number": (Form(above=3), ["3", "3.0001", "-4", "", "5e0", "x"], [0, 1, 0, None, 1, "bad"]),
    "above zero": (Form(above=0.0), ["0", "1", "17"], [0, 1, 1]),
    "one word": (Form(positive=("True",)), ["True", "true", "False", "", "1"], [1, 0, 0, None, 0]),
    "two words": (Form(positive=("yes", "y")), ["yes", "no", "y", "Yes"], [1, 0, 1, 0]),
    "a number": (Form(positive=(1,)), ["1", "-1", "1.0", "1e0", "0", "x"], [1, 0, 1, 1, 0, 0]),
    "a number and a word": (Form(positive=(0.5, "é")), ["0.50", "é", "e", "5"], [1, 1, 0, 0]),
}


@pytest.mark.parametrize("case", LABELS)
def test_labels_of_text_are_read_in_each_form(case: str) -> None:
    form, texts, wanted = LABELS[case]
    assert states_and_values(read_column(texts_of(texts), "label", form)) == wanted
    same = read_column(plain(pa.array(texts).dictionary_encode()), "label", form)
    assert states_and_values(same) == wanted


def states_and_values(found: Values) -> list[int | str | None]:
    words = {MISSING: None, BAD: "bad"}
    pairs = zip(found.values, found.states.tolist(), strict=True)
    return [int(value) if state == GOOD else words[state] for value, state in pairs]


D = decimal.Decimal
TYPED_LABELS: list[tuple[Any, Form, list[int | str | None]]] = [
    (pa.array([True, False, None]), Form(), [1, 0, None]),
    (pa.array([1.0, float("nan"), 0.0, 0.5, None]), Form(), [1, None, 0, "bad", None]),
    (pa.array([D("1.00"), D("0"), D("0.50"), None]), Form(), [1, 0, "bad", None]),
    (pa.array([1, -1, None]), Form(positive=(1,)), [1, 0, None]),
    (pa.array([1.0, -1.0, float("nan")]), Form(positive=(1,)), [1, 0, None]),
    (pa.array([D("4.5"), D("3"), None]), Form(positive=(4.5,)), [1, 0, None]),
    (pa.array([True, False, None]), Form(positive=("True",)), [1, 0, None]),
    (pa.array([5, 3, None], pa.int8()), Form(above=3), [1, 0, None]),
    (pa.array([D("3.5"), D("3.0")]), Form(above=3), [1, 0]),
    (pa.array([], pa.int64()), Form(positive=(1,)), []),
]


@pytest.mark.parametrize(("values", "form", "wanted"), TYPED_LABELS)
def test_labels_of_parquet_are_read_in_each_form(
    values: Any, form: Form, wanted: list[int | str | None]
) -> None:
    assert states_and_values(read_column(plain(values), "label", form)) == wanted


@given(
    st.lists(st.integers(-(10**30), 10**30) | st.integers(-(2**64), 2**64) | st.none(), max_size=9),
    st.sampled_from([(38, 0), (38, 2), (76, 0), (76, 3)]),
    st.sampled_from(["integer", "unsigned", "dense"]),
)
@settings(deadline=None)
def test_whole_decimals_are_integers(numbers: list[int | None], size: tuple[int, int], kind: str) -> None:
    make = pa.decimal128 if size[0] == 38 else pa.decimal256
    array = pa.array([None if number is None else D(number) for number in numbers], make(*size))
    below, above = LIMITS[kind]
    wanted = [None if n is None else n % 2**64 if -below <= n <= above else "bad" for n in numbers]
    assert states_and_values(read_column(array, kind)) == wanted
    assert states_and_values(read_column(array[1:], kind)) == wanted[1:]


def test_decimals_with_a_fraction_are_no_integers() -> None:
    found = read_column(pa.array([D("5.00"), D("5.50"), D("-0.01"), None]), "integer")
    assert states_and_values(found) == [5, "bad", "bad", None]
    # Zeros of many digits, and numbers of hundreds, are written with an exponent.
    long = pa.array([D(0), D("2e-10"), D(7)], pa.decimal128(38, 10))
    assert states_and_values(read_column(long, "integer")) == [0, "bad", 7]
    hundreds = pa.array([D(12300), D(10**30), None], pa.decimal128(38, -2))
    assert states_and_values(read_column(hundreds, "integer")) == [12300, "bad", None]
    assert read_column(hundreds, "float").values.tolist() == [12300, 1e30, 0]


def test_fixed_bytes_and_json_are_text_and_uuids_their_usual_form() -> None:
    ids = [uuid.uuid5(uuid.NAMESPACE_DNS, str(number)) for number in range(5)]
    rows = [None if number == 2 else each for number, each in enumerate(ids)]
    codes = [each and each.bytes for each in rows]
    objects = [each and f'{{"u": "{each}"}}' for each in rows]
    columns: list[tuple[Any, list[Any]]] = [
        (pa.array(codes, pa.uuid()), [each and str(each) for each in rows]),
        (pa.array(codes, pa.binary(16)), codes),
        (pa.array(objects, pa.json_()), objects),
    ]
    for array, texts in columns:
        for first in (0, 1, 3):
            found = read_column(plain(array[first:]), "text")
            wanted = read_column(plain(pa.array(texts[first:], pa.binary())), "text")
            assert found.values.tolist() == wanted.values.tolist()
            assert found.states.tolist() == wanted.states.tolist()


@pytest.mark.parametrize(
    ("values", "kind", "wanted"),
    [
        (texts_of(["NULL", "7", "", "-1", "null"]), "integer", [None, 7, None, None, "bad"]),
        (texts_of(["NULL", "-", "-1.5"]), "float", [None, "bad", -1]),
        (plain(pa.array(["NULL", "2024-01-02 03:04", None]).dictionary_encode()), "hour", [None, 3, None]),
        (pa.array([-1, 7, None]), "integer", [None, 7, None]),
        (pa.array([-1, 7, None], pa.float32()), "integer", [None, 7, None]),
        (pa.array([D("-1"), D("7"), None], pa.decimal128(20, 0)), "integer", [None, 7, None]),
        (pa.array([[-1, 7], None, [5]]), "integer", [None, 7, None, 5]),
        (pa.array([["NULL", "7"], None]), "integer", [None, 7, None]),
        (TextLists(texts_of(["7|NULL", "NULL"]), ListForm("|")), "integer", [7, None, None]),
    ],
)
def test_words_for_a_missing_value_are_missing(
    values: Any, kind: str, wanted: list[int | str | None]
) -> None:
    form = Form(missing=("NULL", "-1", "256"))
    assert states_and_values(read_column(values, kind, form)) == wanted
    assert "bad" in states_and_values(read_column(texts_of(["NULL"]), kind))


def test_codes_with_leading_zeros_are_no_integers() -> None:
    texts = ["02031", "2031", "0", "-07", "00", "0.0", "10"]
    assert states_and_values(read_column(texts_of(texts), "integer")) == ["bad", 2031, 0, "bad", "bad", 0, 10]
    assert states_and_values(read_column(texts_of(texts), "dense")) == [2031, 2031, 0, 2**64 - 7, 0, 0, 10]
    assert other_kind(texts_of(["02031"]), "integer", is_element=False) == "text"


UTC = datetime.UTC
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=UTC)
_TIME = re.compile(
    r"(\d{4})(?P<mark>[-/])(\d\d?)(?P=mark)(\d\d?)"
    r"(?:[ Tt](\d\d?):(\d\d?)(?::(\d\d?)(?:[.,]\d+)?)?"
    r"(?: ?(?:(?:(?:Z|UTC|GMT)|([+-])(\d\d)(?::?(\d\d))?)(?:\[.*\])?|\[(?:Z|UTC|GMT)\]))?)?",
    re.ASCII | re.IGNORECASE | re.DOTALL,
)
TIMES = st.datetimes(datetime.datetime(2, 1, 1), datetime.datetime(9998, 12, 31))
LAYOUTS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%dT%H:%M:%S", "%Y-%m-%d %H:%M:%S.%f", "%Y-%m-%dT%H:%MZ")


def naive_seconds(text: str) -> int | None:
    """Seconds since 1970 in UTC, rounded down; None where the text is no time."""
    found = _TIME.fullmatch(text)
    if found is None:
        return None
    try:
        date = [int(part or 0) for part in found.group(1, 3, 4, 5, 6, 7)]
        hours, minutes = int(found[9] or 0), int(found[10] or 0)
        if hours > 23 or minutes > 59:
            return None
        year, month, day, hour, minute, second = date
        time = datetime.datetime(year, month, day, hour, minute, second, tzinfo=UTC)
    except ValueError:
        return None
    east = datetime.timedelta(hours=hours, minutes=minutes) * (-1 if found[8] == "-" else 1)
    return (time - EPOCH) // datetime.timedelta(seconds=1) - east // datetime.timedelta(seconds=1)


def naive_feature(kind: str, seconds: int) -> int:
    time = EPOCH + datetime.timedelta(seconds=seconds)
    return time.hour if kind == "hour" else time.isoweekday()


def check_texts(texts: list[str]) -> None:
    # Those of one form, and each alone, may be read in another way than those of several.
    for each in [texts] + [[text, text, ""] for text in texts]:
        _check(each)


def _check(texts: list[str]) -> None:
    seconds, states = parse_times(texts_of(texts))
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
    "2024/01/01", "-2024-01-01", "2024/1/1", "2024-1/1", "2024/1-1", "2024-1-1 1:2:3", "2024-1-1t1:2:3z",
    "2024-01-01 10:00:00 UTC", "2024-01-01 10:00:00UTC", "2024-01-01 10:00:00 gmt", "2024-01-01 10:00:00 CET",
    "2024-01-01 10:00:00 +0800", "2024-01-01 10:00:00  +0800", "2024-01-01T10:00:00Z[UTC]",
    "2024-01-01T10:00:00+01:00[Asia/Tokyo]", "2024-01-01T10:00:00[UTC]", "2024-01-01T10:00:00[Asia/Tokyo]",
    "2024-01-01T10:00:00Z[", "2024-01-01T10:00:00Z]", "2024-01-01T10:00:00[]", "2024-01-01T10:00:00,123Z",
    "2024-01-01 10:00:00,", "2024-01-01 10:00:000", "2024-001-01", "24-01-01", "02024-01-01",
    "2024-01-01  1:00", "2024-02-30 10:00:00", "2024-02-29 10:00:60", "2024-02-29 24:00:00",
    "0000-01-01 10:00:00", "0001-01-01 10:00:00", "9999-12-31T23:59:59.999999", "2024-01-01 10:00:00.123",
    "2024-01-01 10:00:00,123", "2024-01-01 100000.12345",
    "1969-12-31 23:59:59.999", "2024-01-01 10:00:00+010", "2024-01-01 10:00:001234", "2024-01-01t10:00:00",
]  # fmt: skip


def test_odd_times_are_read_or_refused_as_the_naive_twin_does() -> None:
    check_texts(ODD_ONES)


@given(st.lists(st.tuples(TIMES, st.sampled_from(LAYOUTS)), max_size=5))
@example([])
def test_written_times_are_those_of_datetime(times: list[tuple[datetime.datetime, str]]) -> None:
    # Python writes a year before 1000 with fewer than four digits.
    check_texts([time.strftime(layout.replace("%Y", f"{time.year:04}")) for time, layout in times])


@given(
    st.lists(
        st.from_regex(_TIME, fullmatch=True) | st.text("0123456789-/:+ TZtz.,[]", max_size=25), max_size=5
    )
)
def test_other_text_is_refused_as_the_naive_twin_does(texts: list[str]) -> None:
    check_texts(texts)


@pytest.mark.parametrize("kind", ["hour", "weekday"])
def test_features_are_those_of_the_moment(kind: str, rng: np.random.Generator) -> None:
    seconds = [*rng.integers(-(10**10), 10**10, 40).tolist(), -1, 0, 86_399, 86_400]
    wanted = [naive_feature(kind, second) for second in seconds]
    assert (
        read_column(texts_of([str(second) for second in seconds]), kind, Form("s")).values.tolist() == wanted
    )
    texts = [(EPOCH + datetime.timedelta(seconds=second)).strftime("%Y-%m-%d %H:%M:%S") for second in seconds]
    assert read_column(texts_of(texts), kind).values.tolist() == wanted
    # The last tick of a second is still in it, before 1970 too.
    for unit, ticks in TICKS.items():
        last = [second * ticks + ticks - 1 for second in seconds if abs(second) < 2**33]
        found = read_column(pa.array(last, pa.int64()), kind, Form(unit)).values.tolist()
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
        texts_of(["", "2024-05-06"]),
    ],
)
def test_missing_times_stay_missing(values: Any) -> None:
    found = read_column(values, "hour")
    assert found.states[0] == MISSING and found.values[0] == 0


FORMATS = (
    "%d/%b/%Y:%H:%M:%S %z",
    "%Y%m%d%H%M%S%f",
    "%m/%d/%Y %I:%M:%S %p",
    "%y%m%d%H",
    "%A, %d %B %Y, %Hh",
    "%a %b %d %H:%M:%S %Z %Y",
    "%Y.%m.%d",
    "100%% %Y-%m-%dT%H",
)


def seconds_in(texts: list[str], format: str) -> list[int | None]:
    found = read_column(texts_of(texts), "sample_time", Form(format=format))
    return [int(v) if s == GOOD else None for v, s in zip(found.values, found.states, strict=True)]


def python_seconds(text: str, format: str) -> int | None:
    """Seconds since 1970 as `datetime.strptime` reads them; None where it refuses them or they are before."""
    try:
        time = datetime.datetime.strptime(text, format)
    except ValueError:
        return None
    seconds = (time.replace(tzinfo=time.tzinfo or UTC) - EPOCH) // datetime.timedelta(seconds=1)
    return seconds if seconds >= 0 else None


@given(
    st.lists(
        st.datetimes(datetime.datetime(1970, 1, 2), datetime.datetime(2068, 1, 1), timezones=st.just(UTC)),
        max_size=4,
    ),
    st.sampled_from(FORMATS),
)
@settings(deadline=None)
def test_times_of_a_format_are_those_of_strptime(times: list[datetime.datetime], format: str) -> None:
    texts = [time.strftime(format) for time in times]
    assert seconds_in(texts, format) == [python_seconds(text, format) for text in texts]
    assert None not in seconds_in(texts, format)


@given(
    st.lists(
        st.from_regex(r"[ 0-3]?[0-9]/(Jan|feb|xyz)/(19|20)[0-9]{2}:[0-2]?[0-9] [+-][01][0-9]:?[0-6]0"),
        max_size=5,
    )
)
@settings(deadline=None)
def test_other_text_has_no_format_where_strptime_refuses_it(texts: list[str]) -> None:
    format = "%d/%b/%Y:%H %z"
    texts = [text.strip("\n") for text in texts]
    assert seconds_in(texts, format) == [python_seconds(text, format) for text in texts]


ODD_FORMATS = {
    "%H": {"7": 7 * 3600, "24": None, "": None, "7 ": None, "07": 7 * 3600},
    "%d %b %y": {"1 Jan 70": 0, "1 January 70": 0, "1 Ja 70": None, "31 feb 70": None, "1 Jan 1970": None},
    "%I %p": {"12 am": 0, "12 PM": 12 * 3600, "0 am": None, "13 am": None, "1 xm": None},
    "%H:%M %z": {"1:00 +0100": 0, "1:00 +01:00": 0, "1:00 Z": 3600, "1:00 +1": None, "1:00 UTC": 3600},
    "%H %f": {"0 123456789": 0, "0 x": None},
}


@pytest.mark.parametrize("format", ODD_FORMATS)
def test_each_code_takes_what_it_may(format: str) -> None:
    assert seconds_in(list(ODD_FORMATS[format]), format) == list(ODD_FORMATS[format].values())


def test_numbers_are_read_by_their_digits_where_there_is_a_format() -> None:
    found = read_column(pa.array([23111422, None, 99]), "hour", Form(format="%y%m%d%H"))
    assert found.values.tolist() == [22, 0, 0] and found.states.tolist() == [GOOD, MISSING, BAD]


ZONES = ("Asia/Shanghai", "America/New_York", "Australia/Lord_Howe", "Africa/Monrovia", "Asia/Kathmandu")


@given(st.lists(st.integers(-(2**35), 2**37), max_size=8), st.sampled_from(ZONES), st.integers(-2, 2))
@settings(deadline=None)
def test_clocks_of_a_zone_are_those_of_zoneinfo(seconds: list[int], name: str, step: int) -> None:
    zone = zoneinfo.ZoneInfo(name)
    # Around the days on which clocks change, and where Liberia's did by 44.5 minutes.
    seconds += [1_710_054_000 + step, 1_699_164_000 + step, 63_593_070 + step]
    found = local_seconds(np.array(seconds, np.int64), name).tolist()
    for second, local in zip(seconds, found, strict=True):
        shown = (EPOCH + datetime.timedelta(seconds=second)).astimezone(zone).replace(tzinfo=UTC)
        assert local == (shown - EPOCH) // datetime.timedelta(seconds=1)


@pytest.mark.slow
def test_no_zone_changes_its_offset_twice_a_day() -> None:
    """`local_seconds` looks at the ends of days."""
    for name in zoneinfo.available_timezones():
        seconds = np.arange(-40 * 365 * 4, 70 * 365 * 4, 503) * 21_600 + 1
        clock = zoneinfo.ZoneInfo(name)
        shown = [datetime.datetime.fromtimestamp(int(each), clock).utcoffset() for each in seconds]
        east = [each // datetime.timedelta(seconds=1) for each in shown if each is not None]
        assert local_seconds(seconds, name).tolist() == (seconds + east).tolist()


def test_a_zone_is_of_hours_and_weekdays_alone() -> None:
    texts = ["2023-11-14 22:13:20", "2023-11-15T06:13:20+08:00", "2023-11-14 22:13:20 UTC"]
    form = Form(zone="Asia/Shanghai")
    assert read_column(texts_of(texts), "hour", form).values.tolist() == [6, 6, 6]
    assert read_column(texts_of(texts), "weekday", form).values.tolist() == [3, 3, 3]
    assert read_column(texts_of(texts), "sample_time", form).values.tolist() == [1_700_000_000] * 3
    assert read_column(
        pa.array([1_700_000_000]), "hour", Form("s", zone="Asia/Shanghai")
    ).values.tolist() == [6]
    with pytest.raises(ConfigError, match="there is no time zone 'Asia/Shangai'") as caught:
        local_seconds(np.zeros(1, np.int64), "Asia/Shangai")
    assert caught.value.hint == "did you mean 'Asia/Shanghai'?"


@pytest.mark.parametrize(
    ("text", "unit", "wanted"),
    [
        ("1700000000.25", "s", 1_700_000_000),
        ("1.7e9", "s", 1_700_000_000),
        ("1700000000999.9", "ms", 1_700_000_000),
        ("1699999999999999999", "ns", 1_699_999_999),
        ("0.999", "s", 0),
        ("874724710", "s", 874_724_710),
        ("-0.5", "s", None),
        ("1e19", "s", None),
        ("1.x", "s", None),
    ],
)
def test_numbers_with_a_unit_are_rounded_down(text: str, unit: str, wanted: int | None) -> None:
    found = read_column(texts_of([text]), "sample_time", Form(unit))
    assert (int(found.values[0]) if found.states[0] == GOOD else None) == wanted
    if "x" not in text:
        typed = pa.array([decimal.Decimal(text)]).cast(pa.decimal128(38, 4))
        found = read_column(typed, "sample_time", Form(unit))
        assert (int(found.values[0]) if found.states[0] == GOOD else None) == wanted
    assert read_column(texts_of(["-0.5"]), "hour", Form(unit)).values.tolist() == [23]
    floats = read_column(pa.array([-0.5, float("nan"), 1.5, np.inf]), "hour", Form("s"))
    assert floats.values.tolist() == [23, 0, 0, 0] and floats.states.tolist() == [GOOD, MISSING, GOOD, BAD]
