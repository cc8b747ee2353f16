"""``pack``: columns/ + samples/ + plan/ -> shards/, shuffled batches for training.

The order of training samples is that of a hash of (seed, sample number); evaluation samples keep the log's
order. Samples are scattered to output files in passes over the inputs, some files per pass, so a log of any
size is shuffled exactly without a spill file; see `shuffle`. Where that would take many passes over more than
the page cache holds, rows go through files, and the inputs are read once; see `two_phases`.

A pass costs 0.02 us of CPU for each sample of the log: its key is hashed again, and the cache lines of wanted
samples are read. New buffers cost more: the system has to find and clear the pages of a sample's 172 bytes,
0.1 us to 0.4 us on a virtual machine. So the buffers hold a third of a long log, however much memory there
is, and all passes reuse them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ...stats.shuffle import EVALUATION, HOT_ONLY, MIXED, copy_bags, gather_rows
from ..errors import MIB, ConfigError, check_fields, require_at_least
from ..folders.disk import check_writable
from ..folders.manifest import Manifest, is_sealed
from ..folders.output import Output, input_of
from ..folders.totals import KindCounts, PlanSettings, PlanTotals, ShardFacts, ShardKind, ShardsTotals
from ..formats.arrow_files import as_fixed_lists, as_lists, column_of
from ..formats.batch_checksums import note_checksums, shard_schema, write_checksums, write_shard
from ..runtime.limits import page_cache_bytes
from ..runtime.tasks import (
    DEFAULT_RESOURCES,
    Resources,
    check_cap,
    groups_within,
    release_pages,
    room_for,
    run_tasks,
    thread_buffer,
    threads_here,
)
from .shuffle import (
    LABEL,
    PASSES,
    TAG,
    Buffers,
    Group,
    PackInputs,
    PackSizes,
    Shuffle,
    ShuffledFile,
    ShufflePlan,
    bytes_of_files,
    bytes_of_parts,
    count_list_lookups,
    plan_shuffle,
    scatter_samples,
    starts_of,
)


@dataclass(frozen=True)
class ShardBatches:
    """The batches of one output file, built one by one."""

    inputs: PackInputs
    rows: NDArray[np.int32]
    """(num_rows, width), see `RowLayout`."""
    bag_starts: NDArray[np.int64]
    """(num_rows,), where a row's bags begin in ``bags``; (0,) where no table is multi-hot."""
    bags: NDArray[np.int32]
    """(num_lookups,)."""
    is_tagged: bool
    """Whether batches have the column ``is_hot``."""

    @cached_property
    def schema(self) -> Any:
        """Columns of the file."""
        return shard_schema(
            has_label=self.inputs.log.has_label,
            sample_columns=self.inputs.layout.sample_columns,
            num_dense=len(self.inputs.log.dense),
            num_one_hot=self.inputs.layout.num_one_hot,
            lists=self.inputs.lists,
            is_tagged=self.is_tagged,
        )

    def batch(self, order: NDArray[np.int64]) -> Any:
        """Gather the rows at ``order``, (num_samples,); valid until the thread gathers its next batch."""
        num_samples = order.shape[0]
        layout = self.inputs.layout
        label, is_hot = (thread_buffer(name, (num_samples,), np.int32) for name in ("label", "is_hot"))
        # What follows the dense values in a row, up to the ids, is copied as if it were such.
        dense = thread_buffer("dense", (num_samples, layout.ids.start - layout.dense.start), np.int32)
        ids = thread_buffer("ids", (num_samples, layout.num_one_hot), np.int32)
        gather_rows(self.rows, order, label, dense, ids, is_hot)
        # Words are reinterpreted, not converted: floats travelled through the shuffle by their bits.
        columns = [column_of("label", label[:, None])] if self.inputs.log.has_label else []
        for name, words in layout.of_samples.items():
            columns.append(column_of(name, dense[:, _from(layout.dense, words)]))
        columns += [as_fixed_lists(dense[:, : layout.num_dense].view(np.float32)), as_fixed_lists(ids)]
        columns += self._bags(order, dense[:, _from(layout.dense, layout.lengths)])
        if self.is_tagged:
            columns.append(pa.array(is_hot.astype(np.uint8)))
        return pa.record_batch(columns, schema=self.schema)

    def _bags(self, order: NDArray[np.int64], lengths: NDArray[np.int32]) -> list[Any]:
        """Build a list array for each multi-hot table; ``lengths``: (num_samples, num_tables)."""
        starts = self.bag_starts[order] if lengths.shape[1] else order
        arrays = []
        for of_table in lengths.T:
            # Offsets of lists are 32 bits wide.
            if int(of_table.sum(dtype=np.int64)) >= 2**31:
                raise ConfigError("a batch has 2**31 lookups in one table", hint="lower --batch-size")
            offsets = np.zeros(order.shape[0] + 1, np.int32)
            np.cumsum(of_table, out=offsets[1:])
            found = np.empty(offsets[-1], np.int32)
            copy_bags(self.bags, starts, np.diff(offsets), found, offsets[:-1])
            starts = starts + of_table  # the bag of the next table follows
            arrays.append(as_lists(offsets, found))
        return arrays


def _from(first: slice, words: slice) -> slice:
    """Return ``words`` counted from the beginning of ``first``."""
    return slice(words.start - first.start, words.stop - first.start)


VERSION = 1
KINDS: dict[int, ShardKind] = {HOT_ONLY: "hot_only", MIXED: "mixed", EVALUATION: "evaluation"}
_FILE_BYTES = 32 * MIB
_FILES_PER_WORKER = 2
"""Files of a pass at least, where the memory holds them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PackConfig:
    """The settings of the pack stage; part of its fingerprint."""

    batch_size: int = 2048
    """Number of samples per training batch."""

    order: Literal["grouped", "original"] = "grouped"
    """Order of the samples: grouped makes batches hot-only or mixed; original keeps the shuffled order."""

    seed: int = 0
    """Seed of the shuffle."""

    def __post_init__(self) -> None:
        check_fields(self)
        require_at_least("batch_size", self.batch_size, 1)
        if not 0 <= self.seed < 2**63:
            raise ConfigError(f"seed must be in [0, 2**63), got {self.seed}")


def pack(
    config: PackConfig,
    columns: Manifest,
    samples: Manifest,
    plan: Manifest,
    out: Path,
    resources: Resources = DEFAULT_RESOURCES,
) -> Manifest:
    """columns, samples, plan -> shards: batches of one kind each, training shuffled, evaluation not.

    Reads:   ``*.arrow`` of columns (label, I*), samples (ids) and plan (is_hot)
    Writes:  ``{kind}-{number}.arrow``, a record batch for each training batch: label float32,
             dense fixed-size list<float32>[K], ids fixed-size list<int32>[one-hot features], a list<int32>
             for each multi-hot feature, called like it; other labels and weight float32, group uint64;
             is_hot uint8 in evaluation; and ``checksums.bin``, those of all batches
    """
    if not is_sealed(out):
        check_pack(config, columns, samples, plan, resources)
    folders = [input_of(columns), input_of(samples), input_of(plan)]
    output = Output.begin("pack", VERSION, config, folders, out)
    if output.sealed is not None:
        return output.sealed
    inputs = PackInputs(columns, samples, plan)
    inputs.check_parts()
    # Files are cut by the words of an average sample, bags included.
    width = inputs.words_per_sample
    per_file = samples_per_file(config, width)
    shuffle = Shuffle(plan, config.seed, config.order == "grouped", per_file, inputs.opened)
    # The room for output files is what the workers' own buffers leave.
    largest = max((entry.num_samples for entry in columns.files), default=0)
    of_workers = _worker_bytes(config, width, largest, resources.workers)
    needed = needed_bytes(config, width, largest, resources.workers)
    room = room_for("pack", resources, needed, here=True) - of_workers
    # Which samples go to which file follows from tags and keys alone; no row is read for it.
    shuffled = plan_shuffle(shuffle, workers=resources.workers, room_bytes=room)
    todo = [file for file in shuffled.files if not output.has(_name(file))]
    done = sum(entry.num_samples for entry in output.finished.values())
    sizes = _sizes(inputs, todo, room, of_workers)
    phases = None
    if sizes.is_two_phases or output.scratch_folders():
        from .two_phases import two_phases  # few logs need it

        phases = two_phases(sizes, output, shuffled, inputs, of_workers, resources)
    if phases is None:
        groups = _groups_in_passes(todo, shuffled, inputs, room, of_workers, resources)
    else:
        groups = phases.groups(todo)
    # In two phases a sample counts twice.
    first = 0 if phases is None else columns.num_samples
    for group, buffers, is_last in groups:
        starts = starts_of([file.num_samples for file in group])
        files = zip(group, starts, strict=True)
        tasks = ((file, config, inputs, buffers, start, is_last, output) for file, start in files)
        for num_samples in run_tasks(_write_file, tasks, workers=resources.workers, shares_memory=True):
            done += num_samples
            resources.progress("pack", first + done, first + columns.num_samples)
    if phases is not None:
        phases.pieces.remove()
    write_checksums(output)
    return output.seal(_totals(inputs, output))


def _sizes(inputs: PackInputs, todo: list[ShuffledFile], room: int, of_workers: int) -> PackSizes:
    """Return the sizes that decide how the files still to write are packed."""
    parts = bytes_of_parts(inputs)
    folders = (inputs.columns, inputs.samples, inputs.plan)
    num_bytes = sum(entry.num_bytes for folder in folders for entry in folder.files)
    # The lists of a file are of unknown length before they are read: an average sample stands for each.
    num_todo = sum(file.num_samples for file in todo)
    cache = page_cache_bytes(room + of_workers)
    return PackSizes(
        inputs=num_bytes,
        rows=sum(parts) * num_todo // max(1, inputs.columns.num_samples),
        largest_part=max(parts, default=0),
        room=room,
        cache=num_bytes if cache is None else cache,
    )


def _groups_in_passes(
    todo: list[ShuffledFile],
    shuffled: ShufflePlan,
    inputs: PackInputs,
    room: int,
    of_workers: int,
    resources: Resources,
) -> Iterator[Group]:
    """Yield the rows of some files at a time, each collected in a pass over all inputs."""
    lookups = count_list_lookups(shuffled, inputs, resources.workers)
    sizes = bytes_of_files(shuffled.files, lookups, inputs)
    # One file must fit at least; with lists its bytes are known only now.
    if inputs.lists:
        check_cap("pack", resources, max(sizes, default=0) + of_workers, here=True)
    # Each pass reads all inputs once and collects as many files as fit in the room, which is kept small.
    bytes_of_all = sum(sizes[file.index] for file in todo)
    room = min(room, _enough_bytes(bytes_of_all, resources.workers))
    groups = list(groups_within(room, todo, lambda file: sizes[file.index]))
    # One piece of memory for all passes: pages fresh from the system in each were a fifth of the CPU time.
    bytes_of_groups = (sum(sizes[file.index] for file in group) for group in groups)
    memory = np.empty(max(bytes_of_groups, default=0), np.uint8)
    for group in groups:
        buffers = scatter_samples(group, shuffled, lookups, inputs, memory, resources.workers)
        yield group, buffers, group is groups[-1]


def check_pack(
    config: PackConfig, columns: Manifest, samples: Manifest, plan: Manifest, resources: Resources
) -> None:
    """Raise HotsetError where `pack` would refuse, before it writes anything.

    How long the lists of a file are is known only when all have been read.
    """
    inputs = PackInputs(columns, samples, plan)
    inputs.check_parts()
    largest = max((entry.num_samples for entry in columns.files), default=0)
    needed = needed_bytes(config, inputs.words_per_sample, largest, resources.workers)
    check_cap("pack", resources, needed, here=True)
    if resources.scratch is not None:
        check_writable(resources.scratch)


def samples_per_file(config: PackConfig, width: int) -> int:
    """Return the samples of a training file, a multiple of the batch size; ``width`` in words."""
    return max(1, _FILE_BYTES // (4 * width * config.batch_size)) * config.batch_size


def _enough_bytes(bytes_of_all: int, workers: int) -> int:
    """Return the bytes of buffers beyond which fresh memory costs more than fewer passes would save.

    On 4 M Criteo samples one pass took 0.82 us of CPU a sample, two took 0.55, three 0.50 and four 0.52.
    """
    return max(_FILES_PER_WORKER * threads_here(workers) * _FILE_BYTES, bytes_of_all // PASSES)


@dataclass(frozen=True, slots=True)
class PackWork:
    """What `pack` reads and writes besides its shards."""

    passes: int
    """Passes over the inputs; one in two phases."""
    bytes_read: int
    """Bytes of inputs in all passes, and of pieces."""
    piece_bytes: int
    """Bytes of temporary files; 0 in passes."""


def pack_work(sizes: PackSizes, workers: int) -> PackWork:
    """Return the work of packing inputs of these sizes, from nothing."""
    if sizes.is_two_phases:
        return PackWork(1, sizes.inputs + sizes.rows, sizes.rows)
    room = max(1, min(sizes.room, _enough_bytes(sizes.rows, workers)))
    passes = max(1, -(-sizes.rows // room))
    return PackWork(passes, passes * sizes.inputs, 0)


def needed_bytes(config: PackConfig, width: int, samples_of_part: int, workers: int) -> int:
    """Return the bytes that `pack` needs at least: one output file, and the buffers of each worker."""
    file_bytes = samples_per_file(config, width) * (4 * width + 8)
    return file_bytes + _worker_bytes(config, width, samples_of_part, workers)


def _worker_bytes(config: PackConfig, width: int, samples_of_part: int, workers: int) -> int:
    """Return the bytes of workers in addition to the buffers: a part, or an order and a batch."""
    scattering = samples_of_part * (4 * width + 17 + 8)
    writing = samples_per_file(config, width) * 24 + 3 * config.batch_size * 4 * width
    return threads_here(workers) * max(scattering, writing)


def _name(file: ShuffledFile) -> str:
    return f"{KINDS[file.kind]}-{file.number:05}.arrow"


def _write_file(
    file: ShuffledFile,
    config: PackConfig,
    inputs: PackInputs,
    buffers: Buffers,
    start: int,
    is_last: bool,
    output: Output,
) -> int:
    """Order one file's rows by key and write them batch by batch."""
    stop = start + file.num_samples
    rows = buffers.rows[start:stop]
    order = buffers.order(slice(start, stop))
    batches = range(0, file.num_samples, config.batch_size)
    # Without regrouping some mixed batches are hot-only by chance; the manifest names them.
    hot_only: tuple[int, ...] | None = None
    if file.kind == MIXED and config.order == "original":
        is_hot = rows[order, TAG]
        hot_only = tuple(
            n for n, first in enumerate(batches) if is_hot[first : first + config.batch_size].all()
        )
    facts = ShardFacts(
        kind=KINDS[file.kind],
        num_batches=len(batches),
        hot_only_batches=hot_only,
        lookups=_lookups_of(rows, inputs),
        num_unlabeled=_num_unlabeled(rows, inputs),
    )
    batch_builder = ShardBatches(
        inputs, rows, buffers.bag_starts[start:stop], buffers.bags, file.kind == EVALUATION
    )
    with output.writing(_name(file), file.num_samples, facts) as path:
        built = (batch_builder.batch(order[first : first + config.batch_size]) for first in batches)
        checksums = write_shard(path, batch_builder.schema, built)
        note_checksums(output, _name(file), checksums)
    # No later pass needs this memory: the next file's pages in the page cache can be these.
    if is_last:
        release_pages(rows)
    return file.num_samples


def _lookups_of(rows: NDArray[np.int32], inputs: PackInputs) -> dict[str, int]:
    """Count the lookups of some rows in each multi-hot table, from the lengths of their bags."""
    lengths = rows[:, inputs.layout.lengths].sum(axis=0, dtype=np.int64)
    return dict(zip(inputs.lists, lengths.tolist(), strict=True))


def _num_unlabeled(rows: NDArray[np.int32], inputs: PackInputs) -> int:
    """Count the rows without the first label."""
    return int(np.isnan(rows[:, LABEL].view(np.float32)).sum()) if inputs.log.labels else 0


def _totals(inputs: PackInputs, output: Output) -> ShardsTotals:
    """Return what a trainer needs, so that it needs no other folder."""
    plan = PlanTotals.of(inputs.plan)
    settings = PlanSettings.of(inputs.plan)
    samples: Counter[str] = Counter()
    batches: Counter[str] = Counter()
    num_unlabeled = 0
    # Mixed files of the original order hold batches that are hot-only by chance: those count as such.
    for entry in output.finished.values():
        if entry.is_checksums:
            continue
        facts = entry.read_facts(ShardFacts)
        num_hot_only = len(facts.hot_only_batches or ())
        samples[facts.kind] += entry.num_samples
        batches[facts.kind] += facts.num_batches - num_hot_only
        batches["hot_only"] += num_hot_only
        num_unlabeled += facts.num_unlabeled
    return ShardsTotals(
        tables=plan.tables,
        row_bytes=plan.row_bytes,
        num_rows=plan.num_rows,
        num_hot_rows=plan.num_hot_rows,
        hot_bytes=settings.hot_bytes,
        embedding_dim=settings.embedding_dim,
        embedding_optimizer=settings.embedding_optimizer,
        has_label=inputs.log.has_label,
        dense=inputs.log.dense,
        num_valid_samples=plan.num_valid_samples,
        samples=KindCounts(**{kind: samples[kind] for kind in KINDS.values()}),
        batches=KindCounts(**{kind: batches[kind] for kind in KINDS.values()}),
        labels=inputs.log.labels,
        number_labels=inputs.log.number_labels,
        has_weight=inputs.log.has_weight,
        has_group=inputs.log.has_group,
        num_unlabeled=num_unlabeled,
    )
