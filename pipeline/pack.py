"""``pack``: columns/ + samples/ + plan/ -> shards/, shuffled batches a trainer maps and reads.

The order of training samples is that of a hash of (seed, sample number); evaluation samples keep the
log's order. Samples are dealt to output files in passes over the inputs, as many files a pass as the
memory holds, so a log of any size is shuffled exactly without a spill file; see `deal`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..stats.shuffle import EVALUATION, HOT_ONLY, MIXED, gather_rows
from .arrow_files import as_fixed_lists, open_writer
from .deal import PackInputs, deal, starts_of
from .errors import ConfigError
from .manifest import Manifest
from .memory import room_for
from .output import Output, input_of
from .scratch import forget, scratch
from .shuffle_plan import Shuffle, ShuffledFile, ShufflePlan, plan_shuffle
from .sizes import MIB
from .tasks import ProgressCallback, num_workers, run_tasks, silent

VERSION = 1
KINDS = {HOT_ONLY: "hot_only", MIXED: "mixed", EVALUATION: "evaluation"}
_FILE_BYTES = 32 * MIB


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
    inputs = PackInputs(columns, samples, plan, facts["has_label"], facts["dense"], num_features)
    shuffle = Shuffle(plan, config.seed, config.order == "grouped", samples_per_file(config, inputs.width))
    largest = max((entry.num_samples for entry in columns.files), default=0)
    scratch = _scratch_bytes(config, inputs.width, largest, workers)
    needed = needed_bytes(config, inputs.width, largest, workers)
    room = room_for("pack", memory_bytes, needed, workers=workers) - scratch
    shuffled = plan_shuffle(shuffle, workers=workers, room_bytes=room)
    todo = [file for file in shuffled.files if not output.has(_name(file))]
    done = sum(entry.num_samples for entry in output.finished.values())
    for group in _groups_that_fit(todo, room // (4 * inputs.width + 8)):
        for num_samples in _pack_group(group, config, shuffled, inputs, output, workers):
            done += num_samples
            progress("pack", done, columns.num_samples)
    return output.seal(_totals(config, inputs, output))


def samples_per_file(config: PackConfig, width: int) -> int:
    """Samples of a training file, a multiple of the batch size; ``width`` in words."""
    return max(1, _FILE_BYTES // (4 * width * config.batch_size)) * config.batch_size


def needed_bytes(config: PackConfig, width: int, samples_of_part: int, workers: int) -> int:
    """The least that `pack` can do with: one output file, and what each worker holds."""
    file_bytes = samples_per_file(config, width) * (4 * width + 8)
    return file_bytes + _scratch_bytes(config, width, samples_of_part, workers)


def _scratch_bytes(config: PackConfig, width: int, samples_of_part: int, workers: int) -> int:
    """What workers hold beside the buffers: a part while dealing, an order and a batch while writing."""
    dealing = samples_of_part * (4 * width + 17 + 8)
    writing = samples_per_file(config, width) * 16 + 3 * config.batch_size * 4 * width
    return num_workers(workers) * max(dealing, writing)


def _pack_group(
    group: list[ShuffledFile],
    config: PackConfig,
    shuffled: ShufflePlan,
    inputs: PackInputs,
    output: Output,
    workers: int,
) -> Iterator[int]:
    """Write the files of one pass; yields the samples of each. Its buffers go when it ends."""
    rows, keys = deal(group, shuffled, inputs, workers)
    starts = dict(zip((file.index for file in group), starts_of(group), strict=True))
    tasks = ((file, config, inputs, rows, keys, starts[file.index], output) for file in group)
    yield from run_tasks(_write_file, tasks, workers=workers, here=True)


def _name(file: ShuffledFile) -> str:
    return f"{KINDS[file.kind]}-{file.number:05}.arrow"


def _groups_that_fit(files: list[ShuffledFile], room: int) -> Iterator[list[ShuffledFile]]:
    """Consecutive files whose samples fit in ``room`` together, one file at the least."""
    group: list[ShuffledFile] = []
    held = 0
    for file in files:
        if group and held + file.num_samples > room:
            yield group
            group, held = [], 0
        group.append(file)
        held += file.num_samples
    if group:
        yield group


def _write_file(
    file: ShuffledFile,
    config: PackConfig,
    inputs: PackInputs,
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
    forget(rows)  # the next file's pages in the page cache can be these
    return file.num_samples


def _batch(rows: NDArray[np.int32], order: NDArray[np.int64], inputs: PackInputs, kind: int) -> Any:
    """A batch, valid until the thread makes its next."""
    num_samples = order.shape[0]
    label, is_hot = (scratch(name, (num_samples,), np.int32) for name in ("label", "is_hot"))
    dense = scratch("dense", (num_samples, len(inputs.dense)), np.int32)
    ids = scratch("ids", (num_samples, inputs.num_features), np.int32)
    gather_rows(rows, order, label, dense, ids, is_hot)
    columns = [pa.array(label.view(np.float32))] if inputs.has_label else []
    columns += [as_fixed_lists(dense.view(np.float32)), as_fixed_lists(ids)]
    if kind == EVALUATION:
        columns.append(pa.array(is_hot.astype(np.uint8)))
    return pa.record_batch(columns, schema=_arrow_schema(inputs, kind))


def _arrow_schema(inputs: PackInputs, kind: int) -> Any:
    fields = [pa.field("label", pa.float32())] if inputs.has_label else []
    fields.append(pa.field("dense", pa.list_(pa.float32(), len(inputs.dense))))
    fields.append(pa.field("ids", pa.list_(pa.int32(), inputs.num_features)))
    return pa.schema(fields + ([pa.field("is_hot", pa.uint8())] if kind == EVALUATION else []))


def _totals(config: PackConfig, inputs: PackInputs, output: Output) -> dict[str, Any]:
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
