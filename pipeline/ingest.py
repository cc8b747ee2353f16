"""``ingest``: raw logs -> columns/, typed and checked.

Each block of whole lines becomes one Arrow file, so blocks are parsed in parallel, resumed one by one,
and cut at the same bytes whatever the number of workers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import xxhash

from .arrow_files import write_batch
from .criteo_columns import Fault, count_reasons, describe_fault, parse_block
from .errors import ConfigError, InputError
from .manifest import Manifest
from .output import Output
from .raw import Block, RawFile, iterate_blocks
from .schema import schema_named
from .sizes import MIB, ByteSize
from .tasks import ProgressCallback, run_tasks, silent

VERSION = 1
_MIN_LINE_BYTES = 39
_BLOCK_BYTES = ByteSize(16 * MIB)


@dataclass(frozen=True, kw_only=True, slots=True)
class IngestConfig:
    """What a run of the ingest stage may vary; part of its fingerprint."""

    schema: str = "criteo-kaggle"
    """Columns of the log: criteo-kaggle or criteo-1tb."""

    label: bool = True
    """Whether lines begin with a label. A log without labels serves statistics only."""

    on_bad_line: Literal["error", "skip"] = "error"
    """Stop at a line that is not as the schema says, or skip and count it."""

    max_bad_fraction: float = 0.001
    """Give up when more than this share of the lines was skipped, in [0, 1]."""

    block_bytes: ByteSize = _BLOCK_BYTES
    """Raw text that becomes one file of columns (bytes)."""

    def __post_init__(self) -> None:
        schema_named(self.schema)
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


def ingest(
    raw: Sequence[Path],
    config: IngestConfig,
    out: Path,
    *,
    workers: int = 0,
    progress: ProgressCallback = silent,
) -> Manifest:
    """raw logs -> columns: parse text to typed columns, one file for each block of lines.

    Reads:   lines of ``label, integers, categories``, plain, gzip or zstd, several files in order
    Writes:  ``file{f}-block{b}.arrow``: label uint8, I* int32, C* uint32, null where missing

    Raises:
        InputError: a line is not as the schema says (file, line, column, found, wanted), too many
            were skipped, a file cannot be read, or there is no line at all.
    """
    files = [RawFile.look_at(path) for path in raw]
    if not files:
        raise InputError("no raw file was given")
    names = [{"name": file.path.name, "bytes": file.num_bytes} for file in files]
    output = Output.begin("ingest", VERSION, config, names, out)
    if isinstance(output, Manifest):
        return output
    tallies = []
    total = sum(file.num_bytes for file in files) if not any(file.compression for file in files) else 0
    for number, file in enumerate(files):
        done = sum(file.num_bytes for file in files[:number])
        tallies.append(_ingest_file(file, number, config, output, workers, progress, (done, total)))
        _refuse_changed(file)
        _refuse_too_many_bad(file, tallies[-1], config)
    if not any(entry.num_samples for entry in output.finished.values()):
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    return output.seal(_totals(files, tallies, config, output))


def _ingest_file(
    file: RawFile,
    number: int,
    config: IngestConfig,
    output: Output,
    workers: int,
    progress: ProgressCallback,
    done_total: tuple[int, int],
) -> _Tally:
    tally, (done, total) = _Tally(), done_total
    end = done + file.num_bytes

    def tasks() -> Iterator[tuple[Any, ...]]:
        for block, read in enumerate(iterate_blocks(file, config.block_bytes)):
            yield read, f"file{number:04}-block{block:07}.arrow", config, output

    for name, fault in run_tasks(_ingest_block, tasks(), workers=workers):
        if fault is not None:
            line = tally.lines + fault.line_in_block + 1
            raise InputError(f"{file.path}, line {line}{fault.text}", hint=_hint(fault.reason, config))
        if name in output.finished:
            facts = output.finished[name].facts
            tally.lines += facts["lines"]
            tally.bad.update(facts.get("bad", {}))
            tally.digest.update(bytes.fromhex(facts["raw_xxh3_128"]))
            done += facts["raw_bytes"]
            progress("ingest", done, total)
        if not file.compression:
            _refuse_too_many_bad(file, tally, config, bytes_left=end - done)
    return tally


def _ingest_block(
    read: Callable[[], Block], name: str, config: IngestConfig, output: Output
) -> tuple[str, Fault | None]:
    """Parse one block and write it; returns its name and, in strict mode, its first fault."""
    if output.has(name):
        return name, None
    block = read()
    if block.num_bytes == 0:
        return name, None
    schema = schema_named(config.schema)
    parsed = parse_block(block, schema, has_label=config.label)
    num_bad = parsed.bad_lines.shape[0]
    if num_bad and config.on_bad_line == "error":
        return name, describe_fault(block, parsed.bad_lines[0], schema, has_label=config.label)
    facts: dict[str, Any] = {
        "lines": parsed.num_samples + num_bad,
        "raw_bytes": block.num_bytes,
        "raw_xxh3_128": xxhash.xxh3_128_hexdigest(block.lines.data),
    }
    if num_bad:
        facts["bad"] = count_reasons(block, parsed.bad_lines, schema, has_label=config.label)
    with output.writing(name, parsed.num_samples, **facts) as path:
        write_batch(path, parsed.columns)
    return name, None


def _hint(reason: str, config: IngestConfig) -> str:
    if reason == "field_count":
        without = "without --no-label" if not config.label else "with --no-label"
        other = "labels" if not config.label else "no labels"
        return f"a log that has {other} is read {without}; --on-bad-line skip counts and skips such lines"
    return "mend the line, or count and skip such lines with --on-bad-line skip"


def _refuse_changed(file: RawFile) -> None:
    if RawFile.look_at(file.path) != file:
        raise InputError(f"{file.path} changed while it was read", hint="run again when it is complete")


def _refuse_too_many_bad(file: RawFile, tally: _Tally, config: IngestConfig, *, bytes_left: int = 0) -> None:
    """Raise InputError where too many lines are bad even if ``bytes_left`` hold nothing but good ones."""
    if tally.bad.total() <= config.max_bad_fraction * (tally.lines + max(bytes_left, 0) / _MIN_LINE_BYTES):
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
    schema = schema_named(config.schema)
    raw = [
        {
            "name": file.path.name,
            "bytes": file.num_bytes,
            "lines": tally.lines,
            "samples": tally.lines - tally.bad.total(),
            "xxh3_128_of_blocks": tally.digest.hexdigest(),
        }
        for file, tally in zip(files, tallies, strict=True)
    ]
    bad = sum((tally.bad for tally in tallies), Counter())
    return {
        "samples": sum(entry.num_samples for entry in output.finished.values()),
        "bad_lines": dict(sorted(bad.items())),
        "has_label": config.label,
        "dense": list(schema.dense),
        "sparse": list(schema.sparse),
        "raw": raw,
    }
