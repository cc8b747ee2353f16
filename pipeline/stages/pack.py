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
from numpy.typing import NDArray

from ...stats.batches.sample_shuffle import EVALUATION, HOT_ONLY, MIXED
from ..errors import ConfigError
from ..folders.manifest import Manifest
from ..folders.output import Output, input_of
from ..formats.arrow_files import open_writer
from ..packing.pack_inputs import PackInputs
from ..packing.scatter_samples import Buffers, count_lookups, deal, starts_of
from ..packing.shard_batches import ShardBatches
from ..packing.shuffle_plan import Shuffle, ShuffledFile, ShufflePlan, plan_shuffle
from ..runtime.memory import refuse_small_cap, room_for
from ..runtime.tasks import ProgressCallback, num_workers, run_tasks, silent
from ..runtime.thread_buffers import forget
from ..sizes import MIB

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
             dense fixed-size list<float32>[K], ids fixed-size list<int32>[one-hot features], a list<int32>
             for each multi-hot feature, called like it; is_hot uint8 in evaluation
    """
    folders = [input_of(columns), input_of(samples), input_of(plan)]
    output = Output.begin("pack", VERSION, config, folders, out)
    if isinstance(output, Manifest):
        return output
    inputs = PackInputs(columns, samples, plan)
    width = inputs.words_per_sample
    shuffle = Shuffle(plan, config.seed, config.order == "grouped", samples_per_file(config, width))
    largest = max((entry.num_samples for entry in columns.files), default=0)
    scratch = _scratch_bytes(config, width, largest, workers)
    needed = needed_bytes(config, width, largest, workers)
    room = room_for("pack", memory_bytes, needed, workers=workers) - scratch
    shuffled = plan_shuffle(shuffle, workers=workers, room_bytes=room)
    lookups = count_lookups(shuffled, inputs, workers)
    bytes_of_files = [
        _file_bytes(file.num_samples, inputs, int(lookups[file.index])) for file in shuffled.files
    ]
    if inputs.lists and memory_bytes is not None:
        refuse_small_cap("pack", memory_bytes, max(bytes_of_files, default=0) + scratch)
    todo = [file for file in shuffled.files if not output.has(_name(file))]
    done = sum(entry.num_samples for entry in output.finished.values())
    for group in _groups_that_fit(todo, bytes_of_files, room):
        for num_samples in _pack_group(group, config, shuffled, lookups, inputs, output, workers):
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


def _file_bytes(num_samples: int, inputs: PackInputs, num_lookups: int) -> int:
    """What an output file takes in the buffers."""
    return num_samples * (4 * inputs.width + (16 if inputs.lists else 8)) + 4 * num_lookups


def _scratch_bytes(config: PackConfig, width: int, samples_of_part: int, workers: int) -> int:
    """What workers hold beside the buffers: a part while dealing, an order and a batch while writing."""
    dealing = samples_of_part * (4 * width + 17 + 8)
    writing = samples_per_file(config, width) * 16 + 3 * config.batch_size * 4 * width
    return num_workers(workers) * max(dealing, writing)


def _pack_group(
    group: list[ShuffledFile],
    config: PackConfig,
    shuffled: ShufflePlan,
    lookups: NDArray[np.int64],
    inputs: PackInputs,
    output: Output,
    workers: int,
) -> Iterator[int]:
    """Write the files of one pass; yields the samples of each. Its buffers go when it ends."""
    buffers = deal(group, shuffled, lookups, inputs, workers)
    starts = starts_of([file.num_samples for file in group])
    pairs = zip(group, starts, strict=True)
    tasks = ((file, config, inputs, buffers, start, output) for file, start in pairs)
    yield from run_tasks(_write_file, tasks, workers=workers, here=True)


def _name(file: ShuffledFile) -> str:
    return f"{KINDS[file.kind]}-{file.number:05}.arrow"


def _groups_that_fit(
    files: list[ShuffledFile], bytes_of_files: list[int], room_bytes: int
) -> Iterator[list[ShuffledFile]]:
    """Consecutive files whose samples fit in ``room_bytes`` together, one file at the least."""
    group: list[ShuffledFile] = []
    held = 0
    for file in files:
        needed = bytes_of_files[file.index]
        if group and held + needed > room_bytes:
            yield group
            group, held = [], 0
        group.append(file)
        held += needed
    if group:
        yield group


def _write_file(
    file: ShuffledFile, config: PackConfig, inputs: PackInputs, buffers: Buffers, start: int, output: Output
) -> int:
    """Order one file's rows by key and write them batch by batch."""
    stop = start + file.num_samples
    rows, order = buffers.rows[start:stop], np.argsort(buffers.keys[start:stop])
    facts: dict[str, Any] = {"kind": KINDS[file.kind]}
    batches = range(0, file.num_samples, config.batch_size)
    facts["batches"] = len(batches)
    if file.kind == MIXED and config.order == "original":
        is_hot = rows[order, 0]
        hot = [n for n, first in enumerate(batches) if is_hot[first : first + config.batch_size].all()]
        facts["hot_only_batches"] = hot
    if inputs.lists:
        facts["lookups"] = _lookups_of(rows, inputs)
    maker = ShardBatches(inputs, rows, buffers.bag_places[start:stop], buffers.bags, file.kind == EVALUATION)
    with output.writing(_name(file), file.num_samples, **facts) as path:
        with open_writer(path, maker.schema) as writer:
            for first in batches:
                writer.write_batch(maker.batch(order[first : first + config.batch_size]))
    forget(rows)  # the next file's pages in the page cache can be these
    return file.num_samples


def _lookups_of(rows: NDArray[np.int32], inputs: PackInputs) -> dict[str, int]:
    """Look-ups of some rows in each multi-hot table, from the lengths of their bags."""
    first = 2 + len(inputs.dense)
    lengths = rows[:, first : first + len(inputs.lists)].sum(axis=0, dtype=np.int64)
    return dict(zip(inputs.lists, lengths.tolist(), strict=True))


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
