"""``ingest``: raw logs -> columns/, typed and checked.

Each part of a raw file, a block of whole lines or a batch of Parquet rows, becomes one Arrow file, so parts
are parsed in parallel, resumed one by one, and cut at the same places whatever the number of workers.
How a format is read stands in `parts`; this module keeps the account of what was read and refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import xxhash

from ..errors import ConfigError, InputError
from ..folders.manifest import Manifest
from ..folders.output import Output
from ..folders.reopening import Extension
from ..folders.run_identity import starts_with
from ..formats.arrow_files import write_batch
from ..formats.category_texts import write_part_texts
from ..raw.criteo_blocks import Fault
from ..raw.log_parts import RawParts, open_parts
from ..raw.raw_blocks import RawFile
from ..raw.tabular import Part
from ..runtime.tasks import ProgressCallback, run_tasks, silent
from ..schema.schema_file import identity_of, is_fingerprint, schema_of, write_schema
from ..sizes import MIB, ByteSize

VERSION = 1
_BLOCK_BYTES = ByteSize(16 * MIB)


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What a run of the ingest stage may vary; part of its fingerprint."""

    schema: str = "criteo-kaggle"
    """Columns of the log: criteo-kaggle, criteo-1tb, avazu or a .toml file (in Python: its text)."""

    label: bool = True
    """Lines have a label. Without (--no-label) they have none, and the log serves statistics only."""

    on_bad_line: Literal["error", "skip"] = "error"
    """Stop at a line that is not as the schema says, or skip and count it."""

    max_bad_fraction: float = 0.001
    """Give up when more than this share of the lines was skipped, in [0, 1]."""

    block_bytes: ByteSize = _BLOCK_BYTES
    """Raw text, or Parquet values at 8 bytes each, that become one file of columns (bytes)."""

    def __post_init__(self) -> None:
        if not is_fingerprint(self.schema):  # as a manifest has it
            schema_of(self.schema)
        if self.on_bad_line not in ("error", "skip"):
            raise ConfigError(f"on_bad_line must be error or skip, got {self.on_bad_line!r}")
        if not 0 <= self.max_bad_fraction <= 1:
            raise ConfigError(f"max_bad_fraction must be between 0 and 1, got {self.max_bad_fraction}")
        if self.block_bytes < 1:
            raise ConfigError(f"block_bytes must be 1 or more, got {self.block_bytes}")


@dataclass(slots=True)
class _Tally:
    """What has been read of one file so far."""

    lines: int = 0
    bad: Counter[str] = field(default_factory=Counter)
    digest: Any = field(default_factory=xxhash.xxh3_128)
    known: str | None = None
    """The checksum, of a file that was read before."""

    @property
    def checksum(self) -> str:
        """Of the blocks read, hex."""
        return self.known or str(self.digest.hexdigest())

    @classmethod
    def of_before(cls, before: Manifest, number: int) -> _Tally:
        """Of file ``number`` of a folder that was sealed."""
        raw, bad = before.totals["raw"][number], Counter[str]()
        for entry in before.files:
            if entry.path.startswith(f"file{number:04}-"):
                bad.update(entry.facts.get("bad", {}))
        return cls(raw["lines"], bad, known=raw["xxh3_128_of_blocks"])


def ingest(
    raw: Sequence[Path],
    config: IngestConfig,
    out: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
    extend: bool = False,
) -> Manifest:
    """raw logs -> columns: read what the schema names as typed columns, one file for each part of a log.

    Reads:   Criteo's lines of ``label, integers, categories`` or CSV, plain, gzip or zstd; Parquet;
             several files in order
    Writes:  ``file{f}-block{b}.arrow``, of Parquet ``file{f}-row{first}.arrow``: label uint8, dense int32
             or float64, sparse uint32 (Criteo), uint64 or list<uint64>, null where missing (in a list, its
             elements: a missing list has one); ``*.texts.arrow`` beside them, see `texts`

    With ``extend``, columns of the first of these files are gone on from; only the files behind are read.

    Raises:
        InputError: a line is not as the schema says (file, line, column, found, wanted), too many
            were skipped, a file cannot be read or lacks a column, or there is no line at all.
    """
    files = [RawFile.look_at(path) for path in raw]
    if not files:
        raise InputError("no raw file was given")
    names = [{"name": file.path.name, "bytes": file.num_bytes} for file in files]
    identity = ingest_identity(config)
    longer_log = Extension(starts_with, keeps_files=True, is_wanted=extend)
    output = Output.begin("ingest", VERSION, identity, names, out, extension=longer_log)
    if isinstance(output, Manifest):
        return output
    before = output.before
    num_before = len(before.totals["raw"]) if before is not None else 0
    tallies = [_Tally.of_before(before, number) for number in range(num_before)] if before else []
    new = list(enumerate(files))[num_before:]
    parts = {number: open_parts(file, number, config) for number, file in new}
    total = sum(file.num_bytes for file in files) if not any(file.compression for file in files) else 0
    for number, file in new:
        done = sum(file.num_bytes for file in files[:number])
        tallies.append(_ingest_file(file, parts[number], config, output, workers, progress, (done, total)))
        _refuse_changed(file)
        _refuse_too_many_bad(file, tallies[-1], config)
    if not any(entry.num_samples for entry in output.finished.values()):
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    return output.seal(_totals(files, tallies, config, output))


def ingest_identity(config: IngestConfig) -> IngestConfig:
    """What of ``config`` stands in the manifest: of a schema file's text its fingerprint."""
    return replace(config, schema=identity_of(config.schema))


def _ingest_file(
    file: RawFile,
    parts: RawParts,
    config: IngestConfig,
    output: Output,
    workers: int,
    progress: ProgressCallback,
    done_total: tuple[int, int],
) -> _Tally:
    tally, (done, total) = _Tally(), done_total
    end = done + file.num_bytes
    tasks = ((read, name, config, output) for name, read in parts.iterate(output.finished))
    for name, fault in run_tasks(_ingest_part, tasks, workers=workers):
        if fault is not None:
            line = tally.lines + fault.line_in_block + 1 + parts.num_header_lines
            raise InputError(f"{file.path}, {parts.unit} {line}{fault.text}", hint=_hint(fault, config))
        if name in output.finished:
            facts = output.finished[name].facts
            tally.lines += facts["lines"]
            tally.bad.update(facts.get("bad", {}))
            tally.digest.update(bytes.fromhex(facts.get("raw_xxh3_128", "")))
            done += facts["raw_bytes"]
            progress("ingest", done, total)
        if parts.min_line_bytes and not file.compression:
            max_lines_left = max(end - done, 0) / parts.min_line_bytes
            _refuse_too_many_bad(file, tally, config, max_lines_left=max_lines_left)
    parts.finish(tally.digest)
    return tally


def _ingest_part(
    read: Callable[[], Part | None], name: str, config: IngestConfig, output: Output
) -> tuple[str, Fault | None]:
    """Parse one part and write it; returns its name and, in strict mode, its first fault."""
    if output.has(name):
        return name, None
    part = read()
    if part is None:
        return name, None
    if part.fault is not None and config.on_bad_line == "error":
        return name, part.fault
    facts = {"lines": part.num_samples + part.bad.total()} | part.facts
    lookups = {name: len(part.columns[name].values) for name, _ in schema_of(config.schema).lists}
    if lookups:
        facts["lookups"] = lookups
    if part.bad:
        facts["bad"] = dict(sorted(part.bad.items()))
    write_part_texts(output, name, part.texts)  # first: a part that is there has its texts
    with output.writing(name, part.num_samples, **facts) as path:
        write_batch(path, part.columns)
    return name, None


def _hint(fault: Fault, config: IngestConfig) -> str:
    if fault.is_label_off:
        without = "without --no-label" if not config.label else "with --no-label"
        other = "labels" if not config.label else "no labels"
        return f"a log that has {other} is read {without}; --on-bad-line skip counts and skips such lines"
    if fault.reason == "missing_label":
        return (
            "count and skip such lines with --on-bad-line skip; a log without labels is read with --no-label"
        )
    return "mend the line, or count and skip such lines with --on-bad-line skip"


def _refuse_changed(file: RawFile) -> None:
    if RawFile.look_at(file.path) != file:
        raise InputError(f"{file.path} changed while it was read", hint="run again when it is complete")


def _refuse_too_many_bad(
    file: RawFile, tally: _Tally, config: IngestConfig, *, max_lines_left: float = 0
) -> None:
    """Raise InputError where too many lines are bad even if ``max_lines_left`` more are all good."""
    if tally.bad.total() <= config.max_bad_fraction * (tally.lines + max_lines_left):
        return
    reasons = ", ".join(f"{count} {reason}" for reason, count in tally.bad.most_common())
    raise InputError(
        f"{file.path}: {tally.bad.total()} of the first {tally.lines} lines are bad ({reasons}), "
        f"more than the fraction {config.max_bad_fraction} that may be skipped",
        hint="look at the file, or raise --max-bad-fraction",
    )


def _totals(
    files: list[RawFile], tallies: list[_Tally], config: IngestConfig, output: Output
) -> dict[str, Any]:
    schema = schema_of(config.schema)
    raw = [
        {
            "name": file.path.name,
            "bytes": file.num_bytes,
            "lines": tally.lines,
            "samples": tally.lines - tally.bad.total(),
            "xxh3_128_of_blocks": tally.checksum,
        }
        for file, tally in zip(files, tallies, strict=True)
    ]
    bad = sum((tally.bad for tally in tallies), Counter())
    totals = {
        "samples": sum(entry.num_samples for entry in output.finished.values()),
        "bad_lines": dict(sorted(bad.items())),
        "has_label": config.label and schema.label is not None,
        "dense": list(schema.dense),
        "sparse": list(schema.sparse),
        "raw": raw,
    }
    lists = [name for name, _ in schema.lists]
    kinds = {"lists": lists, "floats": list(schema.floats), "untransformed": list(schema.untransformed)}
    totals |= {key: names for key, names in kinds.items() if names}
    if schema.format != "criteo":
        totals["schema"] = write_schema(schema.without_settings)
    return totals
