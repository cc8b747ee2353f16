"""Parse a block of Criteo text, and describe faults of bad lines.

`criteo_kernel` decides quickly whether a line is good. For the few bad lines, this module finds the fault and
its column slowly.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..runtime.tasks import thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import count_newlines, parse_lines
from .part import Block, Fault, shown_bytes

MAX_FIELD_BYTES: Final = 64
"""A field longer than this is refused as such, whatever it holds."""

_MAX_DIGITS = 10
_INTEGER = re.compile(rb"-?[0-9]+")
_CATEGORY = re.compile(rb"[0-9a-fA-F]{8}")


def classify_line(line: bytes, num_dense: int, num_sparse: int, has_label: bool) -> tuple[str, int, bytes]:
    """Find the first fault from the left, after the faults of the whole line.

    Args:
        line: its bytes, without the newline.
        num_dense: integers of a line.
        num_sparse: categories of a line.
        has_label: whether a label comes before them.

    Returns:
        Reason, ``good`` or that under which it is counted; column (from 0; the number of fields for
        ``field_count``); and the field.
    """
    # A carriage return before the newline is no part of the last field.
    fields = line.removesuffix(b"\r").split(b"\t")
    # First the faults of any file that is not text: fields far too long, and NUL bytes.
    for column, found in enumerate(fields):
        if len(found) > MAX_FIELD_BYTES:
            return "long_field", column, found
        if b"\0" in found:
            return "nul_byte", column, found
    # With a wrong number of fields, no field could be given to its column.
    if len(fields) != has_label + num_dense + num_sparse:
        return "field_count", len(fields), line
    for column, found in enumerate(fields):
        reason = _fault_of(found, column - has_label, num_dense)
        if reason is not None:
            return reason, column, found
    return "good", 0, b""


def _fault_of(found: bytes, column: int, num_dense: int) -> str | None:
    """Return what is wrong with a field; column 0 is the first integer, -1 the label."""
    if column < 0:
        return None if found in (b"0", b"1") else "bad_label"
    if not found:
        return None
    if column >= num_dense:
        return None if _CATEGORY.fullmatch(found) else "bad_category"
    if not _INTEGER.fullmatch(found):
        return "bad_integer"
    is_short = len(found.removeprefix(b"-")) <= _MAX_DIGITS
    return None if is_short and -(2**31) <= int(found) < 2**31 else "integer_range"


_LISTED_BAD_LINES = 1024
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
    counted = Counter(_fault_in(block, span, schema, has_label=has_label)[0] for span in bad_lines)
    return dict(sorted(counted.items()))


def _fault_in(
    block: Block, span: NDArray[np.int64], schema: Schema, *, has_label: bool
) -> tuple[str, int, bytes]:
    line = block.text[span[0] : span[1]].tobytes()
    return classify_line(line, len(schema.dense), len(schema.sparse), has_label)


def describe_fault(block: Block, span: NDArray[np.int64], schema: Schema, *, has_label: bool) -> Fault:
    """Describe what is wrong with the line ``block.text[span[0]:span[1]]``."""
    reason, column, found = _fault_in(block, span, schema, has_label=has_label)
    line_in_block = count_newlines(block.text[: span[0]])
    names = schema.columns(has_label=has_label)
    if reason == "field_count":
        fields = "1 field" if column == 1 else f"{column} fields"
        text = f": found {fields}, want {len(names)} between tabs"
        return Fault(reason, line_in_block, text, column == len(names) + (-1 if has_label else 1))
    name = names[column] if column < len(names) else "beyond the last"
    where = f", column {column + 1} ({name})"
    return Fault(reason, line_in_block, f"{where}: found {shown_bytes(found)}, want {_WANTED[reason]}")
