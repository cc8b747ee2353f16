"""Split a raw file into blocks of lines or batches of rows.

Each part is parsed alone. Text is cut at fixed bytes moved to a line end, Parquet at fixed numbers of rows,
which are whole row groups or within one. So memory holds one part per worker, however large the file or its
row groups are.
"""

from __future__ import annotations

import shlex
from contextlib import suppress
from dataclasses import replace
from typing import Any

from ..errors import FormatError, InputError
from ..schema.schema import Schema, zone_named
from .part import UTF_16_MARKS, RawParts, iterate_blocks
from .raw_file import RawFile
from .text_parts import CriteoParts

_START_BYTES = 4096
"""Bytes of a file that are read to detect its format."""


def open_parts(
    file: RawFile, number: int, schema: Schema, *, block_bytes: int, has_label: bool, strict: bool
) -> RawParts:
    """Return the parts of ``file``, in the format that ``schema`` names.

    Args:
        number: number of ``file`` in the log; part of the parts' names.
        block_bytes: raw text, or Parquet values at 8 bytes each, in one part (bytes).
        has_label: lines have a label, if the schema names one.
        strict: bad lines of Criteo's format are not counted by reason: the first one is enough.

    Raises:
        InputError: the file cannot be read, is of another format, or lacks a column of the schema.
        ConfigError: this machine has no such time zone.
    """
    has_label = has_label and schema.label is not None
    if schema.zone:
        zone_named(schema.zone)
    settings: dict[str, Any] = {"block_bytes": block_bytes, "has_label": has_label}
    form, schema = as_read(file, schema)
    if form == "criteo":
        return CriteoParts(file, number, schema, **settings, strict=strict)
    if form == "csv":
        from .csv_parts import CsvParts

        return CsvParts(file, number, schema, **settings)
    # pyarrow's readers and compute functions take a fifth of the start of a command.
    if form == "json":
        from .json_parts import JsonParts

        return JsonParts(file, number, schema, **settings, strict=strict)
    if form == "parquet":
        from .parquet_parts import ParquetParts

        return ParquetParts(file, number, schema, **settings)
    from .arrow_parts import ArrowParts

    return ArrowParts(file, number, schema, **settings, form=form)


COLUMNAR = ("parquet", "arrow", "stream", "orc")
"""Formats with typed columns, as `RawFile.read_format` names them."""


def as_read(file: RawFile, schema: Schema) -> tuple[str, Schema]:
    """Return the format that a file has, and the schema to read it with.

    The bytes of the file decide, so that a run on CSV predicts Parquet with the same columns, and vice versa.
    Only Criteo's lines have no names of columns, by which another format could be read.

    Raises:
        InputError: the file cannot be read, or no format fits the schema.
    """
    form = file.read_format()
    if schema.format == "criteo":
        _refuse_other_format(file, form)
        return "criteo", schema
    if form != "text":
        return form, replace(schema, format="json" if form == "json" else "parquet", fields=())
    is_csv = schema.format == "csv"
    if is_csv and (schema.fields or not file.num_bytes):
        return "csv", schema
    if not file.num_bytes:  # a part without rows
        return "csv", replace(schema, format="csv", fields=schema.columns(has_label=True))
    from .csv_parts import SEPARATORS, read_header

    # The names in the first line show what is between them.
    wanted = set(schema.columns(has_label=False)) - file.partitions.keys()
    lists = tuple((name, separator or "|") for name, separator in schema.lists)
    for separator in (schema.separator, *SEPARATORS) if is_csv else SEPARATORS:
        text = replace(schema, format="csv", separator=separator, lists=lists)
        with suppress(InputError):  # a quote is wrong
            if wanted <= set(read_header(file, text).fields):
                return "csv", text
    if is_csv:  # its reader names the column that is lacking
        return "csv", schema
    raise FormatError(
        f"{file.path} is neither {schema.format} nor text with the columns of the schema in its first line",
        hint=f'the schema has format = "{schema.format}"; a log of text without names needs one of its own',
    )


_NAMES = {"parquet": "Parquet", "arrow": "Arrow", "stream": "Arrow", "orc": "ORC", "json": "JSON Lines"}


def _refuse_other_format(file: RawFile, form: str) -> None:
    """Raise InputError where a file that should hold Criteo's lines is clearly of another format.

    Criteo's format is the default, so this is what a user meets who forgets to name a schema.
    """
    if form in _NAMES:
        raise _needs_schema(file, _NAMES[form])
    if file.read_start(2) in UTF_16_MARKS:
        raise _needs_schema(file, "text in UTF-16")
    for block in iterate_blocks(file, _START_BYTES):
        lines = block.read().lines.tobytes().splitlines()[:3]
        # One such line could be damage in a log of Criteo's.
        if len(lines) > 1 and all(b"," in line and b"\t" not in line for line in lines):
            raise _needs_schema(file, "CSV")
        if len(lines) > 1 and (b"\t" not in lines[0] or b"\tI2\t" in lines[0].upper()):
            from .recognise import recognise

            known = recognise(file)
            if known is not None:
                raise _needs_schema(file, f"the log {known.name}")
        return


def _needs_schema(file: RawFile, found: str) -> FormatError:
    from .recognise import recognise

    path = shlex.quote(str(file.path))
    hint = f"`hotset schema {path} > schema.toml` proposes a schema: look at it, then give it to --schema"
    known = recognise(file)
    if known is not None and known.is_exact:
        hint = f"it has the columns of {known.name}: give --schema {known.name}"
        hint += "" if known.has_label else " --no-label"
    return FormatError(
        f"{file.path} looks like {found}, want the tab-separated lines of Criteo's format", hint=hint
    )
