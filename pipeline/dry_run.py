"""``hotset preprocess --dry-run``: what a run would execute and need; writes and locks nothing.

The state of each stage follows from manifests. Bytes follow from the formats and from a sample of the log: a
few MiB show how much text and how many samples it holds, and the number of distinct categories is
extrapolated. On generated logs of 0.06 to 3 M samples folders were within 1% of the estimate, counts and
vocabulary within 12%. Parsing is timed here; the seconds of other stages are the costs below, measured on one
core with a generated log of 500,000 samples.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.counting import distinct_at
from ..stats.id_tables import id_table_bytes
from ..stats.ranking import peeling
from .errors import KIB, MIB, ByteSize, ConfigError, HotsetError, InputError
from .folders.disk import bytes_in, free_bytes
from .folders.manifest import Manifest
from .folders.output import refuse_missing_files
from .folders.partial import num_recorded, write_errors_explained
from .folders.resume import (
    Continuation,
    Decision,
    FolderState,
    Inputs,
    RunIdentity,
    decide,
    identity_of_run,
)
from .folders.totals import ColumnsTotals, CountsTotals
from .formats.arrow_files import values_of
from .preprocess import (
    FOLDERS,
    PreprocessConfig,
    Stage,
    check_resources,
    refuse_extension,
    refuse_without_inputs,
    resolved,
    stages_of,
)
from .raw.log_parts import open_parts
from .raw.raw_file import RawFile
from .runtime.memory import FIXED_BYTES, default_memory_bytes
from .runtime.tasks import DEFAULT_RESOURCES, Resources, num_workers
from .schema.schema import Schema, numbers_of
from .schema.schema_file import schema_of
from .stages.count import CountConfig, grown_counts, spans_of
from .stages.ingest import IngestConfig, continued_log, hint_for
from .stages.pack import samples_per_file
from .stages.shuffle import RowLayout

FINISHED = "finished"
RESUMES = "will be resumed"
MADE = "will be built"
AGAIN = "will be rebuilt"
EXTENDED = "will be extended"
DEPENDS = "up to date if its inputs do not change"
REFUSED = "refused"
NOT_REACHED = "not reached"
MAKING = (RESUMES, MADE, AGAIN, EXTENDED)
"""States in which a stage has work to do."""
CONTINUES_COUNTS = "continues from the existing counts"


@dataclass(frozen=True, slots=True)
class StagePlan:
    """One stage of a run that has not begun."""

    stage: str
    folder: Path
    state: str
    why: str = ""
    """The error of a refusal; of other states a few words."""
    hint: str | None = None
    new_bytes: float = 0.0
    """Bytes that the stage would write."""
    seconds: float = 0.0

    @property
    def has_work(self) -> bool:
        """Whether the run would write the folder."""
        return self.state in MAKING


def stage_states(
    out: Path, stages: Sequence[Stage], *, redo: str | None = None, extend: bool = False
) -> list[StagePlan]:
    """Return the state that each stage has in DIR ``out``, which need not exist; in order."""
    inspector = _Inspector(out, extend)
    # `--redo` removes a stage and all stages after it before the run starts.
    names = [stage.name for stage in stages]
    removed = names[names.index(redo) :] if redo in names else []
    configs = {stage.name: stage.config for stage in stages if stage.made_by in ("ingest", "count")}
    states: list[StagePlan] = []
    for stage in stages:
        folder = out / FOLDERS[stage.name]
        # A run ends at the first refusal, so the state of later stages is unknown.
        if states and states[-1].state in (REFUSED, NOT_REACHED):
            states.append(StagePlan(stage.name, folder, NOT_REACHED))
            continue
        try:
            if extend and not removed and not states:
                refuse_extension(out, configs)
            state, why = inspector.inspect(stage, folder, is_removed=stage.name in removed)
            states.append(StagePlan(stage.name, folder, state, why))
        except HotsetError as error:
            states.append(StagePlan(stage.name, folder, REFUSED, str(error), error.hint))
    return states


class _Inspector:
    """Looks at stage after stage, and remembers which folders would change."""

    def __init__(self, out: Path, extend: bool) -> None:
        self._out = out
        self._extend = extend
        self._fingerprints: dict[str, str | None] = {}
        """Fingerprint of each folder inspected, None if it would change."""

    def inspect(self, stage: Stage, folder: Path, *, is_removed: bool) -> tuple[str, str]:
        """Return the state of one stage, and why; raise what the run would be refused with."""
        state, why = self._state_of(stage, folder, is_removed)
        # Only an unchanged folder has a fingerprint that later stages can be compared with.
        is_kept = state == FINISHED
        self._fingerprints[folder.name] = Manifest.read(folder).fingerprint if is_kept else None
        if state in MAKING:
            # A stage with work to do reads its inputs, which must not be discarded; one that will be rebuilt
            # has its files.
            kept = (name for name in stage.inputs if self._fingerprints[name] is not None)
            refuse_without_inputs(stage.name, self._out, kept)
        return state, why

    def _state_of(self, stage: Stage, folder: Path, is_removed: bool) -> tuple[str, str]:
        with write_errors_explained(folder):
            found = FolderState.read(folder)
        # The order of the checks is that of a run: `--redo` first, then stale folders, then `Output.begin`.
        identity = found.sealed or found.begun
        if is_removed:
            return (AGAIN if identity is not None else MADE), ""
        inputs = self._inputs_of(stage)
        # An extension removes folders of fewer logs before their stages run.
        is_later = stage.made_by not in ("ingest", "count")
        if self._extend and is_later and identity is not None and found.before is None:
            if inputs is None or identity["inputs"] != inputs:
                return AGAIN, "made from fewer logs" if found.sealed else "begun from fewer logs"
        # Inputs that would change are not known yet; whether all else is equal is.
        known = inputs if inputs is not None else identity["inputs"] if identity is not None else []
        wanted = identity_of_run(stage.made_by, stage.version, stage.config, known)
        decision = decide(found, wanted, self._continuation_of(stage, folder))
        match decision:
            case Decision.FRESH:
                return MADE, ""
            case Decision.RESUME:
                # A stage that writes its files at the end, as pack does, restarts.
                num_done = num_recorded(folder)
                return (RESUMES, f"files done: {num_done}") if num_done else (MADE, "was interrupted")
            case Decision.GO_BACK:
                return RESUMES, "goes back to its state before the extension"
            case Decision.SEALED if inputs is not None:
                refuse_missing_files(Manifest.read(folder))
                return FINISHED, ""
            case Decision.SEALED:
                is_extended = stage.made_by == "count" and self._extend
                return (EXTENDED, CONTINUES_COUNTS) if is_extended else (DEPENDS, "")
        return EXTENDED, _why_extended(stage, decision, identity, wanted)

    def _continuation_of(self, stage: Stage, folder: Path) -> Continuation | None:
        """Return how the stage would continue from fewer inputs, as it passes it to `Output.begin`."""
        if stage.made_by == "ingest":
            return continued_log(self._extend)
        if stage.made_by == "count" and self._fingerprints["columns"] is not None:
            return grown_counts(Manifest.read(self._out / "columns"), folder)
        return None

    def _inputs_of(self, stage: Stage) -> Inputs | None:
        """Return inputs as the manifest would name them; None if one of them would change."""
        fingerprints = [self._fingerprints[name] for name in stage.inputs]
        if None in fingerprints:
            return None
        own = [{"name": n, "fingerprint": f} for n, f in zip(stage.inputs, fingerprints, strict=True)]
        return own + list(stage.others)


def _why_extended(stage: Stage, decision: Decision, found: RunIdentity | None, wanted: RunIdentity) -> str:
    if stage.made_by == "count":
        return CONTINUES_COUNTS
    if decision is not Decision.EXTEND_SEALED or found is None:
        return "more logs than it was begun with"
    num_new = len(wanted["inputs"]) - len(found["inputs"])
    return f"{num_new} new of {len(wanted['inputs'])} logs"


_BLOCK_BYTES = ByteSize(MIB)
_MOST_FILES = 4
_MOST_BLOCKS = 12
_COMPRESSED_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class LogSample:
    """Figures of a log, as sampled blocks show them."""

    text_bytes: list[float]
    """Bytes of each file, decompressed; for Parquet its bytes on disk."""
    samples: list[float]
    """Expected number of samples in each file."""
    num_sampled: int
    """Samples that were parsed."""
    column_bytes: float
    """Bytes per sample in ``columns/``."""
    distinct: dict[str, tuple[int, int, int]]
    """By sparse feature: categories among the first quarter, the first half, and all of what was parsed."""
    num_lookups: dict[str, int]
    """By sparse feature: lookups of what was parsed, missing ones left out."""
    category_bytes: dict[str, int]
    """By sparse feature: bytes of a category."""
    list_lookups: float
    """Lookups of multi-hot features per sample."""
    parse_seconds: float
    """Seconds of one core per byte of text."""


def sample_log(raw: Sequence[Path], config: IngestConfig) -> LogSample:
    """Parse a few blocks of some of the files.

    Raises:
        InputError: as `ingest` would: a file cannot be read, or a sampled line is not as the schema says.
    """
    files = [RawFile.inspect(path) for path in raw]
    if not files:
        raise InputError("no input file given")
    schema = schema_of(config.schema)
    text = [file.num_bytes * _expansion_of(file) for file in files]
    # The first file, the last, and some between them.
    numbers = sorted({round(n * (len(files) - 1) / max(1, _MOST_FILES - 1)) for n in range(_MOST_FILES)})
    # A few blocks from files spread over the log: its days differ.
    share = _MOST_BLOCKS // len(numbers)
    blocks = [block for number in numbers for block in _parse_blocks(files[number], number, config, share)]
    num_samples = sum(block.num_samples for block in blocks)
    num_bytes = sum(block.raw_bytes for block in blocks)
    if num_samples == 0:
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    distinct: dict[str, tuple[int, int, int]] = {}
    lookups: dict[str, int] = {}
    widths: dict[str, int] = {}
    for name in schema.sparse:
        categories = np.concatenate([block.categories[name] for block in blocks])
        distinct[name] = _distinct_of(categories)
        lookups[name] = categories.shape[0]
        widths[name] = categories.dtype.itemsize
    return LogSample(
        text,
        [size * num_samples / num_bytes for size in text],
        num_samples,
        sum(block.stored_bytes for block in blocks) / num_samples,
        distinct,
        lookups,
        widths,
        sum(block.list_lookups for block in blocks) / num_samples,
        # The least, because the first block waits for kernels to compile.
        min(block.seconds / block.raw_bytes for block in blocks if block.raw_bytes),
    )


@dataclass(frozen=True, slots=True)
class _Block:
    """The figures kept of a block; its columns may be overwritten when the next one is parsed."""

    num_samples: int
    raw_bytes: int
    stored_bytes: int
    list_lookups: int
    categories: dict[str, NDArray[Any]]
    seconds: float


def _parse_blocks(file: RawFile, number: int, config: IngestConfig, most: int) -> Iterator[_Block]:
    """Read at most ``most`` blocks: evenly from a plain file, the first ones of a compressed file."""
    schema = schema_of(config.schema)
    is_strict = config.max_bad_fraction is None
    parts = open_parts(
        file, number, schema, block_bytes=_BLOCK_BYTES, has_label=config.label, strict=is_strict
    )
    # Blocks in the middle can be read only where bytes are lines: not of compressed files, nor of Parquet.
    is_plain = file.compression is None and schema.format != "parquet"
    num_blocks = -(-file.num_bytes // _BLOCK_BYTES) if is_plain else most
    step = max(1, num_blocks // most)
    for position, unread in enumerate(islice(parts.iterate({}), 0, step * most, step)):
        started = time.perf_counter()
        part = unread.read()
        took = time.perf_counter() - started
        if part is None:
            continue
        if part.fault is not None and is_strict:
            # Lines before a later block were not counted, so only the first block can number its lines.
            where = f"a {parts.unit} after byte {position * step * _BLOCK_BYTES}"
            if position == 0:
                where = f"{parts.unit} {part.fault.line_in_block + 1 + parts.num_header_lines}"
            raise InputError(
                f"{file.path}, {where}{part.fault.text}",
                hint=hint_for(part.fault, config),
            )
        yield _Block(
            part.num_samples,
            part.num_raw_bytes,
            sum(array.nbytes for array in part.columns.values()),
            sum(len(part.columns[name].values) for name in dict(schema.lists)),
            {name: _categories_of(part.columns[name]) for name in schema.sparse},
            took,
        )


def _expansion_of(file: RawFile) -> float:
    """Return the bytes of text per byte on disk, from the first 4 MiB."""
    if file.compression is None:
        return 1.0
    start = file.read_start(_COMPRESSED_BYTES)
    num_bytes = 0
    try:
        stream = pa.CompressedInputStream(pa.BufferReader(start), file.compression)
        while block := stream.read(64 * KIB):
            num_bytes += len(block)
    except OSError:  # the stream is cut off in the middle
        pass
    return max(1.0, num_bytes / max(1, len(start)))


def _categories_of(array: Any) -> NDArray[Any]:
    """Lookups of a column without the missing ones."""
    flat = (array.values if pa.types.is_list(array.type) else array).drop_null()
    return values_of(flat, flat.type.to_pandas_dtype()).copy()


def _distinct_of(categories: NDArray[Any]) -> tuple[int, int, int]:
    mixed = np.random.default_rng(0).permutation(categories)  # an hour is more alike than the log is
    quarter, half, whole = (np.unique(mixed[: mixed.shape[0] // part]).shape[0] for part in (4, 2, 1))
    return quarter, half, whole


_LOOKUP_SECONDS = {"count": 11e-9, "encode": 9e-9, "split": 2.4e-9}
_ROW_SECONDS = 110e-9
"""Time of `rank` per row."""
_WORD_SECONDS = 6.5e-9
"""Time of `pack` per value of a shard."""
_ORDER_SECONDS = {"frequency": 0.0, "peel": 1.0e-6, "sampled": 4e-7}
"""Time of `rank` to order rows by other than their counts, per training sample of 26 lookups."""
_PEELED_LOOKUPS = 0.25
"""Share of lookups above the floor of peeling, in generated Kaggle logs of 2 M samples."""
_PART_OVERHEAD = 6_000
"""Bytes of an Arrow file without its values: names, types and positions of about forty columns."""
_COPY_OVERHEAD = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bytes, seconds and memory of a run from scratch."""

    num_samples: float
    num_train: float
    num_rows: float
    folder_bytes: dict[str, float]
    """By stage."""
    core_seconds: dict[str, float]
    """By stage, on one core."""
    memory_bytes: dict[str, float]
    """Memory that each stage would hold without a cap, in addition to that of every process (bytes)."""


def estimate_run(sample: LogSample, config: PreprocessConfig, *, workers: int) -> Estimate:
    """Estimate bytes, seconds and memory of every stage; ``config``: resolved settings."""
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    has_label = config.ingest.label and schema.label is not None
    num_train = _training_samples(sample.samples, config.count)
    samples_of_files = [int(number) for number in sample.samples]
    spans = spans_of(int(num_train), config.count.count_last, samples_of_files) if num_train >= 1 else []
    lengths = [span.stop - span.first for span in spans]
    # Distinct categories are those counted; rows only those frequent enough, and one each for missing and
    # oov.
    rank = config.rank
    min_counts = numbers_of("feature_min_counts", rank.feature_min_counts, schema.sparse, rank.min_count)
    distinct = {name: _distinct(sample, name, sum(lengths)) for name in schema.sparse}
    rows = {name: _distinct(sample, name, sum(lengths) / least) + 2 for name, least in min_counts.items()}
    # A window of several files has the counts of each file and their sum.
    days = lengths if len(lengths) > 1 else []
    num_ids = len(schema.one_hot) + sample.list_lookups
    num_parts = sum(max(1.0, size / config.ingest.block_bytes) for size in sample.text_bytes)
    width = {name: sample.category_bytes[name] + 8 for name in schema.sparse}
    row_bytes = 8.1 + (16 if rank.rank_by == "sampled" else 0)
    shard_bytes = 4 * (has_label + len(schema.dense) + num_ids + len(schema.lists)) + 0.2
    words = _words(schema)
    num_files = samples * shard_bytes / max(1, 4 * words * samples_per_file(config.pack, words))
    folders = {
        "ingest": samples * sample.column_bytes + num_parts * _PART_OVERHEAD,
        "count": sum(width[name] * distinct[name] for name in schema.sparse)
        + sum(width[name] * _distinct(sample, name, length) for name in schema.sparse for length in days)
        + _COPY_OVERHEAD * len(schema.sparse) * (1 + len(days)),
        "rank": sum((width[name] + row_bytes) * rows[name] + _COPY_OVERHEAD for name in schema.sparse),
        "encode": samples * 4 * (num_ids + len(schema.lists)) + num_parts * _COPY_OVERHEAD,
        "split": samples + num_parts * _COPY_OVERHEAD,
        "pack": samples * shard_bytes + _COPY_OVERHEAD * (samples / config.pack.batch_size + num_files + 3),
    }
    num_rows = sum(rows.values())
    return Estimate(
        samples,
        num_train,
        num_rows,
        folders,
        _core_seconds(sample, sum(lengths), num_ids, num_rows, config),
        _memory(sample, distinct, rows, num_train, config, workers),
    )


def _training_samples(files: Sequence[float], config: CountConfig) -> float:
    if config.eval_files:
        num_left = sum(files[: -config.eval_files])
    else:
        num_left = sum(files) * (1 - config.eval_fraction)
    if config.valid_files:
        before = files[: len(files) - config.eval_files]
        return num_left - sum(before[-config.valid_files :])
    return num_left - sum(files) * (config.valid_fraction or 0)


def _distinct(sample: LogSample, name: str, num_samples: float) -> float:
    """Return the number of categories of one feature among ``num_samples`` samples."""
    lookups = sample.num_lookups[name]
    return distinct_at(num_samples * lookups / sample.num_sampled, sample.distinct[name], lookups)


def _words(schema: Schema) -> int:
    return RowLayout(len(schema.dense), len(schema.lists), len(schema.one_hot)).width


def _core_seconds(
    sample: LogSample, num_counted: float, num_ids: float, num_rows: float, config: PreprocessConfig
) -> dict[str, float]:
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    ordering = _ORDER_SECONDS[config.rank.rank_by] * num_counted
    return {
        "ingest": sum(sample.text_bytes) * sample.parse_seconds * 1.3,  # writing the columns is a third more
        "count": _LOOKUP_SECONDS["count"] * num_counted * num_ids,
        "rank": _ROW_SECONDS * num_rows + ordering,
        "encode": _LOOKUP_SECONDS["encode"] * samples * num_ids,
        "split": _LOOKUP_SECONDS["split"] * samples * num_ids,
        "pack": _WORD_SECONDS * samples * (_words(schema) - len(schema.sparse) + num_ids),
    }


def _memory(
    sample: LogSample,
    distinct: dict[str, float],
    rows: dict[str, float],
    num_train: float,
    config: PreprocessConfig,
    workers: int,
) -> dict[str, float]:
    """Return the most that each stage holds; the stages' `needed_bytes` is the least."""
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    block_bytes = config.ingest.block_bytes
    # A part has as many samples as a block has lines, on average.
    part_samples = min(samples, block_bytes * samples / max(1.0, sum(sample.text_bytes)))
    part = part_samples * max(sample.column_bytes, 4.0 * _words(schema))
    # Orders other than by frequency hold the rows of all tables, and lists of samples.
    num_rows = sum(rows.values())
    num_peeled = _PEELED_LOOKUPS * len(schema.sparse) * num_train
    ordering = {
        "frequency": 0.0,
        "peel": peeling.BYTES_PER_ROW * num_rows
        + peeling.BYTES_PER_SAMPLE * num_train
        + peeling.BYTES_PER_LOOKUP * num_peeled,
        "sampled": 24 * num_rows + num_train,
    }
    tables = (id_table_bytes(int(rows[name]), sample.category_bytes[name]) for name in schema.sparse)
    return {
        "ingest": workers * (2 * block_bytes + part),
        "count": sum(4 * 16 * max(4096.0, number) for number in distinct.values()),
        "rank": workers * 28 * max(rows.values(), default=0.0) + ordering[config.rank.rank_by],
        "encode": sum(tables) + workers * part,
        "split": workers * part_samples,
        "pack": samples * (4 * _words(schema) + 8) + workers * part,
    }


@dataclass(frozen=True, slots=True)
class RunPlan:
    """The stages that a run would execute and the resources it needs."""

    stages: list[StagePlan]
    estimate: Estimate
    text_bytes: float
    disk_needed: float
    """Bytes that the run adds to what is on disk."""
    disk_free: int
    memory_cap: int
    memory_peak: float
    refusal: HotsetError | None
    """The error that the run would end with."""

    def to_json(self) -> dict[str, Any]:
        """Return the plan as plain data."""
        stages = [
            {
                "stage": plan.stage,
                "folder": str(plan.folder),
                "state": plan.state,
                "why": plan.why,
                "hint": plan.hint,
                "bytes": round(plan.new_bytes),
                "seconds": plan.seconds,
            }
            for plan in self.stages
        ]
        refusal = self.refusal
        return {
            "stages": stages,
            "samples": round(self.estimate.num_samples),
            "rows": round(self.estimate.num_rows),
            "text_bytes": round(self.text_bytes),
            "seconds": sum(plan.seconds for plan in self.stages),
            "disk": {"needed_bytes": round(self.disk_needed), "free_bytes": self.disk_free},
            "memory": {"cap_bytes": self.memory_cap, "peak_bytes": round(self.memory_peak)},
            "refused": None if refusal is None else {"error": str(refusal), "hint": refusal.hint},
        }


def plan_run(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    redo: str | None = None,
    extend: bool = False,
    like: Path | None = None,
) -> RunPlan:
    """Return what `preprocess` with these arguments would do, from ``out`` and a sample of the logs.

    Raises:
        HotsetError: a log cannot be read, or a line of the sample is not as the schema says.
    """
    config = resolved(config)
    if redo is not None and redo not in FOLDERS:
        raise ConfigError(f"there is no stage {redo!r}", hint=f"use one of {', '.join(FOLDERS)}")
    states = stage_states(out, stages_of(raw, config, like), redo=redo, extend=extend)
    sample = sample_log(raw, config.ingest)
    # Existing columns have the number of samples; otherwise it is estimated from the start of the logs.
    if states[0].state == FINISHED:
        logs = ColumnsTotals.of(Manifest.read(out / "columns")).raw
        sample = replace(sample, samples=[float(log.num_samples) for log in logs])
    num = num_workers(resources.workers)
    estimate = estimate_run(sample, config, workers=num)
    # An adopted vocabulary is a copy, so its bytes are known.
    if like is not None:
        vocabulary = sum(entry.num_bytes for entry in Manifest.read(like / "vocabulary").files)
        estimate.folder_bytes["rank"] = vocabulary
        estimate.core_seconds["rank"] = 0.0
    plans = [_with_work(state, estimate, sample.text_bytes, num) for state in states]
    # Folders that are rebuilt are removed first, so their bytes are free again.
    freed = sum(bytes_in(state.folder) for state in states if state.state == AGAIN)
    cap = resources.memory_bytes or default_memory_bytes()
    # Stages spill to disk beyond the cap, or work with fewer workers.
    held = [
        min(estimate.memory_bytes[plan.stage], max(cap - FIXED_BYTES, 0)) for plan in plans if plan.has_work
    ]
    return RunPlan(
        plans,
        estimate,
        sum(sample.text_bytes),
        max(0.0, sum(plan.new_bytes for plan in plans) - freed),
        free_bytes(out),
        cap,
        FIXED_BYTES + max(held, default=0),
        _refusal(states, raw, config, out, resources, extend=extend),
    )


def _with_work(plan: StagePlan, estimate: Estimate, text_bytes: Sequence[float], workers: int) -> StagePlan:
    """Return the plan with the bytes and seconds of the work that the stage has left."""
    if not plan.has_work:
        return plan
    num_bytes = estimate.folder_bytes[plan.stage]
    share = 1.0
    if plan.state == RESUMES:
        # The files of an interrupted stage show how much of its work remains.
        share = max(0.0, 1 - bytes_in(plan.folder) / max(1.0, num_bytes))
        num_bytes *= share
    elif plan.state == EXTENDED and plan.stage == "ingest":
        # Only the new logs are added to the columns, after those that were read.
        num_before = _files_in(plan.folder)
        share = sum(text_bytes[num_before:]) / max(1.0, sum(text_bytes))
        num_bytes *= share
    elif plan.state == EXTENDED:
        # Counts are read and written as a whole, but only new samples are counted.
        before = CountsTotals.of(Manifest.read(plan.folder)).num_train_samples
        share = max(0.0, 1 - before / max(1.0, estimate.num_train))
    seconds = share * estimate.core_seconds[plan.stage] / workers
    return replace(plan, new_bytes=num_bytes, seconds=seconds)


def _files_in(columns: Path) -> int:
    try:
        return len(Manifest.read(columns).inputs)
    except HotsetError:
        return 0


def _refusal(
    states: Sequence[StagePlan],
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool,
) -> HotsetError | None:
    try:
        # A run checks resources before it reads any folder, so that refusal is first.
        check_resources(raw, config, out, resources, extend=extend)
    except HotsetError as error:
        return error
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)
