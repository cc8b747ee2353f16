"""``pack``: columns/ + samples/ + plan/ -> shards/, shuffled batches a trainer maps and reads.

The order of training samples is that of a hash of (seed, sample number); evaluation samples keep the
log's order. Samples are dealt to output files in passes over the inputs, as many files a pass as the
memory holds, so a log of any size is shuffled exactly without a spill file.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.shuffle import EVALUATION, HOT_ONLY, MIXED, deal_rows, gather_rows, log1p_table, transform_dense
from .arrow_files import as_fixed_lists, fixed_lists, open_writer, read_batch, validity_of, values_of
from .errors import ConfigError
from .manifest import Manifest
from .output import Output, input_of
from .shuffle_plan import Part, Shuffle, ShuffledFile, ShufflePlan, plan_shuffle
from .sizes import MIB
from .tasks import ProgressCallback, run_tasks, silent

VERSION = 1
KINDS = {HOT_ONLY: "hot_only", MIXED: "mixed", EVALUATION: "evaluation"}
_FILE_BYTES = 32 * MIB
_LOG1P = log1p_table(1 << 16)


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    """What a run of the pack stage may vary; part of its fingerprint."""

    batch_size: int = 2048
    """Samples of a training batch."""

    order: Literal["grouped", "original"] = "grouped"
    """grouped: batches are hot-only or mixed; original: the shuffled order, not regrouped."""

    seed: int = 0
    """Of the shuffle."""

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigError(f"batch_size must be 1 or more, got {self.batch_size}")
        if self.order not in ("grouped", "original"):
            raise ConfigError(f"order must be grouped or original, got {self.order!r}")
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The folders `pack` reads, and what it needs of them."""

    columns: Manifest
    samples: Manifest
    plan: Manifest
    has_label: bool
    dense: list[str]
    num_features: int

    @property
    def width(self) -> int:
        """int32 words of a sample: tag, label, dense, ids."""
        return 2 + len(self.dense) + self.num_features

    def open(self, name: str) -> tuple[Any, Any]:
        """The record batches of one part, of columns and of samples."""
        folders = (self.columns, self.samples)
        entries = [next(e for e in folder.files if e.path == name) for folder in folders]
        columns, samples = (read_batch(f, e) for f, e in zip(folders, entries, strict=True))
        return columns, samples


def default_memory_bytes() -> int:
    """A quarter of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def pack(
    config: PackConfig,
    columns: Manifest,
    samples: Manifest,
    plan: Manifest,
    out: Path,
    *,
    workers: int = 0,
    memory_bytes: int | None = None,
    progress: ProgressCallback = silent,
) -> Manifest:
    """columns, samples, plan -> shards: batches of one kind each, training shuffled, evaluation not.

    Reads:   ``*.arrow`` of columns (label, I*), samples (ids) and plan (is_hot)
    Writes:  ``{kind}-{number}.arrow``, a record batch for each training batch: label float32,
             dense fixed-size list<float32>[K], ids fixed-size list<int32>[F]; is_hot uint8 in evaluation
    """
    folders = [input_of(columns), input_of(samples), input_of(plan)]
    output = Output.begin("pack", VERSION, config, folders, out)
    if isinstance(output, Manifest):
        return output
    facts = columns.totals
    num_features = len(plan.totals["tables"])
    inputs = _Inputs(columns, samples, plan, facts["has_label"], facts["dense"], num_features)
    batches_per_file = max(1, _FILE_BYTES // (4 * inputs.width * config.batch_size))
    samples_per_file = batches_per_file * config.batch_size
    shuffle = Shuffle(plan, config.seed, config.order == "grouped", samples_per_file)
    shuffled = plan_shuffle(shuffle, workers=workers)
    todo = [file for file in shuffled.files if not output.has(_name(file))]
    room = (memory_bytes or default_memory_bytes()) // (2 * (4 * inputs.width + 8))
    done = sum(entry.num_samples for entry in output.finished.values())
    for group in _groups_that_fit(todo, room):
        rows, keys = _deal(group, shuffled, inputs, workers)
        tasks = ((file, config, inputs, rows, keys, _start(group, file), output) for file in group)
        for num_samples in run_tasks(_write_file, tasks, workers=workers):
            done += num_samples
            progress("pack", done, columns.num_samples)
    return output.seal(_totals(config, inputs, output))


def _name(file: ShuffledFile) -> str:
    return f"{KINDS[file.kind]}-{file.number:05}.arrow"


def _groups_that_fit(files: list[ShuffledFile], room: int) -> Iterator[list[ShuffledFile]]:
    """Consecutive files whose samples fit in ``room`` together, one file at the least."""
    group: list[ShuffledFile] = []
    for file in files:
        if group and sum(other.num_samples for other in group) + file.num_samples > room:
            yield group
            group = []
        group.append(file)
    if group:
        yield group


def _start(group: list[ShuffledFile], file: ShuffledFile) -> int:
    return sum(other.num_samples for other in group if other.index < file.index)


def _deal(
    group: list[ShuffledFile], shuffled: ShufflePlan, inputs: _Inputs, workers: int
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """Collect the rows of a group of files, file by file, in log order within a file."""
    total = sum(file.num_samples for file in group)
    rows = np.empty((total, inputs.width), np.int32)
    keys = np.empty(total, np.uint64)
    is_wanted = np.zeros(len(shuffled.files), np.bool_)
    bases = np.zeros(len(shuffled.files), np.int64)
    for file in group:
        is_wanted[file.index] = True
        bases[file.index] = _start(group, file)
    tasks = (
        (part, shuffled, np.where(is_wanted, bases + part.rows_before, -1), inputs, rows, keys)
        for part in shuffled.parts
        if part.counts[is_wanted].any()
    )
    for _ in run_tasks(_deal_part, tasks, workers=workers):
        pass
    return rows, keys


def _deal_part(
    part: Part,
    shuffled: ShufflePlan,
    next_row: NDArray[np.int64],
    inputs: _Inputs,
    dealt_rows: NDArray[np.int32],
    dealt_keys: NDArray[np.uint64],
) -> None:
    """Put one part's samples at their files' places in the buffers."""
    name, num_samples = part.entry.path, part.entry.num_samples
    columns, samples = inputs.open(name)
    rows = np.empty((num_samples, inputs.width), np.int32)
    as_floats = rows.view(np.float32)
    rows[:, 0] = values_of(read_batch(inputs.plan, part.entry).column("is_hot"), np.uint8)
    as_floats[:, 1] = values_of(columns.column("label"), np.uint8) if inputs.has_label else 0
    for k, name in enumerate(inputs.dense):
        array = columns.column(name)
        transform_dense(values_of(array, np.int32), validity_of(array), _LOG1P, as_floats[:, 2 + k])
    ids = fixed_lists(samples.column("ids"), inputs.num_features, np.int32)
    rows[:, 2 + len(inputs.dense) :] = ids
    keys, files = shuffled.keys_and_files(part.entry, part.first_sample)
    deal_rows(rows, keys, files, next_row, dealt_rows, dealt_keys)


def _write_file(
    file: ShuffledFile,
    config: PackConfig,
    inputs: _Inputs,
    rows: NDArray[np.int32],
    keys: NDArray[np.uint64],
    start: int,
    output: Output,
) -> int:
    """Order one file's rows by key and write them batch by batch."""
    stop = start + file.num_samples
    rows, order = rows[start:stop], np.argsort(keys[start:stop])
    facts: dict[str, Any] = {"kind": KINDS[file.kind]}
    batches = range(0, file.num_samples, config.batch_size)
    facts["batches"] = len(batches)
    if file.kind == MIXED and config.order == "original":
        is_hot = rows[order, 0]
        hot = [n for n, first in enumerate(batches) if is_hot[first : first + config.batch_size].all()]
        facts["hot_only_batches"] = hot
    with output.writing(_name(file), file.num_samples, **facts) as path:
        with open_writer(path, _arrow_schema(inputs, file.kind)) as writer:
            for first in batches:
                writer.write_batch(_batch(rows, order[first : first + config.batch_size], inputs, file.kind))
    return file.num_samples


def _batch(rows: NDArray[np.int32], order: NDArray[np.int64], inputs: _Inputs, kind: int) -> Any:
    num_samples = order.shape[0]
    label, is_hot = np.empty(num_samples, np.int32), np.empty(num_samples, np.int32)
    dense = np.empty((num_samples, len(inputs.dense)), np.int32)
    ids = np.empty((num_samples, inputs.num_features), np.int32)
    gather_rows(rows, order, label, dense, ids, is_hot)
    columns = [pa.array(label.view(np.float32))] if inputs.has_label else []
    columns += [as_fixed_lists(dense.view(np.float32)), as_fixed_lists(ids)]
    if kind == EVALUATION:
        columns.append(pa.array(is_hot.astype(np.uint8)))
    return pa.record_batch(columns, schema=_arrow_schema(inputs, kind))


def _arrow_schema(inputs: _Inputs, kind: int) -> Any:
    fields = [pa.field("label", pa.float32())] if inputs.has_label else []
    fields.append(pa.field("dense", pa.list_(pa.float32(), len(inputs.dense))))
    fields.append(pa.field("ids", pa.list_(pa.int32(), inputs.num_features)))
    return pa.schema(fields + ([pa.field("is_hot", pa.uint8())] if kind == EVALUATION else []))


def _totals(config: PackConfig, inputs: _Inputs, output: Output) -> dict[str, Any]:
    """What a trainer needs, so that it needs no other folder."""
    kept = ("tables", "row_bytes", "num_rows", "num_hot_rows")
    split = {key: inputs.plan.config[key] for key in ("hot_bytes", "embedding_dim", "embedding_optimizer")}
    samples, batches = dict.fromkeys(KINDS.values(), 0), dict.fromkeys(KINDS.values(), 0)
    for entry in output.finished.values():
        kind = entry.facts["kind"]
        num_hot_only = len(entry.facts.get("hot_only_batches", []))
        samples[kind] += entry.num_samples
        batches[kind] += entry.facts["batches"] - num_hot_only
        batches["hot_only"] += num_hot_only
    facts = {"has_label": inputs.has_label, "dense": inputs.dense, "samples": samples, "batches": batches}
    return {key: inputs.plan.totals[key] for key in kept} | split | facts
