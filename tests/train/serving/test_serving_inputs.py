"""What serves without hotset reads each value as `hotset.predict` does: the same, or a ValueError."""

from __future__ import annotations

import datetime
import math
import uuid
from dataclasses import replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.raw.columnar_parts import TableParts
from hotset.pipeline.schema.schema import Schema
from hotset.pipeline.schema.schema_file import schema_of
from hotset.tests.support.scored_runs import serving_inputs_of
from hotset.train.serving.serving_inputs import ServingInputs, category_of, dense_of

REFUSED = "refused"
UNTYPED = "untyped"
ZONES = ("", "Asia/Kathmandu", "America/New_York")
FORMATS = ("%d/%b/%Y:%H:%M:%S %z", "%Y%m%d", "%y%m%d%H", "%A, %B %d %Y %I:%M %p", "%m/%d/%Y %H:%M:%S.%f %Z")
KINDS: tuple[dict[str, str], ...] = (
    *({"kind": kind} for kind in ("integer", "unsigned", "text", "hex8", "hour", "weekday")),
    *({"kind": "hour", "unit": unit} for unit in ("s", "ms", "ns")),
    *({"kind": "weekday", "format": format} for format in FORMATS),
)


def predicted(line: str, value: Any, head: str = "") -> Any:
    """Return what a log's reader makes of a value: a category, a number, None, or REFUSED."""
    found = predicted_by(schema_of(f'format = "parquet"\n{head}label = "y"\n{line}'), value)
    return REFUSED if found == UNTYPED else found


def predicted_by(schema: Schema, value: Any) -> Any:
    """Return the same by a schema; UNTYPED where no type of Arrow has the value."""
    name = (*schema.dense, *schema.sparse)[0]
    if isinstance(value, float) and math.isnan(value):
        value = None  # as a frame of pandas has it in columns of any type
    kind = pa.uint64() if type(value) is int and 2**63 <= value < 2**64 else None
    try:
        column = (
            pa.array([value.bytes], pa.uuid()) if isinstance(value, uuid.UUID) else pa.array([value], kind)
        )
    except (pa.ArrowException, OverflowError, ValueError):
        return UNTYPED
    if pa.types.is_null(getattr(column.type, "value_type", column.type)) and schema.lists:
        return UNTYPED
    table = pa.table({"x": column, "y": [0], "z": ["a"]})
    try:
        (part,) = TableParts(table, schema, rows_of_part=1).iterate({})
    except HotsetError:
        return REFUSED
    read: Any = part.read()
    return REFUSED if read.fault is not None else read.columns[name].to_pylist()[0]


def served(call: Any, *arguments: Any) -> Any:
    try:
        return call(*arguments)
    except ValueError:
        return REFUSED


def signed(category: Any) -> Any:
    return category if category in (None, REFUSED) else (category + 2**63) % 2**64 - 2**63


digits = st.text("0123456789", min_size=1, max_size=21)
number_texts = st.one_of(
    st.builds(
        "{}{}{}".format,
        st.sampled_from(["", "-", "+", " "]),
        digits,
        st.sampled_from(["", ".", ".0", ".5", "e3"]),
    ),
    st.sampled_from(
        [
            "0x12",
            "1_000",
            "nan",
            "inf",
            "-inf",
            "1e400",
            "٣",
            "007",
            "-0",
            ".5",
            "-.",
            "True",
            "false",
            "NULL",
        ]
    ),
)
moments = st.datetimes(datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30))
offsets = st.sampled_from(
    [
        "",
        " UTC",
        "z",
        " GMT",
        "+0530",
        "-08:00",
        "+14",
        " +08",
        "[UTC]",
        "Z[Etc/X]",
        "+8",
        "+08:0",
        " ",
        "[Mars]",
        "-99:00",
    ]
)


@st.composite
def time_texts(draw: st.DrawFn) -> str:
    moment = draw(moments)
    mark, between = draw(st.sampled_from("-/")), draw(st.sampled_from(["T", " ", "t", "  ", "x"]))
    form = draw(st.sampled_from(["{:04}{m}{:02}{m}{:02}", "{:04}{m}{}{m}{}", "{}{m}{:02}-{:02}"]))
    text = form.format(moment.year, moment.month, moment.day, m=mark)
    clock = draw(
        st.sampled_from(
            [
                "",
                "{:02}:{:02}",
                "{:02}:{:02}:{:02}",
                "{}:{}:{}.25",
                "{:02}:{:02}:{:02},5",
                "24:00",
                "1:60",
                "1:2:",
            ]
        )
    )
    if clock:
        text += between + clock.format(moment.hour, moment.minute, moment.second) + draw(offsets)
    return text


@st.composite
def formatted_times(draw: st.DrawFn) -> str:
    zone = datetime.timezone(datetime.timedelta(minutes=draw(st.sampled_from([0, 330, -480]))))
    moment = draw(moments).replace(tzinfo=zone)
    text = (
        moment.strftime(draw(st.sampled_from(FORMATS)))
        .replace("UTC+05:30", "UTC")
        .replace("UTC-08:00", "GMT")
    )
    return text if draw(st.booleans()) else text.lower().replace(" 0", "  ")


values = st.one_of(
    st.none(),
    number_texts,
    number_texts.map(str.encode),
    time_texts(),
    formatted_times(),
    st.text(max_size=4),
    st.binary(max_size=4),
    st.text("0123456789abcdefABCDEFg", min_size=7, max_size=9),
    st.integers(-(2**65), 2**65),
    st.integers(-3, 2**33),
    st.floats(),
    st.floats(-1e4, 1e4).map(np.floor),
    st.booleans(),
    st.decimals(allow_nan=False, allow_infinity=False, places=1, min_value=-(10**20), max_value=10**20),
    st.integers(-(2**70), 2**70).map(Decimal),
    st.dates(datetime.date(1, 1, 2), datetime.date(9999, 12, 30)),
    st.datetimes(datetime.datetime(1700, 1, 1), datetime.datetime(2200, 1, 1)),
    st.datetimes(
        datetime.datetime(1, 1, 2), datetime.datetime(9999, 12, 30), timezones=st.just(datetime.UTC)
    ),
    st.uuids(),
    st.integers(-(2**40), 2**40).map(lambda seconds: np.datetime64(seconds, "s")),
    st.sampled_from([np.float32(1.5), np.int8(-3), np.uint64(2**64 - 1), np.float64("nan"), np.bool_(True)]),
)


@given(values, st.sampled_from(KINDS), st.sampled_from(ZONES))
@example(2**64 + 1, {"kind": "unsigned"}, "")
@example("5.0", {"kind": "integer"}, "")
@example("True", {"kind": "integer"}, "")
@example(b"abc", {"kind": "text"}, "")
@example("1700000000.0", {"kind": "hour", "unit": "s"}, "")
@example(Decimal("-0.5"), {"kind": "hour", "unit": "s"}, "")
@example("2023-11-14 22:13:20.5 UTC", {"kind": "hour"}, "")
@example("2023/1/4 2:03:04.5 +0800", {"kind": "weekday"}, "Asia/Kathmandu")
@example("2023-11-14T22:13:20Z[UTC]", {"kind": "weekday"}, "America/New_York")
@example("2023-11-14t22:13:20+01:00[Europe/Paris]", {"kind": "hour"}, "")
@example("2023-11-05 07:59", {"kind": "hour"}, "America/New_York")
@example("2023-11-14", {"kind": "hour"}, "Asia/Kathmandu")
@example("14/Nov/2023:22:13:20 +0130", {"kind": "hour", "format": "%d/%b/%Y:%H:%M:%S %z"}, "")
@example("23111422", {"kind": "weekday", "format": "%y%m%d%H"}, "Asia/Kathmandu")
@example("1700000000.75", {"kind": "weekday", "unit": "s"}, "")
@example("-0.5", {"kind": "hour", "unit": "ms"}, "Asia/Kathmandu")
@example("1699999999999999999", {"kind": "hour", "unit": "ns"}, "")
@example(float("nan"), {"kind": "text"}, "")
def test_a_category_is_that_of_predict(value: Any, kind: dict[str, str], zone: str) -> None:
    entry = ", ".join(f'{key} = "{setting}"' for key, setting in kind.items())
    head = 'missing = ["NULL", "-1", "1.5"]\n' + (f'zone = "{zone}"\n' if zone else "")
    wanted = predicted(f'[sparse]\nx = {{ name = "feature", {entry} }}', value, head)
    ways = (kind.get("unit"), kind.get("format"), zone or None, ("NULL", "-1", "1.5"))
    found = served(category_of, kind["kind"], value, *ways)
    assert found == signed(wanted)


@given(values, st.sampled_from(["integer", "float", "float32"]))
@example(float("inf"), "float")
@example("True", "integer")
@example("fALSE", "float")
@example(2**64 - 1, "float")
@example("True", "integer")
@example("fALSE", "float")
@example(1e300, "float32")
@example(3.4028235677973366e38, "float32")
def test_a_dense_value_is_that_of_predict(value: Any, kind: str) -> None:
    assume(type(value) is not int or -(2**63) <= value < 2**64)  # no type of Arrow has others
    transform = ', transform = "none"' if kind == "float32" else ""
    line = f'dense = {{ x = {{ kind = "{kind.removesuffix("32")}", name = "feature"{transform} }} }}'
    wanted = predicted(f'{line}\n[sparse]\nz = "text"', value, 'missing = ["NULL"]\n')
    found = served(dense_of, kind, value, ("NULL",))
    if wanted == REFUSED or found == REFUSED:
        assert found == wanted
    else:
        assert (wanted is None and math.isnan(found)) or found == wanted


def test_values_of_pandas_are_those_of_predict() -> None:
    pandas = pytest.importorskip("pandas")
    assert category_of("integer", pandas.NA) is None and category_of("hour", pandas.NaT) is None
    moment = pandas.Timestamp("1969-12-31 23:59:59.999999999")
    assert (category_of("hour", moment), category_of("weekday", moment)) == (23, 3)
    assert category_of("hour", pandas.Timestamp("2024-05-05 23:30", tz="Asia/Kolkata")) == 18


FORMS: tuple[str, ...] = (
    "list = true",
    'list = true, separator = "|"',
    'list = true, separator = " "',
    'list = true, separator = "::", weight_separator = ":"',
    'list = true, separator = ",", weight_separator = ":="',
    'list = "brackets", separator = ","',
    'list = "brackets", separator = " "',
    'list = "brackets", separator = "|", weight_separator = ":"',
)
pieces = st.one_of(
    st.sampled_from(["1", "-1", "02", "5.0", "a", "b c", "NULL", "null", "None", "nan", "0000beef", "ü"]),
    st.sampled_from(["", " ", "\t", "|", ",", "::", ":", ":=", "[", "]", "{", "}", "(", ")", '"', "'", "\\"]),
    st.sampled_from(
        ['\\"', "\\u00e9", "\\n", ":0.5", ":1e3", ":x", ":=2", '"a,b"', "'a|b':1", '"x":2', "[1]"]
    ),
)
elements = st.one_of(
    st.none(), number_texts, st.integers(-(2**65), 2**65), st.floats(), st.booleans(), st.text(max_size=3)
)


@given(
    st.one_of(
        st.none(),
        st.lists(pieces, max_size=9).map("".join),
        st.lists(pieces, max_size=9).map("".join).map(str.encode),
        st.lists(pieces, max_size=7).map(lambda some: f"[{','.join(some)}]"),
        st.lists(elements, max_size=4),
        st.lists(st.integers(-3, 2**33), min_size=1, max_size=4).map(np.array),
        st.lists(st.text(max_size=3), max_size=4).map(tuple),
    ),
    st.sampled_from(["integer", "unsigned", "text", "hex8"]),
    st.sampled_from(FORMS),
    st.booleans(),
)
@example("1:0.5,2:x", "integer", FORMS[4], False)
@example('["a\\u00e9", null, "b|c"]', "text", FORMS[5], False)
@example("1|2", "integer", FORMS[1], False)
@example([True], "integer", FORMS[0], False)
@example("a:b:0.5|c:1", "text", FORMS[7], False)
def test_a_list_is_that_of_predict(value: Any, kind: str, form: str, trims: bool) -> None:
    head = 'missing = ["NULL", "-1"]\n'
    line = f'[sparse]\nx = {{ name = "feature", kind = "{kind}", {form} }}'
    schema = schema_of(f'format = "parquet"\n{head}label = "y"\n{line}')
    schema = replace(schema, trim=trims)
    wanted = predicted_by(schema, value)
    assume(wanted != UNTYPED)
    found = served(bag_of, serving_inputs_of(schema), value)
    assert found == (REFUSED if wanted == REFUSED else [*map(signed, wanted)])


def bag_of(inputs: ServingInputs, value: Any) -> list[int | None]:
    """Return the categories of one list, as the graph takes them."""
    found = inputs.for_onnx({"x": [value]})
    size = int(found["bag.feature.length"][0])
    pairs = zip(found["bag.feature"][0, :size], found["bag.feature.is_missing"][0, :size], strict=True)
    return [None if is_missing else int(category) for category, is_missing in pairs]


def test_lists_are_lists() -> None:
    schema = schema_of('format = "parquet"\nlabel = "y"\n[sparse]\nx = { kind = "integer", list = true }')
    inputs = serving_inputs_of(schema)
    found = inputs.for_onnx({"x": [[1, None], None, np.array([3]), [], float("nan")]})
    assert found["bag.x.length"].tolist() == [2, 1, 1, 0, 1]
    assert found["bag.x"].tolist() == [[1, 0], [0, 0], [3, 0], [0, 0], [0, 0]]
    assert found["bag.x.is_missing"][:, 0].tolist() == [False, True, False, False, True]
    for bag in ("12", b"12", 12, [1.5], ["x"]):
        with pytest.raises(ValueError):
            inputs.for_onnx({"x": [bag]})
