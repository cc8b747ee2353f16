"""``hotset preprocess --dry-run``: what a run would execute and need; writes and locks nothing.

The state of each stage follows from manifests. Bytes follow from the formats and from a sample of the log: a
few MiB show how much text and how many samples it holds, and the number of distinct categories is
extrapolated. On generated logs of 0.06 to 3 M samples folders were within 1% of the estimate, counts and
vocabulary within 12%. Tasks, passes and bytes read follow from these, see `stage_work`; also for a cluster of
other machines than this one, so that the plan of a terabyte needs none. Seconds and memory are rough: the
costs below, measured on one core with a generated log of 500,000 samples.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats import peeling
from ..stats.counting import distinct_at
from .errors import MIB, ByteSize, HotsetError, InputError
from .folders.disk import bytes_in, free_bytes, num_recorded, write_errors_explained
from .folders.manifest import Manifest
from .folders.output import check_files
from .folders.resume import (
    Decision,
    FolderState,
    Inputs,
    decide,
    identity_of_run,
)
from .folders.totals import ColumnsTotals
from .formats.arrow_files import values_of
from .formats.ids import PartSize
from .preprocess import (
    FOLDERS,
    PreprocessConfig,
    Stage,
    check_extension,
    check_inputs,
    check_resources,
    resolved,
    stages_from,
    stages_of,
)
from .raw.csv_parts import CsvParts
from .raw.log_files import inspect_logs
from .raw.part import Part, RawParts
from .raw.raw_file import RawFile
from .runtime.limits import Node, default_memory_bytes
from .runtime.tasks import (
    DEFAULT_RESOURCES,
    FIXED_BYTES,
    Resources,
    imagined_cluster,
    num_workers,
    threads_here,
)
from .schema.schema import LABEL, SAMPLE_TIME, Schema, numbers_of
from .schema.schema_file import schema_of
from .stage_work import LogSizes, StageWork, TableSize, work_of_stages
from .stages.count import evaluation_bounds, grown_counts, spans_of
from .stages.ingest import IngestConfig, continued_log, hint_for, open_log, part_bytes
from .stages.pack import samples_per_file
from .stages.shuffle import RowLayout
from .stages.split import SplitConfig, with_bytes_of

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
    work: StageWork | None = None
    """What is left of the stage's work; None where it has none."""

    @property
    def has_work(self) -> bool:
        """Whether the run would write the folder."""
        return self.state in MAKING


def stage_states(
    out: Path, stages: Sequence[Stage], *, redo: str | None = None, extend: bool = False
) -> list[StagePlan]:
    """Return the state that each stage has in DIR ``out``, which need not exist; in order.

    Raises:
        ConfigError: there is no stage ``redo``.
    """
    # `--redo` removes a stage and all stages after it before the run starts.
    removed = [] if redo is None else stages_from(redo)
    configs = {stage.name: stage.config for stage in stages if stage.made_by in ("ingest", "count")}
    fingerprints: dict[str, str | None] = {}
    states: list[StagePlan] = []
    for stage in stages:
        folder = out / FOLDERS[stage.name]
        # A run ends at the first refusal, so the state of later stages is unknown.
        if states and states[-1].state in (REFUSED, NOT_REACHED):
            states.append(StagePlan(stage.name, folder, NOT_REACHED))
            continue
        try:
            if extend and not removed and not states:
                check_extension(out, configs)
            state, why = _state_of(stage, folder, fingerprints, extend, is_removed=stage.name in removed)
            # A stage with work to do reads its inputs, which must not be discarded; one that will be rebuilt
            # has its files.
            if state in MAKING:
                kept = (name for name in stage.inputs if fingerprints[name] is not None)
                check_inputs(stage.name, out, kept)
            states.append(StagePlan(stage.name, folder, state, why))
        except HotsetError as error:
            states.append(StagePlan(stage.name, folder, REFUSED, str(error), error.hint))
            continue
        # Only an unchanged folder has a fingerprint that later stages can be compared with.
        is_kept = state == FINISHED
        fingerprints[folder.name] = Manifest.read(folder).fingerprint if is_kept else None
    return states


def _state_of(
    stage: Stage, folder: Path, fingerprints: dict[str, str | None], extend: bool, *, is_removed: bool
) -> tuple[str, str]:
    """Return the state of one stage, and why; raise what the run would be refused with.

    ``fingerprints``: those of the folders before it, None of one that would change.
    """
    with write_errors_explained(folder):
        found = FolderState.read(folder)
    # The order of the checks is that of a run: `--redo` first, then stale folders, then `Output.begin`.
    identity = found.sealed or found.begun
    if is_removed:
        return (AGAIN if identity is not None else MADE), ""
    config = with_bytes_of(stage.config, folder) if isinstance(stage.config, SplitConfig) else stage.config
    # Inputs that would change are not known yet; whether all else is equal is.
    is_known = all(fingerprints[name] is not None for name in stage.inputs)
    own = [{"name": name, "fingerprint": fingerprints[name]} for name in stage.inputs]
    inputs: Inputs = [*own, *stage.others]
    # An extension removes folders of fewer logs before their stages run.
    is_later = stage.made_by not in ("ingest", "count")
    if extend and is_later and identity is not None and found.before is None:
        if not is_known or identity["inputs"] != inputs:
            return AGAIN, "made from fewer logs" if found.sealed else "begun from fewer logs"
    if not is_known:
        inputs = identity["inputs"] if identity is not None else []
    # The way the stage would continue from fewer inputs, as it passes it to `Output.begin`.
    continuation = continued_log(extend) if stage.made_by == "ingest" else None
    if stage.made_by == "count" and is_known:
        continuation = grown_counts(Manifest.read(folder.parent / "columns"), folder)
    wanted = identity_of_run(stage.made_by, stage.version, config, inputs)
    decision = decide(found, wanted, continuation)
    match decision:
        case Decision.FRESH:
            return MADE, ""
        case Decision.RESUME:
            # A stage that writes its files at the end, as pack does, restarts.
            num_done = num_recorded(folder)
            return (RESUMES, f"files done: {num_done}") if num_done else (MADE, "was interrupted")
        case Decision.GO_BACK:
            return RESUMES, "goes back to its state before the extension"
        case Decision.SEALED if is_known:
            check_files(Manifest.read(folder))
            return FINISHED, ""
        case Decision.SEALED if not (extend and stage.made_by == "count"):
            return DEPENDS, ""
    if stage.made_by == "count":
        return EXTENDED, "continues from the existing counts"
    if decision is not Decision.EXTEND_SEALED or identity is None:
        return EXTENDED, "more logs than it was begun with"
    return EXTENDED, f"{len(inputs) - len(identity['inputs'])} new of {len(inputs)} logs"


_BLOCK_BYTES = ByteSize(MIB)
_MOST_FILES = 4
_MOST_BLOCKS = 12
_COMPRESSED_BYTES = 4 * MIB


@dataclass(frozen=True, slots=True)
class SampledFeature:
    """The lookups of one sparse feature in the sampled blocks, missing ones left out."""

    num_lookups: int
    category_bytes: int
    distinct: tuple[int, int, int]
    """Categories among the first quarter, the first half, and all of them."""

    @classmethod
    def of(cls, categories: NDArray[Any]) -> SampledFeature:
        """Count the categories of all sampled lookups, in a drawn order: an hour is more alike than a log."""
        drawn = np.random.default_rng(0).permutation(categories)
        quarter, half, whole = (np.unique(drawn[: drawn.shape[0] // part]).shape[0] for part in (4, 2, 1))
        return cls(categories.shape[0], categories.dtype.itemsize, (quarter, half, whole))


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
    list_lookups: float
    """Lookups of multi-hot features per sample."""
    features: dict[str, SampledFeature]
    raw_bytes: float = 0.0
    """Bytes that `ingest` reads of all files: Parquet is hashed first."""
    is_in_order: bool = False
    """Whether a file is read from its start, and so by one worker of a cluster."""
    worker_bytes: float = 0.0
    """Memory of a worker that parses a block."""

    def num_categories(self, name: str, num_samples: float) -> float:
        """Return the number of categories of one feature among ``num_samples`` samples."""
        feature = self.features[name]
        num_lookups = num_samples * feature.num_lookups / self.num_sampled
        return distinct_at(num_lookups, feature.distinct, feature.num_lookups)


def sample_log(raw: Sequence[Path], config: IngestConfig) -> LogSample:
    """Parse a few blocks of some of the files.

    Raises:
        InputError: as `ingest` would: a file cannot be read, or a sampled line is not as the schema says.
    """
    files = inspect_logs(raw)
    if not files:
        raise InputError("no input file given")
    schema = schema_of(config.schema)
    text = [file.num_bytes * file.expansion(_COMPRESSED_BYTES) for file in files]
    # The first file, the last, and some between them: the days of a log differ.
    numbers = sorted({round(n * (len(files) - 1) / max(1, _MOST_FILES - 1)) for n in range(_MOST_FILES)})
    num_samples = 0
    num_bytes = 0
    stored_bytes = 0
    list_lookups = 0
    tables = schema.features_of_tables
    categories: dict[str, list[NDArray[Any]]] = {table: [] for table in tables}
    for number in numbers:
        parts = open_log(files[number], number, replace(config, block_bytes=_BLOCK_BYTES))
        for part in _parse_blocks(files[number], parts, config, _MOST_BLOCKS // len(numbers)):
            num_samples += part.num_samples
            num_bytes += part.num_raw_bytes
            stored_bytes += sum(array.nbytes for array in part.columns.values())
            list_lookups += sum(len(part.columns[name].values) for name, _ in schema.lists)
            for table, found in categories.items():
                found += [_categories_of(part.columns[name]) for name in tables[table]]
    if num_samples == 0:
        raise InputError(f"{files[0].path}: the log is empty: it has no samples")
    held = (part_bytes(files[n], schema, config.block_bytes, has_label=config.label) for n in numbers)
    return LogSample(
        text,
        [size * num_samples / num_bytes for size in text],
        num_samples,
        stored_bytes / num_samples,
        list_lookups / num_samples,
        {name: SampledFeature.of(np.concatenate(found)) for name, found in categories.items()},
        sum(file.num_bytes for file in files) * (2 if parts.is_hashed_whole else 1),
        parts.is_in_order,
        max(held),
    )


def _parse_blocks(file: RawFile, parts: RawParts, config: IngestConfig, most: int) -> Iterator[Part]:
    """Read at most ``most`` blocks: evenly from a plain file, the first ones of a compressed file.

    A part is valid until the next one is read.
    """
    # Blocks in the middle can be read only where bytes are lines: not of compressed files, nor of Parquet.
    is_plain = file.compression is None and not parts.is_hashed_whole
    num_blocks = -(-file.num_bytes // _BLOCK_BYTES) if is_plain else most
    step = max(1, num_blocks // most)
    every = parts.sample(step) if isinstance(parts, CsvParts) else islice(parts.iterate({}), 0, None, step)
    for position, unread in enumerate(islice(every, most)):
        part = unread.read()
        if part is None:
            continue
        if part.fault is not None and config.max_bad_fraction is None:
            # Lines before a later block were not counted, so only the first block can number its lines.
            where = f"a {parts.unit} after byte {position * step * _BLOCK_BYTES}"
            if position == 0:
                where = f"{parts.unit} {part.fault.line_in_block + 1 + parts.num_header_lines}"
            raise InputError(
                f"{file.path}, {where}{part.fault.text}",
                hint=hint_for(part.fault, config),
            )
        yield part


def _categories_of(array: Any) -> NDArray[Any]:
    """Copy the lookups of a column without the missing ones."""
    flat = (array.values if pa.types.is_list(array.type) else array).drop_null()
    return values_of(flat).copy()


_TEXT_SECONDS = 2.4e-9
"""Time of `ingest` per byte of Criteo's text."""
_LOOKUP_SECONDS = {"count": 11e-9, "encode": 9e-9, "split": 2.4e-9}
_ROW_SECONDS = 110e-9
"""Time of `rank` per row."""
_WORD_SECONDS = 6.5e-9
"""Time of `pack` per value of a shard."""
_ORDER_SECONDS = {"frequency": 0.0, "peel": 1.0e-6, "sampled": 4e-7}
"""Time of `rank` to order rows by other than their counts, per training sample of 26 lookups."""
_ORDER_BYTES = {
    "frequency": (0.0, 0.0),
    "peel": (peeling.BYTES_PER_ROW, peeling.BYTES_PER_SAMPLE + 6.5 * peeling.BYTES_PER_LOOKUP),
    "sampled": (24.0, 1.0),
}
"""Memory of `rank` for these orders, per row and per training sample, of which 6.5 lookups are peeled."""
_PART_OVERHEAD = 6_000
"""Bytes of an Arrow file without its values: names, types and positions of about forty columns."""
_COPY_OVERHEAD = 1_000


@dataclass(frozen=True, slots=True)
class Estimate:
    """The bytes, seconds and memory of a run from scratch."""

    num_samples: float
    num_train: int
    num_rows: float
    folder_bytes: dict[str, float]
    """By stage."""
    core_seconds: dict[str, float]
    """By stage, on one core."""
    sizes: LogSizes
    """What the work of the stages follows from."""


def estimate_stages(sample: LogSample, config: PreprocessConfig) -> Estimate:
    """Estimate bytes, seconds and sizes of every stage from scratch; ``config``: resolved settings."""
    schema = schema_of(config.ingest.schema)
    samples = sum(sample.samples)
    of_samples = [each.name for each in schema.sample_columns(has_label=config.ingest.label)]
    packed = tuple(name for name in of_samples if name not in (LABEL, SAMPLE_TIME))
    samples_of_files = [int(number) for number in sample.samples]
    num_train, _ = evaluation_bounds(config.count, samples_of_files)
    spans = spans_of(num_train, config.count.count_last, samples_of_files) if num_train > 0 else []
    lengths = [span.stop - span.first for span in spans]
    # Every category is counted; only frequent ones get a row, and missing and oov one each.
    rank = config.rank
    tables = [*schema.features_of_tables]
    min_counts = numbers_of("feature_min_counts", rank.feature_min_counts, tables, rank.min_count)
    rows = {name: sample.num_categories(name, sum(lengths) / least) + 2 for name, least in min_counts.items()}
    # A window of several files has the counts of each file and their sum.
    counted = [sum(lengths), *(lengths if len(lengths) > 1 else [])]
    counts = {name: [sample.num_categories(name, length) for length in counted] for name in tables}
    num_ids = len(schema.one_hot) + sample.list_lookups
    num_parts = sum(max(1.0, size / config.ingest.block_bytes) for size in sample.text_bytes)
    width = {name: feature.category_bytes + 8 for name, feature in sample.features.items()}
    row_bytes = 8.1 + (16 if rank.rank_by == "sampled" else 0)
    words = RowLayout(len(schema.dense), len(schema.lists), len(schema.one_hot), packed).width
    # Words of a row but for the tag, which is a byte of few samples, and the label where there is none.
    shard_bytes = 4 * (words - 2 + (LABEL in of_samples) + sample.list_lookups) + 0.2
    num_files = samples * shard_bytes / max(1, 4 * words * samples_per_file(config.pack, words))
    folders = {
        "ingest": samples * sample.column_bytes + num_parts * _PART_OVERHEAD,
        "count": sum(
            width[name] * sum(found) + _COPY_OVERHEAD * len(found) for name, found in counts.items()
        ),
        "rank": sum((width[name] + row_bytes) * rows[name] + _COPY_OVERHEAD for name in tables),
        "encode": samples * 4 * (num_ids + len(schema.lists)) + num_parts * _COPY_OVERHEAD,
        "split": samples + num_parts * _COPY_OVERHEAD,
        "pack": samples * shard_bytes + _COPY_OVERHEAD * (samples / config.pack.batch_size + num_files + 3),
    }
    num_rows = sum(rows.values())
    seconds = {
        "ingest": _TEXT_SECONDS * sum(sample.text_bytes),
        "count": _LOOKUP_SECONDS["count"] * sum(lengths) * num_ids,
        "rank": _ROW_SECONDS * num_rows + _ORDER_SECONDS[rank.rank_by] * sum(lengths),
        "encode": _LOOKUP_SECONDS["encode"] * samples * num_ids,
        "split": _LOOKUP_SECONDS["split"] * samples * num_ids,
        "pack": _WORD_SECONDS * samples * (words - len(schema.sparse) + num_ids),
    }
    per_row, per_sample = _ORDER_BYTES[rank.rank_by]
    sizes = LogSizes(
        raw_bytes=sample.raw_bytes or sum(sample.text_bytes),
        raw_parts=ceil(num_parts),
        raw_files=len(sample.samples) if sample.is_in_order else 0,
        raw_worker_bytes=sample.worker_bytes or 3.0 * config.ingest.block_bytes,
        folder_bytes=folders,
        num_samples=samples,
        counted_samples=sum(lengths),
        num_parts=ceil(num_parts),
        part=_largest_part(sample, config.ingest),
        tables=_table_sizes(sample, schema, rows),
        num_one_hot=len(schema.one_hot),
        list_lookups=sample.list_lookups,
        words=words,
        num_files=ceil(num_files),
        order_bytes=per_row * num_rows + per_sample * num_train,
    )
    return Estimate(samples, num_train, num_rows, folders, seconds, sizes)


def _largest_part(sample: LogSample, config: IngestConfig) -> PartSize:
    """Return the size of a full block, or of the largest file."""
    most = config.block_bytes * sum(sample.samples) / sum(sample.text_bytes)
    samples = min(most, max(sample.samples))
    return PartSize(ceil(samples), ceil(samples * sample.list_lookups))


def _table_sizes(sample: LogSample, schema: Schema, rows: Mapping[str, float]) -> list[TableSize]:
    return [
        TableSize(
            len(features),
            sample.features[name].category_bytes,
            int(rows[name]),
            partial(sample.num_categories, name),
        )
        for name, features in schema.features_of_tables.items()
    ]


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """The stages that a run would execute and the resources it needs."""

    stages: list[StagePlan]
    estimate: Estimate
    text_bytes: float
    disk_needed: float
    """Bytes that the run adds to what is on disk."""
    disk_free: int
    memory_cap: int
    """Of one machine, like the peak."""
    memory_peak: float
    machines: Sequence[Node]
    """Those of an imagined cluster; none for a run on this machine."""
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
                "work": None if plan.work is None else plan.work.to_json(),
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
            "machines": [{"cores": node.cores, "memory_bytes": node.memory_bytes} for node in self.machines],
            "refused": None if refusal is None else {"error": str(refusal), "hint": refusal.hint},
        }


def estimate_run(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    redo: str | None = None,
    extend: bool = False,
    like: Path | None = None,
    machines: Sequence[Node] = (),
) -> RunEstimate:
    """Return what `preprocess` with these arguments would do, from ``out`` and a sample of the logs.

    ``machines``: those of the cluster that would run it; none for this machine.

    Raises:
        HotsetError: a log cannot be read, or a line of the sample is not as the schema says; there is no
            stage ``redo``.
    """
    config = resolved(config)
    states = stage_states(out, stages_of(raw, config, like), redo=redo, extend=extend)
    sample = sample_log(raw, config.ingest)
    # Existing columns have the number of samples; otherwise it is estimated from the start of the logs.
    if states[0].state == FINISHED:
        logs = ColumnsTotals.of(Manifest.read(out / "columns")).raw
        sample = replace(sample, samples=[float(log.num_samples) for log in logs])
    with imagined_cluster(machines):
        estimate = estimate_stages(sample, config)
        finished = {state.stage: Manifest.read(state.folder) for state in states if state.state == FINISHED}
        sizes = estimate.sizes.with_finished(finished)
        work, refusals = work_of_stages(sizes, config.pack, resources)
        workers = {state.stage: num_workers(resources.workers) for state in states}
        # What shares memory runs on one machine.
        workers["pack"] = threads_here(resources.workers)
        caps = [resources.memory_bytes or node.memory_bytes // 4 for node in machines]
    # An adopted vocabulary is a copy, so its bytes are known.
    if like is not None:
        vocabulary = sum(entry.num_bytes for entry in Manifest.read(like / "vocabulary").files)
        estimate.folder_bytes["rank"] = vocabulary
        estimate.core_seconds["rank"] = 0.0
    plans = [_with_work(state, estimate, work.get(state.stage), workers[state.stage]) for state in states]
    # Folders that are rebuilt are removed first, so their bytes are free again.
    freed = sum(bytes_in(state.folder) for state in states if state.state == AGAIN)
    return RunEstimate(
        plans,
        estimate,
        sum(sample.text_bytes),
        max(0.0, sum(plan.new_bytes for plan in plans) - freed),
        free_bytes(out),
        min(caps, default=resources.memory_bytes or default_memory_bytes()),
        max((plan.work.memory_bytes for plan in plans if plan.work is not None), default=FIXED_BYTES),
        machines,
        _refusal(states, raw, config, out, resources, extend=extend, like=like)
        if not machines
        # The hint of the largest need does for all stages.
        else _refusal_of(states) or max(refusals, key=lambda each: each.least_bytes, default=None),
    )


def _with_work(plan: StagePlan, estimate: Estimate, work: StageWork | None, workers: int) -> StagePlan:
    """Return the plan with the bytes and seconds of the work that the stage has left."""
    if not plan.has_work:
        return plan
    num_bytes = estimate.folder_bytes[plan.stage]
    # Finished files show how much of the work remains; continued counts are written as a whole.
    is_kept = plan.state == RESUMES or (plan.state == EXTENDED and plan.stage == "ingest")
    share = max(0.0, 1 - bytes_in(plan.folder) / max(1.0, num_bytes)) if is_kept else 1.0
    work = None if work is None else work.left(share)
    # A stage of few tasks leaves workers idle.
    at_work = min(workers, work.tasks) if work is not None else workers
    seconds = share * estimate.core_seconds[plan.stage] / max(1, at_work)
    return replace(plan, new_bytes=share * num_bytes, seconds=seconds, work=work)


def _refusal(
    states: Sequence[StagePlan],
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    resources: Resources,
    *,
    extend: bool,
    like: Path | None,
) -> HotsetError | None:
    try:
        # A run checks resources before it reads any folder, so that refusal is first.
        check_resources(raw, config, out, resources, extend=extend, like=like)
    except HotsetError as error:
        return error
    return _refusal_of(states)


def check_stages(
    raw: Sequence[Path],
    config: PreprocessConfig,
    out: Path,
    *,
    redo: str,
    extend: bool = False,
    like: Path | None = None,
) -> None:
    """Raise what a run would be refused with that removes the stage ``redo`` and all later ones first."""
    stages = stages_of(raw, resolved(config), like)
    if (refusal := _refusal_of(stage_states(out, stages, redo=redo, extend=extend))) is not None:
        raise refusal


def _refusal_of(states: Sequence[StagePlan]) -> HotsetError | None:
    refused = next((state for state in states if state.state == REFUSED), None)
    return None if refused is None else HotsetError(refused.why, hint=refused.hint)
