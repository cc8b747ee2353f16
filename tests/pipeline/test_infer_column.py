"""What a column is, by sampled rows: kinds, notes, lists, and what is left out."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from hotset.pipeline.infer_column import InferredColumn, infer_column, infer_list
from hotset.pipeline.raw.text_fields import ListForm
from hotset.tests.support.logs.text_spans import spans_of

NUM_ROWS = 600


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
    values = spans_of(["1", "2"])
    twice = infer_column("c", values, 2, ["c", "d", "c"])
    assert (twice.note, twice.is_readable) == ("there are two columns of that name", False)
    assert not infer_column("../c", values, 2, ["../c"]).is_used
    assert infer_column("label", values, 2, ["label"]).is_used
