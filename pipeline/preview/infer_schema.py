"""A schema for a log nobody has described yet, from a look at its first rows.

A proposal is for a person to edit: what was seen of each column stands beside it as a comment, and what
cannot be used, or should not be, stands commented out with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from ..errors import InputError, refuse_system_fault
from ..raw.column_values import Spans, read_values
from ..raw.criteo.criteo_blocks import tells_label
from ..raw.criteo.criteo_kernel import count_newlines
from ..raw.log_parts import known_schema
from ..raw.parquet_parts import DAMAGE
from ..raw.raw_blocks import Block, iterate_blocks
from ..raw.raw_file import RawFile
from ..raw.text_fields import BAD, split_fields
from ..schema.schema import Schema, schema_named
from ..schema.schema_file import write_entry, write_schema
from ..sizes import MIB
from .infer_column import InferredColumn, infer_column, label_among

_SEPARATORS = ",\t;|"
_SNIFFED_LINES = 100
_SNIFFED_BYTES = 4 * MIB
_START_BYTES = 1 << 16
"""How much of a log is compared with Criteo's format."""
_SHOWN_REASONS = 3


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema and what it was guessed from."""

    schema: Schema
    columns: tuple[InferredColumn, ...]
    num_rows: int
    """Rows looked at."""

    @property
    def text(self) -> str:
        """Return the schema as TOML with comments."""
        lines = [f"# Guessed from the first {self.num_rows:,} rows: look at every line, then preprocess."]
        if self.schema.label is None:
            lines.append(
                "# No column of zeros and ones looks like a label: statistics only, or write label = ..."
            )
        lines.append("# A column belongs in dense where the size of its numbers means something.")
        notes = {_features_of(column)[0][0]: column.note for column in self.columns if column.is_used}
        tail = [self._left_out(column) for column in self.columns if not column.is_used]
        return "\n".join([*lines, write_schema(self.schema, notes) + "\n".join([*tail, ""])])

    def _left_out(self, column: InferredColumn) -> str:
        """Return the comment on a column without a feature: where it could have one, with its entry."""
        # The comments stand under [sparse], so that an entry there counts once it is no comment any more.
        if not column.is_readable or column.kind == "float":
            return f"# {column.name!r} is left out: {column.note}"
        return f"# {write_entry(column.name, column.kind, is_list=column.is_list)}  # left out: {column.note}"


def propose_schema(path: Path, *, num_rows: int = 10_000) -> Proposal:
    """Look at the first ``num_rows`` rows of a CSV or Parquet log, or those of its first 4 MiB of text.

    Raises:
        InputError: the file cannot be read, is empty or no text, or has no column that could be a category.
    """
    file = RawFile.inspect(path)
    # By its first bytes and not by its name, as a reader of Parquet does.
    if file.read_start(4) == b"PAR1":
        columns, rows = _infer_parquet(path, num_rows)
        return _propose(file, columns, rows, format="parquet")
    block = next((block.read() for block in iterate_blocks(file, _SNIFFED_BYTES)), None)
    if block is None:
        raise InputError(f"{path} is empty")
    if not block.text[: block.num_bytes].all():
        raise InputError(f"{path} is neither Parquet nor text: its first lines have bytes of 0")
    separator = _separator_of(block)
    cells = _cells_of(path, block, separator, num_rows + 1)
    names = [bytes(c.text[c.starts[0] : c.stops[0]]).decode("utf-8", "replace") for c in cells]
    # One more line than wanted was read, because the first may be a header.
    has_header = _is_header(names)
    first = 1 if has_header else 0
    cells = [Spans(c.text, c.starts[first:][:num_rows], c.stops[first:][:num_rows]) for c in cells]
    fields = names if has_header else [f"field{number}" for number in range(1, len(names) + 1)]
    columns = list(zip(fields, cells, strict=True))
    rows = cells[0].starts.shape[0]
    unnamed = () if has_header else tuple(fields)
    return _propose(file, columns, rows, format="csv", separator=separator, fields=unnamed)


def explain_built_in(path: Path) -> str | None:
    """Return a sentence on the built-in schema that a log has, in place of a proposal; None for others."""
    file = RawFile.inspect(path)
    known = known_schema(file)
    if known is not None:
        name, is_labeled = known
        return (
            f"{path} has the columns of the built-in schema {name}: in place of this proposal, give "
            f"--schema {name}{'' if is_labeled else ' --no-label'}"
        )
    # Criteo's own format has no header, and is the default.
    block = next((block.read() for block in iterate_blocks(file, _START_BYTES)), None)
    has_label = None if block is None else tells_label(block, schema_named("criteo-kaggle"))
    if has_label is None:
        return None
    without_label = "" if has_label else ", and give --no-label"
    return (
        f"{path} has the format of Criteo's logs, which `hotset preprocess` reads faster than CSV, "
        f"with its integers as dense features: leave out --schema{without_label}"
    )


def _infer_parquet(path: Path, num_rows: int) -> tuple[list[tuple[str, Any]], int]:
    try:
        with pq.ParquetFile(path, memory_map=True) as parquet:
            batch = next(parquet.iter_batches(num_rows, use_threads=False), None)
            if batch is None:
                raise InputError(f"{path} has no rows")
            batch.validate(full=True)
            return list(zip(batch.schema.names, batch.columns, strict=True)), batch.num_rows
    except DAMAGE as error:
        refuse_system_fault(path, error)
        raise InputError(f"{path} cannot be read: {str(error).splitlines()[0]}") from error


def _num_fields(
    block: Block, separator: str, places: NDArray[np.int64]
) -> tuple[Any, Any, NDArray[np.int64]]:
    """Return starts and stops of the wanted fields of every line, and how many fields each has."""
    text = block.text.copy()
    num_lines = count_newlines(block.lines)
    starts = np.zeros((max(1, int(places.max(initial=-1)) + 1), num_lines), np.int64)
    stops = np.zeros_like(starts)
    found = np.zeros(num_lines, np.int64)
    # A byte order mark is no part of the first name.
    first = 3 if bytes(text[:3]) == b"\xef\xbb\xbf" else 0
    split_fields(text, first, block.num_bytes, ord(separator), places, starts, stops, found)
    return (text, starts), stops, found


def _separator_of(block: Block) -> str:
    """Return the separator that splits most of the first lines into equally many fields, at best many."""

    def score(separator: str) -> tuple[bool, float, int]:
        _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
        found = found[:_SNIFFED_LINES]
        # Splitting at all counts first, then how many lines agree, then how many fields there are.
        return int(found[0]) > 1, float((found == found[0]).mean()), int(found[0])

    return max(_SEPARATORS, key=score)


def _cells_of(path: Path, block: Block, separator: str, num_lines: int) -> list[Spans]:
    """Return the first lines by column; lines with another number of fields than the first are left out."""
    _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
    if found[0] < 1:
        raise InputError(f"{path}: the first line has a quote that is not closed")
    (text, starts), stops, _ = _num_fields(block, separator, np.arange(found[0]))
    # Fields are counted first and split then, because their number sizes the arrays.
    whole = np.flatnonzero(found == found[0])[:num_lines]
    return [Spans(text, start[whole], stop[whole]) for start, stop in zip(starts, stops, strict=True)]


def _is_header(names: Sequence[str]) -> bool:
    """Return whether the first line names columns: none missing, none twice, none that is a number."""
    if len(set(names)) < len(names) or "" in names:
        return False
    text = "".join(names).encode()
    stops = np.cumsum([len(name.encode()) for name in names], dtype=np.int64)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
    spans = Spans(np.frombuffer(text, np.uint8), starts, stops)
    # Hex digits count as numbers here: a first line of hashes is data.
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
    inferred = [infer_column(name, values, num_rows, names) for name, values in columns]
    label = label_among(inferred, columns)
    # The label is no feature; any other column of that name cannot be one either.
    inferred = [column for column in inferred if column.name != label]
    called_label = "only the label can be called so"
    inferred = [
        replace(column, note=called_label, is_used=False, is_readable=False)
        if column.name == "label"
        else column
        for column in inferred
    ]
    floats = tuple(column.name for column in inferred if column.is_used and column.kind == "float")
    used = [column for column in inferred if column.is_used and column.kind != "float"]
    if not used:
        raise _without_category(file, inferred)
    features = [(column, name, kind) for column in used for name, kind in _features_of(column)]
    schema = Schema(
        dense=floats,
        sparse=tuple(name for _, name, _ in features),
        kinds=tuple(kind for *_, kind in features),
        label=label,
        format=format,
        separator=separator,
        fields=fields,
        lists=tuple((column.name, "") for column in used if column.is_list),
        floats=floats,
        untransformed=tuple(
            column.name for column in inferred if column.is_used and not column.is_transformed
        ),
        renamed=tuple((name, column.name) for column, name, _ in features if name != column.name),
        time_units=tuple(
            (name, column.times.unit) for column, name, _ in features if column.times and column.times.unit
        ),
    )
    return Proposal(schema, tuple(inferred), num_rows)


def _features_of(column: InferredColumn) -> Sequence[tuple[str, str]]:
    """Return name and kind of each feature that a column is proposed for."""
    return ((column.name, column.kind),) if column.times is None else column.times.features


def _without_category(file: RawFile, inferred: Sequence[InferredColumn]) -> InputError:
    """Return the error for a log none of whose columns is proposed as a category, with the reasons."""
    shown = [f"{column.name!r}: {column.note}" for column in inferred if not column.is_used][:_SHOWN_REASONS]
    reasons = f" ({'; '.join(shown)})" if shown else ""
    return InputError(
        f"{file.path}: no column could be a category{reasons}",
        hint="a model needs at least one column of values that occur again, such as an id or a text",
    )
