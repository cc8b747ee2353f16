"""Blocks of lines as parts of a log, and those of Criteo's text."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Protocol

from ..errors import MIB
from ..folders.manifest import FileEntry
from ..schema.schema import Schema
from .criteo import count_reasons, describe_fault, parse_block
from .criteo_kernel import count_newlines
from .part import Block, Part, PlainBlock, iterate_blocks, without_mark
from .raw_file import RawFile
from .same_log import block_name, checksum_of_block

_MIN_CRITEO_LINE_BYTES = 39
_END_BYTES = 4096
"""Bytes of a file that are read at a time to find its last line."""
_MOST_WAITING = 32 * MIB
"""Bytes of empty lines after which a compressed log has not ended."""


class _Parses(Protocol):
    unit: str
    is_hashed_whole: bool

    def parse(self, block: Block, part: TextPart) -> Part: ...

    def header_bytes(self, block: Block) -> int: ...

    def whole_records(self, block: Block) -> tuple[Block, int]: ...


@dataclass(frozen=True, slots=True)
class TextPart:
    """One block of a text file, and the format that parses it."""

    name: str
    parts: _Parses
    block: PlainBlock | Block
    head: int = 0
    """Bytes of lines at its beginning that go on with a record above it."""
    is_sampled: bool = False
    """The block stands alone: where it begins in a record, and what is left of its last one, is found out."""
    content_bytes: int = 0
    """Bytes of the text of a file without the empty lines at its end; 0 where they are lines as others."""

    def read(self) -> Part | None:
        """Read and parse the block; None where it has no line."""
        block = self.block.read()
        if block.num_bytes == 0:
            return None
        block = block.tallied()  # first: parsing may change the text
        assert block.tally is not None
        tally, unread = block.tally, self
        if self.is_sampled:
            block, head = self.parts.whole_records(block)
            unread = replace(self, head=head)
        num_lines = tally.num_lines - int(count_newlines(block.lines[: self.parts.header_bytes(block)]))
        part = self.parts.parse(block, unread)
        num_other_lines = num_lines - part.num_samples - part.bad.total()
        return replace(
            part,
            num_raw_bytes=tally.num_bytes,
            raw_xxh3_128="" if self.parts.is_hashed_whole else tally.xxh3_128,
            num_other_lines=num_other_lines if self.parts.unit == "line" else 0,
        )

    def checksum(self) -> str | None:
        """Read the block, and return the checksum that `Part` has; None where parts have none."""
        return None if self.parts.is_hashed_whole else checksum_of_block(self.block)


@dataclass
class CriteoParts:
    """Blocks of Criteo's text."""

    file: RawFile
    number: int
    schema: Schema
    _: KW_ONLY
    block_bytes: int
    has_label: bool
    strict: bool
    unit: str = "line"
    num_header_lines: int = 0
    min_line_bytes: int = _MIN_CRITEO_LINE_BYTES
    is_hashed_whole: bool = False

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[TextPart]:
        """Yield a part for each block of lines; a finished one, too, is cheap as long as it is not read."""
        blocks = iterate_blocks(self.file, self.block_bytes, in_thread_buffer=True)
        is_plain = self.file.compression is None
        known = (
            ((block, self._content_bytes) for block in blocks) if is_plain else _with_content_bytes(blocks)
        )
        for number, (block, content_bytes) in enumerate(known):
            name = block_name(self.number, number)
            yield TextPart(name, self, block, content_bytes=content_bytes)

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

    def parse(self, block: Block, part: TextPart) -> Part:
        """Parse the lines of a block."""
        block = without_mark(block)
        # Find the reasons of bad lines only where they are counted. Empty lines at the end are none.
        parsed = parse_block(block, self.schema, has_label=self.has_label)
        is_line = parsed.bad_lines[:, 0] < part.content_bytes - block.start
        bad_lines = parsed.bad_lines[is_line]
        bad: Counter[str] = Counter()
        fault = None
        if bad_lines.shape[0] and self.strict:
            fault = describe_fault(block, bad_lines[0], self.schema, has_label=self.has_label)
        elif bad_lines.shape[0]:
            bad.update(count_reasons(block, bad_lines, self.schema, has_label=self.has_label))
        return Part(parsed.columns, parsed.num_samples, bad, fault)

    def header_bytes(self, block: Block) -> int:
        """Return how many bytes of a block are above the first row."""
        return 0

    def whole_records(self, block: Block) -> tuple[Block, int]:
        """Return a block as it is: each line is a record."""
        return block, 0


def _with_content_bytes(
    blocks: Iterable[PlainBlock | Block],
) -> Iterator[tuple[PlainBlock | Block, int]]:
    """Yield each block of a text that is read in order, and the bytes of the text without the empty lines at
    its end: a block that ends in some waits until it is known whether more follows."""
    waiting: deque[Block] = deque()
    for unread in blocks:
        block = unread.read()
        end = block.lines[-3:].tobytes()
        ends_empty = end.endswith((b"\n\n", b"\n\r\n")) or end in (b"", b"\n", b"\r\n")
        is_full = not ends_empty or _content_bytes(block) > 0
        # Memory does not grow with the number of empty lines.
        while waiting and (is_full or sum(each.num_bytes for each in waiting) > _MOST_WAITING):
            yield waiting[0], waiting[0].start + waiting.popleft().num_bytes
        if ends_empty:
            waiting.append(block)
        else:
            yield block, block.start + block.num_bytes
    for block in waiting:
        yield block, block.start + _content_bytes(block)


def _content_bytes(block: Block) -> int:
    return len(block.lines.tobytes().rstrip(b"\r\n"))
