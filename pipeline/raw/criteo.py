"""Parse a block of Criteo text, and describe faults of bad lines.

`criteo_kernel` decides quickly whether a line is good. For the few bad lines, this module finds the fault and
its column slowly.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.kernel import kernel
from ..runtime.tasks import thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import count_newlines, parse_lines
from .part import Block, Fault
from .text_fields import HEX_VALUES

MAX_FIELD_BYTES: Final = 64
"""A field longer than this is refused as such, whatever it holds."""

REASONS: Final = (
    "good",
    "field_count",
    "bad_label",
    "bad_integer",
    "integer_range",
    "bad_category",
    "nul_byte",
    "long_field",
)
"""Names of the codes that `classify_line` returns, as the manifest lists them."""
_GOOD, _FIELD_COUNT, _BAD_LABEL, _BAD_INTEGER, _RANGE, _BAD_CATEGORY, _NUL, _LONG = range(8)

_TAB: Final = 9
_RETURN: Final = 13
_MINUS: Final = 45
_ZERO: Final = 48
_INT32_MAX: Final = 2**31 - 1
_MAX_DIGITS: Final = 10


@kernel
def classify_line(
    line: NDArray[np.uint8], num_dense: int, num_sparse: int, has_label: bool
) -> tuple[int, int, int, int]:
    """Find the first fault from the left, after the faults of the whole line.

    Args:
        line: (num_bytes,), without its newline.

    Returns:
        Code (an index into REASONS), column (from 0; number of fields for ``field_count``), and the
        field's first and last-but-one byte within the line.
    """
    # A carriage return before the newline is no part of the last field.
    end = line.shape[0]
    if end > 0 and line[end - 1] == _RETURN:
        end -= 1
    num_fields = 1
    for i in range(end):
        num_fields += line[i] == _TAB

    # First the faults of any file that is not text: fields far too long, and NUL bytes.
    start = 0
    column = 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            if i - start > MAX_FIELD_BYTES:
                return _LONG, column, start, i
            for j in range(start, i):
                if line[j] == 0:
                    return _NUL, column, start, i
            start = i + 1
            column += 1

    # With a wrong number of fields, no field could be given to its column.
    if num_fields != has_label + num_dense + num_sparse:
        return _FIELD_COUNT, num_fields, 0, end

    start = 0
    column = 0
    for i in range(end + 1):
        if i == end or line[i] == _TAB:
            code = _classify_field(line, start, i, column - has_label, num_dense)
            if code != _GOOD:
                return code, column, start, i
            start = i + 1
            column += 1
    return _GOOD, 0, 0, 0


@kernel
def _classify_field(line: NDArray[np.uint8], start: int, stop: int, column: int, num_dense: int) -> int:
    """Return the code of a field, ``line[start:stop]``; column 0 is the first integer, -1 the label."""
    length = stop - start
    if column < 0:
        return _GOOD if length == 1 and _ZERO <= line[start] <= _ZERO + 1 else _BAD_LABEL
    if length == 0:
        return _GOOD

    # A category: eight hex digits.
    if column >= num_dense:
        for i in range(start, stop):
            if HEX_VALUES[line[i]] > 15:
                return _BAD_CATEGORY
        return _GOOD if length == 8 else _BAD_CATEGORY

    # An integer: a sign perhaps, then digits, at most ten and within int32.
    is_negative = line[start] == _MINUS
    first = start + is_negative
    if first == stop:
        return _BAD_INTEGER
    number = np.int64(0)
    for i in range(first, stop):
        if line[i] < _ZERO or line[i] > _ZERO + 9:
            return _BAD_INTEGER
        number = min(number * 10 + line[i] - _ZERO, np.int64(1) << 40)  # never overflows
    return _RANGE if number > _INT32_MAX + is_negative or stop - first > _MAX_DIGITS else _GOOD


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
class ParsedBlock:
    """The columns of a block's good lines, valid until the thread parses its next block."""

    columns: dict[str, Any]
    num_samples: int
    bad_lines: NDArray[np.int64]
    """(num_bad, 2), first byte and newline of each bad line in the block."""


def parse_block(block: Block, schema: Schema, *, has_label: bool, is_kept: bool = False) -> ParsedBlock:
    """Parse the lines of ``block``; exact, every bound checked.

    With ``is_kept`` the columns have their own memory; otherwise they use the thread's buffers, which the
    next block overwrites.
    """
    label, dense, categories, is_valid = _new_columns(block.num_lines, schema, has_label, is_kept)

    # Parse once more where there are more bad lines than the list held: they are few in any usable log.
    capacity = _LISTED_BAD_LINES
    while True:
        is_valid[:] = 0
        bad_lines = np.empty((capacity, 2), np.int64)
        arrays = (label, dense, categories, is_valid)
        num_samples, num_bad = parse_lines(block.text, block.num_bytes, *arrays, bad_lines)
        if num_bad <= capacity:
            break
        capacity = num_bad

    # Arrow arrays over the parser's memory; nothing is copied.
    columns = {"label": _array(pa.uint8(), label, None, num_samples)} if has_label else {}
    kinds = [pa.int32()] * len(schema.dense) + [pa.uint32()] * len(schema.sparse)
    rows = zip((*schema.dense, *schema.sparse), kinds, (*dense, *categories), is_valid, strict=True)
    columns |= {name: _array(kind, values, bits, num_samples) for name, kind, values, bits in rows}
    return ParsedBlock(columns, int(num_samples), bad_lines[:num_bad])


def _new_columns(
    num_lines: int, schema: Schema, has_label: bool, is_kept: bool
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint32], NDArray[np.uint8]]:
    """Allocate labels, integers, categories and validity bits of ``num_lines`` lines for `parse_lines`.

    All are one allocation, so what is kept uses large pages, which the system provides ten times as fast.
    """
    num_dense, num_sparse = len(schema.dense), len(schema.sparse)
    bytes_of_bits = -(-num_lines // 8)
    shares = (
        4 * num_lines * num_dense,
        4 * num_lines * num_sparse,
        bytes_of_bits * (num_dense + num_sparse),
        num_lines if has_label else 0,
    )
    shape = (sum(shares),)
    memory = np.empty(shape, np.uint8) if is_kept else thread_buffer("columns", shape, np.uint8)
    dense, categories, is_valid, label = np.split(memory, np.cumsum(shares[:-1]))
    return (
        label,
        dense.view(np.int32).reshape(num_dense, num_lines),
        categories.view(np.uint32).reshape(num_sparse, num_lines),
        is_valid.reshape(num_dense + num_sparse, bytes_of_bits),
    )


def tells_label(block: Block, schema: Schema) -> bool | None:
    """Return whether the lines of a block have labels; None where one is not of Criteo's format.

    The lines of a block are parsed with a label, and where they do not fit without.
    """
    for has_label in (True, False):
        parsed = parse_block(block, schema, has_label=has_label)
        if parsed.num_samples and not parsed.bad_lines.shape[0]:
            return has_label
    return None


def _array(kind: Any, values: NDArray[Any], is_valid: NDArray[np.uint8] | None, length: int) -> Any:
    # A column without a missing value gets no bitmap, as Arrow itself would write it.
    bits = None if is_valid is None else pa.py_buffer(is_valid[: -(-length // 8)])
    array = pa.Array.from_buffers(kind, length, [bits, pa.py_buffer(values[:length])])
    return array if array.null_count else pa.Array.from_buffers(kind, length, [None, array.buffers()[1]])


def count_reasons(
    block: Block, bad_lines: NDArray[np.int64], schema: Schema, *, has_label: bool
) -> dict[str, int]:
    """Count ``bad_lines`` by what is wrong with them."""
    counted: Counter[str] = Counter()
    for start, stop in bad_lines:
        code, *_ = classify_line(block.text[start:stop], len(schema.dense), len(schema.sparse), has_label)
        counted[REASONS[code]] += 1
    return dict(sorted(counted.items()))


def describe_fault(block: Block, span: NDArray[np.int64], schema: Schema, *, has_label: bool) -> Fault:
    """Describe what is wrong with the line ``block.text[span[0]:span[1]]``."""
    line = block.text[span[0] : span[1]]
    code, column, start, stop = classify_line(line, len(schema.dense), len(schema.sparse), has_label)
    reason = REASONS[code]
    line_in_block = count_newlines(block.text[: span[0]])
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
