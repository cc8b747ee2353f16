"""One block of Criteo text to Arrow columns, and what is wrong with a bad line, in words."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...runtime.thread_buffers import thread_buffer
from ...schema.schema import Schema
from ..part import Fault
from ..raw_blocks import Block
from .criteo_faults import MAX_FIELD_BYTES, REASONS, classify_line
from .criteo_kernel import count_newlines, parse_lines

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

    With ``is_kept`` the columns have memory of their own; else that of the thread, until its next block.
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
    """Allocate labels, integers, categories and validity bits of so many lines, as `parse_lines` wants them.

    In one piece: what is kept then lies in large pages, which the system hands out ten times as fast.
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
