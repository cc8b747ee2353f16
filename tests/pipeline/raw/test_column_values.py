"""Text categories as numbers, against xxhash one by one; labels, decimals and missing values."""

from __future__ import annotations

import decimal
import uuid
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.pipeline.raw.column_values import (
    LIMITS,
    Values,
    hash_text,
    other_kind,
    plain,
    read_column,
)
from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING, ListForm, ListSpans, Spans
from hotset.pipeline.schema.schema import Form
from hotset.tests.support.logs.text_spans import spans_of


def test_hashes_are_those_of_each_text_alone(rng: np.random.Generator) -> None:
    texts = [rng.bytes(int(length)) for length in rng.integers(0, 300, 200)] * 2 + [b"", b"\0", b"a" * 5000]
    text = np.frombuffer(b"..".join(texts), np.uint8)
    stops = np.cumsum([len(each) + 2 for each in texts]) - 2
    starts = stops - np.array([len(each) for each in texts])
    assert hash_text(Spans(text, starts, stops))[0].tolist() == [
        xxhash.xxh3_64_intdigest(each) for each in texts
    ]


def test_distinct_texts_are_counted() -> None:
    text = np.frombuffer(b"abaab", np.uint8)
    starts = np.array([0, 1, 2, 0, 3, 0])
    _, found = hash_text(Spans(text, starts, starts + np.array([1, 1, 1, 0, 2, 2])))
    assert found.texts.to_pylist() == [b"a", b"b", b"", b"ab"] and found.counts.tolist() == [2, 1, 1, 2]
    assert found.hashes.tolist() == [xxhash.xxh3_64_intdigest(each) for each in found.texts.to_pylist()]


def test_no_texts_give_no_hashes() -> None:
    assert hash_text(spans_of([]))[0].shape == (0,)


def test_the_hash_is_pinned() -> None:
    """Vocabularies are made of it."""
    found, _ = hash_text(spans_of(["hotset"]))
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
    assert states_and_values(read_column(spans_of(texts), "label", form)) == wanted
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
        (spans_of(["NULL", "7", "", "-1", "null"]), "integer", [None, 7, None, None, "bad"]),
        (spans_of(["NULL", "-", "-1.5"]), "float", [None, "bad", -1]),
        (plain(pa.array(["NULL", "2024-01-02 03:04", None]).dictionary_encode()), "hour", [None, 3, None]),
        (pa.array([-1, 7, None]), "integer", [None, 7, None]),
        (pa.array([-1, 7, None], pa.float32()), "integer", [None, 7, None]),
        (pa.array([D("-1"), D("7"), None], pa.decimal128(20, 0)), "integer", [None, 7, None]),
        (pa.array([[-1, 7], None, [5]]), "integer", [None, 7, None, 5]),
        (pa.array([["NULL", "7"], None]), "integer", [None, 7, None]),
        (ListSpans(spans_of(["7|NULL", "NULL"]), ListForm("|")), "integer", [7, None, None]),
    ],
)
def test_words_for_a_missing_value_are_missing(
    values: Any, kind: str, wanted: list[int | str | None]
) -> None:
    form = Form(missing=("NULL", "-1", "256"))
    assert states_and_values(read_column(values, kind, form)) == wanted
    assert "bad" in states_and_values(read_column(spans_of(["NULL"]), kind))


def test_codes_with_leading_zeros_are_no_integers() -> None:
    texts = ["02031", "2031", "0", "-07", "00", "0.0", "10"]
    assert states_and_values(read_column(spans_of(texts), "integer")) == ["bad", 2031, 0, "bad", "bad", 0, 10]
    assert states_and_values(read_column(spans_of(texts), "dense")) == [2031, 2031, 0, 2**64 - 7, 0, 0, 10]
    assert other_kind(spans_of(["02031"]), "integer", is_element=False) == "text"
