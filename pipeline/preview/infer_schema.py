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

from ..errors import InputError
from ..raw.column_values import Spans, read_values
from ..raw.criteo_kernel import count_newlines
from ..raw.parquet_parts import DAMAGE
from ..raw.raw_blocks import Block, RawFile, iterate_blocks
from ..raw.text_fields import BAD, split_fields
from ..schema.schema import Schema
from ..schema.schema_file import write_schema
from ..sizes import MIB
from .infer_column import ColumnLook, label_among, look_at

_SEPARATORS = ",\t;|"
_SNIFFED_LINES = 100
_LOOK_BYTES = 4 * MIB


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
    looks = [look_at(name, values, num_rows, names) for name, values in columns]
    label = label_among(looks, columns)
    looks = [look for look in looks if look.name != label]
    called_label = "only the label can be called so"
    looks = [
        replace(look, note=called_label, is_used=False) if look.name == "label" else look for look in looks
    ]
    floats = tuple(look.name for look in looks if look.is_used and look.kind == "float")
    used = [look for look in looks if look.is_used and look.kind != "float"]
    if not used:
        raise InputError(f"{file.path}: no column could be a category")
    schema = Schema(
        dense=floats,
        sparse=tuple(look.name for look in used),
        kinds=tuple(look.kind for look in used),
        label=label,
        format=format,
        separator=separator,
        fields=fields,
        lists=tuple((look.name, "") for look in used if look.is_list),
        floats=floats,
    )
    return Proposal(schema, tuple(looks), num_rows)
