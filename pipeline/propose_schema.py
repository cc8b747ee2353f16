"""A schema for a log nobody has described yet, from a look at its first rows.

A proposal is for a person to edit: what was seen of each column stands beside it as a comment, and what
cannot be used, or should not be, stands commented out with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..stats.text_fields import BAD, MISSING, split_fields
from .column_values import Spans, is_text, plain, read_values
from .criteo_parser import count_newlines
from .errors import ConfigError, InputError
from .parquet_parts import DAMAGE
from .raw import Block, RawFile, iterate_blocks
from .schema import Schema
from .schema_file import write_schema
from .schema_names import check_name
from .sizes import MIB

_SEPARATORS = ",\t;|"
_SNIFFED_LINES = 100
_LOOK_BYTES = 4 * MIB
_LABEL_NAMES = ("label", "click", "clicked", "is_click", "target", "y", "conversion", "converted")
_MIN_ROWS_FOR_ID = 100


@dataclass(frozen=True, slots=True)
class ColumnLook:
    """What the first rows say of one column."""

    name: str
    kind: str
    """One of KINDS, or label."""
    num_distinct: int
    """Distinct values, missing left out."""
    num_missing: int
    note: str
    """The same in words."""
    is_used: bool
    """Whether it is proposed; the note says why not."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema and what it was guessed from."""

    schema: Schema
    columns: tuple[ColumnLook, ...]
    num_rows: int
    """Rows looked at."""

    @property
    def text(self) -> str:
        """The schema as TOML with comments."""
        lines = [f"# Guessed from the first {self.num_rows:,} rows: look at every line, then preprocess."]
        if self.schema.label is None:
            lines.append(
                "# No column of zeros and ones looks like a label: statistics only, or write label = ..."
            )
        lines.append("# A column belongs in dense where the size of its numbers means something.")
        notes = {look.name: look.note for look in self.columns if look.is_used}
        unused = [look for look in self.columns if not look.is_used]
        tail = [f"# {look.name!r} is left out: {look.note}" for look in unused]
        return "\n".join([*lines, write_schema(self.schema, notes) + "\n".join([*tail, ""])])


def propose_schema(path: Path, *, num_rows: int = 10_000) -> Proposal:
    """Look at the first ``num_rows`` rows of a CSV or Parquet log, or those of its first 4 MiB of text.

    Raises:
        InputError: the file cannot be read, is empty, or has no column that could be a category.
    """
    file = RawFile.look_at(path)
    with open(path, "rb") as opened:
        is_parquet = opened.read(4) == b"PAR1"
    if is_parquet:
        columns, rows = _look_at_parquet(path, num_rows)
        return _propose(file, columns, rows, format="parquet")
    block = next((read() for read in iterate_blocks(file, _LOOK_BYTES)), None)
    if block is None:
        raise InputError(f"{path} is empty")
    separator = _separator_of(block)
    cells = _cells_of(path, block, separator, num_rows + 1)
    names = [bytes(c.text[c.starts[0] : c.stops[0]]).decode("utf-8", "replace") for c in cells]
    has_header = _is_header(names)
    first = 1 if has_header else 0
    cells = [Spans(c.text, c.starts[first:][:num_rows], c.stops[first:][:num_rows]) for c in cells]
    fields = names if has_header else [f"field{number}" for number in range(1, len(names) + 1)]
    columns = list(zip(fields, cells, strict=True))
    rows = cells[0].starts.shape[0]
    unnamed = () if has_header else tuple(fields)
    return _propose(file, columns, rows, format="csv", separator=separator, fields=unnamed)


def _look_at_parquet(path: Path, num_rows: int) -> tuple[list[tuple[str, Any]], int]:
    try:
        with pq.ParquetFile(path, memory_map=True) as parquet:
            batch = next(parquet.iter_batches(num_rows, use_threads=False), None)
            if batch is None:
                raise InputError(f"{path} has no rows")
            batch.validate(full=True)
            return list(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows
    except DAMAGE as error:
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _num_fields(
    block: Block, separator: str, places: NDArray[np.int64]
) -> tuple[Any, Any, NDArray[np.int64]]:
    """Starts and stops of the wanted fields of every line, and how many fields each has."""
    text, num_lines = block.text.copy(), count_newlines(block.lines)
    starts = np.zeros((max(1, int(places.max(initial=-1)) + 1), num_lines), np.int64)
    stops, found = np.zeros_like(starts), np.zeros(num_lines, np.int64)
    first = 3 if bytes(text[:3]) == b"\xef\xbb\xbf" else 0
    split_fields(text, first, block.num_bytes, ord(separator), places, starts, stops, found)
    return (text, starts), stops, found


def _separator_of(block: Block) -> str:
    """The separator that gives most of the first lines one number of fields, the larger the better."""

    def score(separator: str) -> tuple[bool, float, int]:
        _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
        found = found[:_SNIFFED_LINES]
        return int(found[0]) > 1, float((found == found[0]).mean()), int(found[0])

    return max(_SEPARATORS, key=score)


def _cells_of(path: Path, block: Block, separator: str, num_lines: int) -> list[Spans]:
    """The first lines, column by column; lines of another number of fields than the first are left out."""
    _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
    if found[0] < 1:
        raise InputError(f"{path}: the first line has a quote that is not closed")
    (text, starts), stops, _ = _num_fields(block, separator, np.arange(found[0]))
    whole = np.flatnonzero(found == found[0])[:num_lines]
    return [Spans(text, start[whole], stop[whole]) for start, stop in zip(starts, stops, strict=True)]


def _is_header(names: Sequence[str]) -> bool:
    """Whether the first line names columns: nothing missing, nothing twice, nothing that is a number."""
    if len(set(names)) < len(names) or "" in names:
        return False
    text = "".join(names).encode()
    stops = np.cumsum([len(name.encode()) for name in names], dtype=np.int64)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
    spans = Spans(np.frombuffer(text, np.uint8), starts, stops)
    return all((read_values(spans, kind)[1] == BAD).all() for kind in ("integer", "unsigned", "hex8"))


def _propose(
    file: RawFile,
    columns: list[tuple[str, Any]],
    num_rows: int,
    *,
    format: Literal["csv", "parquet"],
    separator: str = ",",
    fields: tuple[str, ...] = (),
) -> Proposal:
    names = [name for name, _ in columns]
    looks = [_look(name, values, num_rows, names) for name, values in columns]
    label = _label_among(looks, columns)
    looks = [look for look in looks if look.name != label]
    called_label = "only the label can be called so"
    looks = [
        replace(look, note=called_label, is_used=False) if look.name == "label" else look for look in looks
    ]
    used = [look for look in looks if look.is_used]
    if not used:
        raise InputError(f"{file.path}: no column could be a category")
    schema = Schema(
        dense=(),
        sparse=tuple(look.name for look in used),
        kinds=tuple(look.kind for look in used),
        label=label,
        format=format,
        separator=separator,
        fields=fields,
    )
    return Proposal(schema, tuple(looks), num_rows)


def _look(name: str, values: Any, num_rows: int, names: list[str]) -> ColumnLook:
    fault = _unusable(name, values, names)
    if fault:
        return ColumnLook(name, "text", 0, 0, fault, False)
    if not isinstance(values, Spans):
        values = plain(values)
    fitting = next(_fitting_kinds(values), None)
    if fitting is None:
        return ColumnLook(name, "text", 0, 0, "it holds neither text nor whole numbers", False)
    kind, found, states = fitting
    num_missing = int(np.count_nonzero(states == MISSING))
    num_distinct = np.unique(found[states != MISSING]).shape[0]
    note = f"{num_distinct:,} distinct" + (
        f", {num_missing / max(1, num_rows):.0%} missing" if num_missing else ""
    )
    if num_distinct == num_rows >= _MIN_ROWS_FOR_ID:
        return ColumnLook(name, kind, num_distinct, num_missing, "every row has another value", False)
    return ColumnLook(name, kind, num_distinct, num_missing, note, True)


def _unusable(name: str, values: Any, names: list[str]) -> str | None:
    """Why a column cannot stand in a schema."""
    if names.count(name) > 1:
        return "there are two columns of that name"
    if name != "label":
        try:
            check_name(name)
        except ConfigError as error:
            return str(error)
    if not isinstance(values, Spans):
        kind = values.type.value_type if pa.types.is_dictionary(values.type) else values.type
        is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
        if not (is_number or is_text(kind) or pa.types.is_null(kind)):
            return f"{kind} is not supported" + (" yet" if pa.types.is_nested(kind) else "")
    return None


def _fitting_kinds(values: Any) -> Iterator[tuple[str, NDArray[np.uint64], NDArray[np.uint8]]]:
    """Kinds that no value contradicts, the plainest first, with the values read so."""
    kinds = ("integer", "unsigned", "hex8", "text") if isinstance(values, Spans) else ("integer", "unsigned")
    for kind in kinds:
        found, states = read_values(values, kind)
        is_empty = bool((states == MISSING).all())
        if (states == BAD).any() or (is_empty and isinstance(values, Spans) and kind != "text"):
            continue
        if kind in ("integer", "unsigned") and isinstance(values, Spans) and _have_leading_zeros(values):
            continue
        yield kind, found, states


def _have_leading_zeros(spans: Spans) -> bool:
    """Whether a number has zeros before it: then it is a code, and reading it would merge codes."""
    long = spans.starts[spans.stops - spans.starts > 1]
    return bool(long.shape[0] and ((spans.text[long] == ord("0")) & (spans.text[long + 1] != ord("."))).any())


def _label_among(looks: list[ColumnLook], columns: list[tuple[str, Any]]) -> str | None:
    """A column of zeros and ones without gaps, one with a telling name if there is one."""
    values = dict(columns)
    fitting = []
    for look in looks:
        if look.num_distinct > 2 or look.num_missing or not look.num_distinct:
            continue
        cells = values[look.name] if isinstance(values[look.name], Spans) else plain(values[look.name])
        if not (isinstance(cells, Spans) or look.kind in ("integer", "unsigned")):
            continue
        _, states = read_values(cells, "label")
        if not (states == BAD).any():
            fitting.append(look.name)
    named = [name for known in _LABEL_NAMES for name in fitting if name.lower() == known]
    return next(iter(named or fitting), None)
