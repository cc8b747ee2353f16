"""Which known log a file of text is of."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import product

import numpy as np

from ..errors import InputError
from ..schema.schema import Schema
from ..schema.schema_file import KNOWN_LOGS, KnownLog, schema_named
from .csv_parts import SEPARATORS, Header, dialect_of, find_records, read_header, rows_of_records
from .part import Block, iterate_blocks
from .raw_file import RawFile
from .tabular import parse_rows

_KNOWN_BYTES = 1 << 16
"""Bytes of a CSV log that must match a built-in schema for a message to name it."""
_KNOWN_LINES = 100


@dataclass(frozen=True, slots=True)
class Recognised:
    """A known log, as a file has it."""

    name: str
    schema: Schema
    """Its schema, with the separator and the names of columns that the file has."""
    has_label: bool

    @property
    def is_exact(self) -> bool:
        """Whether the file has the form in which the log was published."""
        return self.schema == schema_named(self.name)


def recognise(file: RawFile) -> Recognised | None:
    """Return the known log that a file of text is of; Criteo's own lines are `tells_label`'s.

    Names of columns alone say little: splits of one log share them and differ in their values, and any log
    may have users and items. So a log is known where the header has just its columns, and where its schema
    reads the first 64 KiB without a fault; or by the form of its lines.

    Raises:
        InputError: the file cannot be read.
    """
    if file.read_format() != "text":
        return None
    block = next((block.read() for block in iterate_blocks(file, _KNOWN_BYTES)), None)
    if block is None or not block.num_bytes:
        return None
    lines = [line.decode("utf-8", "replace") for line in block.lines.tobytes().splitlines()[:_KNOWN_LINES]]
    plain = Schema((), (), format="csv")
    headers: dict[str, Header] = {}
    for mark in SEPARATORS:
        with suppress(InputError):  # a quote is wrong
            headers[mark] = read_header(file, replace(plain, separator=mark))
    for name in KNOWN_LOGS:
        known, schema = KnownLog.read(name), schema_named(name)
        if known.line and all(map(known.is_line, lines)):
            return Recognised(name, schema, True)
        for (separator, header), has_label in product(headers.items(), (True, False)):
            names = known.names_of(header.fields, schema.columns(has_label=has_label))
            if names is None:
                continue
            found = _as_in_file(schema, names, separator)
            if _reads(block, found, header, has_label=has_label):
                return Recognised(name, found, has_label)
    return None


def _as_in_file(schema: Schema, names: Mapping[str, str], separator: str) -> Schema:
    """Return a schema with the names of columns that a file has."""
    columns = {feature: names[column] for feature, column in schema.column_of.items()}
    renamed = tuple((feature, column) for feature, column in columns.items() if feature != column)
    label = names.get(schema.label or "", schema.label)
    return replace(schema, separator=separator, label=label, renamed=renamed)


def _reads(block: Block, schema: Schema, header: Header, *, has_label: bool) -> bool:
    """Return whether a schema reads every line of a block that begins with a header."""
    fields = header.fields
    wanted = schema.columns(has_label=has_label)
    columns = np.array([wanted.index(name) if name in wanted else -1 for name in fields], np.int64)
    # Splitting a line changes it where a field holds a doubled quote.
    text = block.text.copy()
    first = header.num_bytes
    records = find_records(text, first, block.num_bytes, dialect_of(schema), columns)
    rows = rows_of_records(replace(block, text=text), records, schema, fields, has_label=has_label)
    part = parse_rows(rows, schema, has_label=has_label)
    # One element in each row is how any log of users and items looks: only longer ones are histories.
    lists = [part.columns[name] for name, _ in schema.lists]
    return part.fault is None and part.num_samples > 0 and all(len(one.values) > len(one) for one in lists)
