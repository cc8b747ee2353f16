"""Estimates of the memory that a worker takes for a part of a log, before the log is read.

The lines at the start of a file tell how many values a block has; a log whose lines get shorter takes more
memory than estimated. The costs below were measured as anonymous memory on logs of 0.5 to 1.2 M samples, with
one and two workers and blocks of 4 to 64 MiB, and rounded up: the estimates were 1.0 to 1.5 times what was
measured.
"""

from __future__ import annotations

from contextlib import suppress

from ..errors import InputError
from ..raw.raw_blocks import iterate_blocks
from ..raw.raw_file import RawFile
from ..schema.schema import Schema

_TYPICAL_LINE_BYTES = 160
"""Bytes of a line of Criteo's log without its largest integers, for a log that cannot be read."""
_START_BYTES = 1 << 16
_TEXT_MARGIN = 9 / 8
"""Bytes of the buffer of a block for each byte of the block, see `thread_buffer`."""
_BLOCKS_IN_FLIGHT = 2
"""Decompressed blocks per worker that wait to be parsed."""
_CRITEO_VALUE_BYTES = 4.7
"""Bytes of a value of Criteo's format: 4, a bit for missing ones, and an eighth more, see `thread_buffer`."""
_CSV_VALUE_BYTES = 36
"""Bytes of a field of CSV: where it begins and ends, its value, its state, and a copy for Arrow."""
_PARQUET_VALUE_BYTES = 64
"""Bytes of a value of Parquet: the batches that wait to be parsed, what is made of one, and a page."""
_STORED_VALUE_BYTES = 8
"""Bytes that a value of Parquet counts in a block."""
_SAMPLES_MARGIN = 9 / 8
"""Samples of a block for each one that the lines at the start of its file let expect."""


def part_bytes(file: RawFile, schema: Schema, block_bytes: int, *, has_label: bool) -> int:
    """Return the estimated anonymous memory of one worker that parses blocks of ``file`` (bytes)."""
    num_columns = len(schema.dense) + len(schema.sparse) + (has_label and schema.label is not None)
    if schema.format == "parquet":
        return int(block_bytes / _STORED_VALUE_BYTES * _PARQUET_VALUE_BYTES)
    text_bytes = _text_bytes(file, block_bytes)
    num_values = text_bytes / _line_bytes(file) * num_columns
    value_bytes = _CRITEO_VALUE_BYTES if schema.format == "criteo" else _CSV_VALUE_BYTES
    num_blocks = 1 + _BLOCKS_IN_FLIGHT if file.compression else _TEXT_MARGIN
    return int(text_bytes * num_blocks + num_values * value_bytes)


def samples_of_block(file: RawFile, schema: Schema, block_bytes: int, *, has_label: bool) -> int:
    """Return the estimated samples of the largest part that a block of ``file`` becomes."""
    if schema.format == "parquet":
        values_of_row = max(1, len(schema.columns(has_label=has_label)) - len(schema.lists))
        return max(1, block_bytes // (_STORED_VALUE_BYTES * values_of_row))
    return int(_text_bytes(file, block_bytes) / _line_bytes(file) * _SAMPLES_MARGIN)


def _text_bytes(file: RawFile, block_bytes: int) -> int:
    """Return the bytes of text of the largest block: a small file is one, however large a block may be."""
    return block_bytes if file.compression else min(block_bytes, file.num_bytes)


def _line_bytes(file: RawFile) -> float:
    """Return the average bytes of a line at the start of a file of text."""
    with suppress(InputError):  # a file that cannot be read is refused where it is parsed
        for block in iterate_blocks(file, _START_BYTES):
            lines = block.read().lines
            num_lines = int((lines == ord("\n")).sum())
            if num_lines:
                return float(lines.shape[0] / num_lines)
    return _TYPICAL_LINE_BYTES
