"""``hotset characterise``: measure four speeds over whole training steps.

A sweep varies the properties of the model. Each cell is a model made on the spot, trained for some steps on a
drawn log; the time of a step is read from one clock around it, reading and planning included. Cells are lines
of a file next to the result, so that a run that is killed resumes. Speeds of single parts are not modelled:
the sweep says how speed follows a factor on this machine, and the four speeds are what `advise` predicts
with.

The shards of a cell have drawn ids (`DrawnShards`), for models of any size without a log.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain, pairwise
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from torch.utils.benchmark import Timer

from .. import __version__
from ..pipeline.errors import MIB, ByteSize, ConfigError, HotsetError
from ..pipeline.folders.disk import check_target
from ..pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ..pipeline.folders.output import Output
from ..pipeline.folders.totals import KindCounts, PlannedTable, ShardFacts, ShardKind, ShardsTotals
from ..pipeline.formats.arrow_files import as_fixed_lists
from ..pipeline.formats.batch_checksums import note_checksums, write_checksums, write_shard
from ..pipeline.runtime.tasks import num_workers
from ..pipeline.stages.pack import VERSION, PackConfig
from ..stats.row_bytes import row_bytes
from ..train.advice import MachineSpeeds, flops_per_sample
from ..train.build import build_trainer
from ..train.build_embeddings import set_threads
from ..train.config import PlacementName, TrainConfig
from ..train.data.shards import ShardSet
from ..train.loop import train_steps
from ..train.model.shapes import DlrmShape
from .machine import describe_machine

_ZIPF_ONE = 1e-9
"""Exponents nearer to 1 than this count as 1, whose integral is a logarithm."""
_FILE_SAMPLES = 1 << 22
"""Approximate samples of a file; stages work on files in parallel."""

Samples = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]
"""Labels (B,), dense values (B, K), and ids (B, F * pooling), those of a table next to each other."""
Part = tuple[int, Callable[[int, int], Samples]]
"""The number of samples of a kind, and a function that returns those from a first one to a last."""


def write_shards(
    folder: Path,
    tables: Sequence[PlannedTable],
    parts: Mapping[ShardKind, Part],
    *,
    num_dense: int,
    batch_size: int,
    embedding_dim: int,
    optimizer: str,
) -> None:
    """Write samples as `pack` writes shards; only the last batch of a kind is short.

    Args:
        folder: the new folder of the shards.
        tables: features in order; either all or none are multi-hot.
        parts: samples by kind. Hot-only ones look up hot rows alone.
        num_dense: K.
        batch_size: samples of a batch.
        embedding_dim: of all tables.
        optimizer: of the rows whose bytes the hot ones are counted with.
    """
    # No plan was made for these shards, so its fingerprint is a made-up one.
    inputs = [{"name": "plan", "fingerprint": 32 * "0"}]
    output = Output.begin("pack", VERSION, PackConfig(batch_size=batch_size), inputs, folder)
    for kind, part in parts.items():
        _write_part(output, kind, part, tables, batch_size)
    width = row_bytes(embedding_dim, optimizer)
    num_hot_rows = sum(table.num_hot for table in tables)
    write_checksums(output)
    output.seal(
        ShardsTotals(
            tables=tuple(tables),
            row_bytes=width,
            num_rows=sum(table.num_rows for table in tables),
            num_hot_rows=num_hot_rows,
            hot_bytes=num_hot_rows * width,
            embedding_dim=embedding_dim,
            embedding_optimizer=optimizer,
            has_label=True,
            dense=tuple(f"I{number + 1}" for number in range(num_dense)),
            samples=KindCounts(**{kind: number for kind, (number, _) in parts.items()}),
            batches=KindCounts(**{kind: -(-number // batch_size) for kind, (number, _) in parts.items()}),
        )
    )


def _write_part(
    output: Output, kind: ShardKind, part: Part, tables: Sequence[PlannedTable], batch_size: int
) -> None:
    num_samples, draw = part
    file_samples = batch_size * max(_FILE_SAMPLES // batch_size, 1)
    for file, first in enumerate(range(0, num_samples, file_samples)):
        stop = min(first + file_samples, num_samples)
        starts = range(first, stop, batch_size)
        facts = ShardFacts(kind=kind, num_batches=len(starts))
        batches = (
            _as_batch(draw(start, min(start + batch_size, stop)), tables, is_tagged=kind == "evaluation")
            for start in starts
        )
        head = next(batches)
        name = f"{kind}-{file:05}.arrow"
        with output.writing(name, stop - first, facts) as path:
            note_checksums(output, name, write_shard(path, head.schema, chain([head], batches)))


def _as_batch(samples: Samples, tables: Sequence[PlannedTable], *, is_tagged: bool) -> pa.RecordBatch:
    label_B, dense_BK, ids_BX = samples
    is_multi_hot = tables[0].is_multi_hot
    pooling = ids_BX.shape[1] // len(tables)
    columns = {
        "label": pa.array(label_B),
        "dense": as_fixed_lists(dense_BK),
        "ids": as_fixed_lists(ids_BX[:, :0] if is_multi_hot else ids_BX),
    }
    if is_multi_hot:
        # One column of lists for each table, every list of the same length.
        offsets = pa.array(np.arange(label_B.size + 1, dtype=np.int32) * np.int32(pooling))
        for table, ids in zip(tables, np.split(ids_BX, len(tables), axis=1), strict=True):
            columns[table.name] = pa.ListArray.from_arrays(offsets, pa.array(ids.ravel()))
    if is_tagged:
        num_hot_X = np.repeat([table.num_hot for table in tables], pooling)
        columns["is_hot"] = pa.array((ids_BX < num_hot_X).all(axis=1).astype(np.uint8))
    return pa.record_batch(columns)


@dataclass(frozen=True, kw_only=True, slots=True)
class DrawnShards:
    """A drawn log: the sizes of its tables, all alike, and what its samples look up."""

    num_tables: int = 26
    rows_of_table: int
    hot_rows_of_table: int = 0
    num_hot_batches: int = 0
    """Batches among ``num_batches`` that look up hot rows alone; they have the first numbers."""
    skew: float
    """Exponent of Zipf's law that lookups follow; 0: rows are alike."""
    num_dense: int = 13
    pooling: int = 1
    """Lookups of a sample in each table; more than one makes the features multi-hot."""
    batch_size: int = 2048
    num_batches: int
    num_evaluation: int = 1
    """Samples of the evaluation part."""
    embedding_dim: int = 16
    optimizer: str = "sgd"
    """Optimizer of the rows whose bytes the hot ones are counted with."""

    def write(self, folder: Path) -> None:
        """Draw the samples and write them as `pack` writes shards."""
        rng = np.random.default_rng(0)

        def draw(num_rows: int, first: int, stop: int) -> Samples:
            num_samples = stop - first
            ids = self._draw_ids((num_samples, self.num_tables * self.pooling), num_rows, rng)
            labels = rng.integers(0, 2, num_samples).astype(np.float32)
            return labels, rng.random((num_samples, self.num_dense), np.float32), ids

        of_all = partial(draw, self.rows_of_table)
        num_hot = self.num_hot_batches * self.batch_size
        parts: dict[ShardKind, Part] = {
            "hot_only": (num_hot, partial(draw, self.hot_rows_of_table)),
            "mixed": (self.num_batches * self.batch_size - num_hot, of_all),
            "evaluation": (self.num_evaluation, of_all),
        }
        tables = [
            PlannedTable(
                name=f"C{number + 1}",
                num_rows=self.rows_of_table,
                oov_id=self.rows_of_table - 1,
                missing_id=self.rows_of_table - 1,
                is_multi_hot=self.pooling > 1,
                num_hot=self.hot_rows_of_table,
            )
            for number in range(self.num_tables)
        ]
        write_shards(
            folder,
            tables,
            parts,
            num_dense=self.num_dense,
            batch_size=self.batch_size,
            embedding_dim=self.embedding_dim,
            optimizer=self.optimizer,
        )

    def _draw_ids(self, shape: tuple[int, int], num_rows: int, rng: np.random.Generator) -> NDArray[np.int32]:
        return zipf_ids(rng.random(shape), num_rows, self.skew)


def zipf_ids(uniform: NDArray[np.float64], num_rows: int, skew: float) -> NDArray[np.int32]:
    """Turn numbers drawn evenly from [0, 1) into ids by Zipf's law.

    The law is continuous: id k has the part of the density ``x**-skew`` between k + 1 and k + 2.
    """
    if abs(skew - 1) < _ZIPF_ONE:
        drawn = (num_rows + 1.0) ** uniform
    else:
        power = 1 - skew
        drawn = (1 + uniform * ((num_rows + 1.0) ** power - 1)) ** (1 / power)
    return np.minimum(drawn - 1, num_rows - 1).astype(np.int32)


OPTIMIZER = "rowwise-adagrad"
"""Optimizer of the rows of every cell."""
FACTORS: Mapping[str, tuple[Any, ...]] = {
    "mlp_width": (32, 64, 128, 256, 512),
    "batch_size": (128, 256, 512, 1024, 2048, 4096, 8192, 16384),
    "num_dense": (16, 64, 256, 1024),
    "num_tables": (4, 8, 16, 32, 64),
    "rows_of_table": (500, 5000, 20_000, 100_000, 300_000),
    "pooling": (1, 2, 4, 8, 16, 32),
    "embedding_dim": (8, 16, 32, 64, 128),
    "skew": (0.0, 0.8, 1.05, 1.2),
    "mlp_depth": (1, 2, 3, 4),
    "placement": ("all-fast", "hybrid", "hybrid-dedup", "hybrid-uva", "cache", "lookahead", "fae"),
}
"""The values of each factor, tried while the others stay as in `Cell`."""
_MODELS: tuple[Mapping[str, Any], ...] = (
    {"batch_size": 256},
    {"batch_size": 8192},
    {"embedding_dim": 64},
    {"skew": 0.0},
    {"pooling": 8},
)
"""Models in which placements are compared, besides the base."""
_BUDGETED = ("cache", "lookahead")
_FAST_SHARE = 0.25
"""Share of all rows that placements keep on the fast tier."""
_MOST_ROUNDS = 9
_MEMORY_SHARE = 1 / 16
"""Share of the memory that the rows of a cell may take."""
_WARM_UP_STEPS = 3
_LEAST_STEPS = 6
_MOST_STEPS = 24
_SAMPLES = 32_768
"""Samples that a cell trains on, where that gives neither too few nor too many steps."""

_CPU_TICKS = Path("/proc/stat")
_PROBE_SECONDS = 0.3
_PROBE_ROWS = 1 << 20
_PROBE_DIM = 16
_LINK_BYTES = 64 * MIB


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell(JsonRecord):
    """A model, its log and a placement: one point of the sweep. Both MLPs have the same hidden layers."""

    batch_size: int = 2048
    num_dense: int = 64
    num_tables: int = 16
    """Embedding tables, all alike."""
    rows_of_table: int = 20_000
    pooling: int = 1
    embedding_dim: int = 16
    skew: float = 1.05
    """Exponent of Zipf's law of the lookups; 0: rows are alike."""
    mlp_width: int = 128
    mlp_depth: int = 2
    placement: str = "all-fast"

    def check_values(self, where: str) -> None:
        for name, value in asdict(self).items():
            if name not in ("skew", "placement"):
                require_range(f"{where}{name}", value, 1)

    @property
    def layers(self) -> tuple[int, ...]:
        """Widths of the hidden layers of each MLP."""
        return (self.mlp_width,) * self.mlp_depth

    @property
    def bytes_of_rows(self) -> int:
        """Bytes of all rows with their optimizer state."""
        return self.num_tables * self.rows_of_table * row_bytes(self.embedding_dim, OPTIMIZER)

    @property
    def num_steps(self) -> int:
        """Number of measured steps."""
        return min(max(_SAMPLES // self.batch_size, _LEAST_STEPS), _MOST_STEPS)

    @property
    def flops(self) -> float:
        """Operations of the dense layers of a step."""
        shape = DlrmShape(self.num_dense, self.num_tables, self.embedding_dim, self.layers, self.layers)
        return self.batch_size * flops_per_sample(shape)


_DENSE_CELLS = (Cell(mlp_width=512), Cell(mlp_width=32))
"""The cells that give the speed of the dense layers; they are first."""


@dataclass(frozen=True, kw_only=True, slots=True)
class CellRun(JsonRecord):
    """One run of a cell; a line of the file of a sweep."""

    cell: Cell
    step_seconds: float
    """Median over its measured steps."""
    low: float
    """Lower quartile of them."""
    high: float
    """Upper quartile."""
    taken_share: float = 0.0
    """Share of the cores of its threads that other programs used meanwhile, in [0, 1]."""


@dataclass(frozen=True, slots=True)
class Characterised:
    """The result of a measurement."""

    speeds: MachineSpeeds
    runs: list[CellRun]
    """Runs of all cells; of each cell one or more."""
    minutes: float


def characterise(
    out: Path, minutes: float, threads: int | None = None, say: Callable[[str], object] = lambda text: None
) -> Characterised:
    """Sweep cells and measure four speeds; write these to ``out``, and the runs of cells next to it.

    Args:
        out: the file of speeds; runs go to ``out`` with ``.cells.jsonl`` for its suffix.
        minutes: time for all of it.
        threads: of a step; None: every core this process may use.
        say: reports progress.

    Raises:
        HotsetError: ``out`` exists, or its cells were begun on another machine.
    """
    check_target(out, overwrite=False)
    began = time.monotonic()
    threads = threads or num_workers(0)
    machine = describe_machine()
    file = CellFile(
        out.with_suffix(".cells.jsonl"),
        {"format": "hotset sweep", "hotset": __version__, "device_name": machine["cpu"], "threads": threads},
    )
    runs = file.read()
    if runs:
        say(f"{file.path} has {len(runs)} runs already")
    set_threads(threads)
    with tempfile.TemporaryDirectory(prefix="hotset-characterise-") as scratch:
        say("measuring the speeds of rows, link and loader")
        rows, link = _row_speed(), _link_speed()
        loader = _loader_speed(Path(scratch) / "loader")
        every = cells(int(machine["memory_bytes"] * _MEMORY_SHARE))
        for number, cell in _remaining(every, runs):
            # The first cells are measured whatever the time: the speed of the dense layers needs them.
            if number > len(_DENSE_CELLS) and time.monotonic() - began > 60 * minutes:
                break
            if number % 20 == 0:
                say(f"run {number + 1}, of {len(every)} cells")
            used, clock = _used_by_others(), time.monotonic()
            run = run_cell(cell, threads, Path(scratch) / f"run-{number}")
            others = (_used_by_others() - used) / (time.monotonic() - clock)
            runs.append(replace(run, taken_share=_taken_share(others, threads)))
            file.add(runs[-1])
    speeds = MachineSpeeds(
        device_name=machine["cpu"],
        threads=threads,
        flops=_dense_speed(runs),
        host_rows_per_second=rows,
        row_bytes=4 * _PROBE_DIM,
        link_bytes_per_second=link,
        loader_samples_per_second=loader,
        cores=machine["cores"],
    )
    speeds.write(out)
    return Characterised(speeds, runs, (time.monotonic() - began) / 60)


def cells(most_bytes: int) -> list[Cell]:
    """Return the cells in the order in which they run, each once: single factors in turns, then placements.

    Args:
        most_bytes: of the rows of one cell.
    """
    base = Cell()
    found = [base, *_DENSE_CELLS]
    # Value by value, so that a sweep that ends early has some values of every factor.
    for number in range(max(map(len, FACTORS.values()))):
        for factor, values in FACTORS.items():
            if number < len(values):
                found.append(replace(base, **{factor: values[number]}))
    for placement in FACTORS["placement"]:
        found += [replace(base, placement=placement, **model) for model in _MODELS]
    return [cell for cell in dict.fromkeys(found) if cell.bytes_of_rows <= most_bytes]


def _remaining(every: Sequence[Cell], runs: Sequence[CellRun]) -> Iterator[tuple[int, Cell]]:
    """Yield the number and the cell of each run that is left; all cells once before any again."""
    done = {cell: sum(run.cell == cell for run in runs) for cell in every}
    number = len(runs)
    for round_number in range(_MOST_ROUNDS):
        for cell in every:
            if done[cell] <= round_number:
                yield number, cell
                number += 1


def run_cell(cell: Cell, threads: int, folder: Path) -> CellRun:
    """Train the steps of a cell on a log drawn for it, and time each."""
    num_hot = int(_FAST_SHARE * cell.rows_of_table) if cell.placement == "fae" else 0
    num_batches = _WARM_UP_STEPS + cell.num_steps
    drawn = DrawnShards(
        num_tables=cell.num_tables,
        rows_of_table=cell.rows_of_table,
        hot_rows_of_table=num_hot,
        num_hot_batches=num_batches // 2 if num_hot else 0,
        skew=cell.skew,
        num_dense=cell.num_dense,
        pooling=cell.pooling,
        batch_size=cell.batch_size,
        num_batches=num_batches,
        embedding_dim=cell.embedding_dim,
        optimizer=OPTIMIZER,
    )
    drawn.write(folder)
    fast = ByteSize(max(int(_FAST_SHARE * cell.bytes_of_rows), 1))
    config = TrainConfig(
        placement=cast(PlacementName, cell.placement),
        staging_bytes=fast if cell.placement in _BUDGETED else None,
        model="dlrm",
        bottom_mlp=cell.layers,
        top_mlp=cell.layers,
        threads=threads,
    )
    ends = []
    with closing(train_steps(build_trainer(ShardSet.open(folder), config))) as steps:
        for _ in steps:
            ends.append(time.perf_counter())
    # From the end of one step to that of the next: what a step waits for its batch counts.
    seconds = [last - first for first, last in pairwise(ends)][_WARM_UP_STEPS - 1 :]
    low, median, high = statistics.quantiles(seconds, n=4)
    return CellRun(cell=cell, step_seconds=median, low=low, high=high)


def _used_by_others() -> float:
    """Return the CPU seconds that others have used on the cores of this process; 0 where nothing tells."""
    own = [f"cpu{number}" for number in os.sched_getaffinity(0)]
    try:
        lines = [line.split() for line in _CPU_TICKS.read_text().splitlines()]
    except OSError:
        return 0.0
    # User, nice, system, idle, waiting for disks, interrupts twice, stolen; guests are in the first two.
    ticks = sum(sum(map(int, line[1:4] + line[6:9])) for line in lines if line and line[0] in own)
    return ticks / os.sysconf("SC_CLK_TCK") - time.process_time()


def _taken_share(others: float, threads: int) -> float:
    """Return the share of the threads' cores that others must have used, after those that were spare."""
    spare = max(0, num_workers(0) - threads)
    return min(max(0.0, others - spare) / threads, 1.0)


@dataclass(frozen=True, slots=True)
class CellFile:
    """The file of a sweep: a line for the machine, and one for each run of a cell."""

    path: Path
    identity: dict[str, Any]
    """The machine and settings that all lines share."""

    def read(self) -> list[CellRun]:
        """Return the runs that are done; a last line that was cut off is removed.

        Raises:
            ConfigError: another machine or other settings began the file, or it is damaged.
        """
        if not self.path.exists():
            return []
        data = self.path.read_bytes()
        # A line ends with its newline: what follows the last one was being written when the process died.
        whole = data[: data.rfind(b"\n") + 1]
        os.truncate(self.path, len(whole))
        try:
            found = [json.loads(line) for line in whole.decode(errors="replace").splitlines()]
            runs = [CellRun.from_json(each, f"line {number}") for number, each in enumerate(found[1:], 2)]
        except (ValueError, RecordError) as error:
            raise ConfigError(
                f"{self.path} is damaged: {error}", hint="delete it, and measure its cells again"
            ) from error
        # Times of another machine, version or number of threads do not belong together.
        if found and found[0] != self.identity:
            raise ConfigError(
                f"{self.path} was begun on another machine or with other settings: {found[0]}",
                hint="give another --out, or delete the file",
            )
        return runs

    def add(self, run: CellRun) -> None:
        """Append a line, after that of the machine where the file is new.

        Raises:
            HotsetError: the disk is full, or the file cannot be written.
        """
        try:
            is_new = not self.path.exists() or self.path.stat().st_size == 0
            lines = [json.dumps(each, allow_nan=False) for each in [self.identity] * is_new + [run.to_json()]]
            # Closed after each run, so that a sweep that is killed loses only the one under way.
            with self.path.open("a") as file:
                file.writelines(f"{line}\n" for line in lines)
        except OSError as error:
            raise HotsetError(
                f"{self.path} cannot be written: {error.strerror or error}",
                hint="free disk space, and run the same command: finished cells are kept",
            ) from error


# Speeds


def _calls_per_second(call: Callable[[], object]) -> float:
    """Return the calls per second of some work, the median of several tries after a warm-up."""
    timer = Timer("call()", globals={"call": call}, num_threads=torch.get_num_threads())
    return 1 / timer.blocked_autorange(min_run_time=_PROBE_SECONDS).median


def _row_speed() -> float:
    """Return the rows per second that all threads read and write at random places of host memory."""
    rows_SD = torch.zeros(_PROBE_ROWS, _PROBE_DIM)
    ids_N = torch.randperm(_PROBE_ROWS, generator=torch.Generator().manual_seed(0))[: _PROBE_ROWS // 4]
    vectors_ND = torch.empty(ids_N.numel(), _PROBE_DIM)

    def read_and_write() -> None:
        torch.index_select(rows_SD, 0, ids_N, out=vectors_ND)
        rows_SD.index_copy_(0, ids_N, vectors_ND)

    return 2 * ids_N.numel() * _calls_per_second(read_and_write)


def _link_speed() -> float:
    """Return the bytes per second of copies between the tiers, each way of a copy there and back."""
    here, there = (torch.ones(_LINK_BYTES, dtype=torch.uint8) for _ in range(2))

    def there_and_back() -> None:
        there.copy_(here)
        here.copy_(there)

    return _LINK_BYTES * _calls_per_second(there_and_back)


def _loader_speed(folder: Path) -> float:
    """Return the samples per second that are read from shards of the Kaggle shape, and checked."""
    drawn = DrawnShards(rows_of_table=10_000, skew=1.0, num_batches=8)
    drawn.write(folder)
    shards = ShardSet.open(folder)

    def read() -> None:
        for number in range(drawn.num_batches):
            shards.training_batch(number)

    return drawn.num_batches * drawn.batch_size * _calls_per_second(read)


def _dense_speed(runs: Sequence[CellRun]) -> float:
    """Return the operations per second of the dense layers: what wide ones take longer than narrow ones."""
    seconds = median_seconds(runs)
    wide, narrow = _DENSE_CELLS
    return (wide.flops - narrow.flops) / max(seconds[wide] - seconds[narrow], 1e-9)


def quartiles(runs: Sequence[CellRun]) -> dict[Cell, tuple[float, float, float]]:
    """Return the seconds of a step of each cell: lower quartile, median, upper quartile.

    Each is the median over the cell's runs.
    """
    found = defaultdict(list)
    for run in runs:
        found[run.cell].append((run.low, run.step_seconds, run.high))
    return {
        cell: (low, middle, high)
        for cell, each in found.items()
        for low, middle, high in [map(statistics.median, zip(*each, strict=True))]
    }


def median_seconds(runs: Sequence[CellRun]) -> dict[Cell, float]:
    """Return the median seconds of a step of each cell."""
    return {cell: middle for cell, (_, middle, _) in quartiles(runs).items()}
