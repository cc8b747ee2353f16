"""The parser takes exactly the good lines, whatever is done to the rest, and stays inside its arrays.

Tests `criteo_kernel` and `criteo`, too.
"""

from __future__ import annotations

import random
from collections import Counter
from types import FunctionType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES, count_newlines, parse_lines
from hotset.tests.fuzz.fuzz_text import GuardedText, check_lines, mutate
from hotset.tests.support.logs.criteo_text import NUM_DENSE, NUM_SPARSE, Sample, draw_samples, text_of

_NUM_FEATURES = NUM_DENSE + NUM_SPARSE
_SHARP_BYTES = [b"\t", b"\0", b"\r", b"\n", b"-", b"+", b" ", b"0", b"9", b":", b"/", b"g", b"F", b"\xff"]


@pytest.mark.parametrize("label", [True, False])
@pytest.mark.parametrize("num_samples", [0, 1, 7, 8, 9, 500])
def test_good_lines_agree_with_the_naive_parser(
    num_samples: int, label: bool, rng: np.random.Generator
) -> None:
    text = text_of(draw_samples(num_samples, rng), label=label)
    assert check_lines(text, GuardedText(), label=label) == Counter(good=num_samples)


@pytest.mark.parametrize("label", [True, False])
def test_every_byte_in_every_place_is_judged_as_the_naive_parser_does(label: bool) -> None:
    dense = (None, 5, -7, 2147483647, -2147483648, 0, None, *range(6))
    sample = Sample(1, dense, (None, *[0x0123ABCD] * (NUM_SPARSE - 2), None))
    line = sample.line(label=label)
    mutants = [line[:i] + byte + line[i + 1 :] for i in range(len(line)) for byte in _SHARP_BYTES]
    mutants += [line[:i] + byte + line[i:] for i in range(len(line) + 1) for byte in _SHARP_BYTES]
    mutants += [line[:i] for i in range(len(line))]
    found = check_lines(b"\n".join(mutants) + b"\n", GuardedText(), label=label)
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


@pytest.mark.parametrize("label", [True, False])
def test_no_edit_makes_the_parser_leave_its_arrays(label: bool, rng: np.random.Generator) -> None:
    lines = [sample.line(label=label) for sample in draw_samples(9, rng)]
    luck = random.Random(3)
    for _ in range(30):
        edited = [mutate(luck.choice(lines), luck.choice(lines), luck) for _ in range(2)]
        parse_guarded(b"\n".join(edited) + b"\n", label=label)


@pytest.mark.parametrize("num_bytes", [0, 1, 7, 4097])
def test_newlines_are_counted(num_bytes: int, rng: np.random.Generator) -> None:
    text = rng.integers(8, 12, num_bytes).astype(np.uint8)
    assert count_newlines(text) == text.tobytes().count(b"\n")
    assert count_newlines(np.full(num_bytes, ord("\n"), np.uint8)) == num_bytes
