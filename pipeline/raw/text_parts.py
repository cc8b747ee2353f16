"""Blocks of lines as parts of a log, and those of Criteo's text.

`criteo_kernel` decides quickly whether a line is good. For the few bad lines, this module finds the fault and
its column slowly.
"""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import MIB
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..runtime.tasks import thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import count_newlines, parse_lines
from .log_files import block_name, checksum_of_block
from .part import (
    UTF_8,
    Block,
    Fault,
    Part,
    PlainBlock,
    RawParts,
    Rows,
    iterate_blocks,
    shown_bytes,
    without_mark,
)
from .raw_file import RawFile

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


_MIN_CRITEO_LINE_BYTES = 39
_END_BYTES = 4096
"""Bytes of a file that are read at a time to find its last line."""
_MOST_WAITING = 32 * MIB
"""Bytes of empty lines after which a compressed log has not ended."""


@dataclass(frozen=True, slots=True)
class TextPart:
    """One block of a text file, and the format that parses it."""

    name: str
    parts: TextParts
    block: PlainBlock | Block
    context: int | None = 0
    """What the format has to know of the text around the block."""

    def read(self) -> Part | None:
        """Read and parse the block; None where it has no line."""
        block = self.block.read()
        if block.num_bytes == 0:
            return None
        block = block.tallied()  # first: parsing may change the text
        return self._counted(block, self.parts.parse(block, self.context))

    def rows(self) -> tuple[Rows, Part] | None:
        """Read the block but no value; next to its rows is the part without columns, if all are good."""
        block = self.block.read()
        if block.num_bytes == 0:
            return None
        block = block.tallied()
        rows = self.parts.rows_of(block, self.context)
        return rows, self._counted(block, Part({}, rows.is_bad.shape[0], Counter(), None))

    def _counted(self, block: Block, part: Part) -> Part:
        """Return a part with the lines and bytes of its block."""
        tally = block.tally
        assert tally is not None
        num_above = int(count_newlines(block.lines[: self.parts.header_bytes(block)]))
        num_other_lines = tally.num_lines - num_above - part.num_samples - part.bad.total()
        return replace(
            part,
            num_raw_bytes=tally.num_bytes,
            raw_xxh3_128="" if self.parts.is_hashed_whole else tally.xxh3_128,
            num_other_lines=num_other_lines if self.parts.unit == "line" else 0,
        )

    def changed(self, facts: ColumnsFacts) -> int | None:
        """Read the block, and return the number of its file where its lines are not those of these facts."""
        is_known = self.parts.is_hashed_whole or checksum_of_block(self.block) == facts.raw_xxh3_128
        return None if is_known else self.parts.number


@dataclass
class TextParts(RawParts):
    """Blocks of lines of a format."""

    file: RawFile
    number: int
    schema: Schema
    _: KW_ONLY
    block_bytes: int
    has_label: bool
    strict: bool = False
    lacking: tuple[str, ...] | None = field(default=None, init=False)
    """Columns that no row has, of a format whose rows leave out what is missing; None of others."""

    @property
    def is_in_order(self) -> bool:
        """Whether the text is decompressed or decoded from its start."""
        return self.file.compression is not None or self.schema.encoding != UTF_8

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[TextPart]:
        """Yield a part for each block of lines; a finished one, too, is cheap as long as it is not read."""
        blocks = iterate_blocks(self.file, self.block_bytes, in_thread_buffer=True)
        for number, block in enumerate(blocks):
            yield TextPart(block_name(self.number, number), self, block)

    def parse(self, block: Block, context: int | None) -> Part:
        """Parse the lines of a block."""
        return self.parse_rows(self.rows_of(block, context))

    def rows_of(self, block: Block, context: int | None) -> Rows:
        """Return the rows of a block before their values are read."""
        raise NotImplementedError

    def parse_rows(self, rows: Rows) -> Part:
        """Read the values of rows, perhaps of several files."""
        from .tabular import parse_rows  # what reads Criteo's lines does not import it

        return parse_rows(rows, self.schema, has_label=self.has_label)

    def header_bytes(self, block: Block) -> int:
        """Return how many bytes of a block are above the first row."""
        return 0


@dataclass
class CriteoParts(TextParts):
    """Blocks of Criteo's text; each knows the bytes of the text without the empty lines at its end."""

    min_line_bytes = _MIN_CRITEO_LINE_BYTES

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[TextPart]:
        """Yield a part for each block of lines; a finished one, too, is cheap as long as it is not read."""
        parts = super().iterate(finished)
        if self.file.compression is not None:
            return _with_content_bytes(parts)
        return (replace(part, context=self._content_bytes) for part in parts)

    @cached_property
    def _content_bytes(self) -> int:
        """Bytes of a plain file without the empty lines at its end."""
        with open(self.file.path, "rb") as file:
            end = self.file.num_bytes
            while end > 0:
                start = max(0, end - _END_BYTES)
                file.seek(start)
                content = file.read(end - start).rstrip(b"\r\n")
                if content:
                    return start + len(content)
                end = start
        return 0

    def parse(self, block: Block, context: int | None) -> Part:
        """Parse the lines of a block."""
        block = without_mark(block)
        # Find the reasons of bad lines only where they are counted.
        parsed = parse_block(block, self.schema, has_label=self.has_label)
        bad_lines = _bad_lines(parsed, block, context)
        bad: Counter[str] = Counter()
        fault = None
        if bad_lines.shape[0] and self.strict:
            fault = describe_fault(block, bad_lines[0], self.schema, has_label=self.has_label)
        elif bad_lines.shape[0]:
            bad.update(count_reasons(block, bad_lines, self.schema, has_label=self.has_label))
        return Part(parsed.columns, parsed.num_samples, bad, fault)

    def rows_of(self, block: Block, context: int | None) -> Rows:
        """Return the good lines of a block, which are parsed already."""
        block = without_mark(block)
        parsed = parse_block(block, self.schema, has_label=self.has_label, is_kept=True)
        bad_lines = _bad_lines(parsed, block, context)[:1]
        wrong = [describe_fault(block, line, self.schema, has_label=self.has_label) for line in bad_lines]
        is_bad = np.zeros(parsed.num_samples, np.bool_)
        return Rows(parsed.columns, is_bad, block.num_bytes, wrong=wrong[0] if wrong else None)

    def parse_rows(self, rows: Rows) -> Part:
        """Return the lines as they were parsed."""
        return Part(rows.cells, rows.is_bad.shape[0], Counter(), None)


def _bad_lines(parsed: ParsedBlock, block: Block, context: int | None) -> NDArray[np.int64]:
    """Return the bad lines of a block without the empty ones at the end of the text, which are none."""
    return parsed.bad_lines[parsed.bad_lines[:, 0] < (context or 0) - block.start]


def _with_content_bytes(parts: Iterable[TextPart]) -> Iterator[TextPart]:
    """Yield the parts of a text that is read in order: one that ends in empty lines waits until it is known
    whether more follows."""
    waiting: deque[tuple[TextPart, Block]] = deque()
    for part in parts:
        block = part.block.read()
        end = block.lines[-3:].tobytes()
        ends_empty = end.endswith((b"\n\n", b"\n\r\n")) or end in (b"", b"\n", b"\r\n")
        is_full = not ends_empty or _content_bytes(block) > 0
        # Memory does not grow with the number of empty lines.
        while waiting and (is_full or sum(each.num_bytes for _, each in waiting) > _MOST_WAITING):
            waits, earlier = waiting.popleft()
            yield replace(waits, context=earlier.start + earlier.num_bytes)
        if ends_empty:
            waiting.append((part, block))
        else:
            yield replace(part, context=block.start + block.num_bytes)
    for part, block in waiting:
        yield replace(part, context=block.start + _content_bytes(block))


def _content_bytes(block: Block) -> int:
    return len(block.lines.tobytes().rstrip(b"\r\n"))
