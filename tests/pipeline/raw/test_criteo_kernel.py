"""The parser takes exactly the good lines, whatever is done to the rest, and stays inside its arrays.

Tests `criteo_kernel` and `criteo`, too.
"""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from hotset.pipeline.raw.criteo_kernel import count_newlines
from hotset.tests.fuzz.fuzz_text import GuardedText, check_lines
from hotset.tests.support.compiled import compiled_only
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


@pytest.mark.parametrize("label", [pytest.param(True, marks=compiled_only), False])
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
