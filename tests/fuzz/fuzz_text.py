"""Mutated lines of text through the kernels that parse them, each held against a naive twin.

    python -m hotset.tests.fuzz.fuzz_text --lines 1000000 --out result.json

Lines are of Criteo's format, fields those of separated text. The text ends where a page ends whose next one
may not be read, and every array the parser writes is between guard bytes: a read or write out of bounds is a
crash or a failure, not luck.
"""

from __future__ import annotations

import ctypes
import mmap
import random
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.pipeline.raw.criteo_kernel import PADDING_BYTES, parse_lines
from hotset.pipeline.raw.csv_parts import TRAILING, UNCLOSED, WHOLE, Dialect, split_records
from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING, arrays_of, parse_hex8, parse_integers
from hotset.pipeline.raw.text_parts import MAX_FIELD_BYTES, classify_line
from hotset.tests.support.logs.criteo_text import NUM_DENSE, NUM_SPARSE, Sample, draw_samples, parse_naively
from hotset.tests.support.naive.naive_fields import Marks, naive_integer, naive_records
from hotset.workflows.bench.harness import Facts, Options, main, new_parser

PARSER = new_parser(__spec__, __doc__)
_KINDS = ("lines", "fields")
PARSER.add_argument("--kinds", nargs="*", choices=_KINDS, default=_KINDS)
PARSER.add_argument("--lines", type=int, default=1_000_000, help="mutated lines of each kind")
PARSER.add_argument("--seed", type=int, default=0)
_REGION_BYTES = 1 << 23
_LINES_A_TEXT = 2000
_LINES_OF_RECORDS = 20
_GUARD = 0xA5
_GUARD_BYTES = 64
_SHARP = [b"\t", b"\0", b"\r", b"\n", b"-", b"+", b" ", b".", b"0", b"9", b":", b"/", b"g", b"G", b"@", b"`"]
_INTEGERS = [2**31 - 1, 2**31, -(2**31), -(2**31) - 1, 10**7, 10**8 - 1, 10**8, 10**10, 2**32, 2**63, 2**64]
_INTEGER = re.compile(rb"-?[0-9]+")
_CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")

_NUM_COLUMNS = 6
_MOST = 2**31 - 1
_STATES = {GOOD: "good", MISSING: "missing", BAD: "bad"}
_FIELDS = [b"", b"0", b"-1", b"2147483648", b"7.0", b"deadBEEF", b'say ""x""', b"a b", b"x" * 90]


class GuardedText:
    """Memory whose end is the end of what this process may read."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _REGION_BYTES + mmap.PAGESIZE)
        self._bytes = np.frombuffer(self._map, np.uint8)
        address = self._bytes.ctypes.data + _REGION_BYTES
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address), ctypes.c_size_t(mmap.PAGESIZE), 0):
            raise OSError(ctypes.get_errno(), "mprotect")

    def put(self, text: bytes) -> NDArray[np.uint8]:
        """``text`` at the very end."""
        place = self._bytes[_REGION_BYTES - len(text) : _REGION_BYTES]
        place[:] = np.frombuffer(text, np.uint8)
        return place


def guarded(shape: tuple[int, ...], dtype: Any, fill: int) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """An array between guard bytes, and these."""
    num_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    memory = np.full((num_bytes + 2 * _GUARD_BYTES), _GUARD, np.uint8)
    array = memory[_GUARD_BYTES:-_GUARD_BYTES].view(dtype).reshape(shape)
    array[...] = fill
    return array, np.lib.stride_tricks.as_strided(memory, (2, _GUARD_BYTES), (num_bytes + _GUARD_BYTES, 1))


def mutate(line: bytes, other: bytes, luck: random.Random) -> bytes:
    """``line`` after none to four edits; half of them leave it plausible."""
    for _ in range(luck.choice([0, 1, 1, 1, 2, 3, 4])):
        line = _edit_field(line, luck) if luck.random() < 0.6 else _edit_bytes(line, other, luck)
    return line + b"\r" if luck.random() < 0.05 else line


def _edit_field(line: bytes, luck: random.Random) -> bytes:
    """Put something that may or may not belong there in place of one field."""
    fields = line.split(b"\t")
    number = luck.randrange(len(fields))
    match luck.randrange(8):
        case 0:
            field = b""
        case 1:
            field = b"%d" % luck.choice(_INTEGERS)
        case 2:
            field = b"%d" % luck.randint(-(10 ** luck.randint(1, 12)), 10 ** luck.randint(1, 12))
        case 3:
            field = b"0" * luck.randint(1, 12) + b"%d" % luck.randrange(1000)
        case 4:
            field = bytes(luck.choices(b"0123456789abcdefABCDEF", k=luck.choice([7, 8, 8, 8, 8, 9])))
        case 5:
            field = bytes(luck.choices(b"0123456789abcdefABCDEFgG/:@`-+ .\x80\xb0\xff\0", k=8))
        case 6:
            field = luck.choice(fields)
        case _:
            field = bytes(
                luck.choices(b"-0123456789", k=luck.choice([1, 2, 7, 8, 9, 10, 11, 40, 64, 65, 200]))
            )
    fields[number] = field
    return b"\t".join(fields)


def _edit_bytes(line: bytes, other: bytes, luck: random.Random) -> bytes:
    """Overwrite, insert, remove, cut, double or splice."""
    start = luck.randrange(len(line) + 1)
    stop = min(start + luck.choice([0, 1, 1, 2, 3, 8, 9, 40]), len(line))
    match luck.randrange(6):
        case 0 | 1:
            new = luck.choice(_SHARP) if luck.random() < 0.7 else luck.randbytes(luck.randint(1, 3))
            return line[:start] + new + line[stop:]
        case 2:
            return line[:start] + line[stop:]
        case 3:
            return line[:start]
        case 4:
            return line[:stop] + line[start:]
        case _:
            return line[:start] + other[luck.randrange(len(other) + 1) :]


def naive_reason(line: bytes, *, label: bool) -> str:
    """Faults of the whole line come first, then those of its fields from the left."""
    fields = line.removesuffix(b"\r").split(b"\t")
    for field in fields:
        if len(field) > MAX_FIELD_BYTES:
            return "long_field"
        if b"\0" in field:
            return "nul_byte"
    if len(fields) != label + NUM_DENSE + NUM_SPARSE:
        return "field_count"
    if label and fields[0] not in (b"0", b"1"):
        return "bad_label"
    for field in fields[label : label + NUM_DENSE]:
        if field and not _INTEGER.fullmatch(field):
            return "bad_integer"
        if field and (len(field.removeprefix(b"-")) > 10 or not -(2**31) <= int(field) < 2**31):
            return "integer_range"
    is_good = all(not field or _CATEGORY.fullmatch(field) for field in fields[label + NUM_DENSE :])
    return "good" if is_good else "bad_category"


def check_lines(
    text: bytes, memory: GuardedText, *, label: bool, capacity: int | None = None
) -> Counter[str]:
    """Parse ``text`` and hold every line against the naive parser; counts of lines by reason.

    There is room for ``capacity`` bad lines; None: for all.
    """
    lines = text.split(b"\n")[:-1]
    naive = [(naive_reason(line, label=label), parse_naively(line, label=label)) for line in lines]
    num_lines = len(lines)
    bits = (NUM_DENSE + NUM_SPARSE, -(-len(lines) // 8))
    shapes = [((num_lines if label else 0,), np.uint8, 9), ((NUM_DENSE, num_lines), np.int32, 9)]
    shapes += [((NUM_SPARSE, num_lines), np.uint32, 9), (bits, np.uint8, 0)]
    room = num_lines if capacity is None else capacity
    shapes.append(((room, 2), np.int64, -1))
    arrays, guards = zip(*(guarded(*shape) for shape in shapes), strict=True)
    num_samples, num_bad = parse_lines(memory.put(text + bytes(PADDING_BYTES)), len(text), *arrays)
    assert all((guard == _GUARD).all() for guard in guards), "wrote beyond an array"
    bad_lines = [line for line, (reason, _) in zip(lines, naive, strict=True) if reason != "good"]
    assert num_bad == len(bad_lines)
    assert [text[start:stop] for start, stop in arrays[4][:num_bad]] == bad_lines[:room]
    assert samples_of(arrays, num_samples, label=label) == [
        sample for _, sample in naive if sample is not None
    ]
    for line, (reason, sample) in zip(lines, naive, strict=True):
        found, *_ = classify_line(line, NUM_DENSE, NUM_SPARSE, label)
        assert found == reason and (reason == "good") == (sample is not None), (line, reason)
    return Counter(reason for reason, _ in naive)


def samples_of(arrays: tuple[NDArray[Any], ...], num_samples: int, *, label: bool) -> list[Sample]:
    """Return what the parser wrote, as samples."""
    labels, dense, categories, is_valid, _ = arrays
    there = np.unpackbits(is_valid, axis=1, bitorder="little").astype(np.bool_)
    assert not there[:, num_samples:].any()
    is_there = there[:, :num_samples]
    values = np.concatenate([dense, categories])[:, :num_samples]
    assert not values[~is_there].any()
    rows: list[Any] = np.where(is_there, values.astype(object), np.array(None)).T.tolist()
    found = labels[:num_samples].tolist() if label else [0] * num_samples
    return [
        Sample(first, tuple(row[:NUM_DENSE]), tuple(row[NUM_DENSE:]))
        for first, row in zip(found, rows, strict=True)
    ]


def draw_line(separator: bytes, luck: random.Random) -> bytes:
    """A line of up to eight fields: integers, hex digits, text, quoted or not."""
    fields = []
    for _ in range(luck.choice([1, 5, 6, 6, 6, 6, 7, 8])):
        field = luck.choice(_FIELDS)
        if luck.random() < 0.4:
            field = b"%d" % luck.randint(-(10 ** luck.randint(1, 20)), 10 ** luck.randint(1, 20))
        fields.append(b'"' + field + b'"' if luck.random() < 0.2 else field)
    return separator.join(fields)


def naive_hex(field: bytes) -> tuple[int, int]:
    """Value and state of a field of eight hex digits."""
    if not field:
        return 0, MISSING
    return (int(field, 16), GOOD) if _CATEGORY.fullmatch(field) else (0, BAD)


def dialect_of_marks(marks: Marks) -> Dialect:
    """The marks as the kernel takes them."""
    arrays = [np.frombuffer(mark, np.uint8).copy() for mark in (marks.separator, marks.comment)]
    quote, escape = (mark[0] if mark else -1 for mark in (marks.quote, marks.escape))
    return Dialect(arrays[0], quote, escape, arrays[1], marks.trim)


def check_fields(text: bytes, marks: Marks, memory: GuardedText) -> Counter[str]:
    """Split ``text``, read every wanted field as a number, and compare; counts of records and fields."""
    counts: Counter[str] = Counter()
    while text:
        wanted, broken = naive_records(text, marks)
        shape = (_NUM_COLUMNS, text.count(b"\n"))
        (starts, after_starts), (stops, after_stops) = (guarded(shape, np.int64, 9) for _ in range(2))
        (fields, after_fields), (lines, after_lines) = (guarded(shape[1:], np.int64, 0) for _ in range(2))
        bytes_ = memory.put(text)
        columns = np.arange(_NUM_COLUMNS)
        arrays = (columns, starts, stops, fields, lines)
        num_found, *end = split_records(bytes_, 0, len(text), dialect_of_marks(marks), *arrays)
        guards = (after_starts, after_stops, after_fields, after_lines)
        assert all((guard == _GUARD).all() for guard in guards)
        assert fields[:num_found].tolist() == [len(record) for _, record in wanted], text
        assert lines[:num_found].tolist() == [line for line, _ in wanted], text
        for row, (_, record) in enumerate(wanted):
            spans = zip(starts[: len(record), row], stops[: len(record), row], strict=True)
            assert [bytes(bytes_[a:b]) for a, b in spans] == record[:_NUM_COLUMNS], text
        for array in arrays_of(bytes_, starts[:, :num_found], stops[:, :num_found]):
            counts += _check_numbers(array)
        counts["good record"] += num_found
        status = {"unclosed": UNCLOSED, "trailing": TRAILING}.get(broken[0], WHOLE) if broken else WHOLE
        assert end[0] == status, text
        if broken is None:
            assert end[1:3] == [len(text), text.count(b"\n")]
            break
        # What follows is split as a text of its own.
        assert end[2:] == [*broken[1:]], text
        counts[f"{broken[0]} quote"] += 1
        text = text.split(b"\n", broken[1] + 1)[-1]
    return counts


def _check_numbers(array: Any) -> Counter[str]:
    fields = array.to_pylist()
    counts: Counter[str] = Counter()
    for kind, naive in (("integer", lambda field: naive_integer(field, -_MOST, _MOST)), ("hex", naive_hex)):
        values, states = (
            parse_integers(array, _MOST, _MOST, False, False) if kind == "integer" else parse_hex8(array)
        )
        wanted = [naive(field) for field in fields]
        assert list(zip(values.tolist(), states.tolist(), strict=True)) == wanted
        counts.update(f"{kind}: {_STATES[state]}" for _, state in wanted)
    return counts


def _mutated_lines(base: list[bytes], memory: GuardedText, luck: random.Random) -> Counter[str]:
    label = luck.random() < 0.7
    lines = [mutate(luck.choice(base), luck.choice(base), luck) for _ in range(_LINES_A_TEXT)]
    if not label:
        lines = [line.partition(b"\t")[2] if luck.random() < 0.95 else line for line in lines]
    return check_lines(b"\n".join(lines) + b"\n", memory, label=label)


def _mutated_fields(memory: GuardedText, luck: random.Random) -> Counter[str]:
    counts: Counter[str] = Counter()
    # Short texts: one is split again after each quote that is wrong.
    for _ in range(_LINES_A_TEXT // _LINES_OF_RECORDS):
        marks = Marks(
            separator=luck.choice([b",", b"\t", b";", b"::"]),
            quote=luck.choice([b'"', b'"', b""]),
            escape=luck.choice([b"", b"\\"]),
            comment=luck.choice([b"", b"-"]),
            trim=luck.random() < 0.3,
        )
        drawn = [draw_line(marks.separator, luck) for _ in range(_LINES_OF_RECORDS)]
        lines = [mutate(line, luck.choice(drawn), luck) for line in drawn]
        counts += check_fields(b"\n".join(lines) + b"\n", marks, memory)
    return counts


def fuzz_text(kind: str, num_lines: int, seed: int) -> dict[str, Any]:
    """At least ``num_lines`` mutated lines; raises AssertionError at the first that is judged wrongly."""
    luck = random.Random(seed)
    memory = GuardedText()
    counts = Counter[str]()
    base = [sample.line() for sample in draw_samples(2000, np.random.default_rng(seed))]
    base.append(b"0" + b"\t" * (NUM_DENSE + NUM_SPARSE))
    num_texts = -(-num_lines // _LINES_A_TEXT)
    started = time.perf_counter()
    for _ in range(num_texts):
        counts += _mutated_lines(base, memory, luck) if kind == "lines" else _mutated_fields(memory, luck)
    return {
        "inputs": num_texts * _LINES_A_TEXT,
        "outcomes": dict(sorted(counts.items())),
        "wrong": 0,
        "seed": seed,
        "seconds": time.perf_counter() - started,
    }


def measure(options: Options, scratch: Path) -> Facts:
    """Mutate so many lines of each kind."""
    return {kind: fuzz_text(kind, options.lines, options.seed) for kind in options.kinds}


if __name__ == "__main__":
    main(PARSER, measure)
