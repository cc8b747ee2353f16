"""Fields and numbers in text, against regular expressions and Python's integers."""

from __future__ import annotations

import re

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.raw.text_fields import (
    BAD,
    GOOD,
    MISSING,
    join_spans,
    parse_hex8,
    parse_integers,
    split_fields,
)
from hotset.tests.support.naive.naive_fields import naive_fields, naive_integer


def split(text: bytes, separator: bytes, num_columns: int) -> list[list[bytes] | None]:
    """The first ``num_columns`` fields of each line, by the kernel; shorter lines are filled with b''."""
    array = np.frombuffer(text, np.uint8).copy()
    num_lines = text.count(b"\n")
    starts = np.zeros((num_columns, num_lines), np.int64)
    stops = np.zeros_like(starts)
    found = np.zeros(num_lines, np.int64)
    places = np.arange(num_columns)
    lines = split_fields(array, 0, array.shape[0], ord(separator), places, starts, stops, found)
    assert lines == num_lines
    return [
        None
        if found[line] < 0
        else [bytes(array[starts[c, line] : stops[c, line]]) for c in range(num_columns)][: found[line]]
        for line in range(num_lines)
    ]


@pytest.mark.parametrize("separator", [b",", b"\t"])
def test_fields_are_those_of_the_naive_split(separator: bytes, rng: np.random.Generator) -> None:
    alphabet = np.frombuffer(b'ab"\r' + separator, np.uint8)
    lines = [rng.choice(alphabet, rng.integers(9)).tobytes() for _ in range(5000)]
    lines += [b'"a""b"%c"c"' % separator[0], b'""', b'"', b"", b"\r", b'"a"\r']
    found = split(b"".join(line + b"\n" for line in lines), separator, 12)
    assert found == [naive_fields(line, separator) for line in lines]
    assert None in found and ['a"b', "c"] == [field.decode() for field in found[5000] or []]


def test_only_wanted_fields_are_kept() -> None:
    text = np.frombuffer(b"a,b,c\nd\n", np.uint8).copy()
    starts = np.zeros((1, 2), np.int64)
    found = np.zeros(2, np.int64)
    stops = np.zeros_like(starts)
    split_fields(text, 0, 8, ord(","), np.array([-1, 0, -1]), starts, stops, found)
    assert (starts.tolist(), stops.tolist(), found.tolist()) == ([[2, 0]], [[3, 0]], [3, 1])


def spans_of(fields: list[bytes]) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int64]]:
    stops = np.cumsum([len(field) for field in fields], dtype=np.int64)
    starts = stops - np.array([len(field) for field in fields], np.int64)
    return np.frombuffer(b"".join(fields), np.uint8), starts, stops


@pytest.mark.parametrize(("below", "above"), [(0, 1), (2**31, 2**31 - 1), (2**63, 2**63 - 1), (0, 2**64 - 1)])
def test_integers_are_those_of_python(below: int, above: int, rng: np.random.Generator) -> None:
    near = [edge + step for edge in (0, -below, above, 10 * above, 2**64, 2**65) for step in range(-11, 12)]
    fields = [b"%d" % value for value in near]
    fields += [rng.choice(np.frombuffer(b"01.-9", np.uint8), rng.integers(6)).tobytes() for _ in range(2000)]
    fields += [
        b"",
        b"-",
        b".",
        b"-.0",
        b"+1",
        b" 1",
        b"1 ",
        b"1e3",
        b"0x1",
        b"1.00",
        b"1.5",
        b"007",
        b"9" * 99,
    ]
    text, starts, stops = spans_of(fields)
    values = np.zeros(len(fields), np.uint64)
    states = np.zeros(len(fields), np.uint8)
    parse_integers(text, starts, stops, np.uint64(below), np.uint64(above), values, states)
    wanted = [naive_integer(field, -below, above) for field in fields]
    assert list(zip(values.tolist(), states.tolist(), strict=True)) == wanted


def test_hex_digits_are_those_of_python(rng: np.random.Generator) -> None:
    fields = [b"%08x" % value for value in (0, 1, 2**31, 2**32 - 1)] + [b"", b"0", b"000000000", b"0x000000"]
    fields += [rng.choice(np.frombuffer(b"/09:@AFG`afg", np.uint8), 8).tobytes() for _ in range(2000)]
    fields += [b"ABCDEFab", b"0123456 ", b"-1234567"]
    text, starts, stops = spans_of(fields)
    values = np.zeros(len(fields), np.uint64)
    states = np.zeros(len(fields), np.uint8)
    parse_hex8(text, starts, stops, values, states)
    is_hex = [re.fullmatch(rb"[0-9a-fA-F]{8}", field) is not None for field in fields]
    assert values.tolist() == [int(f, 16) if good else 0 for f, good in zip(fields, is_hex, strict=True)]
    want = [MISSING if not f else GOOD if good else BAD for f, good in zip(fields, is_hex, strict=True)]
    assert states.tolist() == want


def test_spans_are_joined() -> None:
    text = np.frombuffer(b"abcdef", np.uint8)
    joined = np.empty(5, np.uint8)
    join_spans(text, np.array([4, 0, 1]), np.array([0, 2, 2, 5]), joined)
    assert joined.tobytes() == b"efbcd"
