"""What a column is, by sampled rows: kinds, notes, lists, and what is left out.

Which columns hold times, in which unit or format, and what becomes of them.
"""

from __future__ import annotations

import datetime
from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.infer_column import InferredColumn, formats_of, infer_column, infer_list, infer_times
from hotset.pipeline.raw.text_fields import ListForm
from hotset.tests.support.logs.text_columns import texts_of

NUM_ROWS = 600


def of_text(texts: list[str], name: str = "c") -> InferredColumn:
    return infer_column(name, texts_of(texts), len(texts), [name])


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
        (["1.9", "1.10", "2.0"], "text"),
        (["1.10", "2.50", "0.25"], "float"),
        (["1.0", "2.25", "3.125"], "float"),
        (["1.5", "2", "30"], "float"),
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
        ([True, False, None], pa.bool_(), "integer"),
        ([[1], []], pa.list_(pa.int64()), "integer"),
        ([["a"], None], pa.list_(pa.string()), "text"),
    ],
)
def test_parquet_columns_have_kinds_too(values: list[Any], kind: Any, wanted: str) -> None:
    found = of_arrow(values, kind)
    assert (found.kind, found.is_used, found.lists is not None) == (wanted, True, pa.types.is_list(kind))
    assert found.note.startswith("true or false, 33% missing") == pa.types.is_boolean(kind)


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
    few = 99 if "another" not in note and "twice" not in note else 499
    assert of_text(texts[:few]).is_used, "of few rows it may be an accident"


def test_decimals_that_are_codes_say_how_they_become_numbers() -> None:
    note = of_text(["1.9", "1.10", "1.11"] * 50).note
    assert note.endswith('; if they are amounts, write under [dense]: c = "float"')


def test_infinities_say_which_words_make_them_missing() -> None:
    found = of_arrow([0.5, float("inf"), float("nan"), float("-inf"), None], pa.float64())
    assert not found.is_used
    assert found.note == '2 values are infinite: with missing = ["inf", "-inf"] they are missing'


def test_numbers_of_rows_are_left_out_sooner() -> None:
    assert of_text([str(row) for row in range(120)]).note == "it numbers the rows"
    assert of_text([str(7 * row) for row in range(120)]).is_used


BARS = ListForm("|")


@pytest.mark.parametrize(
    ("texts", "form", "is_certain", "num_distinct"),
    [
        (["1|2", "2|3", "3|1|2", "3", ""], BARS, True, 3),
        (["a | b", "b | c", "c", "a | c"], ListForm(" | "), True, 3),
        (["a^b", "b^c", "c^a", "a"], ListForm("^"), True, 3),
        (["1\x022", "2\x023", "3\x021", "3"], ListForm("\x02"), True, 3),
        (["N1 N2", "N2 N3", "N3 N1", "N1"], ListForm(" "), True, 3),
        (["5;6", "6;7", "7;5", "5"], ListForm(";"), True, 3),
        (["5, 6", "6, 7, 5", "7, 5", "5"], ListForm(", "), True, 3),
        (["red;blue", "blue;green", "green;red", "red"], ListForm(";"), False, 3),
        (["1:0.5|2:1.5", "2:1|3:2", "3:1e-3|1:1", "1:1"], ListForm("|", weight_separator=":"), True, 3),
        (["[1, 2]", "[2]", "[]", "[1, 2, 3]"], ListForm(",", has_brackets=True), True, 3),
        (["['a', 'b']", "['b']", "['a']"], ListForm(",", has_brackets=True), True, 2),
        (['["a", "b"]', '["b"]', "[]"], ListForm(",", has_brackets=True), True, 2),
        (["{1,2}", "{2,3}", "{3}"], ListForm(",", has_brackets=True), True, 3),
        (["[1 2]", "[2 3]", "[3]"], ListForm(" ", has_brackets=True), True, 3),
        (["(1, 2)", "(2, 3)", "(3, 1)"], ListForm(",", has_brackets=True), True, 3),
    ],
)
def test_lists_in_text_are_known_by_elements_that_recur(
    texts: list[str], form: ListForm, is_certain: bool, num_distinct: int
) -> None:
    assert infer_list(texts)[:2] == (form, is_certain)
    found = of_text(texts)
    if is_certain:
        assert (found.lists, found.num_distinct) == (form, num_distinct)
    else:
        assert found.lists is None and 'if these are lists, write: c = { kind = "text"' in found.note


@pytest.mark.parametrize(
    ("texts", "note"),
    [
        (["3,14", "2,71", "3,14", "5"], "decimals with a comma"),
        (["1,204", "2,345,678", "12", "1,204"], "commas between thousands"),
        (["1,204.5", "2,345,678.25", "12", "1,204.5"], "commas between thousands"),
        (["the red car", "a red house", "the house"], ""),
        (['{"a": 1}', '{"a": 2}', '{"b": 1}'], ""),
        (["[[1], [2]]", "[[2], [3]]"], ""),
        (["one; two", *(f"{row}" for row in range(9))], ""),
        (["a|b", "c|d", "e|f"], ""),
        (["43_1007", "44_1007", "43_1008"], ""),
    ],
)
def test_numbers_with_commas_prose_and_objects_are_no_lists(texts: list[str], note: str) -> None:
    assert infer_list(texts)[0] is None
    found = of_text(texts)
    assert (found.kind, found.lists) == ("text", None) and note in found.note and "if these" not in found.note


def test_a_few_values_that_are_no_numbers_are_remarked() -> None:
    numbers = [str(number % 20) for number in range(99)]
    found = of_text([*numbers, "abc", ""])
    assert found.kind == "text" and "1 of 100 values is no number" in found.note
    assert "5 of 104 values are no numbers" in of_text([*numbers, *"abcde"]).note
    assert "no number" not in of_text([*numbers, *"abcdef"]).note
    assert "no number" not in of_text([f"{number:03}" for number in range(99)] * 2).note


def test_lists_that_end_with_a_separator_are_remarked() -> None:
    assert "2 of them end with '|', so with a missing element" in of_text(["1|2|", "2|1|", "1|2"]).note


def test_a_name_that_cannot_stand_in_a_schema_is_left_out() -> None:
    values = texts_of(["1", "2"])
    twice = infer_column("c", values, 2, ["c", "d", "c"])
    assert (twice.note, twice.is_readable) == ("there are two columns of that name", False)
    assert not infer_column("../c", values, 2, ["../c"]).is_used
    assert infer_column("label", values, 2, ["label"]).is_used


NUM_TIMES = 120

BOTH = (("c_hour", "hour"), ("c_weekday", "weekday"))
START = datetime.datetime(2024, 5, 6)

STEPS = [START + datetime.timedelta(hours=5 * (row // 2)) for row in range(NUM_TIMES)]


def inferred(values: Any, name: str = "c", names: tuple[str, ...] = ()) -> InferredColumn:
    num_rows = len(values) if isinstance(values, pa.Array) else values.starts.shape[0]
    return infer_column(name, values, num_rows, [name, *names])


def test_a_single_moment_is_no_feature() -> None:
    found = inferred(texts_of(["2024-05-06 10:00"] * NUM_TIMES))
    assert (found.is_used, found.note) == (False, "times with the same hour and weekday in every row")
    assert inferred(texts_of(["2024-05-06 10:00"] * 3)).is_used, "of few rows it may be an accident"


@pytest.mark.parametrize("kind", [pa.timestamp("us"), pa.timestamp("ns", tz="UTC"), pa.date64(), pa.date32()])
def test_arrow_tells_its_times(kind: Any) -> None:
    times = inferred(pa.array([None, *STEPS], pa.timestamp("us")).cast(kind)).times
    is_date = pa.types.is_date(kind)
    assert times is not None and times.features == (BOTH[1:] if is_date else BOTH)


@pytest.mark.parametrize("unit", ["s", "ms", "us"])
@pytest.mark.parametrize("is_text", [True, False])
def test_integers_are_times_where_they_ascend_or_are_called_so(unit: str, is_text: bool) -> None:
    ticks = {"s": 1, "ms": 1000, "us": 1_000_000}[unit]
    numbers = [(1_600_000_000 + row // 2 * 600) * ticks for row in range(2 * NUM_TIMES)]

    def of(numbers: list[int]) -> Any:
        return texts_of([str(number) for number in numbers]) if is_text else pa.array(numbers)

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
        assert infer_times("c", texts_of(texts), ["c"]) is None


def test_names_of_features_collide_with_no_column() -> None:
    times = inferred(texts_of([str(time) for time in STEPS]), names=("c_hour", "c_hour_")).times
    assert times is not None and times.features == (("c_hour__", "hour"), ("c_weekday", "weekday"))
    assert not inferred(texts_of([str(time) for time in STEPS]), "c" * 199).is_used


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
    found = inferred(texts_of(texts), "event_time")
    assert found.times is not None and found.times.form.format == wanted
    assert [kind for _, kind in found.times.features] == ["hour", "weekday"]
    assert found.times.is_ascending == (order == 1) and found.times.is_moment


def test_dates_in_digits_are_times_if_there_are_many() -> None:
    texts = [moment.strftime("%Y%m%d") for moment in [FIRST + datetime.timedelta(row) for row in range(60)]]
    for values in (texts_of(texts), pa.array([int(text) for text in texts])):
        times = inferred(values).times
        assert times is not None and times.features == BOTH[1:] and times.form.format == "%Y%m%d"
    assert inferred(texts_of(texts[:5])).times is None, "codes may look like dates"
    assert inferred(texts_of(["20231114"] * 200)).kind == "integer"


def test_month_and_day_that_cannot_be_told_apart_give_no_weekday() -> None:
    texts = [f"0{row % 5 + 1}/0{row % 7 + 1}/2024 {row % 24:02}:30" for row in range(NUM_TIMES)]
    found = inferred(texts_of(texts))
    assert found.times is not None and found.times.features == BOTH[:1] and not found.times.is_moment
    assert "no weekday, for its format may be '%m/%d/%Y %H:%M' or '%d/%m/%Y %H:%M'" in found.note
    dates = inferred(texts_of([text.split()[0] for text in texts]))
    assert not dates.is_used and "its format may be '%m/%d/%Y' or '%d/%m/%Y'" in dates.note
    # In the order of a log only one of them never goes back.
    steps = [f"{row // 20 + 1}/{row // 10 % 2 + 1}/2024 0:00" for row in range(NUM_TIMES)]
    told = inferred(texts_of(steps)).times
    assert told is not None and told.form.format == "%m/%d/%Y %H:%M" and told.is_moment


def test_behind_the_year_comes_the_month() -> None:
    texts = [f"2024.{row % 5 + 1:02}.{row % 7 + 1:02} {row % 24:02}:30" for row in range(NUM_TIMES)]
    times = inferred(texts_of(texts)).times
    assert times is not None and times.form.format == "%Y.%m.%d %H:%M" and len(times.features) == 2


def test_times_before_1970_are_no_times_of_samples() -> None:
    for year, is_moment in ((1965, False), (1970, True)):
        times = inferred(
            texts_of([f"{year}-01-{row % 28 + 1:02} {row % 24:02}:30" for row in range(300)])
        ).times
        assert times is not None and times.features == BOTH and times.is_moment == is_moment


def test_a_clock_may_be_a_duration() -> None:
    texts = [f"{row % 24:02}:{row % 60:02}" for row in range(NUM_TIMES)]
    assert inferred(texts_of(texts), "length").times is None
    times = inferred(texts_of(texts), "local_time").times
    assert times is not None and [kind for _, kind in times.features] == ["hour"] and not times.is_moment


def test_seconds_may_be_fractions_and_early_ones_need_a_name() -> None:
    for values in (
        pa.array([1.6e9 + 0.25 + 977 * row for row in range(NUM_TIMES)]),
        texts_of([f"{1.6e9 + 0.25 + 977 * row}" for row in range(NUM_TIMES)]),
    ):
        times = inferred(values).times
        assert times is not None and times.form.unit == "s"
    early = texts_of([str(874_724_710 + 99_991 * (row * 7 % 120)) for row in range(NUM_TIMES)])
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
        fitting = [format for format in formats_of(text) if inferred(texts_of([text] * 2)).times is not None]
        assert fitting == [], text
