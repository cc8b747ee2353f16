"""``ingest``: raw logs -> columns/, typed and checked.

Each part of a raw file, a block of whole lines or a batch of Parquet rows, becomes one Arrow file. So parts
are parsed in parallel, resumed one by one, and cut at the same places with any number of workers.
`raw.log_parts` reads the formats; this module keeps the account of what was read and refused.

It also estimates, before the log is read, the memory that a worker takes for a part. The lines at the start
of a file give the number of values in a block; a log whose lines get shorter takes more memory than
estimated. The costs below are anonymous memory measured on logs of 0.5 to 1.2 M samples, with one and two
workers and blocks of 4 to 64 MiB, rounded up: estimates were 1.0 to 1.5 times the measured memory.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, pairwise
from math import ceil
from pathlib import Path
from typing import Any, NoReturn

import xxhash

from ..errors import (
    MIB,
    ByteSize,
    ConfigError,
    FormatError,
    HotsetError,
    InputError,
    ManifestError,
    check_fields,
    require_at_least,
)
from ..folders.manifest import Manifest, is_sealed
from ..folders.output import Output
from ..folders.resume import Continuation, starts_with
from ..folders.totals import ColumnsFacts, ColumnsTotals, RawLog
from ..formats.arrow_files import write_batch
from ..formats.columns import write_part_texts
from ..raw.log_files import (
    REMEDY,
    check_log,
    checksum_of_log,
    examples_of,
    file_of,
    groups_of,
    identity_of,
    inspect_logs,
    is_of_groups,
    names_of,
    note_log,
    refuse_inside,
)
from ..raw.log_parts import COLUMNAR, JoinedFiles, as_read, check_columns, open_parts
from ..raw.part import QUOTE, UTF_8, Fault, Part, RawParts, UnreadPart, UnreadParts, iterate_blocks
from ..raw.raw_file import RawFile
from ..runtime.tasks import DEFAULT_RESOURCES, Resources, num_processes, run_tasks, silent, workers_within
from ..schema.schema import SAMPLE_TIME, Schema
from ..schema.schema_file import is_fingerprint, schema_identity, schema_of, write_schema

_TYPICAL_LINE_BYTES = 160
"""Bytes of a line of Criteo's log without its largest integers, for a log that cannot be read."""
_log = logging.getLogger(__name__)
_START_BYTES = 1 << 16
_TEXT_MARGIN = 9 / 8
"""Bytes of the buffer of a block for each byte of the block, see `thread_buffer`."""
_XZ_BYTES = 65 * MIB
"""Bytes of the text before that a decoder of xz keeps at its highest level."""
_BLOCKS_IN_FLIGHT = 2
"""Decompressed blocks per worker that wait to be parsed."""
_CRITEO_VALUE_BYTES = 4.7
"""Bytes of a value of Criteo's format: 4, a bit for missing ones, and an eighth more, see `thread_buffer`."""
_CSV_VALUE_BYTES = 36
"""Bytes of a field of CSV: where it begins and ends, its value, its state, and a copy for Arrow."""
_TEXT_COPIES = 4
"""Copies of the texts of a block, from which the distinct ones are found."""
_JSON_COPIES = 6
"""Copies of a block of JSON Lines: all its values are copied by Arrow."""
_PARQUET_VALUE_BYTES = 64
"""Bytes of a value of Parquet: the batches that wait to be parsed, what is made of one, and a page."""
_STORED_VALUE_BYTES = 8
"""Bytes that a value of Parquet counts in a block."""
_SAMPLES_MARGIN = 9 / 8
"""Samples of a block for each one that the lines at the start of its file let expect."""


def part_bytes(
    file: RawFile, schema: Schema, block_bytes: int, *, has_label: bool, num_bytes: int | None = None
) -> int:
    """Return the estimated anonymous memory of one worker that parses blocks of ``file`` (bytes).

    ``num_bytes``: those of the files that are read together; None where it is this one alone.
    """
    of_samples = schema.sample_columns(has_label=has_label)
    num_columns = len(schema.dense) + len(schema.sparse) + len(of_samples)
    form = _form_of(file, schema)
    if form in COLUMNAR:
        return int(block_bytes / _STORED_VALUE_BYTES * _PARQUET_VALUE_BYTES)
    text_bytes = _text_bytes(file, schema, block_bytes, num_bytes)
    num_values = text_bytes / _line_bytes(file) * num_columns
    value_bytes = _CRITEO_VALUE_BYTES if form == "criteo" else _CSV_VALUE_BYTES
    num_blocks = 1 + _BLOCKS_IN_FLIGHT if _is_streamed(file, schema) else _TEXT_MARGIN
    if form == "csv":
        num_blocks += _TEXT_COPIES * _share_of_texts(file, schema, has_label=has_label)
    elif form == "json":
        num_blocks += _JSON_COPIES
    decoder_bytes = _XZ_BYTES if file.compression == "xz" else 0
    return int(text_bytes * num_blocks + num_values * value_bytes + decoder_bytes)


def _is_streamed(file: RawFile, schema: Schema) -> bool:
    """Return whether a text is read in order by one thread."""
    return file.compression is not None or schema.encoding != UTF_8


def _share_of_texts(file: RawFile, schema: Schema, *, has_label: bool) -> float:
    """Return the share of a text's bytes that columns of the kind text have, by the lines at its start."""
    from ..raw.csv_parts import CsvParts

    with suppress(InputError):  # a file that cannot be read is refused where it is parsed
        parts = CsvParts(file, 0, schema, block_bytes=_START_BYTES, has_label=has_label)
        return parts.share_of(
            {schema.column_of[name] for name, kind in schema.kind_of.items() if kind == "text"}
        )
    return 1.0


def samples_of_block(
    file: RawFile, schema: Schema, block_bytes: int, *, has_label: bool, num_bytes: int | None = None
) -> int:
    """Return the estimated samples of the largest part that a block becomes, arguments as in `part_bytes`."""
    if _form_of(file, schema) in COLUMNAR:
        values_of_row = max(1, len(schema.columns(has_label=has_label)) - len(schema.lists))
        return max(1, block_bytes // (_STORED_VALUE_BYTES * values_of_row))
    return int(_text_bytes(file, schema, block_bytes, num_bytes) / _line_bytes(file) * _SAMPLES_MARGIN)


def _form_of(file: RawFile, schema: Schema) -> str:
    """Return the format of a file, or that of the schema: the parser refuses a file that cannot be read."""
    try:
        return as_read(file, schema)[0]
    except FormatError:
        raise
    except InputError:
        return schema.format


def _text_bytes(file: RawFile, schema: Schema, block_bytes: int, num_bytes: int | None) -> int:
    """Return the bytes of text of the largest block; a small file is one block."""
    num_bytes = file.num_bytes if num_bytes is None else num_bytes
    return block_bytes if _is_streamed(file, schema) else min(block_bytes, num_bytes)


def _line_bytes(file: RawFile) -> float:
    """Return the average bytes of a line at the start of a file of text."""
    with suppress(InputError):  # a file that cannot be read is refused where it is parsed
        for block in iterate_blocks(file, _START_BYTES):
            lines = block.read().lines
            num_lines = int((lines == ord("\n")).sum())
            if num_lines:
                return float(lines.shape[0] / num_lines)
    return _TYPICAL_LINE_BYTES


VERSION = 1
_ORDER_HINT = "sort the log by its time column, or leave time out of the schema"
_BLOCK_BYTES = ByteSize(16 * MIB)
_MOST_BAD = 0.001
"""Share of the lines that may be skipped where no other is given."""


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """Settings of the ingest stage; part of its fingerprint."""

    schema: str = "criteo-kaggle"
    """Schema of the log: the name of a known log, such as criteo-kaggle, criteo-1tb, criteo-x4, avazu,
    movielens-20m or taobao-ad, or a .toml file (in Python: its text)."""

    label: bool = field(
        default=True, metadata={"help": "Read a log without labels; it then serves statistics only."}
    )
    """Whether the log has labels; without them it serves statistics only."""

    on_bad_line: str = field(default="error", metadata={"offered": ("error", "skip")})
    """Response to a line that does not match the schema: error stops; skip counts it, and stops where more
    than 0.001 of the lines are bad; skip:0.01 sets another share, in [0, 1]."""

    block_bytes: ByteSize = _BLOCK_BYTES
    """Size of the block of raw text that becomes one file of columns; a Parquet value counts as 8 bytes."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not is_fingerprint(self.schema):  # as a manifest has it
            schema_of(self.schema)
        if self.max_bad_fraction == _MOST_BAD:  # one spelling of equal settings
            object.__setattr__(self, "on_bad_line", "skip")
        require_at_least("block_bytes", self.block_bytes, 1)

    @property
    def max_bad_fraction(self) -> float | None:
        """The largest share of lines that may be skipped; None where a bad line stops the run."""
        if self.on_bad_line == "error":
            return None
        word, separator, share = self.on_bad_line.partition(":")
        try:
            found = float(share) if separator else _MOST_BAD
        except ValueError:
            found = -1.0
        if word != "skip" or not 0 <= found <= 1:
            raise ConfigError(
                f"on_bad_line must be error, skip or skip:SHARE with a share in [0, 1], "
                f"got {self.on_bad_line!r}"
            )
        return found


@dataclass(slots=True)
class _Tally:
    """The lines of one file that are read so far."""

    lines: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    digest: Any = field(default_factory=xxhash.xxh3_128)
    known: str | None = None
    """Checksum of a file that was read before; None while the file is being read."""
    last_time: int | None = None
    """Time of the last sample so far, seconds since 1970; of a file before until this one has a sample."""
    other_lines: int = 0
    """Lines that are neither samples nor bad."""

    @property
    def checksum(self) -> str:
        """Checksum of the blocks, hex."""
        return self.known or str(self.digest.hexdigest())

    @classmethod
    def of_before(cls, before: Manifest, num_files: int) -> list[_Tally]:
        """Return the tallies of the first files from a folder that was sealed."""
        # Checksum and lines are in the totals; bad lines by reason only in the parts.
        raw = ColumnsTotals.of(before).raw[:num_files]
        tallies = [cls(each.num_lines, known=each.xxh3_128_of_blocks) for each in raw]
        for _, entry in before.parts():
            for facts in before.facts_of(ColumnsFacts, entry).by_file:
                number = file_of(entry.path) if facts.file is None else facts.file
                if number < len(tallies):
                    tallies[number].bad.update(facts.bad)
                    tallies[number].last_time = facts.last_time
        for earlier, later in pairwise(tallies):
            later.last_time = earlier.last_time if later.last_time is None else later.last_time
        return tallies


def ingest(
    raw: Sequence[Path],
    config: IngestConfig,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    extend: bool = False,
    trust_names: bool = False,
    joins: bool = True,
) -> Manifest:
    """raw logs -> columns: read what the schema names as typed columns, one file for each part of a log.

    Reads:   Criteo's lines of ``label, integers, categories`` or CSV, plain, gzip or zstd; Parquet;
             several files in order
    Writes:  ``file{f}-block{b}.arrow``, of Parquet ``file{f}-row{first}.arrow``, of small files
             ``file{first}-before{end}.arrow``: label uint8, weight float32, group uint64, dense int32 or
             float64, sparse uint32 (Criteo), uint64 or list<uint64>, null where missing (in a list, its
             elements: a missing list has one); ``*.texts.arrow`` next to them, see `columns`

    With ``extend``, columns of the first of these files are continued; only the files after them are parsed.
    Logs that an earlier run has read are hashed again, unless ``trust_names``; see `log_files`. Without
    ``joins``, each small file is a part, as earlier versions wrote them.

    Raises:
        ManifestError: a log has changed since an earlier run read it, or the folder is of another run.
        InputError: a line is not as the schema says (file, line, column, found, wanted), too many
            were skipped, a file cannot be read or lacks a column, or there is no line at all.
        MemoryCapError: not even one worker keeps the memory cap.
    """
    refuse_inside(raw, out)
    files = inspect_logs(raw)
    if not files:
        raise InputError("no input file given")
    names = identity_of(files, schema_of(config.schema))
    identity = ingest_identity(config)
    if extend or not is_sealed(out):  # refused before the folder is begun
        resources = replace(resources, workers=workers_for(files, config, resources))
    output = Output.begin("ingest", VERSION, identity, names, out, continuation=continued_log(extend))
    if trust_names:
        _log.warning("the logs are compared by their names and sizes only (--trust-names)")
    # The files of a sealed folder are not parsed again: their tallies are in its manifest.
    before = output.sealed or output.before
    num_before = len(ColumnsTotals.of(before).raw) if before is not None else 0
    if before is not None and not trust_names:
        for number, file in enumerate(files[:num_before]):
            check_log(file, number, before, resources)
    if output.sealed is not None:
        return output.sealed
    # What was the last group of small files may be part of a larger one now, which is read again.
    groups = groups_of(files, config.block_bytes) if joins else {}
    stale = [name for name in output.finished if not is_of_groups(name, groups)]
    output.drop(stale)
    again = [groups[number].start for number in (num_before, *map(file_of, stale)) if number in groups]
    num_before = min((num_before, *again))
    tallies = _Tally.of_before(before, num_before) if before else []
    parts = {number: open_log(file, number, config) for number, file in [*enumerate(files)][num_before:]}
    if not num_before:
        check_columns(parts.values())
    account = _Account(files, parts, groups, tallies, config, output, resources, trust_names)
    try:
        # Closed when a line is refused: no task may go on writing then.
        with closing(run_tasks(_ingest_unit, account.tasks(), workers=resources.workers)) as results:
            for found in results:
                account.add(found)
        account.move_to(len(files))
    except InputError:
        # Neither another log nor other settings, which are the ways out, could use what is finished.
        output.abandon()
        raise
    if not any(entry.num_samples for entry in output.finished.values()):
        num_bad = sum(tally.bad.total() for tally in tallies)
        but = f", but bad lines: {num_bad:,}" if num_bad else ""
        raise InputError(f"{files[0].path}: the log is empty: it has no samples{but}")
    return output.seal(_totals(files, tallies, config, output))


def workers_for(files: Sequence[RawFile], config: IngestConfig, resources: Resources) -> int:
    """Return with how many workers `ingest` keeps the memory cap, estimated from the first lines of files.

    Raises:
        MemoryCapError: not even one worker keeps it.
    """
    return workers_within("ingest", resources, needed_bytes(files, config))


def needed_bytes(files: Sequence[RawFile], config: IngestConfig) -> int:
    """Return the bytes that one worker of `ingest` needs, estimated from the first lines of files."""
    schema = schema_of(config.schema)
    return max(
        (
            part_bytes(file, schema, config.block_bytes, has_label=config.label, num_bytes=num_bytes)
            for file, num_bytes in examples_of(files, config.block_bytes)
        ),
        default=0,
    )


def continued_log(extend: bool) -> Continuation:
    """Return how columns continue with ``extend``: parts of the files so far stay, others are added."""
    return Continuation(starts_with, keeps_files=True, is_wanted=extend)


def ingest_identity(config: IngestConfig) -> IngestConfig:
    """Return ``config`` as the manifest has it: with the fingerprint of a schema file instead of its text."""
    return replace(config, schema=schema_identity(config.schema))


def open_log(file: RawFile, number: int, config: IngestConfig) -> RawParts:
    """Open a raw file, the ``number``-th of the log, as the config says."""
    return open_parts(
        file,
        number,
        schema_of(config.schema),
        block_bytes=config.block_bytes,
        has_label=config.label,
        strict=config.max_bad_fraction is None,
    )


Read = tuple[str, Fault | None, Sequence[ColumnsFacts]]
"""Name of a part that a task read; its fault, if the run ends there; and of a part with one, what the files
before that of the fault have of it."""
Unit = UnreadPart | UnreadParts | HotsetError
"""What one task reads; an error that was met where its part would be is raised in its turn."""


class _Account:
    """What was read of the files so far, in their order."""

    def __init__(
        self,
        files: list[RawFile],
        parts: dict[int, RawParts],
        groups: dict[int, range],
        tallies: list[_Tally],
        config: IngestConfig,
        output: Output,
        resources: Resources,
        trust_names: bool,
    ) -> None:
        self._files = files
        self._parts = parts
        self._groups = groups
        self._tallies = tallies
        """Of the files that were read, the last one perhaps in part."""
        self._config = config
        self._output = output
        self._resources = resources
        self._trust_names = trust_names
        self._checksums: dict[int, str] = {}
        """Of files that are hashed whole."""
        self._begun = {
            file_of(name) if facts.file is None else facts.file
            for name, entry in output.finished.items()
            if not entry.is_texts
            for facts in entry.read_facts(ColumnsFacts).by_file
        }
        self._ends = list(accumulate((file.num_bytes for file in files), initial=0))
        # A text that is decompressed or decoded has an unknown length, and then so has the whole: total 0.
        is_known = not any(_is_streamed(file, schema_of(config.schema)) for file in files)
        self._total = self._ends[-1] if is_known else 0
        self._done = 0

    def tasks(self) -> Iterator[tuple[Unit, dict[int, RawFile], IngestConfig, Output, bool]]:
        """Yield what is read of all files, as parts with data or, for other machines, without."""
        is_remote = num_processes(self._resources.workers) > 0
        for number, parts in self._parts.items():
            group = self._groups.get(number)
            is_read = group is None or number == group[-1]  # a group with its last file
            files = {each: self._files[each] for each in group or (number,)} if is_read else {}
            ways = files, self._config, self._output, self._trust_names
            try:
                if parts.is_hashed_whole:
                    self._hash_whole(number)
                finished = self._output.finished
                if not is_read:
                    continue
                self._compare_with_begun(files)
                if group is not None:
                    of_group = {each: self._parts[each] for each in group}
                    yield JoinedFiles(group, of_group, self._config.block_bytes), *ways
                    continue
                for unit in parts.describe(finished) if is_remote else parts.iterate(finished):
                    yield unit, *ways
            except HotsetError as error:  # parts before it may be refused first
                yield error, *ways
                return

    def _hash_whole(self, number: int) -> None:
        file = self._files[number]
        unseen = replace(self._resources, progress=silent)
        self._checksums[number] = checksum_of_log(file, self._config.block_bytes, unseen)

    def _compare_with_begun(self, files: Mapping[int, RawFile]) -> None:
        """Keep the checksums of files whose parts have none for a run that resumes this one.

        Where that is this run, because parts of a file are there, compare its own.

        Raises:
            ManifestError: such a file is not the one that they were read from.
        """
        found = {each: f"{each}:{self._checksums[each]}" for each in files if each in self._checksums}
        if not found:
            return
        note = f"file{min(files):04}.checksums"
        known = (self._output.read_note(note) or "").split()
        for number, text in found.items():
            is_begun = number in self._begun and not self._trust_names
            if is_begun and text not in known:
                raise _changed(files[number], self._output)
        self._output.write_note(note, " ".join(found.values()))

    def move_to(self, number: int) -> None:
        """End the files before ``number``, of which no part is left, and begin that one if it is there."""
        while (current := len(self._tallies) - 1) < number:
            if current in self._parts:
                self._check_file(current)
            if current + 1 == len(self._files):
                break
            self._begin_file(current + 1)

    def _begin_file(self, number: int) -> None:
        last_time = self._tallies[-1].last_time if self._tallies else None
        self._tallies.append(_Tally(last_time=last_time))
        self._done = self._ends[number]

    def _check_file(self, number: int) -> None:
        file, tally = self._files[number], self._tallies[number]
        tally.known = self._checksums.get(number)
        if not file.is_unchanged():  # its parts would be of two logs
            raise file.changed()
        _check_bad_lines(file, tally, self._config)
        if not self._trust_names:  # else parts may be those of another log
            note_log(file, self._config.block_bytes, tally.checksum)

    def add(self, found: list[Read]) -> None:
        """Add the parts that a task read to the tallies of their files."""
        # Parts arrive in order, so all lines before a fault are counted.
        for name, fault, before in found:
            number = file_of(name)
            self.move_to(number)
            for facts in before:
                self._add(number if facts.file is None else facts.file, facts)
            if fault is not None:
                self._refuse(number if fault.file is None else fault.file, fault)
            if name in self._output.finished:
                for facts in self._output.finished[name].read_facts(ColumnsFacts).by_file:
                    self._add(number if facts.file is None else facts.file, facts)

    def _refuse(self, number: int, fault: Fault) -> NoReturn:
        self.move_to(number)
        file, parts, tally = self._files[number], self._parts[number], self._tallies[number]
        line = tally.lines + tally.other_lines + fault.line_in_block + 1 + parts.num_header_lines
        hint = hint_for(fault, self._config)
        raise InputError(f"{file.path}, {parts.unit} {line}{fault.text}", hint=hint)

    def _add(self, number: int, facts: ColumnsFacts) -> None:
        """Add what a file has of a part to its tally."""
        self.move_to(number)
        file, parts, tally = self._files[number], self._parts[number], self._tallies[number]
        _check_order(file, facts, tally, parts)
        tally.lines += facts.num_lines
        tally.other_lines += facts.num_other_lines or 0
        tally.bad.update(facts.bad)
        tally.digest.update(bytes.fromhex(facts.raw_xxh3_128))
        self._done += facts.num_raw_bytes
        self._resources.progress("ingest", self._done, self._total)
        # Refuse as soon as even good lines to the end could not reduce the fraction enough.
        if parts.min_line_bytes and not file.compression:
            max_lines_left = max(self._ends[number + 1] - self._done, 0) / parts.min_line_bytes
            _check_bad_lines(file, tally, self._config, max_lines_left=max_lines_left)


def _ingest_unit(
    unit: Unit, files: Mapping[int, RawFile], config: IngestConfig, output: Output, trust_names: bool
) -> list[Read]:
    """Write one part, or some in order up to the first with a fault."""
    if isinstance(unit, HotsetError):
        raise unit
    found = []
    for part in unit.unread(output.finished) if isinstance(unit, UnreadParts) else (unit,):
        found.append(_ingest_part(part, files, config, output, trust_names))
        if found[-1][1] is not None:
            break
    return found


def _ingest_part(
    unread: UnreadPart, files: Mapping[int, RawFile], config: IngestConfig, output: Output, trust_names: bool
) -> Read:
    """Parse one part and write it."""
    name = unread.name
    if output.has(name):
        # What a killed run has read is read again, and hashed: the file may be another one by now.
        changed = None if trust_names else unread.changed(output.finished[name].read_facts(ColumnsFacts))
        if changed is not None:
            raise _changed(files[changed], output, f": {name} was made of other lines")
        return name, None, ()
    part = unread.read()
    # A block in which no line begins, such as one inside a line longer than a block.
    if part is None:
        return name, None, ()
    of_files = tuple(replace(_facts_of(each), file=number) for number, each in part.files.items())
    # In strict mode the first fault ends the stage, which names its line. No line is skipped for a time
    # before the one above it, nor for a quote that is not closed.
    fault = part.fault if part.fault is not None and config.max_bad_fraction is None else part.disorder
    if fault is not None:
        return name, fault, [each for each in of_files if (each.file or 0) < (fault.file or 0)]
    # What the later stages need to know of the part, so that they do not open it.
    facts = replace(
        _facts_of(part),
        lookups={name: len(part.columns[name].values) for name, _ in schema_of(config.schema).lists},
        files=of_files,
    )
    write_part_texts(output, name, part.texts)  # first: a part that is there has its texts
    with output.writing(name, part.num_samples, facts) as path:
        write_batch(path, part.columns)
    return name, None, ()


def _facts_of(part: Part) -> ColumnsFacts:
    times = part.columns.get(SAMPLE_TIME) if part.num_samples else None
    return ColumnsFacts(
        num_lines=part.num_samples + part.bad.total(),
        num_raw_bytes=part.num_raw_bytes,
        raw_xxh3_128=part.raw_xxh3_128,
        bad=dict(sorted(part.bad.items())),
        num_other_lines=part.num_other_lines or None,
        first_time=None if times is None else times[0].as_py(),
        last_time=None if times is None else times[-1].as_py(),
    )


def _check_order(file: RawFile, facts: ColumnsFacts, tally: _Tally, parts: RawParts) -> None:
    """Raise InputError where a part begins before the one above it ends; note its own end."""
    if facts.first_time is None:
        return
    if tally.last_time is not None and facts.first_time < tally.last_time:
        from ..raw.column_values import shown_time

        line = tally.lines + tally.other_lines + parts.num_header_lines
        earlier, later = shown_time(facts.first_time), shown_time(tally.last_time)
        raise InputError(
            f"{file.path}, after {parts.unit} {line}: the next time, {earlier}, is before {later} above it",
            hint=_ORDER_HINT,
        )
    tally.last_time = facts.last_time


def hint_for(fault: Fault, config: IngestConfig) -> str:
    """Return what to do about a bad line."""
    if fault.reason == "unordered_time":
        return _ORDER_HINT
    if fault.is_label_off:
        without = "without --no-label" if not config.label else "with --no-label"
        other = "labels" if not config.label else "no labels"
        return f"a log that has {other} is read {without}; --on-bad-line skip counts and skips such lines"
    if fault.reason == "missing_label":
        return (
            "count and skip such lines with --on-bad-line skip; a log without labels is read with --no-label"
        )
    # Only a schema that is a file can be changed.
    remedy = fault.remedy if "\n" in config.schema else None
    if fault.reason == QUOTE:  # what follows could be in quotes or not, so that no line is skipped
        return remedy or "fix the line"
    return f"{remedy or 'fix the line'}, or count and skip such lines with --on-bad-line skip"


def _changed(file: RawFile, output: Output, where: str = "") -> ManifestError:
    text = f"{file.path} has changed since an unfinished run read it into {output.folder}{where}"
    return ManifestError(text, hint=REMEDY)


def _check_bad_lines(
    file: RawFile, tally: _Tally, config: IngestConfig, *, max_lines_left: float = 0
) -> None:
    """Raise InputError if too many lines are bad even if ``max_lines_left`` more are all good."""
    most = config.max_bad_fraction or 0.0
    if tally.bad.total() <= most * (tally.lines + max_lines_left):
        return
    enough = ceil(100 * tally.bad.total() / tally.lines) / 100
    reasons = ", ".join(f"{count} {reason}" for reason, count in tally.bad.most_common())
    raise InputError(
        f"{file.path}: {tally.bad.total()} of the first {tally.lines} lines are bad ({reasons}), "
        f"more than the fraction {most:g} that may be skipped",
        hint=f"look at the file, or allow a larger share: --on-bad-line skip:{enough:g}",
    )


def _totals(
    files: list[RawFile], tallies: list[_Tally], config: IngestConfig, output: Output
) -> ColumnsTotals:
    schema = schema_of(config.schema)
    # Lines and checksums of each raw file, which a later run compares with the files it is given.
    raw = tuple(
        RawLog(
            name=name,
            num_bytes=file.num_bytes,
            num_lines=tally.lines,
            num_samples=tally.lines - tally.bad.total(),
            xxh3_128_of_blocks=tally.checksum,
        )
        for name, file, tally in zip(names_of(files, schema), files, tallies, strict=True)
    )
    bad = sum((tally.bad for tally in tallies), Counter())
    return ColumnsTotals(
        num_samples=sum(entry.num_samples for entry in output.finished.values()),
        bad_lines=dict(sorted(bad.items())),
        has_label=config.label and schema.label is not None,
        dense=tuple(schema.dense),
        sparse=tuple(schema.sparse),
        raw=raw,
        lists=tuple(name for name, _ in schema.lists),
        has_time=schema.time is not None,
        floats=tuple(schema.floats),
        untransformed=tuple(schema.untransformed),
        schema=None if schema.format == "criteo" else write_schema(schema.without_settings),
        labels=schema.label_columns if config.label and schema.labels else (),
        number_labels=tuple(rule.column for rule in schema.labels if rule.is_number and config.label),
        has_weight=schema.weight is not None,
        has_group=schema.group is not None,
    )
