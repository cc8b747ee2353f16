"""Slow twins that split a line of text into fields and read integers."""

from __future__ import annotations

import re

from hotset.pipeline.raw.text_fields import BAD, GOOD, MISSING

_QUOTED = re.compile(rb'"((?:[^"]|"")*)"', re.S)


def naive_fields(line: bytes, separator: bytes) -> list[bytes] | None:
    """The fields of a line without its newline; None where a quote is not closed at a field's end."""
    fields, position = [], 0
    while True:
        if line[position : position + 1] == b'"':
            quoted = _QUOTED.match(line, position)
            if quoted is None:
                return None
            field, position = quoted[1].replace(b'""', b'"'), quoted.end()
            position += line[position:] == b"\r"
            if line[position : position + 1] not in (b"", separator):
                return None
        else:
            end = line.find(separator, position)
            field = line[position:].removesuffix(b"\r") if end < 0 else line[position:end]
            position = len(line) if end < 0 else end
        fields.append(field)
        if position >= len(line):
            return fields
        position += 1


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
