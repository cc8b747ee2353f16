"""One block of Criteo text to Arrow columns, and in words what is wrong with a bad line.

Threads keep their arrays from block to block: fresh memory pages cost more than parsing.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .criteo_parser import MAX_FIELD_BYTES, REASONS, classify_line, count_newlines, parse_lines
from .raw import Block
from .schema import Schema

_LISTED_BAD_LINES = 1024
_SHOWN_BYTES = 40
_WANTED = {
    "bad_label": "0 or 1",
    "bad_integer": "a decimal integer or nothing",
    "integer_range": "an integer from -2147483648 to 2147483647",
    "bad_category": "8 hex digits or nothing",
    "nul_byte": "text without NUL bytes",
    "long_field": f"at most {MAX_FIELD_BYTES} bytes",
}


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that is not as it should be."""

    reason: str
    line_in_block: int
    """From 0."""
    text: str
    """Which column, what was found and what was wanted, to follow "line 7"."""
    is_label_off: bool = False
    """The line has one field too few or too many, as one read with the wrong idea of its label would."""


@dataclass(frozen=True, slots=True)
class ParsedBlock:
    """The columns of a block's good lines, valid until the thread parses its next block."""

    columns: dict[str, Any]
    num_samples: int
    bad_lines: NDArray[np.int64]
    """(num_bad, 2), first byte and newline of each bad line in the block."""


def parse_block(block: Block, schema: Schema, *, has_label: bool) -> ParsedBlock:
    """Parse the lines of ``block``; exact, every bound checked."""
    num_lines = count_newlines(block.lines)
    scratch = _scratch(schema, has_label, num_lines)
    bad_lines = np.empty((_LISTED_BAD_LINES, 2), np.int64)
    num_samples, num_bad = _parse(block, scratch, bad_lines)
    if num_bad > _LISTED_BAD_LINES:
        bad_lines = np.empty((num_bad, 2), np.int64)
        _parse(block, scratch, bad_lines)
    return ParsedBlock(scratch.columns(schema, num_samples), num_samples, bad_lines[:num_bad])


class _Scratch:
    """Arrays one thread parses into."""

    def __init__(self, schema: Schema, has_label: bool, capacity: int) -> None:
        self.capacity, self.key = capacity, (schema, has_label)
        self.label = np.empty(capacity if has_label else 0, np.uint8)
        self.dense = np.empty((len(schema.dense), capacity), np.int32)
        self.categories = np.empty((len(schema.sparse), capacity), np.uint32)
        self.is_valid = np.empty((len(schema.dense) + len(schema.sparse), -(-capacity // 8)), np.uint8)

    def columns(self, schema: Schema, num_samples: int) -> dict[str, Any]:
        """The parsed columns as Arrow arrays over this memory."""
        columns = {"label": _array(pa.uint8(), self.label, None, num_samples)} if self.key[1] else {}
        for row, name in enumerate(schema.dense):
            columns[name] = _array(pa.int32(), self.dense[row], self.is_valid[row], num_samples)
        for row, name in enumerate(schema.sparse):
            bits = self.is_valid[len(schema.dense) + row]
            columns[name] = _array(pa.uint32(), self.categories[row], bits, num_samples)
        return columns


_local = threading.local()


def _scratch(schema: Schema, has_label: bool, num_lines: int) -> _Scratch:
    scratch: _Scratch | None = getattr(_local, "scratch", None)
    if scratch is None or scratch.capacity < num_lines or scratch.key != (schema, has_label):
        scratch = _local.scratch = _Scratch(schema, has_label, num_lines + num_lines // 8 + 1)
    return scratch


def _parse(block: Block, scratch: _Scratch, bad_lines: NDArray[np.int64]) -> tuple[int, int]:
    scratch.is_valid[:] = 0
    arrays = (scratch.label, scratch.dense, scratch.categories, scratch.is_valid)
    num_samples, num_bad = parse_lines(block.text, block.num_bytes, *arrays, bad_lines)
    return int(num_samples), int(num_bad)


def _array(kind: Any, values: NDArray[Any], is_valid: NDArray[np.uint8] | None, length: int) -> Any:
    bits = None if is_valid is None else pa.py_buffer(is_valid[: -(-length // 8)])
    array = pa.Array.from_buffers(kind, length, [bits, pa.py_buffer(values[:length])])
    return array if array.null_count else pa.Array.from_buffers(kind, length, [None, array.buffers()[1]])


def count_reasons(
    block: Block, bad_lines: NDArray[np.int64], schema: Schema, *, has_label: bool
) -> dict[str, int]:
    """How many of ``bad_lines`` are bad for which reason."""
    counted: Counter[str] = Counter()
    for start, stop in bad_lines:
        code, *_ = classify_line(block.text[start:stop], len(schema.dense), len(schema.sparse), has_label)
        counted[REASONS[code]] += 1
    return dict(sorted(counted.items()))


def describe_fault(block: Block, span: NDArray[np.int64], schema: Schema, *, has_label: bool) -> Fault:
    """What is wrong with the line ``block.text[span[0]:span[1]]``, in words."""
    line = block.text[span[0] : span[1]]
    code, column, start, stop = classify_line(line, len(schema.dense), len(schema.sparse), has_label)
    reason, line_in_block = REASONS[code], count_newlines(block.text[: span[0]])
    names = schema.columns(has_label=has_label)
    if reason == "field_count":
        fields = "1 field" if column == 1 else f"{column} fields"
        text = f": found {fields}, want {len(names)} between tabs"
        return Fault(reason, line_in_block, text, column == len(names) + (-1 if has_label else 1))
    found = bytes(line[start:stop])
    shown = repr(found[:_SHOWN_BYTES])[1:]
    if len(found) > _SHOWN_BYTES:
        shown += f"... ({len(found)} bytes)"
    name = names[column] if column < len(names) else "beyond the last"
    return Fault(
        reason, line_in_block, f", column {column + 1} ({name}): found {shown}, want {_WANTED[reason]}"
    )
