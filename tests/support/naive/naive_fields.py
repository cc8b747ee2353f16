"""Slow twins that split text into records and their fields, and read integers."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING


@dataclass(frozen=True)
class Marks:
    """Marks of a text, as a schema has them."""

    separator: bytes = b","
    quote: bytes = b'"'
    """Empty where there is none, as each of the next two."""
    escape: bytes = b""
    comment: bytes = b""
    trim: bool = False

    def is_blank(self, text: bytes, position: int) -> bool:
        is_separator = text.startswith(self.separator, position)
        return self.trim and text[position : position + 1] in (b" ", b"\t") and not is_separator

    def escaped(self, text: bytes, position: int, *, in_quotes: bool) -> bytes:
        """What the escape at a position takes as it is; nothing where it is no escape."""
        if not self.escape or not text.startswith(self.escape, position):
            return b""
        marks = [self.escape, self.quote, self.separator, *([b"\n", b"\r"] if in_quotes else [])]
        return next((mark for mark in marks if mark and text.startswith(mark, position + 1)), b"")


Records = list[tuple[int, list[bytes]]]
"""Records with the lines above each."""
Broken = tuple[str, int, int]
"""Why splitting ended, lines above the quote that is wrong, and its field."""


def naive_records(text: bytes, marks: Marks) -> tuple[Records, Broken | None]:
    """Split a text whose last line has its end."""
    records: Records = []
    position = line = 0
    while position < len(text):
        end = text.index(b"\n", position)
        is_comment = bool(marks.comment) and text.startswith(marks.comment, position)
        if is_comment or not text[position:end].strip(b"\r"):
            position = end + 1
            line += 1
            continue
        fields: list[bytes] = []
        start = position
        while True:
            while marks.is_blank(text, position):
                position += 1
            is_quoted = bool(marks.quote) and text.startswith(marks.quote, position)
            opened = line + text.count(b"\n", start, position)
            found = _quoted(text, position + 1, marks) if is_quoted else _plain(text, position, marks)
            if found is None:
                return records, ("unclosed", opened, len(fields))
            field, position = found
            after = position + len(text[position:]) - len(text[position:].lstrip(b"\r"))
            if is_quoted and text.startswith(b"\n", after):
                position = after
            elif is_quoted and not text.startswith(marks.separator, position):
                return records, ("trailing", opened, len(fields))
            fields.append(field)
            if text.startswith(b"\n", position):
                break
            position += len(marks.separator)
        records.append((line, fields))
        position += 1
        line += text.count(b"\n", start, position)
    return records, None


def _quoted(text: bytes, position: int, marks: Marks) -> tuple[bytes, int] | None:
    field = b""
    while position < len(text):
        taken = marks.escaped(text, position, in_quotes=True)
        if taken:
            position += 1
        elif text.startswith(marks.quote * 2, position):
            position += 1
            taken = marks.quote
        elif text.startswith(marks.quote, position):
            position += 1
            while marks.is_blank(text, position):
                position += 1
            return field, position
        else:
            taken = text[position : position + 1]
        field += taken
        position += len(taken)
    return None


def _plain(text: bytes, position: int, marks: Marks) -> tuple[bytes, int]:
    field = b""
    while not text.startswith((b"\n", marks.separator), position):
        taken = marks.escaped(text, position, in_quotes=False)
        position += bool(taken)
        taken = taken or text[position : position + 1]
        field += taken
        position += len(taken)
    if text.startswith(b"\n", position):
        field = field.rstrip(b"\r")
    return (field.rstrip(b" \t") if marks.trim else field), position


def naive_integer(field: bytes, least: int, most: int, *, are_codes: bool = False) -> tuple[int, int]:
    """Value modulo 2**64, and state; digits after a leading 0 are bad where integers are codes."""
    if not field:
        return 0, MISSING
    if not re.fullmatch(rb"-?[0-9]+(\.0*)?", field):
        return 0, BAD
    if are_codes and re.match(rb"-?0[0-9]", field):
        return 0, BAD
    value = int(field.split(b".")[0])
    return (value % 2**64, GOOD) if least <= value <= most else (0, BAD)
