"""Infer a schema from the first rows of a log: how lines are split, which is the header, and the label.

The result is a proposal to edit: a comment next to each column says what was found in it, and columns that
cannot or should not be used are commented out with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import MIB, InputError
from .infer_column import MIN_ROWS_TO_JUDGE, InferredColumn, are_times, infer_column
from .raw.arrow_parts import open_rows
from .raw.column_values import plain, read_column, read_values
from .raw.criteo import tells_label
from .raw.json_parts import first_rows
from .raw.log_files import example_file
from .raw.part import Block, bytes_of_mark, iterate_blocks, without_mark
from .raw.raw_file import RawFile
from .raw.recognise import recognise
from .raw.records import WHOLE, dialect_of, find_records
from .raw.tabular import MISSING_WORDS
from .raw.text_fields import BAD, GOOD
from .raw.text_lists import Spans
from .schema.schema import Schema
from .schema.schema_file import schema_named, write_entry, write_schema

_LABEL_WORDS = (
    {"label", "target", "y"},
    {"click", "clicked", "clicks", "clk", "isclick"},
    {"conversion", "converted", "cvr", "install", "installed"},
    {"purchase", "purchased", "buy", "bought"},
)
"""Words that name a label, the most telling ones first. A log of clicks and conversions predicts clicks."""
_LOG_CHANCE = float(np.log(1e-6))
"""Logarithm of the probability below which a relation to the label is no chance."""


@dataclass(frozen=True, slots=True)
class InferredLabel:
    """The label of a log, or the columns that could be it."""

    name: str | None
    """Its column; None where no column has a name of labels, and the log has names."""
    others: tuple[str, ...]
    """Other columns of zeros and ones without gaps."""
    is_guess: bool = False
    """Whether the log has no names, so that its first column of zeros and ones is taken."""

    @property
    def note(self) -> str | None:
        """Return what a reader of the proposal has to decide; None where the name tells the label."""
        others = ", ".join(map(repr, self.others))
        if self.is_guess:
            rivals = f"; so are {others}" if self.others else ""
            return f"The label is a guess: {self.name} is the first column of zeros and ones{rivals}."
        if self.name is not None:
            return None
        if not self.others:
            return "No column of zeros and ones looks like a label: statistics only, or write label = ..."
        return (
            f"No column is called as labels are. Columns of zeros and ones: {others}. Write label = ... for "
            "one of them, and take it out below; without a label there are statistics only."
        )


def infer_label(
    inferred: Sequence[InferredColumn], columns: Sequence[tuple[str, Any]], *, has_names: bool = True
) -> InferredLabel:
    """Return the label: a column of zeros and ones without gaps whose name says so."""
    values = dict(columns)
    # Zeros and ones may also be text or integers, but not lists.
    fitting = []
    for column in inferred:
        if column.num_distinct > 2 or column.num_missing or not column.num_distinct or column.is_list:
            continue
        cells = values[column.name] if isinstance(values[column.name], Spans) else plain(values[column.name])
        if not (isinstance(cells, Spans) or column.kind in ("integer", "unsigned")):
            continue
        if not (read_column(cells, "label").states == BAD).any():
            fitting.append(column.name)
    # The most telling name; of equal ones the first in the log. A column of zeros alone needs a name.
    ranks = {name: _rank_as_label(name) for name in fitting}
    changing = {column.name for column in inferred if column.num_distinct == 2}
    fitting = [name for name in fitting if ranks[name] is not None or name in changing]
    named = sorted((name for name in fitting if ranks[name] is not None), key=lambda name: ranks[name] or 0)
    chosen = named[0] if named else fitting[0] if fitting and not has_names else None
    others = tuple(name for name in fitting if name != chosen)
    return InferredLabel(chosen, others, is_guess=chosen is not None and not named)


def _rank_as_label(name: str) -> int | None:
    """Return how much a name says that its column is the label, 0 most; None where it does not."""
    words = set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()))
    return next((rank for rank, known in enumerate(_LABEL_WORDS) if words & known), None)


def follows_label(column: InferredColumn, values: Any, label: str, labels: Any) -> str | None:
    """Return why a column knows the label: it is 1 - label, or other than 0 only where the label is 1.

    Such a column is written after the click, so a model that reads it predicts nothing.

    Args:
        column: as it was inferred.
        values: its values: Spans, or a Parquet column.
        label: name of the label.
        labels: values of the label.
    """
    if column.is_list or column.times is not None or column.kind not in ("integer", "unsigned", "float"):
        return None
    cells = values if isinstance(values, Spans) else plain(values)
    found = read_column(cells, column.kind)
    is_clicked = read_column(labels if isinstance(labels, Spans) else plain(labels), "label").values != 0
    is_there = (found.states == GOOD) & (found.values != 0)
    if bool((is_there != is_clicked).all()) and column.num_distinct == 2:
        return f"it is 1 - {label} in every row"
    # By chance, so many rows would all be clicked with this probability.
    share = float(is_clicked.mean())
    is_chance = share == 0 or int(is_there.sum()) * np.log(share) > _LOG_CHANCE
    if bool((is_there & ~is_clicked).any()) or is_chance:
        return None
    return f"it is 0 wherever {label} is 0"


_SEPARATORS = ",\t;|"
_SNIFFED_LINES = 100
_MOST_BROKEN = 1000
"""Lines with wrong quotes up to which a log is looked at."""
_SNIFFED_BYTES = 4 * MIB
_START_BYTES = 1 << 16
"""Bytes of a log that are compared with Criteo's format."""
_SHOWN_REASONS = 3


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema and what it was guessed from."""

    schema: Schema
    columns: tuple[InferredColumn, ...]
    num_rows: int
    """Rows looked at."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of the log as a whole."""

    @property
    def text(self) -> str:
        """Return the schema as TOML with comments."""
        if not self.columns:  # of a known log
            return "\n".join([*(f"# {note}" for note in self.notes), write_schema(self.schema)])
        lines = [f"# Guessed from the first {self.num_rows:,} rows: look at every line, then preprocess."]
        lines += [f"# {note}" for note in self.notes]
        lines.append("# A column belongs in dense where the size of its numbers means something.")
        lines += self._time_of_samples()
        notes = {_features_of(column)[0][0]: column.note for column in self.columns if column.is_used}
        tail = [self._left_out(column) for column in self.columns if not column.is_used]
        return "\n".join([*lines, write_schema(self.schema, notes) + "\n".join([*tail, ""])])

    def _time_of_samples(self) -> list[str]:
        """Return the comment that offers the first column of times as the time of the samples."""
        times = [(each.name, each.times) for each in self.columns if each.times and each.times.is_certain]
        if not times:
            return []
        name, found = times[0]
        text = write_schema(replace(self.schema, time=(name, found.unit or "")), {})
        entry = next(line for line in text.splitlines() if line.startswith("time = "))
        return [f"# {entry}  # uncomment to cut the test part at a time, if the rows are in its order"]

    def _left_out(self, column: InferredColumn) -> str:
        """Return the comment on a column without a feature: where it could have one, with its entry."""
        # The comments are under [sparse], so that an entry counts there once it is uncommented.
        if not column.is_readable or column.kind == "float":
            return f"# {column.name!r} is left out: {column.note}"
        return f"# {write_entry(column.name, column.kind, is_list=column.is_list)}  # left out: {column.note}"


def propose_schema(path: Path, *, num_rows: int = 10_000) -> Proposal:
    """Propose a schema from the first ``num_rows`` rows or 4 MiB of a log.

    Raises:
        InputError: the file cannot be read, is empty or no text, or has no column that could be a category.
    """
    file = example_file(path)
    known = recognise(file)
    if known is not None and (known.schema.fields or not known.is_exact):
        note = f"This is the schema of the known log {known.name}, as the file has it."
        return Proposal(known.schema, (), 0, (note,))
    proposal = _propose_from(file, num_rows)
    dated = ", ".join(file.partitions)
    if not dated:
        return proposal
    note = f"The names of folders give each file {dated}: named under [sparse], it is a column as any other."
    return replace(proposal, notes=(*proposal.notes, note))


def _propose_from(file: RawFile, num_rows: int) -> Proposal:
    path = file.path
    form = file.read_format()
    if form != "text":
        batch = _first_rows(file, form, num_rows)
        columns = list(zip(batch.schema.names, batch.columns, strict=True))
        return _propose(file, columns, batch.num_rows, format=_FORMATS.get(form, form))
    block = next((block.read() for block in iterate_blocks(file, _SNIFFED_BYTES)), None)
    if block is None:
        raise InputError(f"{path} is empty")
    if not block.text[: block.num_bytes].all():
        raise InputError(f"{path} is neither Parquet nor text: its first lines have bytes of 0")
    separator = _separator_of(block)
    # One more line than wanted is read, because the first may be a header.
    cells, note = _cells_of(path, block, separator, num_rows + 1)
    names = [bytes(c.text[c.starts[0] : c.stops[0]]).decode("utf-8", "replace") for c in cells]
    has_header = _is_header(names, [Spans(c.text, c.starts[1:], c.stops[1:]) for c in cells])
    first = 1 if has_header else 0
    cells = [Spans(c.text, c.starts[first:][:num_rows], c.stops[first:][:num_rows]) for c in cells]
    rows = cells[0].starts.shape[0]
    if not rows:
        raise InputError(f"{path} has a header and no rows")
    fields = names if has_header else [f"field{number}" for number in range(1, len(names) + 1)]
    columns = list(zip(fields, cells, strict=True))
    unnamed = () if has_header else tuple(fields)
    return _propose(file, columns, rows, format="csv", separator=separator, fields=unnamed, note=note)


def explain_built_in(path: Path) -> str | None:
    """Return a sentence on the built-in schema of a log; None for other logs."""
    file = example_file(path)
    known = recognise(file)
    if known is not None and known.is_exact:
        option = f"--schema {known.name}{'' if known.has_label else ' --no-label'}"
        return f"{path} is of the known log {known.name}: in place of this proposal, give {option}"
    if known is not None:
        return f"{path} is of the known log {known.name} in another form: the proposal has its kinds"
    # Criteo's own format has no header, and is the default.
    if file.read_format() != "text":
        return None
    block = next((block.read() for block in iterate_blocks(file, _START_BYTES)), None)
    has_label = None if block is None else tells_label(without_mark(block), schema_named("criteo-kaggle"))
    if has_label is None:
        return None
    without_label = "" if has_label else ", and give --no-label"
    return (
        f"{path} has the format of Criteo's logs, which `hotset preprocess` reads faster than CSV, "
        f"with its integers as dense features: leave out --schema{without_label}"
    )


_FORMATS: dict[str, Any] = {"stream": "arrow"}


def _first_rows(file: RawFile, form: str, num_rows: int) -> Any:
    """Return the first rows of a file of typed columns or JSON Lines as a record batch."""
    if form == "json":
        return first_rows(file, num_rows)
    with open_rows(file, form) as rows:
        found: list[Any] = []
        for batch in rows.batches(rows.fields.names):
            found.append(batch.slice(0, num_rows - sum(map(len, found))))
            if sum(map(len, found)) >= num_rows:
                break
        if not any(map(len, found)):
            raise InputError(f"{file.path} has no rows")
        batch = pa.Table.from_batches(found).combine_chunks().to_batches()[0]
        batch.validate(full=True)
        return batch


def _num_fields(
    block: Block, separator: str, places: NDArray[np.int64]
) -> tuple[Any, Any, NDArray[np.int64]]:
    """Return starts and stops of the wanted fields of every record, and how many fields each has.

    A line with a quote that is not closed has -1, and the next line is taken for a record.
    """
    text = block.text.copy()
    dialect = dialect_of(Schema(dense=(), sparse=(), format="csv", separator=separator))
    # A byte order mark is no part of the first name.
    begin = bytes_of_mark(block)
    ends: list[tuple[NDArray[np.int64], ...]] = []
    is_whole = False
    while not is_whole and begin < block.num_bytes and len(ends) < _MOST_BROKEN:
        found = find_records(text, begin, block.num_bytes, dialect, places)
        is_whole = found.status == WHOLE
        begin = text[: block.num_bytes].tobytes().find(b"\n", found.end) + 1
        # A line with a wrong quote is one more record, without fields.
        more = np.zeros((found.starts.shape[0], 0 if is_whole else 1), np.int64)
        ends.append(
            (
                np.concatenate([found.starts, more], axis=1),
                np.concatenate([found.stops, more], axis=1),
                np.concatenate([found.num_fields, np.full(more.shape[1], -1)]),
            )
        )
    starts, stops, num_fields = (np.concatenate(each, axis=-1) for each in zip(*ends, strict=True))
    return (text, starts), stops, num_fields


def _separator_of(block: Block) -> str:
    """Return the separator that splits most of the first lines into equally many fields, at best many."""

    def score(separator: str) -> tuple[bool, float, int]:
        _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
        num_fields = _usual(found[:_SNIFFED_LINES])
        # Splitting at all counts first, then how many lines agree, then how many fields there are.
        return num_fields > 1, float((found[:_SNIFFED_LINES] == num_fields).mean()), num_fields

    return max(_SEPARATORS, key=score)


def _usual(found: NDArray[np.int64]) -> int:
    """Return the number of fields that most lines have."""
    numbers, counts = np.unique(found, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _cells_of(path: Path, block: Block, separator: str, num_lines: int) -> tuple[list[Spans], str | None]:
    """Return the first lines by column, and a note on those left out, which have another number of fields.

    Raises:
        InputError: the first line is not split as most others are, so that no column has a name.
    """
    _, _, found = _num_fields(block, separator, np.zeros(0, np.int64))
    looked_at = found[:num_lines]
    # Most lines decide: the first one may be a title, or lack what ends the others.
    num_fields = _usual(looked_at[1:] if looked_at.size > 1 else looked_at)
    if found[0] != num_fields or num_fields < 1:
        if found[0] < 1:
            raise InputError(f"{path}: the first line has a quote that is not closed")
        raise InputError(
            f"{path}: line 1 has {_fields(found[0])}, and most of the next {looked_at.size - 1:,} lines have "
            f"{num_fields if num_fields > 0 else 'a quote that is not closed'} (separator {separator!r})",
            hint="remove lines above the header, and give all lines the same number of separators",
        )
    (text, starts), stops, _ = _num_fields(block, separator, np.arange(num_fields))
    # Fields are counted first and split then, because their number sizes the arrays.
    is_whole = looked_at == num_fields
    whole = np.flatnonzero(is_whole)
    note = None
    if not is_whole.all():
        other = int(np.argmin(is_whole))
        note = (
            f"Not looked at: {int((~is_whole).sum()):,} of the first {looked_at.size:,} lines. "
            f"Line {other + 1} has {_fields(looked_at[other])}, want {num_fields}. "
            "Ingest refuses such lines, or counts and skips them."
        )
    return [Spans(text, start[whole], stop[whole]) for start, stop in zip(starts, stops, strict=True)], note


def _fields(number: int) -> str:
    if number < 1:
        return "a quote that is not closed"
    return "1 field" if number == 1 else f"{number} fields"


def _is_header(names: Sequence[str], columns: Sequence[Spans]) -> bool:
    """Return whether the first line names columns.

    It does where a column of numbers or times has something else there, and does not where all columns of
    numbers have numbers. A log of text alone has a header if no name is missing, there twice, or a number.

    Args:
        names: fields of the first line.
        columns: the other lines, by column.
    """
    first = [read_values(_spans_of([name]), kind)[1][0] for name in names for kind in _NUMBERS]
    is_number = np.asarray(first).reshape(len(names), len(_NUMBERS)) == GOOD
    has_numbers = False
    for number, (name, values) in enumerate(zip(names, columns, strict=True)):
        kinds = [place for place, kind in enumerate(_NUMBERS) if _holds(values, kind)]
        if not kinds and not are_times(values):
            continue
        has_numbers = True
        # A word for a missing value is no name.
        is_such = is_number[number, kinds].any() if kinds else are_times(_spans_of([name]))
        if name.strip() and not is_such and name.lower().encode() not in MISSING_WORDS:
            return True
    return not has_numbers and "" not in names and len(set(names)) == len(names) and not is_number.any()


_NUMBERS = ("integer", "unsigned", "float", "hex8")


def _holds(values: Spans, kind: str) -> bool:
    """Return whether every value is of a kind, and there is one."""
    states = read_values(values, kind)[1]
    return bool((states == GOOD).any() and not (states == BAD).any())


def _spans_of(texts: Sequence[str]) -> Spans:
    encoded = [text.encode() for text in texts]
    stops = np.cumsum([len(text) for text in encoded], dtype=np.int64)
    starts = np.concatenate([[0], stops[:-1]]).astype(np.int64)
    return Spans(np.frombuffer(b"".join(encoded), np.uint8), starts, stops)


def _propose(
    file: RawFile,
    columns: list[tuple[str, Any]],
    num_rows: int,
    *,
    format: Literal["csv", "parquet", "arrow", "orc", "json"],
    separator: str = ",",
    fields: tuple[str, ...] = (),
    note: str | None = None,
) -> Proposal:
    names = [name for name, _ in columns]
    inferred = [infer_column(name, values, num_rows, names) for name, values in columns]
    found = infer_label(inferred, columns, has_names=not fields)
    label = found.name
    if label is not None and num_rows >= MIN_ROWS_TO_JUDGE:
        inferred = _without_what_follows(label, inferred, columns)
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
    notes = tuple(each for each in (note, found.note) if each is not None)
    return Proposal(schema, tuple(inferred), num_rows, notes)


def _without_what_follows(
    label: str, inferred: Sequence[InferredColumn], columns: Sequence[tuple[str, Any]]
) -> list[InferredColumn]:
    """Leave out the columns that know the label."""
    values = dict(columns)
    kept = []
    for column in inferred:
        reason = None
        if column.name != label and column.is_used:
            reason = follows_label(column, values[column.name], label, values[label])
        kept.append(column if reason is None else replace(column, note=reason, is_used=False))
    return kept


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
