"""Mutated lines of separated text through the field kernels, each held against its naive twin.

    python -m hotset.tests.fuzz.fuzz_fields --lines 1000000

The text ends where a page ends whose next one may not be read, as in `fuzz_lines`.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import time
from collections import Counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING, parse_hex8, parse_integers, split_fields
from hotset.tests.fuzz.fuzz_lines import GUARD, GuardedText, guarded, mutate
from hotset.tests.support.naive.naive_fields import naive_fields, naive_integer

_NUM_COLUMNS = 6
_LINES_A_TEXT = 2000
_MOST = 2**31 - 1
_STATES = {GOOD: "good", MISSING: "missing", BAD: "bad"}
_FIELDS = [b"", b"0", b"-1", b"2147483648", b"7.0", b"deadBEEF", b'say ""x""', b"a b", b"x" * 90]
_HEX8 = re.compile(rb"[0-9a-fA-F]{8}")


def draw_line(separator: bytes, luck: random.Random) -> bytes:
    """A line of up to eight fields: integers, hex digits, text, quoted or not."""
    fields = []
    for _ in range(luck.choice([1, 5, 6, 6, 6, 6, 7, 8])):
        field = luck.choice(
            [b"", b"0", b"-1", b"2147483648", b"7.0", b"deadBEEF", b'say ""x""', b"a b", b"x" * 90]
        )
        if luck.random() < 0.4:
            field = b"%d" % luck.randint(-(10 ** luck.randint(1, 20)), 10 ** luck.randint(1, 20))
        fields.append(b'"' + field + b'"' if luck.random() < 0.2 else field)
    return separator.join(fields)


def naive_hex(field: bytes) -> tuple[int, int]:
    """Value and state of a field of eight hex digits."""
    if not field:
        return 0, MISSING
    return (int(field, 16), GOOD) if _HEX8.fullmatch(field) else (0, BAD)


def check_text(text: bytes, separator: bytes, memory: GuardedText) -> Counter[str]:
    """Split ``text``, read every wanted field as a number, and compare; counts of lines and fields."""
    lines = text.split(b"\n")[:-1]
    shape = (_NUM_COLUMNS, len(lines))
    (starts, after_starts), (stops, after_stops) = (guarded(shape, np.int64, 0) for _ in range(2))
    found, after_found = guarded((len(lines),), np.int64, 0)
    bytes_ = memory.put(text)
    places = np.arange(_NUM_COLUMNS)
    assert split_fields(bytes_, 0, len(text), separator[0], places, starts, stops, found) == len(lines)
    assert all((guard == GUARD).all() for guard in (after_starts, after_stops, after_found))
    counts: Counter[str] = Counter()
    for line, number in zip(lines, range(len(lines)), strict=True):
        wanted = naive_fields(line, separator)
        assert found[number] == (-1 if wanted is None else len(wanted)), line
        counts["unclosed quote" if wanted is None else "good line"] += 1
        if wanted is not None:
            spans = zip(starts[: len(wanted), number], stops[: len(wanted), number], strict=True)
            assert [bytes(bytes_[a:b]) for a, b in spans] == wanted[:_NUM_COLUMNS], line
    for column in range(_NUM_COLUMNS):
        counts += _check_numbers(bytes_, starts[column], stops[column])
    return counts


def _check_numbers(
    text: NDArray[np.uint8], starts: NDArray[np.int64], stops: NDArray[np.int64]
) -> Counter[str]:
    fields = [bytes(text[a:b]) for a, b in zip(starts, stops, strict=True)]
    counts: Counter[str] = Counter()
    for kind, naive in (("integer", lambda field: naive_integer(field, -_MOST, _MOST)), ("hex", naive_hex)):
        values, after_values = guarded((len(fields),), np.uint64, 9)
        states, after_states = guarded((len(fields),), np.uint8, 9)
        if kind == "integer":
            parse_integers(text, starts, stops, np.uint64(_MOST), np.uint64(_MOST), values, states)
        else:
            parse_hex8(text, starts, stops, values, states)
        assert (after_values == GUARD).all() and (after_states == GUARD).all()
        wanted = [naive(field) for field in fields]
        assert list(zip(values.tolist(), states.tolist(), strict=True)) == wanted
        counts.update(f"{kind}: {_STATES[state]}" for _, state in wanted)
    return counts


def fuzz_fields(num_lines: int, seed: int) -> dict[str, Any]:
    """At least ``num_lines`` mutated lines; raises AssertionError at the first that is read wrongly."""
    luck = random.Random(seed)
    memory = GuardedText()
    counts = Counter[str]()
    inputs = 0
    started = time.perf_counter()
    while inputs < num_lines:
        separator = luck.choice([b",", b"\t", b";"])
        drawn = [draw_line(separator, luck) for _ in range(_LINES_A_TEXT)]
        text = b"\n".join(mutate(line, luck.choice(drawn), luck) for line in drawn) + b"\n"
        inputs += text.count(b"\n")
        counts += check_text(text, separator, memory)
    outcomes = dict(sorted(counts.items()))
    return {
        "inputs": inputs,
        "outcomes": outcomes,
        "wrong": 0,
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }


def main() -> None:
    """Print the result as JSON."""
    parser = argparse.ArgumentParser(description=fuzz_fields.__doc__)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    print(json.dumps(fuzz_fields(options.lines, options.seed), indent=1))


if __name__ == "__main__":
    main()
