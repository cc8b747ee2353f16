"""Raw files as blocks of whole lines, cut where the bytes say and not where the workers are.

Block k of a file holds the lines that *start* in bytes [k * block_bytes, (k + 1) * block_bytes) of its
uncompressed text, so plain and compressed copies of a log give the same blocks. Plain files are read
at any block, by any thread; compressed ones are decompressed once, in order, beside the parsers: zstd at
1.6 GB/s, gzip at 0.44 GB/s, which is then what bounds `ingest` (1.8 M samples/s of Criteo's).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..errors import InputError
from ..runtime.thread_buffers import scratch
from .criteo_kernel import PADDING_BYTES

MAX_LINE_BYTES = 1 << 20
"""A longer line is refused: it is no click log, and it must not fill the memory."""
_TAIL_BYTES = 1 << 16
_NEWLINE = 10
_Fill = Callable[[NDArray[np.uint8]], int]
"""Reads into an array until it is full or the file ends; says the bytes read."""
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd"}


@dataclass(frozen=True, slots=True)
class RawFile:
    """A raw file as it was found when the run began."""

    path: Path
    num_bytes: int
    """Bytes on disk, compressed where it is."""
    compression: str | None

    @classmethod
    def look_at(cls, path: Path) -> RawFile:
        """Raises InputError where ``path`` is no readable file; a pipe, which would wait, is none."""
        try:
            status = path.stat()
            if not stat.S_ISREG(status.st_mode) and not stat.S_ISDIR(status.st_mode):
                raise InputError(
                    f"{path} is not a plain file", hint="write the log to a file first: it is read in parts"
                )
            with open(path, "rb") as file:
                start = file.read(4)
            num_bytes = status.st_size
        except OSError as error:
            raise InputError(f"{path} cannot be read: {error.strerror}") from error
        found = [name for magic, name in _COMPRESSIONS.items() if start.startswith(magic)]
        return cls(path, num_bytes, found[0] if found else None)


@dataclass(frozen=True, slots=True)
class Block:
    """Whole lines of one file, ending in a newline, with PADDING_BYTES zeros behind them."""

    text: NDArray[np.uint8]
    num_bytes: int
    """Bytes of the lines; a newline that the end of the file lacked is counted in."""

    @property
    def lines(self) -> NDArray[np.uint8]:
        """The bytes without the padding."""
        return self.text[: self.num_bytes]


def iterate_blocks(
    raw: RawFile, block_bytes: int, *, in_scratch: bool = False
) -> Iterator[Callable[[], Block]]:
    """Yield a function for each block of ``raw`` that reads it; plain files are not read before it is called.

    Args:
        in_scratch: a block is valid until its thread reads the next one, whose memory is the same.

    Raises:
        InputError: the file cannot be read or decompressed, or a line exceeds MAX_LINE_BYTES.
    """
    if raw.compression is None:
        for start in range(0, raw.num_bytes, block_bytes):
            yield partial(_read_plain, raw, start, block_bytes, in_scratch)
    else:
        for block in _stream(raw, block_bytes):
            yield partial(_as_read, block)


def _as_read(block: Block) -> Block:
    return block


def _read_plain(raw: RawFile, start: int, block_bytes: int, in_scratch: bool) -> Block:
    """The lines that start in ``[start, start + block_bytes)``."""
    try:
        with open(raw.path, "rb", buffering=0) as file:
            first = max(start - 1, 0)
            file.seek(first)
            wanted = start - first + block_bytes
            shape = (wanted + _TAIL_BYTES + PADDING_BYTES,)
            text = scratch("text", shape, np.uint8) if in_scratch else np.empty(shape, np.uint8)
            fill = _within(raw, first, _filler(raw, file.readinto))
            filled = fill(text[:wanted])
            skipped = 0 if start == 0 else _after_newline(text, 0, filled)
            if skipped is None or skipped >= filled:
                return Block(np.zeros(PADDING_BYTES, np.uint8), 0)
            end = filled
            if filled == wanted:
                text, end, _ = _read_on(raw, fill, text, filled, filled)
            return _finish(text, skipped, end)
    except OSError as error:
        raise InputError(f"{raw.path} cannot be read: {error.strerror}") from error


def _within(raw: RawFile, first: int, fill: _Fill) -> _Fill:
    """``fill`` from byte ``first`` of the file as it was found: what was added since is not read.

    Raises:
        InputError: the file is shorter now. What it held is not parsed, or a resumed run would keep it.
    """
    position = first

    def fill_within(into: NDArray[np.uint8]) -> int:
        nonlocal position
        wanted: int = min(into.shape[0], raw.num_bytes - position)
        if fill(into[:wanted]) != wanted:
            raise InputError(f"{raw.path} changed while it was read", hint="run again when it is complete")
        position += wanted
        return wanted

    return fill_within


def _stream(raw: RawFile, block_bytes: int) -> Iterator[Block]:
    """The blocks of a compressed file, in order; bytes read past a block's last line open the next."""
    with _open_compressed(raw) as stream:
        fill = _filler(raw, stream.readinto)
        carried, position, limit = np.empty(0, np.uint8), 0, block_bytes
        while True:
            wanted, have = limit - position, carried.shape[0]
            text = np.empty(max(wanted, have) + _TAIL_BYTES + PADDING_BYTES, np.uint8)
            text[:have] = carried
            total = have + (fill(text[have:wanted]) if wanted > have else 0)
            if total == 0 and wanted > 0:
                return
            end = min(total, max(wanted, 0))
            if end == wanted and end > 0:
                text, end, total = _read_on(raw, fill, text, wanted, total)
            carried = text[end:total].copy()
            position, limit = position + end, limit + block_bytes
            yield _finish(text, 0, end) if end else Block(np.zeros(PADDING_BYTES, np.uint8), 0)


def _open_compressed(raw: RawFile) -> Any:
    try:
        return pa.input_stream(str(raw.path), compression=raw.compression, buffer_size=1 << 20)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error).splitlines()[0]
        raise InputError(f"{raw.path} cannot be read: {reason}") from error


def _filler(raw: RawFile, readinto: Callable[[Any], int | None]) -> _Fill:
    """A function that reads until its array is full or the file ends, and says the bytes read."""

    def fill(into: NDArray[np.uint8]) -> int:
        filled = 0
        while filled < into.shape[0]:
            try:
                count = readinto(into.data[filled:])
            except OSError as error:
                raise InputError(
                    f"{raw.path} cannot be read to its end: {str(error).splitlines()[0]}",
                    hint="the file may be cut off or damaged: fetch it again",
                ) from error
            if not count:
                break
            filled += count
        return filled

    return fill


def _read_on(
    raw: RawFile, fill: _Fill, text: NDArray[np.uint8], wanted: int, total: int
) -> tuple[NDArray[np.uint8], int, int]:
    """Read on from ``text[:total]`` until the line of byte ``wanted - 1`` is whole.

    Returns:
        The array (perhaps a larger one), where the line ends in it, and the bytes it now holds.
    """
    end = _after_newline(text, wanted - 1, total)
    while end is None:
        if total - wanted > MAX_LINE_BYTES:
            break
        if text.shape[0] < total + _TAIL_BYTES + PADDING_BYTES:
            text = np.concatenate([text[:total], np.empty(_TAIL_BYTES + PADDING_BYTES, np.uint8)])
        count = fill(text[total : total + _TAIL_BYTES])
        end = _after_newline(text, total, total + count)
        total += count
        if count < _TAIL_BYTES and end is None:
            end = total
    if end is not None:
        return text, end, total
    raise InputError(
        f"{raw.path}: a line is longer than {MAX_LINE_BYTES} bytes", hint="is this a log of text lines?"
    )


def _finish(text: NDArray[np.uint8], start: int, end: int) -> Block:
    """``text[start:end]`` as a block: with a newline at its end, and padding."""
    if end + 1 + PADDING_BYTES > text.shape[0]:
        text = np.concatenate([text[:end], np.empty(1 + PADDING_BYTES, np.uint8)])
    if text[end - 1] != _NEWLINE:
        text[end] = _NEWLINE
        end += 1
    text[end : end + PADDING_BYTES] = 0
    return Block(text[start : end + PADDING_BYTES], end - start)


def _after_newline(text: NDArray[np.uint8], start: int, stop: int) -> int | None:
    """Position after the first newline in ``text[start:stop]``, looked for in small steps."""
    for first in range(start, stop, 4096):
        found = text[first : min(first + 4096, stop)].tobytes().find(b"\n")
        if found >= 0:
            return first + found + 1
    return None
