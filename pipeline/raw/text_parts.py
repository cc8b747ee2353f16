"""Blocks of lines as parts of a log, and those of Criteo's text."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..errors import MIB
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..schema.schema import Schema
from .criteo import ParsedBlock, count_reasons, describe_fault, parse_block
from .criteo_kernel import count_newlines
from .part import UTF_8, Block, Part, PlainBlock, RawParts, Rows, iterate_blocks, without_mark
from .raw_file import RawFile
from .same_log import block_name, checksum_of_block
from .text_fields import Spans

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
        # The thread reads the next block to the same place.
        block = replace(block.tallied(), text=block.text.copy())
        rows = self.parts.rows_of(block, self.context)
        cells = {name: each.copy() if isinstance(each, Spans) else each for name, each in rows.cells.items()}
        part = Part({}, rows.is_bad.shape[0], Counter(), None)
        return replace(rows, cells=cells), self._counted(block, part)

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
        """Return the rows of a block before their values are read; the thread's next block replaces them."""
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
