"""Infer a schema from rows of a log: which line is the header, which column the label, what each column is.

The label is found by names of columns and their values, and so are the columns that know it. The result is a
proposal to edit: a comment next to each column says what was found in it, and columns that cannot or should
not be used are commented out with the reason.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from .errors import InputError
from .infer_column import (
    MIN_ROWS_TO_JUDGE,
    InferredColumn,
    are_times,
    column_of,
    infer_column,
    texts_of,
    undivided,
)
from .infer_dialect import Sample, Split, count_titles, find_dialect, read_sample, split_text
from .raw.column_values import checked, is_text, read_column, read_values, without
from .raw.columnar_parts import DAMAGE, damaged_parquet, open_parquet, open_rows
from .raw.json_parts import first_rows
from .raw.log_files import example_file
from .raw.log_parts import recognise
from .raw.part import UTF_8, iterate_blocks, without_mark
from .raw.raw_file import RawFile
from .raw.tabular import MISSING_WORDS
from .raw.text_fields import BAD, GOOD
from .raw.text_parts import tells_label
from .schema.schema import Form, Schema, quoted, toml_of
from .schema.schema_file import entry_of, keys_of, read_keys, schema_named, write_schema

_WORDS = (
    {"label", "labels", "target", "y"},
    {"click", "clicked", "clicks", "clk", "isclick"},
    {"conversion", "conversions", "converted", "cvr", "install", "installed", "download"},
    {"purchase", "purchased", "buy", "bought", "ordered"},
    {"like", "liked", "follow", "income", "churn", "response"},
    {"rating", "ratings", "stars", "score"},
)
"""Words that name a label, the most telling ones first. A log of clicks and conversions predicts clicks."""
_RATINGS = len(_WORDS) - 1
_HELPERS = {"is", "has", "num", "n", "count", "cnt", "total", "user", "float", "token"}
"""Words that may be added to one of these without another meaning."""
_POSITIVE = {"true", "t", "yes", "y", "1", "+1", "positive", "pos", "click", "clicked", "buy", "converted"}
_MOST_VALUES = 21
"""Distinct values that a rating or a count of clicks may have."""
_SHOWN_NAMES = 8
_LOG_CHANCE = float(np.log(1e-6))
"""Logarithm of the probability below which a relation to the label is no chance."""


@dataclass(frozen=True, slots=True)
class InferredLabel:
    """The label of a log, or a column that could be it."""

    name: str | None
    """Its column; None where no column has a name of labels, and the log has names."""
    rank: int | None = None
    """How much the name says that the column is the label, 0 most; None where it does not."""
    above: float | None = None
    """Number above which its values are 1."""
    positive: tuple[str, ...] = ()
    """Texts among its values that are 1."""
    is_clear: bool = True
    """Whether it is clear which of its values are 1."""
    notes: tuple[str, ...] = ()
    """What a reader of the proposal has to decide or to know."""
    others: tuple[str, ...] = ()
    """Other columns of two values that could be a label."""
    named: tuple[str, ...] = ()
    """Those that are called like labels."""


def infer_label(
    inferred: Sequence[InferredColumn], columns: Sequence[tuple[str, Any]], *, has_names: bool = True
) -> InferredLabel:
    """Return the label: a column of two values, ratings or counts whose name says so."""
    values = dict(columns)
    candidates = [
        each for each in (_candidate_of(column, values[column.name]) for column in inferred) if each
    ]
    named = [each for each in candidates if each.rank is not None]
    named.sort(key=lambda each: (each.rank, not _is_plain(str(each.name))))
    others = tuple(str(each.name) for each in candidates if each.rank is None)
    choice = named or [each for each in candidates if each.is_clear and not has_names]
    if not choice:
        return InferredLabel(None, notes=_nothing_chosen(others, inferred), others=others)
    chosen = choice[0]
    rivals = tuple(str(each.name) for each in candidates if each is not chosen)
    other_names = tuple(str(each.name) for each in named[1:])
    notes = []
    if not named:
        so_are = f"; so are {_listed(rivals)}" if rivals else ""
        notes.append(f"The label is a guess: {chosen.name} is the first column of zeros and ones{so_are}.")
    elif other_names:
        called = _listed(other_names)
        notes.append(f"The label is {chosen.name!r}. Called like labels as well, so left out: {called}.")
        plain = [str(each.name) for each in named if each.above is None and not each.positive]
        if chosen.name in plain[:1] and plain[1:]:
            kept = ", ".join(map(quoted, plain))
            notes.append(f"To keep labels beside it, write labels = [{kept}] in place of label.")
    elif chosen.rank and not _is_plain(str(chosen.name)) and others:
        notes.append(f"The label is {chosen.name!r} by a word of its name. Or is it {_listed(rivals)}?")
    notes += chosen.notes
    if next(column for column in inferred if column.name == chosen.name).num_distinct == 1:
        notes.append(f"All values of {chosen.name!r} are the same: nothing can be learned from these rows.")
    return replace(chosen, notes=tuple(notes), others=rivals, named=other_names)


def _listed(names: Sequence[str]) -> str:
    more = [] if len(names) <= _SHOWN_NAMES else [f"{len(names) - _SHOWN_NAMES} more"]
    return ", ".join([*map(repr, names[:_SHOWN_NAMES]), *more])


def _nothing_chosen(others: Sequence[str], inferred: Sequence[InferredColumn]) -> tuple[str, ...]:
    note = "No column of zeros and ones looks like a label: statistics only, or write label = ..."
    if others:
        note = (
            f"No column is called as labels are. It could be {_listed(others)}. Write label = ... for one of "
            "them, and take it out below; without a label there are statistics only."
        )
    mixed = [
        f"{column.name!r} is called like a label, but has {column.num_distinct:,} distinct values, among "
        "them text. A footer, or a word for a missing value?"
        for column in inferred
        if column.num_distinct > 2
        and (column.kind, column.lists) == ("text", None)
        and _is_plain(column.name)
    ]
    return note, *mixed


def _words_of(name: str) -> set[str]:
    return set(re.split(r"[^a-z0-9]+", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", " ", name).lower()))


def _rank_of(name: str) -> int | None:
    """Return the number of the first of _WORDS of which a name has one."""
    words = _words_of(name)
    if not _is_plain(name):
        words -= {"y"}  # of a place, such as pos_y
    return next((rank for rank, known in enumerate(_WORDS) if words & known), None)


def _is_plain(name: str) -> bool:
    """Return whether a name has no other words than those of labels."""
    return _words_of(name) <= set.union(_HELPERS, *_WORDS)


def names_a_label(name: str) -> bool:
    """Return whether a name is that of a label, and of nothing else."""
    return _is_plain(name) and _rank_of(name) is not None


def _candidate_of(column: InferredColumn, values: Any) -> InferredLabel | None:
    """Return a column as a label, None where it cannot be one."""
    if not column.num_distinct or column.lists is not None or column.times is not None:
        return None
    # A column of zeros alone needs a name, as does one of other values than zeros and ones.
    rank, is_plain = _rank_of(column.name), names_a_label(column.name)
    if column.num_distinct > (_MOST_VALUES if is_plain else 2) or (column.num_missing and not is_plain):
        return None
    if column.num_distinct == 1 and rank is None:
        return None
    plain = InferredLabel(column.name, rank)
    if column.num_missing:
        note = f"{column.num_missing:,} rows have no {column.name}: preprocess refuses or skips them."
        plain = replace(plain, notes=(note,))
    is_read = is_text(values.type) or column.kind in ("integer", "unsigned")
    if is_read and not (read_column(values, "label").states == BAD).any():
        return plain
    return _with_rule(plain, Counter(filter(None, texts_of(values))), is_plain=is_plain)


def _with_rule(plain: InferredLabel, counts: Counter[str], *, is_plain: bool) -> InferredLabel | None:
    """Return a label that says which of its values are 1; None where none are."""
    try:
        numbers = sorted({float(text) for text in counts})
    except ValueError:
        numbers = []
    if not np.isfinite(numbers).all():
        return None
    if len(numbers) == 2 and (numbers in ([-1, 1], [0, 1]) or plain.rank is not None):
        return replace(plain, above=sum(numbers) / 2)
    if not numbers and len(counts) == 2:
        said = tuple(text for text in counts if text.strip().lower() in _POSITIVE)
        if len(said) == 1:
            return replace(plain, positive=said)
        rare = min(counts, key=lambda text: counts[text])
        of = _listed(sorted(counts))
        guess = f"Which value of {plain.name!r} means 1 is a guess: the rarer one of {of}."
        rank = plain.rank if is_plain else None
        notes = (*plain.notes, guess)
        return replace(plain, rank=rank, positive=(rare,), notes=notes, is_clear=False)
    if not is_plain or len(numbers) < 3 or numbers[0] < 0:
        return None
    # Ratings above three fifths of the scale, such as 4 and 5 of 5; of counts all but 0.
    is_scale = plain.rank == _RATINGS or numbers[0] > 0
    above = float(np.floor(0.6 * numbers[-1])) if is_scale else 0.0
    guess = f"Values of {plain.name!r} from {numbers[0]:g} to {numbers[-1]:g} are 1 above {above:g}: a guess."
    return replace(plain, above=above, notes=(*plain.notes, guess))


def is_positive(label: InferredLabel, values: Any) -> NDArray[np.bool_]:
    """Return whether the label is 1 in each row, (num_rows,)."""
    form = Form(positive=label.positive, above=label.above)
    found: NDArray[np.bool_] = read_column(values, "label", form).values != 0
    return found


def follows_label(
    column: InferredColumn, values: Any, name: str, is_clicked: NDArray[np.bool_]
) -> str | None:
    """Return why a column knows the label: it is 1 - label, or other than 0 only where the label is 1.

    Such a column is written after the click, so a model that reads it predicts nothing.

    Args:
        column: as it was inferred.
        values: its values: as `plain` gives them.
        name: of the label.
        is_clicked: (num_rows,); whether the label is 1.
    """
    if column.lists or column.times or column.kind not in ("integer", "unsigned", "float"):
        return None
    found = read_column(values, column.kind)
    is_there = (found.states == GOOD) & (found.values != 0)
    if bool((is_there != is_clicked).all()) and column.num_distinct == 2:
        return f"it is 1 - {name} in every row"
    # By chance, so many rows would all be clicked with this probability.
    share = float(is_clicked.mean())
    is_chance = share == 0 or int(is_there.sum()) * np.log(share) > _LOG_CHANCE
    if bool((is_there & ~is_clicked).any()) or is_chance:
        return None
    return f"it is 0 wherever {name} is 0"


_START_BYTES = 1 << 16
"""Bytes of a log that are compared with Criteo's format."""
_SHOWN_REASONS = 3
_CERTAIN_WORDS = {"\\N", "NULL", "<NULL>", "<null>"}
"""Words for a missing value that no text has for another reason."""
_NAMELESS = "Columns without a name, or with the same one,"
_NUMBERS = ("integer", "unsigned", "float", "hex8")
_PAIRS = re.compile(rb"[+-]?\d+(?:\.\d+)?(?: qid:\d+)?((?: \d+:\S+)+)\s*(?:#.*)?")
"""A line of LIBSVM: the label, and pairs of a number and a value."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A schema and what it was guessed from."""

    schema: Schema
    columns: tuple[InferredColumn, ...] = ()
    """None where the log is a known one."""
    num_rows: int = 0
    """Rows looked at."""
    places: str = ""
    """Description of where these rows are in the log."""
    notes: tuple[str, ...] = ()
    """What a reader has to know of the log as a whole."""

    @property
    def text(self) -> str:
        """Return the schema as TOML with comments."""
        notes = [f"# {note}" for note in self.notes]
        if not self.columns:
            return "\n".join([*notes, write_schema(self.schema)])
        rows = f"{self.num_rows:,} rows, {self.places}"
        written = write_schema(
            self.schema, {column.name: column.note for column in self.columns if column.is_used}
        ).splitlines()
        # Keys of the file itself come before its tables, and are comments until someone decides.
        first = next(number for number, line in enumerate(written) if not line or line.startswith("dense ="))
        return "\n".join(
            [
                f"# Guessed from {rows}: look at every line, then preprocess.",
                *notes,
                "# A column belongs in dense where the size of its numbers means something.",
                *written[:first],
                *filter(None, map(_time_line, self.columns)),
                *written[first:],
                # These are under [sparse], so that an entry counts there once it is uncommented.
                *(_left_out(column) for column in self.columns if not column.is_used),
                "",
            ]
        )


def _left_out(column: InferredColumn) -> str:
    """Return the comment on a column without a feature: where it could have one, with its entry."""
    if not column.is_readable or column.kind == "float":
        return f"# {column.name!r} is left out: {column.note}"
    return f"# {column.line}  # left out: {column.note}"


def _time_line(column: InferredColumn) -> str:
    """Return the comment that cuts the parts of a log at a time; none of times without a day."""
    times = column.times
    if times is None or not times.is_moment:
        return ""
    written = {"column": column.name, "unit": times.form.unit, "format": times.form.format}
    order = "" if times.is_ascending else ", once its rows are sorted so"
    return f"# time = {toml_of(entry_of([written]))}  # cuts the log into parts by time{order}"


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows of a log, by column."""

    columns: list[tuple[str, Any]]
    num_rows: int
    places: str
    schema: Schema
    """How the log is read."""
    notes: tuple[str, ...] = ()
    has_names: bool = True


def propose_schema(path: Path, *, num_rows: int = 10_000) -> Proposal:
    """Propose a schema from ``num_rows`` rows or 3 MiB of a log, of its beginning, middle and end.

    Raises:
        InputError: the file cannot be read, is empty or no text, or has no column that could be a category.
    """
    file = example_file(path)
    known = recognise(file)
    if known is not None and (known.schema.fields or not known.is_exact):
        note = f"This is the schema of the known log {known.name}, as the file has it."
        return Proposal(known.schema, notes=(note,))
    form = file.read_format()
    rows = _text_rows(file, num_rows) if form == "text" else _typed_rows(file, form, num_rows)
    proposal = _propose(file, rows)
    dated = ", ".join(file.partitions)
    if not dated:
        return proposal
    note = f"The names of folders give each file {dated}: named in the schema, it is a feature or the label."
    return replace(proposal, notes=(*proposal.notes, note))


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


def _typed_rows(file: RawFile, form: str, num_rows: int) -> _Rows:
    """Read the first rows of typed columns or JSON Lines, of Parquet those of three row groups."""
    format: Any = "arrow" if form == "stream" else form
    notes: tuple[str, ...] = ()
    if form == "json":
        batch, num_damaged = first_rows(file, num_rows)
        found = [batch]
        if num_damaged:
            notes = (f"Lines that are no JSON object: {num_damaged:,}. Ingest refuses or skips them.",)
    else:
        with open_rows(file, form) as rows:
            batches = rows.batches(rows.fields.names)
            found = list(_groups(file, num_rows) if form == "parquet" else _up_to(batches, num_rows))
    if not any(map(len, found)):
        raise InputError(f"{file.path} has no rows")
    batch = pa.Table.from_batches(found).slice(0, num_rows).combine_chunks().to_batches()[0]
    try:
        (batch,) = checked([batch])
    except DAMAGE as error:
        raise damaged_parquet(file, error) from error
    columns = list(zip(batch.schema.names, batch.columns, strict=True))
    places = f"from {len(found)} row groups" if form == "parquet" and len(found) > 1 else "the first ones"
    return _Rows(columns, batch.num_rows, places, Schema((), (), format=format), notes)


def _up_to(batches: Iterable[Any], num_rows: int) -> Iterator[Any]:
    """Yield batches until there are ``num_rows``."""
    for batch in batches:
        yield batch.slice(0, num_rows)
        num_rows -= batch.num_rows
        if num_rows <= 0:
            return


def _groups(file: RawFile, num_rows: int) -> Iterator[Any]:
    """Yield rows of the first, the middle and the last row group of a Parquet file."""
    with open_parquet(file) as parquet:
        sizes = [parquet.metadata.row_group(number).num_rows for number in range(parquet.num_row_groups)]
        filled = [number for number, size in enumerate(sizes) if size]
        chosen = sorted({filled[0], filled[len(filled) // 2], filled[-1]}) if filled else []
        wanted = -(-num_rows // max(1, len(chosen)))
        for group in chosen:
            yield from _up_to(parquet.iter_batches(wanted, row_groups=[group], use_threads=False), wanted)


@dataclass(frozen=True, slots=True)
class _Header:
    """Names of columns, and how the lines below them are split."""

    names: Sequence[str]
    dialect: Schema
    line: tuple[str, ...] = ()
    """Fields of the header line, where there is one that ingest reads the names from."""
    note: str = ""
    has_names: bool = True


def _text_rows(file: RawFile, num_rows: int) -> _Rows:
    """Split rows of a text log as most of its lines are split.

    Raises:
        InputError: most lines have different numbers of fields, or there is no row.
    """
    sample = read_sample(file)
    tried = find_dialect(sample.starts, sample.starts_seams)
    if not tried.counts.size:
        raise InputError(f"{file.path} has no rows")
    _refuse_other_forms(file, sample, tried)
    header = _header_of(tried)
    split = split_text(sample.text, header.dialect, tried.num_fields, sample.seams)
    first = 1 if header.line else 0
    all_rows = split.whole[split.whole >= first]
    twins = [row for row in _like_header(split, header.line) if row >= first]
    rows = _spread(np.setdiff1d(all_rows, twins), num_rows)
    if not rows.size:
        raise InputError(f"{file.path} has a header and no rows")
    notes = [header.note, _odd_lines(split, first, sample)]
    if sample.is_guessed:
        notes.append("The encoding is a guess: the first line is not UTF-8.")
    elif sample.encoding == UTF_8 and sample.text.decode(errors="ignore").encode() != sample.text:
        notes.append(
            "Some values are not UTF-8: they are read as bytes, unless encoding = ... says what they are."
        )
    if twins:
        notes.append(f"Lines that repeat the header: {len(twins):,}. Ingest refuses or skips them.")
    places = "which are all" if sample.is_whole else f"from {sample.places}"
    if sample.is_whole and rows.shape[0] < all_rows.shape[0] - len(twins):
        places = f"the first, middle and last of {all_rows.shape[0] - len(twins):,}"
    columns = list(zip(header.names, split.columns(rows), strict=True))
    schema = replace(header.dialect, encoding=sample.encoding)
    return _Rows(columns, rows.shape[0], places, schema, tuple(filter(None, notes)), header.has_names)


def _refuse_other_forms(file: RawFile, sample: Sample, tried: Split) -> None:
    """Raise InputError where lines are LIBSVM's, or no separator splits most of them alike."""
    lines = [_PAIRS.fullmatch(line) for line in sample.starts.splitlines()]
    numbers = [[int(number) for number in re.findall(rb" (\d+):", line[1])] for line in lines if line]
    are_many = len(numbers) > 0.9 * len(lines) and sum(map(len, numbers)) >= 2 * len(numbers)
    if are_many and all(each == sorted(set(each)) for each in numbers):
        raise InputError(
            f"{file.path} has LIBSVM's form: a label, then pairs of a number and a value",
            hint=f"`sed 's/ /\\t/' {file.path.name} > log.tsv` makes two columns of it, a label and a list",
        )
    if 2 * tried.usual.shape[0] <= max(0, tried.counts.shape[0] - 1):
        raise InputError(
            f"{file.path}: no separator splits most lines into equally many fields; with "
            f"{tried.dialect.separator!r}, {tried.usual.shape[0]:,} of {tried.counts.shape[0]:,} have "
            f"{_fields(tried.num_fields)}",
            hint="write a schema with the separator and the quote of the log",
        )


def _spread(rows: NDArray[np.intp], num_rows: int) -> NDArray[np.intp]:
    """Return the first, the middle and the last rows, ``num_rows`` in all."""
    if rows.shape[0] <= num_rows:
        return rows
    third = num_rows // 3
    middle = (rows.shape[0] - third) // 2
    parts = (rows[: num_rows - 2 * third], rows[middle : middle + third], rows[rows.shape[0] - third :])
    return np.concatenate(parts)


def _like_header(split: Split, line: tuple[str, ...]) -> list[int]:
    """Return the records that have the fields of the header."""
    if not line:
        return []
    firsts = texts_of(split.columns(split.usual)[0])
    alike = (int(row) for row, text in zip(split.usual, firsts, strict=True) if text == line[0])
    return [row for row in alike if tuple(split.fields_of(row)) == line]


def _odd_lines(split: Split, first: int, sample: Sample) -> str:
    """Return what to know of the lines that have another number of fields than most."""
    odd = split.odd[split.odd >= first]
    if not odd.size:
        return ""
    found = f"{_fields(split.counts[odd[0]])}, want {split.num_fields}"
    if odd[0] == split.counts.shape[0] - 1:
        return f"The last line has {found}: ingest refuses a footer, or skips it."
    line = int(split.lines[odd[0]])
    which = f"Line {line:,}" if line <= sample.num_known else "One in the middle or at the end"
    return (
        f"Not looked at: {odd.shape[0]:,} of {split.counts.shape[0] - first:,} lines. "
        f"{which} has {found}. Ingest refuses such lines, or counts and skips them."
    )


def _fields(number: int) -> str:
    if number < 1:
        return "a quote that is not closed"
    return "1 field" if number == 1 else f"{number} fields"


def _header_of(split: Split) -> _Header:
    """Find the names of the columns: in the first line that is split like most, or in one above it."""
    num_titles = count_titles(split)
    dialect = split.dialect
    names = tuple(split.fields_of(num_titles))
    if num_titles:
        dialect = replace(dialect, skip=int(split.lines[num_titles]) - 1)
    if _is_header(names, split.columns(split.whole[1:])):
        return _Header(names, dialect, names, _on_names(names, split))
    # A header that lacks what ends the rows, or the name of their numbers, or has a separator more.
    title = split.fields_of(num_titles - 1) if num_titles else []
    line = int(split.lines[num_titles - 1]) if title else 0
    columns = split.columns(split.usual)
    lacking = len(title) == len(names) - 1
    ends_empty = lacking and not any(texts_of(columns[-1]))
    fields = [*title, ""] if ends_empty else ["row", *title] if lacking else title[:-1]
    is_near = lacking or (len(title) == len(names) + 1 and not title[-1])
    found = f"has {_fields(len(title))} and the rows {len(names)}"
    if is_near and _is_header([name or "?" for name in fields], columns):
        named = _without_twins(fields)
        note = f"The header {found}: it is skipped, and fields has its names."
        return _Header(named, replace(dialect, skip=line, fields=named), note=note)
    named = tuple(f"field{number}" for number in range(1, len(names) + 1))
    note = f"Line {line:,} {found}: it is skipped, and the names in fields are made up." if title else ""
    return _Header(named, replace(dialect, fields=named), note=note, has_names=False)


def _on_names(names: Sequence[str], split: Split) -> str:
    """Return how to read the columns that a header gives no name of their own."""
    columns = zip(names, split.columns(split.usual[1:]), strict=True)
    names_of_values = [name for name, column in columns if name or any(texts_of(column))]
    if "" not in names_of_values and len(set(names_of_values)) == len(names_of_values):
        return ""
    skip = int(split.lines[split.usual[1]]) - 1
    return (
        f"{_NAMELESS} are left out. To read them, write in place of header: "
        f"header = false, skip = {skip} and fields = {toml_of(list(_without_twins(names)))}."
    )


def _without_twins(names: Sequence[str]) -> tuple[str, ...]:
    """Return names each of which is there once, and none of which is empty."""
    found: list[str] = []
    for name in names:
        name = name or "unnamed"
        while name in found:
            name += "_"
        found.append(name)
    return tuple(found)


def _is_header(names: Sequence[str], columns: Sequence[Any]) -> bool:
    """Return whether the first line names columns.

    It does where a column of numbers or times has something else there, and does not where all columns of
    numbers have numbers. A log of text alone has a header if no name is missing, there twice, or a number.

    Args:
        names: fields of the first line.
        columns: the other lines, by column.
    """
    has_numbers = False
    for name, values in zip(names, columns, strict=True):
        kinds = [kind for kind in _NUMBERS if _holds(values, kind)]
        if not kinds and not are_times(values):
            continue
        has_numbers = True
        # A word for a missing value is no name.
        is_such = (
            any(_holds(column_of([name]), kind) for kind in kinds) if kinds else are_times(column_of([name]))
        )
        if name.strip() and not is_such and name.lower().encode() not in MISSING_WORDS:
            return True
    is_number = any(_holds(column_of([name]), kind) for name in names for kind in _NUMBERS)
    return not has_numbers and "" not in names and len(set(names)) == len(names) and not is_number


def _holds(values: Any, kind: str) -> bool:
    """Return whether every value is of a kind, and there is one."""
    states = read_values(values, kind)[1]
    return bool((states == GOOD).any() and not (states == BAD).any())


def _words_for_missing(columns: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    """Return the words for a missing value: those in columns of numbers, times, lists or two values.

    In a text a word such as NA may be anything, so there only those count that nobody writes.
    """
    words: set[str] = set()
    for name, values in columns:
        if not is_text(values.type):
            continue
        texts = set(filter(None, texts_of(values)))
        found = {text for text in texts if text.lower().encode(errors="replace") in MISSING_WORDS}
        rest = sorted(texts - found)
        if not found or not rest:
            continue
        column = infer_column(name, column_of(rest), 0, [name])
        is_prose = column.kind == "text" and column.lists is None
        words |= found & _CERTAIN_WORDS if is_prose else found
    return tuple(sorted(words))


def _propose(file: RawFile, rows: _Rows) -> Proposal:
    raw = [(name, undivided(values)) for name, values in rows.columns]
    missing = _words_for_missing(raw)
    columns = [(name, without(values, missing)) for name, values in raw]
    # What folders are called may be the label, but fields name all columns that there are.
    folders = file.partitions if not rows.schema.fields else {}
    named = {name: value for name, value in folders.items() if names_a_label(name)}
    columns += [
        (name, column_of([value] * rows.num_rows))
        for name, value in named.items()
        if name not in dict(columns)
    ]
    names = [name for name, _ in columns]
    inferred = [infer_column(name, values, rows.num_rows, names) for name, values in columns]
    label = infer_label(inferred, columns, has_names=rows.has_names)
    others = [column for column in inferred if column.name != label.name]
    inferred = _beside_label(label, others, dict(columns), rows.num_rows)
    used = [column for column in inferred if column.is_used]
    if all(column.kind == "float" for column in used):
        raise _without_category(file, inferred, rows.notes)
    keys = keys_of(replace(rows.schema, label=label.name, above=label.above, positive=label.positive))
    schema = read_keys(
        keys
        | ({"missing": list(missing)} if missing else {})
        | {
            "dense": {column.name: column.features[0] for column in used if column.kind == "float"},
            "sparse": {column.name: list(column.features) for column in used if column.kind != "float"},
        }
    )
    notes = [note for note in label.notes if label.name not in named or not note.startswith("All values")]
    return Proposal(schema, tuple(inferred), rows.num_rows, rows.places, (*rows.notes, *notes))


def _beside_label(
    label: InferredLabel, columns: Sequence[InferredColumn], values: dict[str, Any], num_rows: int
) -> list[InferredColumn]:
    """Leave out the columns that know the label, and those that may be called nothing else."""
    is_clicked = is_positive(label, values[label.name]) if label.name is not None else None
    kept = []
    for column in columns:
        reason = None
        is_readable = column.is_readable
        if column.name == "label":
            reason, is_readable = "only the label can be called so", False
        elif column.name in label.named:
            reason = f"it is called like a label, as {label.name} is"
        if is_clicked is not None and column.is_used and num_rows >= MIN_ROWS_TO_JUDGE:
            reason = follows_label(column, values[column.name], str(label.name), is_clicked) or reason
        if reason is not None:
            column = replace(column, note=reason, is_used=False, is_readable=is_readable)
        kept.append(column)
    return kept


def _without_category(file: RawFile, inferred: Sequence[InferredColumn], notes: Sequence[str]) -> InputError:
    """Return the error for a log none of whose columns is proposed as a category, with the reasons."""
    shown = [f"{column.name!r}: {column.note}" for column in inferred if not column.is_used][:_SHOWN_REASONS]
    reasons = f" ({'; '.join(shown)})" if shown else ""
    needed = "a model needs at least one column of values that occur again, such as an id or a text"
    named = [note for note in notes if note.startswith(_NAMELESS)]
    return InputError(f"{file.path}: no column could be a category{reasons}", hint=" ".join([*named, needed]))
