"""Infer how a text log is written: encoding, lines above the header, comments, separator, quotes, escapes.

Dialects are tried on a few hundred records. The one that splits most of them into equally many fields is
taken; of equal ones that which splits the first record so, then the separator that values rarely contain.
"""

from __future__ import annotations

import codecs
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import MIB, InputError, format_byte_size
from .infer_column import texts_of
from .raw.criteo_kernel import PADDING_BYTES
from .raw.csv_parts import NO_COLUMNS, WHOLE, dialect_of, find_records, refuse_returns
from .raw.part import UTF_8, PlainBlock, iterate_blocks
from .raw.raw_file import RawFile
from .raw.text_fields import arrays_of
from .schema.schema import Schema

_CHUNK_BYTES = MIB
"""Bytes that are looked at in each place of a log."""
_TRIED_LINES = 300
_MOST_BROKEN = 1000
"""Wrong quotes up to which a text is looked at."""
_TYPED_RECORDS = 50
_MOST_SKIPPED = 50
"""Records that may be titles above the header."""
_SEPARATORS = ("\t\x01\x1f", ",;", "|", " ")
"""Characters between fields, by how rarely values contain them."""
_LONG_SEPARATORS = ("::", "|||", "||", "^^", "~~", "##", "@@", "&&", "$$", "~|~")
_QUOTES = (('"', None), ('"', "\\"), (None, None), ("'", None), (None, "\\"))
"""Quotes and escapes, the usual ones first."""
_COMMENTS = ("#", "//", "--", "%")
_TYPED = re.compile(r"\s*([+-]?\d*[.,]?\d+([eE][+-]?\d+)?|\d{1,4}[-/.]\d\d?[-/.]\d{1,4}([ T].*)?)?\s*")
"""A number, a time or nothing."""
_APOSTROPHES = re.compile("'.*'", re.DOTALL)
_PAIRS = re.compile(rb"(?:[\x00-\x7f]|[\xa1-\xfe]{2})*")
"""Text whose bytes beyond ASCII come in pairs, as in Chinese encodings."""


@dataclass(frozen=True, slots=True)
class Sample:
    """Lines from the beginning of a log, and from its middle and end."""

    text: bytes
    """Whole lines, in UTF-8 where the log is decoded."""
    starts: bytes
    """The first lines of each place, by which dialects are tried."""
    encoding: str
    is_whole: bool
    """Whether the lines are the whole log."""
    places: str
    """Description of where the lines are."""
    num_known: int
    """Lines from the beginning, whose numbers are those of the log."""
    seams: tuple[int, ...] = ()
    """Lines of the text before which the log goes on elsewhere."""
    starts_seams: tuple[int, ...] = ()
    """The same of the first lines."""
    is_guessed: bool = False
    """Whether another encoding would do as well."""


def read_sample(file: RawFile) -> Sample:
    """Read the first, the middle and the last MiB of a log, of a compressed one the first three.

    Raises:
        InputError: the file cannot be read, is empty or holds no text.
    """
    first = next((block.read() for block in iterate_blocks(file, _CHUNK_BYTES)), None)
    if first is None or not first.num_bytes:
        raise InputError(f"{file.path} is empty")
    encoding, is_guessed = _encoding_of(first.lines.tobytes())
    if encoding == UTF_8 and not first.lines.all():
        raise InputError(f"{file.path} is neither Parquet nor text: its first lines have bytes of 0")
    refuse_returns(file, first)
    blocks = iterate_blocks(file, _CHUNK_BYTES, encoding=encoding)
    chunks = [block.read().lines.tobytes() for block in islice(blocks, 3)]
    is_whole = next(blocks, None) is None
    places = "its first 3 MiB"
    are_spread = file.compression is None and encoding == UTF_8 and not is_whole
    if are_spread:
        places = f"the first, the middle and the last MiB of {format_byte_size(file.num_bytes)}"
        starts = (file.num_bytes // 2, file.num_bytes - _CHUNK_BYTES)
        chunks[1:] = [PlainBlock(file, start, _CHUNK_BYTES, False).read().lines.tobytes() for start in starts]
    num_known = sum(chunk.count(b"\n") for chunk in (chunks[:1] if are_spread else chunks))
    chunks[0] = chunks[0].removeprefix(codecs.BOM_UTF8)
    rests = [chunk.split(b"\n", _TRIED_LINES)[_TRIED_LINES:] for chunk in chunks]
    heads = [chunk.removesuffix(b"".join(rest)) for chunk, rest in zip(chunks, rests, strict=True)]
    gaps = [are_spread] * (len(chunks) - 1) + [not is_whole and not are_spread]
    return Sample(
        b"".join(chunks),
        b"".join(heads),
        encoding,
        is_whole,
        places,
        num_known,
        seams=_seams(chunks, gaps),
        starts_seams=_seams(heads, [any(rest) or gap for rest, gap in zip(rests, gaps, strict=True)]),
        is_guessed=is_guessed,
    )


def _seams(pieces: Sequence[bytes], gaps: Sequence[bool]) -> tuple[int, ...]:
    """Return the number of the line after each piece behind which there is a gap."""
    ends = accumulate(piece.count(b"\n") for piece in pieces)
    return tuple(end + 1 for end, gap in zip(ends, gaps, strict=True) if gap)


def _encoding_of(start: bytes) -> tuple[str, bool]:
    """Return the encoding of a text by its first bytes, and whether it is a guess."""
    if start.startswith((codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)):
        return "utf-32", False
    if start.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return "utf-16", False
    # Without a mark: most text of tables is ASCII, whose units of two bytes have one of 0.
    even, odd = start[::2], start[1::2]
    for encoding, high, low in (("utf-16-le", odd, even), ("utf-16-be", even, odd)):
        if high.count(0) > 0.8 * len(high) and not low.count(0):
            return encoding, False
    # Bytes of values may be anything, but names of columns are read as text.
    header = start.partition(b"\n")[0]
    if header.decode("utf-8", "replace").encode() == header:
        return UTF_8, False
    is_double = _PAIRS.fullmatch(header) and "\ufffd" not in start.decode("gb18030", "replace")
    return "gb18030" if is_double else "iso8859-1", True


@dataclass(frozen=True, slots=True)
class Split:
    """A dialect, and the records that it makes of a text."""

    dialect: Schema
    num_fields: int
    """Fields of most records."""
    text: NDArray[np.uint8]
    counts: NDArray[np.int64]
    """(num_records,); fields of each, -1 where a quote is wrong."""
    lines: NDArray[np.int64]
    """(num_records,); number of the first line of each."""
    starts: NDArray[np.int64]
    """(num_fields + 1, num_records); first byte of each field."""
    stops: NDArray[np.int64]
    """As ``starts``; one past the last byte."""
    seams: tuple[int, ...] = ()
    """Lines before which the text goes on elsewhere: a record may be cut there."""

    @property
    def usual(self) -> NDArray[np.intp]:
        """The records that have as many fields as most."""
        return np.flatnonzero(self.counts == self.num_fields)

    @property
    def _cuts(self) -> NDArray[np.intp]:
        """Numbers of the usual records at or behind which the seams are."""
        return np.searchsorted(self.lines[self.usual], self.seams)

    @property
    def whole(self) -> NDArray[np.intp]:
        """The usual records that are not next to a seam."""
        near = np.concatenate([self._cuts - 1, self._cuts])
        return np.delete(self.usual, near[(near >= 0) & (near < self.usual.size)])

    @property
    def odd(self) -> NDArray[np.intp]:
        """The other records; those between two usual ones where a seam is say nothing."""
        odd = np.flatnonzero(self.counts != self.num_fields)
        places = np.searchsorted(self.lines[self.usual], self.lines[odd])
        return odd[~np.isin(places, self._cuts)]

    def columns(self, records: NDArray[np.intp]) -> list[Any]:
        """Return each field of records as a column."""
        ends = (of_fields[: self.num_fields, records] for of_fields in (self.starts, self.stops))
        return arrays_of(self.text, *ends)

    def fields_of(self, record: int) -> list[str]:
        """Return the fields of one record, at most one more than most have."""
        ends = zip(self.starts[:, record].tolist(), self.stops[:, record].tolist(), strict=True)
        texts = [self.text[start:stop].tobytes().decode("utf-8", "backslashreplace") for start, stop in ends]
        return texts[: max(0, int(self.counts[record]))]

    def texts(self, records: NDArray[np.intp]) -> list[list[str]]:
        """Return each field of records as a column of texts that are not empty."""
        return [list(filter(None, texts_of(column))) for column in self.columns(records)]

    @property
    def fit(self) -> tuple[float, ...]:
        """How well the records fit together, for comparison.

        These are: the share of those with as many fields as most, 1 where a few are odd, which do not speak
        against a way to split; whether the first one is among them; how many fields are numbers, times or ids
        in all of the next ones.
        """
        share = self.usual.size / max(1, self.usual.size + self.odd.size)
        has_header = bool(self.usual.size) and bool(self.usual[0] == 0)
        typed = (all(map(_TYPED.fullmatch, column)) for column in self.texts(self.whole[1:_TYPED_RECORDS]))
        return share if share < 0.9 else 1.0, has_header, sum(typed)

    @property
    def rank(self) -> tuple[float, ...]:
        """How well the separator splits, for comparison."""
        separator = self.dialect.separator
        tier = next((number for number, each in enumerate(_SEPARATORS) if separator in each), 2.5)
        share, has_header, num_typed = self.fit
        is_sure = self.num_fields > 1 and separator != " "  # blanks may follow any separator
        return (
            *(is_sure and share == 1, self.num_fields > 1, share, has_header),
            *(-tier, num_typed, self.num_fields),
        )


def split_text(content: bytes, dialect: Schema, num_fields: int = 0, seams: tuple[int, ...] = ()) -> Split:
    """Split whole lines into records, as ingest does; after a wrong quote the next line begins one.

    ``num_fields`` is that of most records, 0 where it has to be found.
    """
    text = np.frombuffer(content + bytes(PADDING_BYTES), np.uint8).copy()
    begin = 0
    for _ in range(dialect.skip):
        begin = content.find(b"\n", begin) + 1 or len(content)
    if not num_fields:
        # Most lines decide: the first one may be a title, or lack what ends the others.
        counts = _find(content, text, begin, dialect, NO_COLUMNS)[0]
        usual = Counter((counts[1:] if counts.shape[0] > 1 else counts).tolist())
        del usual[-1]
        num_fields = usual.most_common(1)[0][0] if usual else 0
    counts, lines, *ends = _find(content, text, begin, dialect, np.arange(num_fields + 1))
    return Split(dialect, num_fields, text, counts, lines, ends[0], ends[1], seams)


def _find(
    content: bytes, text: NDArray[np.uint8], begin: int, dialect: Schema, columns: NDArray[np.int64]
) -> tuple[NDArray[np.int64], ...]:
    """Return the number of fields and the first line of each record, and where its fields begin and end."""
    parts: list[tuple[NDArray[np.int64], ...]] = []
    is_whole = False
    while not is_whole and len(parts) < _MOST_BROKEN:
        found = find_records(text, begin, len(content), dialect_of(dialect), columns)
        is_whole = found.status == WHOLE
        above = content.count(b"\n", 0, begin) + 1
        # A record with a wrong quote is one without fields.
        wrong = np.zeros((columns.shape[0], 0 if is_whole else 1), np.int64)
        counts = np.append(found.num_fields, np.full(wrong.shape[1], -1))
        lines = np.append(found.lines, np.full(wrong.shape[1], found.line)) + above
        starts, stops = (np.append(ends, wrong, axis=1) for ends in (found.starts, found.stops))
        parts.append((counts, lines, starts, stops))
        begin = content.find(b"\n", found.end) + 1 or len(content)
    return tuple(np.concatenate(each, axis=-1) for each in zip(*parts, strict=True))


def find_dialect(starts: bytes, seams: tuple[int, ...] = ()) -> Split:
    """Return the dialect that splits most records into equally many fields.

    ``seams`` are lines before which the log goes on elsewhere.
    """
    # Excel reads the separator from a line above the header.
    told = re.match(rb'"?sep=([^"\r\n])"?\r*\n', starts)
    basis = Schema((), (), format="csv", skip=1 if told else 0)
    separators = [*_LONG_SEPARATORS, *"".join(_SEPARATORS)] if told is None else [told[1].decode("latin-1")]
    # The usual quotes come first, and stay unless others split better.
    quotes = [
        {"quote": quote, "escape": escape}
        for quote, escape in _QUOTES
        if (escape or "").encode() in starts and (quote != "'" or b"'" in starts)
    ]

    def split(like: Schema, **keys: Any) -> Split:
        return split_text(starts, replace(like, **keys), seams=seams)

    there = [separator for separator in separators if separator.encode() in starts]
    tried = (split(basis, separator=separator, **each) for separator in there for each in quotes)
    best = max(tried, key=lambda split: split.rank, default=split(basis))
    # Two bars between fields look like one with an empty field between them.
    single = best.dialect.separator
    rows = list(zip(*map(texts_of, best.columns(best.usual)), strict=True))
    longer = (long for long in _LONG_SEPARATORS if all(_are_between(long, single, row) for row in rows))
    best = next((split(best.dialect, separator=long) for long in longer if rows), best)
    # Without quotes, each half of a record of two lines may have as many fields as others, but the header,
    # or as the header, but other values. With quotes, rows between two that stand alone become one field.
    tried = (split(best.dialect, trim=trim, **each) for each in quotes for trim in (False, True))

    def held(each: Split) -> tuple[float, ...]:
        share, has_header, num_typed = each.fit
        return has_header, share, num_typed, each.usual.size, each.usual.size / max(1, each.counts.size)

    best = max(tried, key=held)
    columns = best.texts(best.whole[1:])
    # An apostrophe is a quote where a whole column has it around.
    if any(column and all(map(_APOSTROPHES.fullmatch, column)) for column in columns):
        best = split(best.dialect, quote="'")
    is_padded = any(column and all(field != field.strip(" \t") for field in column) for column in columns)
    trim = best.dialect.trim or (is_padded and best.dialect.separator != " ")
    return split(best.dialect, comment=_comment_of(starts, best), trim=trim)


def _are_between(long: str, single: str, fields: Sequence[str]) -> bool:
    """Return whether what one character separates is separated by several, of which it is one."""
    size = long.count(single)
    if size == len(long):
        return len(fields) % size == 1 and not any(
            field for place, field in enumerate(fields) if place % size
        )
    before, _, after = long.partition(single)
    return size > 0 and all(
        one.endswith(before) and other.startswith(after) for one, other in pairwise(fields)
    )


def _comment_of(starts: bytes, split: Split) -> str | None:
    """Return what begins lines below the header none of which is split like the others."""
    usual = set(split.lines[split.usual].tolist())
    odd = set(split.lines.tolist()) - usual
    for mark in _COMMENTS:
        lines = enumerate(starts.split(b"\n"), 1)
        found = {number for number, line in lines if line.startswith(mark.encode())}
        if found and found <= odd and max(found) > min(usual, default=0):
            return mark
    return None


def count_titles(split: Split) -> int:
    """Return the number of records above the first one that has as many fields as most."""
    first = int(split.usual[0]) if split.usual.size else 0
    return first if first < _MOST_SKIPPED else 0
