"""Blocks to Arrow columns, and what is wrong with a line in words.

The parser takes exactly the good lines, whatever is done to the rest, and stays inside its arrays.

Tests `text_parts`, too.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES, count_newlines
from hotset.pipeline.raw.part import Block
from hotset.pipeline.raw.text_parts import ParsedBlock, count_reasons, describe_fault, parse_block
from hotset.tests.fuzz.fuzz_text import GuardedText, check_lines
from hotset.tests.support.logs.criteo_text import NUM_DENSE, NUM_SPARSE, SCHEMA, Sample, draw_samples, text_of


def block_of(text: bytes) -> Block:
    return Block(np.frombuffer(bytearray(text + bytes(PADDING_BYTES)), np.uint8), len(text))


def rows_of(parsed: ParsedBlock, *, label: bool = True) -> list[Sample]:
    """The parsed columns as samples, read by Arrow."""
    columns: dict[str, list[Any]] = {name: array.to_pylist() for name, array in parsed.columns.items()}
    assert list(columns) == list(SCHEMA.columns(has_label=label))
    labels = columns["label"] if label else [0] * parsed.num_samples
    dense = zip(*(columns[name] for name in SCHEMA.dense), strict=True)
    categories = zip(*(columns[name] for name in SCHEMA.sparse), strict=True)
    return [Sample(*row) for row in zip(labels, dense, categories, strict=True)]


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 8, 9, 300])
def test_columns_hold_the_samples(num_samples: int, label: bool, rng: np.random.Generator) -> None:
    samples = draw_samples(num_samples, rng)
    parsed = parse_block(block_of(text_of(samples, label=label)), SCHEMA, has_label=label)
    assert parsed.num_samples == num_samples and parsed.bad_lines.shape == (0, 2)
    found = rows_of(parsed, label=label)
    assert found == [Sample(s.label if label else 0, s.dense, s.categories) for s in samples]
    for name, array in parsed.columns.items():
        wanted = "uint8" if name == "label" else "int32" if name in SCHEMA.dense else "uint32"
        assert str(array.type) == wanted
        array.validate(full=True)


def test_arrays_kept_from_a_larger_block_leave_nothing_behind(rng: np.random.Generator) -> None:
    samples = draw_samples(200, rng)
    full = [Sample(1, (1,) * NUM_DENSE, (1,) * NUM_SPARSE)] * 200
    for text, wanted in ((text_of(full), full), (text_of(samples[:50]), samples[:50]), (b"", [])):
        assert rows_of(parse_block(block_of(text), SCHEMA, has_label=True)) == wanted


def test_a_column_without_missing_values_has_no_bitmap() -> None:
    sample = Sample(1, (1,) * NUM_DENSE, (None,) + (1,) * (NUM_SPARSE - 1))
    parsed = parse_block(block_of(text_of([sample] * 9)), SCHEMA, has_label=True)
    has_bitmap = {name for name, array in parsed.columns.items() if array.buffers()[0] is not None}
    assert has_bitmap == {"C1"}


def test_more_bad_lines_than_are_listed_at_first_are_all_found(rng: np.random.Generator) -> None:
    samples = draw_samples(2, rng)
    text = text_of(samples[:1]) + b"x\n" * 3000 + b"\n" + text_of(samples[1:])
    block = block_of(text)
    parsed = parse_block(block, SCHEMA, has_label=True)
    assert rows_of(parsed) == samples and parsed.bad_lines.shape == (3001, 2)
    assert {text[start:stop] for start, stop in parsed.bad_lines} == {b"x", b""}


_GOOD = [b"1", *[b"-3"] * NUM_DENSE, *[b"0000beef"] * NUM_SPARSE]


def line_with(column: int, field: bytes) -> bytes:
    return b"\t".join([*_GOOD[:column], field, *_GOOD[column + 1 :]])


@pytest.mark.parametrize(
    ("line", "reason", "text"),
    [
        (b"", "field_count", ": found 1 field, want 40 between tabs"),
        (b"\t" * 38, "field_count", ": found 39 fields, want 40 between tabs"),
        (b"\t" * 40, "field_count", ": found 41 fields, want 40 between tabs"),
        (line_with(0, b"2"), "bad_label", ", column 1 (label): found '2', want 0 or 1"),
        (line_with(0, b""), "bad_label", ", column 1 (label): found '', want 0 or 1"),
        (
            line_with(4, b"1.5"),
            "bad_integer",
            ", column 5 (I4): found '1.5', want a decimal integer or nothing",
        ),
        (
            line_with(13, b"2147483648"),
            "integer_range",
            ", column 14 (I13): found '2147483648', want an integer from -2147483648 to 2147483647",
        ),
        (
            line_with(14, b"xyz"),
            "bad_category",
            ", column 15 (C1): found 'xyz', want 8 hex digits or nothing",
        ),
        (
            line_with(39, b"\xff'"),
            "bad_category",
            ', column 40 (C26): found "\\xff\'", want 8 hex digits or nothing',
        ),
        (
            line_with(20, b"ab\0d"),
            "nul_byte",
            ", column 21 (C7): found 'ab\\x00d', want text without NUL bytes",
        ),
        (
            line_with(2, b"1" * 65),
            "long_field",
            f", column 3 (I2): found '{'1' * 40}'... (65 bytes), want at most 64 bytes",
        ),
        (
            b"\t" * 44 + b"\0",
            "nul_byte",
            ", column 45 (beyond the last): found '\\x00', want text without NUL bytes",
        ),
    ],
)
def test_a_fault_says_where_what_and_what_was_wanted(line: bytes, reason: str, text: str) -> None:
    good = b"\t".join(_GOOD) + b"\n"
    block = block_of(good * 3 + line + b"\n" + good)
    parsed = parse_block(block, SCHEMA, has_label=True)
    assert parsed.num_samples == 4 and parsed.bad_lines.shape == (1, 2)
    fault = describe_fault(block, parsed.bad_lines[0], SCHEMA, has_label=True)
    assert (fault.reason, fault.line_in_block, fault.text) == (reason, 3, text)
    assert fault.text.isprintable()
    assert count_reasons(block, parsed.bad_lines, SCHEMA, has_label=True) == {reason: 1}


def test_columns_are_named_without_a_label_too() -> None:
    line = b"\t".join([*_GOOD[1:-1], b"x"])
    fault = describe_fault(block_of(line + b"\n"), np.array([0, len(line)]), SCHEMA, has_label=False)
    assert fault.text == ", column 39 (C26): found 'x', want 8 hex digits or nothing"


def test_columns_that_are_kept_stay_as_they_are(rng: np.random.Generator) -> None:
    first, second = draw_samples(70, rng), draw_samples(70, rng)
    kept = parse_block(block_of(text_of(first)), SCHEMA, has_label=True, is_kept=True)
    parse_block(block_of(text_of(second)), SCHEMA, has_label=True)
    assert rows_of(kept) == first


_SHARP_BYTES = [b"\t", b"\0", b"\r", b"\n", b"-", b"+", b" ", b"0", b"9", b":", b"/", b"g", b"F", b"\xff"]


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 8, 9, 500])
def test_good_lines_agree_with_the_naive_parser(
    num_samples: int, label: bool, rng: np.random.Generator
) -> None:
    text = text_of(draw_samples(num_samples, rng), label=label)
    assert check_lines(text, GuardedText(), label=label) == Counter(good=num_samples)


@pytest.mark.parametrize("label", [pytest.param(True, marks=pytest.mark.slow), False])
def test_every_byte_in_every_place_is_judged_as_the_naive_parser_does(label: bool) -> None:
    dense = (None, 5, -7, 2147483647, -2147483648, 0, None, *range(6))
    sample = Sample(1, dense, (None, *[0x0123ABCD] * (NUM_SPARSE - 2), None))
    line = sample.line(label=label)
    mutants = [line[:i] + byte + line[i + 1 :] for i in range(len(line)) for byte in _SHARP_BYTES]
    mutants += [line[:i] + byte + line[i:] for i in range(len(line) + 1) for byte in _SHARP_BYTES]
    mutants += [line[:i] for i in range(len(line))]
    found = check_lines(b"\n".join(mutants) + b"\n", GuardedText(), label=label, capacity=3)
    assert 0 < found["good"] < found.total()


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize(
    ("every", "bad"),
    [(1, b""), (2, b"\t" * 39), (5, b"\t" * 4000), (63, b"\t" * 39 + b"g"), (64, b"x" * 9000)],
)
def test_groups_of_lines_leave_no_trace(
    every: int, bad: bytes, label: bool, rng: np.random.Generator
) -> None:
    good = [sample.line(label=label) for sample in draw_samples(300, rng)]
    lines = [line for i in range(0, 300, every) for line in [*good[i : i + every], bad]]
    text = b"".join(line + (b"\r\n" if i % 3 else b"\n") for i, line in enumerate(lines))
    assert check_lines(text, GuardedText(), label=label)["good"] >= 300


@pytest.mark.parametrize("label", [True, False])
def test_a_line_cut_anywhere_at_the_end_of_the_text_reads_nothing_beyond_it(label: bool) -> None:
    line = Sample(1, (-(2**31), None) * 6 + (7,), (0xABCDEF01,) * NUM_SPARSE).line(label=label)
    memory = GuardedText()
    texts = [line[:stop] + end for stop in range(len(line) + 1) for end in (b"\n", b"\r\n")]
    for text in (*texts, b"\n", b"\n\n\n", b"1\n", b"1\t\n", b"-\n", b"\t" * 300 + b"\n", b"0" * 500 + b"\n"):
        check_lines(text, memory, label=label)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 4097])
def test_newlines_are_counted(num_bytes: int, rng: np.random.Generator) -> None:
    text = rng.integers(8, 12, num_bytes).astype(np.uint8)
    assert count_newlines(text) == text.tobytes().count(b"\n")
    assert count_newlines(np.full(num_bytes, ord("\n"), np.uint8)) == num_bytes
