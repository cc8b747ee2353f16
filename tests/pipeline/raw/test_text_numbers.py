"""Decimal numbers against Python's float, elements of lists against str.split.

Tests `column_values`, too.
"""

from __future__ import annotations

import re
import struct
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.raw.column_values import ListSpans, Spans, elements_of, read_values
from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING
from hotset.pipeline.raw.text_numbers import HARD, parse_decimals

_NUMBER = re.compile(rb"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?")


def spans_of(texts: list[bytes]) -> Spans:
    joined = np.frombuffer(b"".join(texts) or b"x", np.uint8)
    stops = np.cumsum([len(text) for text in texts], dtype=np.int64)
    return Spans(joined, np.concatenate([[0], stops[:-1]]).astype(np.int64)[: len(texts)], stops)


def naive_float(text: bytes) -> tuple[float, int]:
    if not text:
        return 0.0, MISSING
    if not _NUMBER.fullmatch(text) or abs(float(text)) == float("inf"):
        return 0.0, BAD
    return float(text), GOOD


def bits(values: NDArray[np.float64]) -> list[int]:
    return [int(value) for value in values.view(np.uint64)]


HARD_ONES = [
    b"9007199254740993",
    b"0.1000000000000000055511151231257827021181583404541015625",
    b"2.2250738585072011e-308",
    b"4.9e-324",
    b"2e-324",
    b"1.7976931348623158e308",
    b"1.7976931348623159e308",
    b"8.5e22",
    b"1e23",
    b"123456789012345678901234567890",
    b"0." + b"0" * 400 + b"1",
    b"1" + b"0" * 400,
    b"1e-100000000000000000000",
    b"0e100000000000000000000",
]
ODD_ONES = [
    b"-",
    b"+",
    b".",
    b"e5",
    b"1e",
    b"1e+",
    b"1.2.3",
    b"0x10",
    b"1_0",
    b" 1",
    b"1 ",
    b"nan",
    b"inf",
    b"1,5",
]


def check(texts: list[bytes]) -> None:
    values, states = read_values(spans_of(texts), "float")
    wanted = [naive_float(text) for text in texts]
    assert states.tolist() == [state for _, state in wanted]
    assert bits(values) == bits(np.array([value for value, _ in wanted], np.float64))


def test_hard_and_odd_numbers_are_read_as_python_reads_them() -> None:
    signed = [sign + text for text in HARD_ONES for sign in (b"", b"-", b"+")]
    check([*signed, *ODD_ONES, b"", b"0", b"-0", b"-0.0", b".5", b"5.", b"1E5", b"1e-5", b"00012.500"])
    check([])


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20))
@settings(deadline=None, max_examples=60)
def test_every_float_is_read_from_its_shortest_text(values: list[float]) -> None:
    check([repr(value).encode() for value in values] + [b"%.3f" % value for value in values])


@given(
    st.lists(st.from_regex(_NUMBER, fullmatch=True), max_size=8), st.lists(st.binary(max_size=6), max_size=8)
)
@example([b"9007199254740992", b"-9007199254740993e-22"], [b"1e"])
@settings(deadline=None, max_examples=100)
def test_any_text_is_read_or_refused_as_the_grammar_says(numbers: list[bytes], others: list[bytes]) -> None:
    check(numbers + others)


def test_short_decimals_need_no_second_look() -> None:
    texts = [b"%d.%02d" % (n, n % 100) for n in range(2000)] + [b"9007199254740992", b"1e22", b"123e-22"]
    spans = spans_of(texts)
    values = np.empty(len(texts), np.float64)
    states = np.empty(len(texts), np.uint8)
    parse_decimals(spans.text, spans.starts, spans.stops, values, states)
    assert (states == GOOD).all() and values.tolist() == [float(text) for text in texts]
    spans = spans_of([b"9007199254740993", b"1e23", b"12345678901234567890123"])
    parse_decimals(spans.text, spans.starts, spans.stops, values[:3], states[:3])
    assert (states[:3] == HARD).all()


def test_what_a_float32_cannot_hold_is_bad_where_it_must() -> None:
    largest = struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]
    texts = [repr(largest).encode(), b"3.4028235677973366e38", b"3.4028235677973362e38", b"-1e39", b"1e-50"]
    values, states = read_values(spans_of(texts), "float32")
    assert states.tolist() == [GOOD, BAD, GOOD, BAD, GOOD]
    assert values[[0, 4]].tolist() == [largest, 1e-50] and values[1] == 0


@given(st.lists(st.text("ab|,", max_size=8), max_size=12))
@settings(deadline=None, max_examples=60)
def test_elements_are_those_of_split(fields: list[str]) -> None:
    spans = spans_of([field.encode() for field in fields])
    offsets = np.empty(len(fields) + 1, np.int64)
    found = elements_of(ListSpans(spans, ord("|")), offsets)
    texts = [bytes(found.text[a:b]).decode() for a, b in zip(found.starts, found.stops, strict=True)]
    wanted = [field.split("|") for field in fields]
    assert [texts[a:b] for a, b in pairwise(offsets)] == wanted


@pytest.mark.parametrize("num_fields", [0, 1, 1000])
def test_elements_of_many_fields(num_fields: int, rng: np.random.Generator) -> None:
    fields = ["|".join(["x"] * int(n)) for n in rng.integers(0, 20, num_fields)]
    offsets = np.empty(num_fields + 1, np.int64)
    elements_of(ListSpans(spans_of([f.encode() for f in fields]), ord("|")), offsets)
    assert np.diff(offsets).tolist() == [field.count("|") + 1 for field in fields]
