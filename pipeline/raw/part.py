"""The parts of a log: blocks of whole lines or Parquet batches.

The samples of a part become one file of ``columns/``.

Block k of a file holds the lines that *start* in bytes [k * block_bytes, (k + 1) * block_bytes) of its
uncompressed text, so plain and compressed copies of a log give the same blocks, with any number of workers.
Any thread reads a plain file at any block. Compressed files are decompressed once, in order, in parallel with
the parsers: zstd at 1.6 GB/s, gzip at 0.44 GB/s, which then bounds `ingest` (1.8 M samples/s of Criteo's).
"""

from __future__ import annotations

import codecs
import mmap
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, islice
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..errors import KIB, InputError, format_byte_size
from ..folders.manifest import FileEntry
from ..folders.totals import ColumnsFacts
from ..runtime.tasks import placed_like_file, thread_buffer
from ..schema.schema import Schema
from .criteo_kernel import PADDING_BYTES, count_newlines
from .raw_file import BOM, ByteSource, RawFile

if TYPE_CHECKING:  # what reads Criteo's lines imports none of Arrow's functions
    from .column_values import DistinctTexts


@dataclass(frozen=True, slots=True)
class Fault:
    """A line that does not match the schema."""

    reason: str
    """Reason under which such lines are counted, ``bad_label`` for one."""
    line_in_block: int
    """Lines before it in the part."""
    text: str
    """Which column, what was found and what was wanted, to follow "line 7"."""
    is_label_off: bool = False
    """The line has one field too few or too many, as one read with the wrong idea of its label would."""
    remedy: str | None = None
    """The change that would make the value good, as the beginning of a hint."""
    file: int | None = None
    """Number of its file in the log, where the part has several."""


_SHOWN_BYTES = 40


def shown_bytes(found: bytes) -> str:
    """Return a text as a message has it, cut short."""
    more = f"... ({len(found)} bytes)" if len(found) > _SHOWN_BYTES else ""
    return repr(found[:_SHOWN_BYTES])[1:] + more


@dataclass(frozen=True, slots=True)
class Part:
    """The good samples of one part of a raw file, and what is wrong with the others."""

    columns: dict[str, Any]
    """Arrow array of each column."""
    num_samples: int
    bad: Counter[str]
    """Bad lines by reason; may be empty if there is a ``fault``."""
    fault: Fault | None
    """The first bad line."""
    num_raw_bytes: int = 0
    """Bytes of the raw file that it was parsed from; of Parquet, its share of them."""
    raw_xxh3_128: str = ""
    """Checksum of these bytes; empty of Parquet, whose file is hashed whole."""
    disorder: Fault | None = None
    """What no line is skipped for: a time before that of the line above, or a quote that is not closed."""
    texts: dict[str, DistinctTexts] = field(default_factory=dict)
    """Distinct texts of each text column, bad lines included."""
    num_other_lines: int = 0
    """Lines that are neither samples nor bad: empty ones, comments, and those that go on with a sample."""
    files: dict[int, Part] = field(default_factory=dict)
    """What each of several files has of the part, by its number in the log; without features."""


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a part as they are read, before their values are; they have their own memory."""

    cells: dict[str, Any]
    """Array of each column, by its name in the log; of Criteo's lines, what is parsed."""
    is_bad: NDArray[np.bool_]
    """(num_rows,); rows that are bad whatever their values are."""
    num_bytes: int = 0
    """Bytes of the text or of the arrays."""
    lines: NDArray[np.int64] | None = None
    """(num_rows,); lines above each in the part, None where each row is a line."""
    why_bad: Callable[[int], str] = str
    """Tells why a row is bad whatever its values are, to follow "line 7"."""
    wrong: Fault | None = None
    """What is wrong with what is between the rows, so that some are lacking."""


class UnreadPart(Protocol):
    """A part that any worker can read and parse alone."""

    @property
    def name(self) -> str:
        """Name of its file in ``columns/``."""
        ...

    def read(self) -> Part | None:
        """Read and parse the part; None where it has no line."""
        ...

    def changed(self, facts: ColumnsFacts) -> int | None:
        """Read the part, and return the number of the first file whose lines are not those of these facts.

        None where there is none, and of parts without checksums.
        """
        ...


class FilePart(UnreadPart, Protocol):
    """A part of one file."""

    def rows(self) -> tuple[Rows, Part] | None:
        """Read the part but no value; next to its rows is the part without columns, if all are good."""
        ...


@runtime_checkable
class UnreadParts(Protocol):
    """Parts that one worker reads one after another: only reading shows where the next one begins."""

    def unread(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart]:
        """Yield each part; those among the files ``finished`` may be left unread."""
        ...


class RawParts:
    """The parts of one raw file."""

    schema: Schema
    """The schema to read it with."""
    has_label: bool
    """Whether rows have labels, if the schema names one."""
    unit: str = "line"
    """Word for a row in messages: line or row."""
    num_header_lines: int = 0
    """Lines above the first row."""
    min_line_bytes: int = 0
    """Length that no line is shorter than; 0 where that is not known."""
    is_hashed_whole: bool = False
    """Whether the parts have no checksums, so that the file is hashed before they are read."""

    @property
    def is_in_order(self) -> bool:
        """Whether only reading the file shows where its parts begin, as of a compressed text."""
        return False

    def iterate(self, finished: Mapping[str, FileEntry]) -> Iterator[FilePart]:
        """Yield each part in order; those among the files ``finished`` may be left unread.

        What is read in order is in the parts: threads parse it while the next part is read.
        """
        raise NotImplementedError

    def parse_rows(self, rows: Rows) -> Part:
        """Read the values of rows, perhaps of several files."""
        raise NotImplementedError

    def unread(self, finished: Mapping[str, FileEntry]) -> Iterator[FilePart]:
        """Yield each part, as `UnreadParts` do."""
        return self.iterate(finished)

    def describe(self, finished: Mapping[str, FileEntry]) -> Iterator[UnreadPart | UnreadParts]:
        """Yield the parts in order as workers on any machine take them: without data of the file."""
        if self.is_in_order:
            yield self
        else:
            yield from self.iterate(finished)


MAX_LINE_BYTES = 1 << 20
"""A longer line is refused: it does not come from a click log, and it must not fill the memory."""
UTF_8 = "utf-8"
UTF_16_MARKS = (b"\xff\xfe", b"\xfe\xff")
"""Byte order marks of a text in UTF-16, in either order of bytes."""
QUOTE = "bad_quote"
"""Reason of a quote that is not closed as it should be."""
_TAIL_BYTES = 1 << 16
"""Bytes read at a time to complete a block's last line."""
_NEWLINE = 10
MAX_PIECE_BYTES = 1 << 20
"""Bytes of a plain file that are read at a time to find where its records begin."""
_PIECE_BYTES = 256 * KIB
"""Bytes that are read, counted and hashed at a time, so that the last two find them in the cache."""


class TextTally:
    """The lines and the checksum of a text that is read piece by piece."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self.num_lines = 0
        self._digest = xxhash.xxh3_128()

    def add(self, text: NDArray[np.uint8]) -> None:
        """Count and hash ``text``, (num_bytes,)."""
        self.num_bytes += text.shape[0]
        for first in range(0, text.shape[0], _PIECE_BYTES):
            piece = text[first : first + _PIECE_BYTES]
            self._digest.update(piece.data)
            self.num_lines += int(count_newlines(piece))

    @property
    def xxh3_128(self) -> str:
        """Checksum so far, hex."""
        return str(self._digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one file, ending in a newline, followed by PADDING_BYTES zeros."""

    text: NDArray[np.uint8]
    num_bytes: int
    """Bytes of the lines; a newline that the end of the file lacked is counted in."""
    start: int = 0
    """Where they begin in the text of the file (bytes)."""
    tally: TextTally | None = None
    """Tally of the lines that begin in the block; None where they are not counted and hashed yet."""

    def tallied(self) -> Block:
        """Return this block with the tally of its lines."""
        if self.tally is not None:
            return self
        tally = TextTally()
        tally.add(self.lines)
        return replace(self, tally=tally)

    @property
    def num_lines(self) -> int:
        """Lines of the block."""
        return self.tally.num_lines if self.tally is not None else int(count_newlines(self.lines))

    @property
    def lines(self) -> NDArray[np.uint8]:
        """The bytes without the padding."""
        return self.text[: self.num_bytes]

    def read(self) -> Block:
        """Return this block: one of a compressed file is read as soon as it is found."""
        return self

    def extended(self, more: NDArray[np.uint8]) -> Block:
        """Return this block with the lines after it that go on with its last record; they are not tallied."""
        if not more.shape[0]:
            return self
        text = np.concatenate([self.lines, more, np.zeros(PADDING_BYTES, np.uint8)])
        return replace(self.tallied(), text=text, num_bytes=self.num_bytes + more.shape[0])


def bytes_of_mark(block: Block) -> int:
    """Return the length of the byte order mark at the beginning of a text: 3 or 0."""
    return len(BOM) if block.start == 0 and bytes(block.lines[: len(BOM)]) == BOM else 0


def without_mark(block: Block) -> Block:
    """Return a block without the byte order mark that it may begin with."""
    first = bytes_of_mark(block)
    return replace(
        block, text=block.text[first:], num_bytes=block.num_bytes - first, start=block.start + first
    )


@dataclass(frozen=True, slots=True)
class PlainBlock:
    """A block of a plain file that is not read yet."""

    raw: RawFile
    start: int
    """First byte of the range in which its lines start."""
    block_bytes: int
    """Bytes of that range."""
    in_thread_buffer: bool
    more: NDArray[np.uint8] = field(default_factory=lambda: np.empty(0, np.uint8))
    """Lines after them that go on with the last record."""

    def extended(self, more: NDArray[np.uint8]) -> PlainBlock:
        """Return this block with the lines after it that go on with its last record; they are not tallied."""
        return replace(self, more=more)

    def read(self) -> Block:
        """Read the lines that start in ``[start, start + block_bytes)``."""
        try:
            return self._read().extended(self.more)
        except OSError as error:
            raise InputError(f"{self.raw.path} cannot be read: {error.strerror}") from error

    def _read(self) -> Block:
        with open(self.raw.path, "rb", buffering=0) as file:
            # Read from one byte earlier: a newline there means that a line starts at ``start``.
            first = max(self.start - 1, 0)
            file.seek(first)
            wanted = self.start - first + self.block_bytes
            shape = (mmap.PAGESIZE + wanted + _TAIL_BYTES + PADDING_BYTES,)
            memory = (
                thread_buffer("text", shape, np.uint8) if self.in_thread_buffer else np.empty(shape, np.uint8)
            )
            text = placed_like_file(memory, first)
            source = ByteSource(self.raw, file.readinto, self.raw.num_bytes - first)
            tally = TextTally()
            # The line that is under way at ``start`` belongs to a block before.
            begin = 0 if self.start == 0 else None
            filled = 0
            for stop in (*range(_PIECE_BYTES, wanted, _PIECE_BYTES), wanted):
                num_bytes = source.fill(text[filled:stop])
                if begin is None:
                    begin = _after_newline(text, filled, filled + num_bytes)
                if begin is not None:
                    tally.add(text[max(begin, filled) : filled + num_bytes])
                filled += num_bytes
                if filled < stop:
                    break
            if begin is None or begin >= filled:
                return _no_lines()

            # The last line is read to its end, into the next block's range.
            end = filled
            if filled == wanted:
                text, end, _ = _complete_line(self.raw, source, text, filled, filled)
            block = _finish(self.raw, text, begin, end)
            tally.add(block.lines[filled - begin :])
            return replace(block, start=first + begin, tally=tally)


def iterate_blocks(
    raw: RawFile, block_bytes: int, *, in_thread_buffer: bool = False, encoding: str = UTF_8
) -> Iterator[PlainBlock | Block]:
    """Yield each block of ``raw``, whose method ``read`` gives its text; plain files are not read before.

    Text in another encoding than UTF-8 is decoded in order, and its blocks are those of its text in UTF-8.

    Args:
        in_thread_buffer: a block is valid until its thread reads the next one into the same memory.

    Raises:
        InputError: the file cannot be read or decompressed, or a line exceeds MAX_LINE_BYTES.
    """
    if raw.compression is None and encoding == UTF_8:
        for start in range(0, raw.num_bytes, block_bytes):
            yield PlainBlock(raw, start, block_bytes, in_thread_buffer)
        return
    with open(raw.path, "rb", buffering=0) if raw.compression is None else raw.open_decompressed() as stream:
        readable = stream if encoding == UTF_8 else _Decoded(raw, stream, encoding)
        yield from _streamed_blocks(raw, ByteSource(raw, readable.readinto), count(block_bytes, block_bytes))


def iterate_pieces(raw: RawFile, block_bytes: int) -> Iterator[Iterator[Block]]:
    """Yield the lines of each block of a plain file in pieces, which are read as they are used."""
    num_pieces = -(-block_bytes // MAX_PIECE_BYTES)
    ends = (
        start + block_bytes * piece // num_pieces
        for start in count(0, block_bytes)
        for piece in range(1, num_pieces + 1)
    )
    with open(raw.path, "rb", buffering=0) as file:
        pieces = _streamed_blocks(raw, ByteSource(raw, file.readinto, raw.num_bytes), ends)
        for _ in range(0, raw.num_bytes, block_bytes):
            yield islice(pieces, num_pieces)


class _Decoded:
    """A stream of text in UTF-8 from one in another encoding."""

    def __init__(self, raw: RawFile, stream: Any, encoding: str) -> None:
        self._path = raw.path
        self._stream = stream
        self._encoding = encoding
        self._decoder = codecs.getincrementaldecoder(encoding)()
        self._num_read = 0
        self._text = memoryview(b"")

    def readinto(self, into: Any) -> int:
        """Fill the start of ``into`` and return the bytes; 0 at the end of the text."""
        while not self._text:
            data = self._stream.read(_PIECE_BYTES)
            try:
                self._text = memoryview(self._decoder.decode(data, not data).encode())
            except UnicodeError as error:
                raise InputError(
                    f"{self._path} is not {self._encoding}: bytes {self._num_read:,} to "
                    f"{self._num_read + len(data):,} cannot be decoded",
                    hint='give the log\'s encoding in its schema, such as encoding = "latin-1"',
                ) from error
            self._num_read += len(data)
            if not data:
                break
        filled = min(len(into), len(self._text))
        into[:filled] = self._text[:filled]
        self._text = self._text[filled:]
        return filled


def _streamed_blocks(raw: RawFile, source: ByteSource, ends: Iterator[int]) -> Iterator[Block]:
    """Yield the blocks of a text that is read in order; ``ends`` are those of their ranges (bytes)."""
    carried = np.empty(0, np.uint8)  # bytes read beyond the last block's last line
    position = 0  # of the first of them in the file's text
    for limit in ends:
        wanted = limit - position
        have = carried.shape[0]
        text = np.empty(max(wanted, have) + _TAIL_BYTES + PADDING_BYTES, np.uint8)
        text[:have] = carried
        total = have + (source.fill(text[have:wanted]) if wanted > have else 0)
        if total == 0 and wanted > 0:
            return

        # A line longer than a block leaves ``wanted`` at 0 or below: no line starts in this range.
        end = min(total, max(wanted, 0))
        if end == wanted and end > 0:
            text, end, total = _complete_line(raw, source, text, wanted, total)
        carried = text[end:total].copy()
        yield replace(_finish(raw, text, 0, end), start=position) if end else _no_lines()
        position += end


def _complete_line(
    raw: RawFile, source: ByteSource, text: NDArray[np.uint8], wanted: int, total: int
) -> tuple[NDArray[np.uint8], int, int]:
    """Read on after ``text[:total]`` until the line of byte ``wanted - 1`` is whole.

    Returns:
        The array (perhaps a larger one), where the line ends in it, and the bytes it now holds.
    """
    end = _after_newline(text, wanted - 1, total)
    while end is None:
        if total - wanted > MAX_LINE_BYTES:
            raise _too_long(raw)
        if text.shape[0] < total + _TAIL_BYTES + PADDING_BYTES:
            text = np.concatenate([text[:total], np.empty(_TAIL_BYTES + PADDING_BYTES, np.uint8)])
        count = source.fill(text[total : total + _TAIL_BYTES])
        end = _after_newline(text, total, total + count)
        total += count
        # The last line of a file may lack its newline: it ends where the file does.
        if count < _TAIL_BYTES and end is None:
            end = total
    return text, end, total


def _finish(raw: RawFile, text: NDArray[np.uint8], start: int, end: int) -> Block:
    """Return ``text[start:end]`` as a block: with a newline at its end, and padding."""
    _refuse_long_line(raw, text, start, end)
    if end + 1 + PADDING_BYTES > text.shape[0]:
        text = np.concatenate([text[:end], np.empty(1 + PADDING_BYTES, np.uint8)])
    if text[end - 1] != _NEWLINE:
        text[end] = _NEWLINE
        end += 1
    text[end : end + PADDING_BYTES] = 0
    return Block(text[start : end + PADDING_BYTES], end - start)


def _refuse_long_line(raw: RawFile, text: NDArray[np.uint8], start: int, end: int) -> None:
    """Raise InputError where a line of ``text[start:end]`` is too long, wherever blocks end."""
    first = start
    while end - first > MAX_LINE_BYTES:
        # Skip all lines that end within the greatest length: no line among them is longer.
        for stop in range(first + MAX_LINE_BYTES + 1, first, -4096):
            low = max(first, stop - 4096)
            found = text[low:stop].tobytes().rfind(b"\n")
            if found >= 0:
                first = low + found + 1
                break
        else:
            raise _too_long(raw)


def _too_long(raw: RawFile) -> InputError:
    return InputError(
        f"{raw.path}: a line is longer than {format_byte_size(MAX_LINE_BYTES)}",
        hint="give a log of text lines; `hotset schema --help` lists the formats",
    )


def _after_newline(text: NDArray[np.uint8], start: int, stop: int) -> int | None:
    """Return the position after the first newline in ``text[start:stop]``."""
    found = text[start:stop].tobytes().find(b"\n")
    return start + found + 1 if found >= 0 else None


def _no_lines() -> Block:
    """Return the block of a range in which no line starts."""
    return Block(np.zeros(PADDING_BYTES, np.uint8), 0)
