"""The parser takes exactly the good lines, whatever is done to the rest, and stays inside its arrays.

Tests `criteo_kernel` and `criteo`, too.
"""

from __future__ import annotations

from types import FunctionType
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from hotset.pipeline.raw.criteo import MAX_FIELD_BYTES, REASONS, classify_line
from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES, count_newlines, parse_lines
from hotset.tests.fuzz.fuzz_text import naive_reason
from hotset.tests.support.logs.criteo_text import (
    NUM_DENSE,
    NUM_SPARSE,
    Sample,
    draw_samples,
    parse_naively,
    text_of,
)

_NUM_FEATURES = NUM_DENSE + NUM_SPARSE
_SHARP_BYTES = [b"\t", b"\0", b"\r", b"\n", b"-", b"+", b" ", b"0", b"9", b":", b"/", b"g", b"F", b"\xff"]


def parse(text: bytes, *, label: bool, capacity: int = 10_000) -> tuple[list[Sample], list[bytes], int]:
    """Good samples, the bad lines that were listed, and how many bad lines there are."""
    padded = np.zeros(len(text) + PADDING_BYTES, np.uint8)
    padded[: len(text)] = np.frombuffer(text, np.uint8)
    num_lines = text.count(b"\n")
    labels = np.full(num_lines if label else 0, 9, np.uint8)
    dense = np.full((NUM_DENSE, num_lines), 9, np.int32)
    categories = np.full((NUM_SPARSE, num_lines), 9, np.uint32)
    is_valid = np.zeros((_NUM_FEATURES, -(-num_lines // 8)), np.uint8)
    bad = np.full((capacity, 2), -1, np.int64)
    num_samples, num_bad = parse_lines(padded, len(text), labels, dense, categories, is_valid, bad)
    there = np.unpackbits(is_valid, axis=1, bitorder="little").astype(np.bool_)
    assert not there[:, num_samples:].any()
    values: list[Any] = np.concatenate([dense, categories])[:, :num_samples].T.tolist()
    samples = []
    for i, row in enumerate(values):
        assert all(value == 0 for value, is_there in zip(row, there[:, i], strict=True) if not is_there)
        row = [value if is_there else None for value, is_there in zip(row, there[:, i], strict=True)]
        sample = Sample(int(labels[i]) if label else 0, tuple(row[:NUM_DENSE]), tuple(row[NUM_DENSE:]))
        samples.append(sample)
    return samples, [text[start:stop] for start, stop in bad[: min(num_bad, capacity)]], num_bad


def as_line(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(bytearray(text), np.uint8)  # writable, as blocks are


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 8, 9, 500])
def test_good_lines_agree_with_the_naive_parser(
    num_samples: int, label: bool, rng: np.random.Generator
) -> None:
    samples = draw_samples(num_samples, rng)
    wanted = [parse_naively(sample.line(label=label), label=label) for sample in samples]
    assert parse(text_of(samples, label=label), label=label) == (wanted, [], 0)
    assert not label or wanted == samples


_INTEGERS = st.one_of(
    st.none(), st.integers(-(2**31), 2**31 - 1), st.sampled_from([0, -1, 2**31 - 1, -(2**31)])
)
_CATEGORIES = st.one_of(st.none(), st.integers(0, 2**32 - 1))
_SAMPLES = st.builds(
    Sample,
    st.integers(0, 1),
    st.tuples(*[_INTEGERS] * NUM_DENSE),
    st.tuples(*[_CATEGORIES] * NUM_SPARSE),
)
_EDITS = st.tuples(
    st.floats(0, 1),
    st.integers(0, 3),
    st.one_of(
        st.sampled_from([*_SHARP_BYTES, b"0" * 70, b"\t\t", b"\r\n", b"2147483648", b"-2147483649"]),
        st.binary(max_size=2),
    ),
)
"""Where in the line (as a share of it), how many bytes go, what comes instead."""


def edited(line: bytes, edits: list[tuple[float, int, bytes]]) -> bytes:
    for share, num_removed, inserted in edits:
        start = int(share * len(line))
        line = line[:start] + inserted + line[start + num_removed :]
    return line


def edited_text(lines: list[tuple[Sample, list[tuple[float, int, bytes]]]], *, label: bool) -> bytes:
    return b"".join(edited(sample.line(label=label), edits) + b"\n" for sample, edits in lines)


@settings(max_examples=100, deadline=None)
@given(
    lines=st.lists(st.tuples(_SAMPLES, st.lists(_EDITS, max_size=3)), max_size=6),
    label=st.booleans(),
)
def test_exactly_the_good_lines_are_taken(
    lines: list[tuple[Sample, list[tuple[float, int, bytes]]]], label: bool
) -> None:
    text = edited_text(lines, label=label)
    naive = {line: parse_naively(line, label=label) for line in text.split(b"\n")[:-1]}
    in_order = [naive[line] for line in text.split(b"\n")[:-1]]
    wanted = [sample for sample in in_order if sample is not None]
    bad_lines = [line for line in text.split(b"\n")[:-1] if naive[line] is None]
    assert parse(text, label=label) == (wanted, bad_lines, len(bad_lines))
    for line, sample in naive.items():
        code, *_ = classify_line(as_line(line), NUM_DENSE, NUM_SPARSE, label)
        assert REASONS[code] == naive_reason(line, label=label)
        assert (REASONS[code] == "good") == (sample is not None)


@pytest.mark.parametrize("label", [True, False])
def test_every_byte_in_every_place_is_judged_as_the_naive_parser_does(label: bool) -> None:
    dense = (None, 5, -7, 2147483647, -2147483648, 0, None, *range(6))
    sample = Sample(1, dense, (None, *[0x0123ABCD] * (NUM_SPARSE - 2), None))
    line = sample.line(label=label)
    mutants = [line[:i] + byte + line[i + 1 :] for i in range(len(line)) for byte in _SHARP_BYTES]
    mutants += [line[:i] + byte + line[i:] for i in range(len(line) + 1) for byte in _SHARP_BYTES]
    mutants += [line[:i] for i in range(len(line))]
    lines = b"\n".join(mutants).split(b"\n")
    naive = [parse_naively(mutant, label=label) for mutant in lines]
    samples, bad_lines, num_bad = parse(b"\n".join(lines) + b"\n", label=label)
    assert samples == [sample for sample in naive if sample is not None]
    assert bad_lines == [line for line, sample in zip(lines, naive, strict=True) if sample is None]
    assert 0 < num_bad == len(bad_lines) < len(lines)


def test_bad_lines_beyond_the_list_are_still_counted(rng: np.random.Generator) -> None:
    good = draw_samples(3, rng)
    text = b"x\n" * 5 + good[0].line() + b"\n" + b"\n" * 4 + text_of(good[1:]) + b"1\t\n"
    assert parse(text, label=True, capacity=3) == (good, [b"x"] * 3, 10)


@pytest.mark.parametrize("label", [True, False])
def test_groups_of_lines_leave_no_trace(label: bool, rng: np.random.Generator) -> None:
    good = [sample.line(label=label) for sample in draw_samples(300, rng)]
    for every, bad in [
        (1, b""),
        (2, b"\t" * 39),
        (5, b"\t" * 4000),
        (63, b"\t" * 39 + b"g"),
        (64, b"x" * 9000),
    ]:
        lines = [line for i in range(0, 300, every) for line in [*good[i : i + every], bad]]
        text = b"".join(line + (b"\r\n" if i % 3 else b"\n") for i, line in enumerate(lines))
        naive = [parse_naively(line, label=label) for line in text.split(b"\n")[:-1]]
        bad_lines = [line for line, sample in zip(text.split(b"\n"), naive, strict=False) if sample is None]
        wanted = [sample for sample in naive if sample is not None]
        assert parse(text, label=label) == (wanted, bad_lines, len(bad_lines))


class Guarded:
    """An array that refuses what lies outside; a kernel run as plain Python takes it."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.shape = array.shape

    def __getitem__(self, where: Any) -> Any:
        return self.array[self.checked(where)]

    def __setitem__(self, where: Any, value: Any) -> None:
        self.array[self.checked(where)] = value

    def checked(self, where: Any) -> Any:
        indexes = where if isinstance(where, tuple) else (where,)
        if any(not 0 <= i < length for i, length in zip(indexes, self.shape, strict=True)):
            raise IndexError(f"{where} in an array of {self.shape}")
        return where


def uncompiled(kernel: Any) -> Any:
    """A kernel as plain Python, and so is every kernel it calls, those of other modules too."""
    function = getattr(kernel, "py_func", kernel)
    names = dict(function.__globals__)
    for name, value in names.items():
        if hasattr(value, "py_func"):
            is_of_module = value.py_func.__module__ == function.__module__
            names[name] = FunctionType(value.py_func.__code__, names) if is_of_module else uncompiled(value)
    return names[kernel.__name__]


def parse_guarded(text: bytes, *, label: bool) -> None:
    """Parse with every access checked, into arrays that are no larger than promised."""
    num_lines = text.count(b"\n")
    arrays: list[NDArray[Any]] = [
        np.zeros(num_lines if label else 0, np.uint8),
        np.zeros((NUM_DENSE, num_lines), np.int32),
        np.zeros((NUM_SPARSE, num_lines), np.uint32),
        np.zeros((_NUM_FEATURES, -(-num_lines // 8)), np.uint8),
        np.zeros((1, 2), np.int64),
    ]
    padded = np.frombuffer(bytearray(text + bytes(PADDING_BYTES)), np.uint8)
    kernel = uncompiled(parse_lines)
    with np.errstate(over="ignore"):
        kernel(Guarded(padded), len(text), *map(Guarded, arrays))


@pytest.mark.parametrize("label", [True, False])
def test_a_line_cut_anywhere_at_the_end_of_the_text_reads_nothing_beyond_it(
    label: bool, rng: np.random.Generator
) -> None:
    line = Sample(1, (-(2**31), None) * 6 + (7,), (0xABCDEF01,) * NUM_SPARSE).line(label=label)
    for stop in range(len(line) + 1):
        parse_guarded(line[:stop] + b"\n", label=label)
        parse_guarded(line[:stop] + b"\r\n", label=label)
    for text in (b"", b"\n", b"\n\n\n", b"1\n", b"1\t\n", b"-\n", b"\t" * 300 + b"\n", b"0" * 500 + b"\n"):
        parse_guarded(text, label=label)


@settings(max_examples=60, deadline=None)
@given(
    lines=st.lists(st.tuples(_SAMPLES, st.lists(_EDITS, max_size=3)), min_size=1, max_size=2),
    label=st.booleans(),
)
def test_no_edit_makes_the_parser_leave_its_arrays(
    lines: list[tuple[Sample, list[tuple[float, int, bytes]]]], label: bool
) -> None:
    parse_guarded(edited_text(lines, label=label), label=label)


@pytest.mark.parametrize(
    ("field", "column", "reason"),
    [
        (b"2", 0, "bad_label"),
        (b"", 0, "bad_label"),
        (b"01", 0, "bad_label"),
        (b"1.5", 3, "bad_integer"),
        (b"-", 13, "bad_integer"),
        (b"+1", 1, "bad_integer"),
        (b" 1", 1, "bad_integer"),
        (b"2147483648", 5, "integer_range"),
        (b"-2147483649", 5, "integer_range"),
        (b"00000000012", 5, "integer_range"),
        (b"9" * 30, 5, "integer_range"),
        (b"abcdefg0", 14, "bad_category"),
        (b"abcdef0", 39, "bad_category"),
        (b"abcdef012", 20, "bad_category"),
        (b"abcd\0f01", 20, "nul_byte"),
        (b"\0", 4, "nul_byte"),
        (b"1" * (MAX_FIELD_BYTES + 1), 7, "long_field"),
    ],
)
def test_a_fault_is_found_where_it_is(field: bytes, column: int, reason: str) -> None:
    fields = [b"1", *[b"-3"] * NUM_DENSE, *[b"0000beef"] * NUM_SPARSE]
    fields[column] = field
    line = b"\t".join(fields)
    start = len(b"\t".join(fields[:column])) + (column > 0)
    code, found_column, first, stop = classify_line(as_line(line), NUM_DENSE, NUM_SPARSE, True)
    assert (REASONS[code], found_column, first, stop) == (reason, column, start, start + len(field))


@pytest.mark.parametrize("change", [-39, -1, 1, 5])
def test_a_wrong_number_of_fields_is_counted(change: int) -> None:
    code, num_fields, *_ = classify_line(as_line(b"\t" * (39 + change)), NUM_DENSE, NUM_SPARSE, True)
    assert (REASONS[code], num_fields) == ("field_count", 40 + change)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 4097])
def test_newlines_are_counted(num_bytes: int, rng: np.random.Generator) -> None:
    text = rng.integers(8, 12, num_bytes).astype(np.uint8)
    assert count_newlines(text) == text.tobytes().count(b"\n")
    assert count_newlines(np.full(num_bytes, ord("\n"), np.uint8)) == num_bytes
