"""Checks of a GPU day: device calls, first steps, equal bits, and the tests that need a GPU.

Calls of the device API are tried one by one, each in a few lines on separate memory, so that a first run on a
GPU names what fails there. Then come the tests that compare every kernel with its twin.

Parts train on shards of the Criteo Kaggle shape: tables, frequencies and clicks. A category's id is its rank
of frequency, as `rank` would make it, so nothing has to be counted or encoded, and every row of the full
shape exists although few samples are drawn. Rows are hot where they are looked up often in the drawn samples;
hot-only samples and the others are batched apart, as `pack` does.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import ByteSize
from ...pipeline.folders.manifest import MANIFEST, hash_file
from ...pipeline.folders.totals import PlannedTable, ShardKind
from ...pipeline.generate.generate import load_profile, scaled_num_rows, world_of
from ...pipeline.generate.kernel import draw_samples
from ...pipeline.runtime.tasks import num_workers
from ...stats.row_bytes import OPTIMIZERS
from ...stats.shuffle import epoch_order
from ...train.build import build_trainer
from ...train.build_embeddings import open_device_api
from ...train.config import EmbeddingOptimizer, PlacementName, TrainConfig
from ...train.data.batch import RecordedOrder
from ...train.data.shards import ShardSet
from ...train.device import STREAMS, Device, StreamName
from ...train.gpu.packed_batch import RowMoves, RowTensors
from ...train.gpu.queued_steps import QueuedSteps
from ...train.gpu.twins import choose_kernels
from ...train.loop import run_steps
from ...train.model.gradients import DenseDtype
from ...train.rows.tiers import HostMemory
from ..characterise import Samples, write_shards
from .gpu_day import PartSettings, Records

HOT_SHARE = 0.0075
"""Share of all rows that is hot, by default."""
_PROFILE = "criteo-kaggle"
_PART_SAMPLES = 1 << 16
"""Samples that a core draws at a time, as int64."""


@dataclass(frozen=True, slots=True)
class KaggleSamples:
    """Drawn samples, before they are batched."""

    ids_NF: NDArray[np.int32]
    dense_NK: NDArray[np.float32]
    label_N: NDArray[np.float32]
    names: tuple[str, ...]
    num_rows: tuple[int, ...]

    def num_hot(self, share: float) -> tuple[int, ...]:
        """Return the prefix of each table that is hot, all together about ``share`` of the rows."""
        # The prefix with all rows looked up at least so often ends where no later row is. So take the largest
        # count from a row on, which only falls. The first row of a table is hot whatever its count.
        falling = []
        for table in range(len(self.num_rows)):
            counts = np.bincount(self.ids_NF[:, table], minlength=1)
            falling.append(np.maximum.accumulate(counts[::-1])[::-1][1:])
        # Rows of all prefixes by their least count, from which the lowest that is within the share follows.
        rows_by_count = np.bincount(np.concatenate(falling))
        num_hot = len(falling) + np.cumsum(rows_by_count[::-1])[::-1]
        least = max(1, int(np.count_nonzero(num_hot > share * sum(self.num_rows))))
        return tuple(1 + int(np.count_nonzero(each >= least)) for each in falling)


def draw_kaggle(num_samples: int, scale: float = 1.0) -> KaggleSamples:
    """Draw samples; ``scale`` divides the cardinalities of the tables, as `hotset generate` does."""
    world = world_of(_PROFILE, scale)
    columns = load_profile(_PROFILE).columns
    is_dense = np.array([column.is_dense for column in columns])
    tables = [column for column in columns if not column.is_dense]
    num_rows = [scaled_num_rows(column.num_rows, scale) for column in tables]
    ids_NF = np.empty((num_samples, len(tables)), np.int32)
    dense_NK = np.empty((num_samples, len(columns) - len(tables)), np.float32)
    label_N = np.empty(num_samples, np.float32)

    # Parts of a bounded size, drawn by all cores: a sample depends on its number alone.
    def draw(first: int) -> None:
        part = slice(first, min(first + _PART_SAMPLES, num_samples))
        num_drawn = part.stop - first
        ranks_NC = np.empty((num_drawn, len(columns)), np.int64)
        labels_N = np.empty(num_drawn, np.uint8)
        draw_samples(world, np.uint64(0), first, ranks_NC, np.empty(num_drawn, np.int64), labels_N)
        # Missing values are the first id, which most tables' missing values have by frequency.
        ids_NF[part] = np.minimum(np.maximum(ranks_NC[:, ~is_dense], 0), np.array(num_rows) - 1)
        dense_NK[part] = np.log1p(np.maximum(ranks_NC[:, is_dense], 0))
        label_N[part] = labels_N

    with ThreadPoolExecutor(num_workers(0)) as pool:
        list(pool.map(draw, range(0, num_samples, _PART_SAMPLES)))
    names = tuple(column.name for column in tables)
    return KaggleSamples(ids_NF, dense_NK, label_N, names, tuple(num_rows))


def write_kaggle_shards(
    samples: KaggleSamples,
    folder: Path,
    *,
    batch_size: int,
    embedding_dim: int,
    hot_share: float = HOT_SHARE,
    optimizer: str = "sgd",
    num_evaluation: int = 4096,
) -> ShardSet:
    """Write shards as `pack` does, the last samples for evaluation, and open them."""
    num_hot = samples.num_hot(hot_share)
    num_training = samples.label_N.size - num_evaluation
    # As the first rows of each table are hot, all ids of a hot sample are below their number.
    parts = np.split(samples.ids_NF[:num_training], range(_PART_SAMPLES, num_training, _PART_SAMPLES))
    is_hot_N = np.concatenate([(part < np.array(num_hot, np.int32)).all(axis=1) for part in parts])
    numbers: dict[ShardKind, NDArray[np.int64]] = {
        "hot_only": np.flatnonzero(is_hot_N),
        "mixed": np.flatnonzero(~is_hot_N),
        "evaluation": np.arange(num_training, samples.label_N.size),
    }

    def take(chosen: NDArray[np.int64], first: int, stop: int) -> Samples:
        part = chosen[first:stop]
        return samples.label_N[part], samples.dense_NK[part], samples.ids_NF[part]

    write_shards(
        folder,
        [
            PlannedTable(name=name, num_rows=rows, oov_id=rows - 1, missing_id=0, num_hot=hot)
            for name, rows, hot in zip(samples.names, samples.num_rows, num_hot, strict=True)
        ],
        {kind: (chosen.size, partial(take, chosen)) for kind, chosen in numbers.items()},
        num_dense=samples.dense_NK.shape[1],
        batch_size=batch_size,
        embedding_dim=embedding_dim,
        optimizer=optimizer,
    )
    return ShardSet.open(folder)


_NUM_ROWS, _DIM, _ROUNDS, _BUSY_CALLS = 5000, 16, 20, 50
_BUSY_NUMBERS, _FEW_BUSY_NUMBERS = 1 << 24, 1 << 4
"""Numbers of a kernel that runs longer than it takes to queue it, so that many keep the stream busy."""
_EXACT: tuple[PlacementName, ...] = ("lookahead", "cache", "hybrid", "hybrid-dedup", "hybrid-uva")
"""Placements that train in the batch order of all-fast, and promise its bits."""
STAGING_BYTES = ByteSize(1 << 20)
SAMPLES, SMALL_SAMPLES = 2_500_000, 6_000
"""Samples that speeds are measured with."""
SMALL_SCALE = 1000.0
_ROOT = Path(__file__).resolve().parents[2]
_KERNEL_TESTS = _ROOT / "tests" / "train" / "gpu"
_STEPS = 16
"""Steps that launch all kernels of the host."""
_TEST_SECONDS = 60
"""Time of a test, where a plugin can stop it."""
OUTPUT_CHARACTERS = 1500
"""Characters that are kept of the end of an output or a traceback."""


def try_verbs(settings: PartSettings, records: Records) -> None:
    """Write a check for each device call; one that raises is recorded, and the next one begins."""
    device = open_device_api(settings.device)
    assert device is not None, "a part for devices that are not the host"
    checks: list[tuple[str, Callable[[], bool]]] = [
        ("pinned memory is copied up and down", partial(_copies, device)),
        ("a stream waits for the event of another", partial(_waits, device, is_small=settings.is_small)),
        ("another thread queues and waits", partial(_works_from_a_thread, device)),
        ("kernels read and write pinned rows of the host", partial(_moves_rows, device, settings)),
        *(
            (f"work of {each} is recorded and replayed", partial(_records, device, each))
            for each in STREAMS[1:]
        ),
    ]
    for name, check in checks:
        with records.catching(name):
            records.check(name, check())
    with records.catching("the device is closed"):
        device.synchronize()
        device.close()
        records.check("the device is closed", True)


def _copies(device: Device) -> bool:
    """Return whether copied numbers return unchanged, each time."""
    host, back = (device.allocate_pinned([_NUM_ROWS], torch.int32) for _ in range(2))
    near = device.allocate([_NUM_ROWS], torch.int32)
    for number in range(_ROUNDS):
        host.copy_(torch.arange(_NUM_ROWS) + number)
        device.copy("copies", host, near)
        device.wait("moves", device.record("copies"))
        device.copy("moves", near, back)
        device.wait_on_host(device.record("moves"))
        if not torch.equal(host, back):
            return False
    return True


def _waits(device: Device, *, is_small: bool) -> bool:
    """Return whether what waits for a busy stream sees all of its work, each time."""
    near = device.allocate([_FEW_BUSY_NUMBERS if is_small else _BUSY_NUMBERS], torch.float32)
    back = device.allocate_pinned([1], torch.float32)
    for _ in range(_ROUNDS):
        device.launch("compute", near.zero_)
        for _ in range(_BUSY_CALLS):
            device.launch("compute", near.add_, 1)
        device.wait("moves", device.record("compute"))
        device.copy("moves", near[:1], back)
        device.wait_on_host(device.record("moves"))
        if back.item() != _BUSY_CALLS:
            return False
    return True


def _works_from_a_thread(device: Device) -> bool:
    """Return whether another thread can do the same, as the one that moves rows does."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_copies, device).result()


def _moves_rows(device: Device, settings: PartSettings) -> bool:
    """Return whether the kernel of training reads rows in host memory, and writes them back there."""
    rows_SD = HostMemory(None, Path(), may_spill=False, is_pinned=True).rows(_NUM_ROWS, _DIM)
    rows_SD.copy_(torch.arange(_NUM_ROWS * _DIM).view(_NUM_ROWS, _DIM))
    wanted = rows_SD.flip(0)
    if not device.pin(rows_SD):
        raise ValueError("the memory was not pinned")
    near_SD = device.allocate([_NUM_ROWS, _DIM], torch.float32)
    slow, fast = (RowTensors(each, each[:, :0]) for each in (rows_SD, near_SD))
    place = torch.tensor([_NUM_ROWS, 0, 0], dtype=torch.int32)
    up = torch.arange(_NUM_ROWS, dtype=torch.int32)
    lists = [each.to(device.torch_device) for each in (place, up, up.flip(0))]
    move_rows = choose_kernels(device.torch_device, settings.step_kernels or "")["move_rows"]
    # Up in their order, and down from the last to the first.
    device.launch("moves", move_rows, RowMoves(lists[0], lists[1], lists[1]), slow, fast)
    device.launch("moves", move_rows, RowMoves(lists[0], lists[1], lists[2]), fast, slow)
    device.synchronize()
    return torch.equal(rows_SD, wanted)


def _records(device: Device, stream: StreamName) -> bool:
    """Return whether recorded work runs once at each replay, and not when it is recorded."""
    near = device.allocate([1], torch.float32)
    device.launch(stream, near.zero_)
    device.launch(stream, near.add_, 1)
    device.synchronize()
    graph = device.capture(stream, lambda: device.launch(stream, near.add_, 1))
    for _ in range(3):
        device.replay(stream, graph)
    device.synchronize()
    return near.item() == 4


def take_first_steps(settings: PartSettings, records: Records) -> None:
    """Train a few batches under every placement; an error is written down, and the next one begins."""
    shards = small_shards(settings, "first-steps", "adagrad")
    names: dict[str, PlacementName] = {f"first steps of {name}": name for name in get_args(PlacementName)}
    for piece in records.pieces(list(names)):
        name = names[piece]
        config = config_on(settings, placement=name, evaluate_every=None)
        with records.catching(piece):
            trainer = build_trainer(shards, config)
            runner = trainer.runner
            assert isinstance(runner, QueuedSteps), "a part for devices that are not the host"
            # With twins among the kernels nothing is recorded to begin with.
            was_recorded = runner.is_recorded
            run_steps(trainer, lambda *_: None)
            records.check(piece, True, f"{trainer.step} steps")
            if was_recorded:
                records.check(f"steps of {name} are recorded", runner.is_recorded)


def compare_bits(settings: PartSettings, records: Records) -> None:
    """Compare the weights of exact placements with all-fast, for every optimizer, and again
    with the dense layers in bfloat16, in which speeds are measured."""
    optimizers = get_args(EmbeddingOptimizer)
    assert set(optimizers) <= set(OPTIMIZERS)
    kinds: list[tuple[EmbeddingOptimizer, DenseDtype]] = [("sgd", "bf16")]
    # What is only tried has one optimizer, as tests compare the bits of each.
    kinds += [(optimizer, "fp32") for optimizer in (optimizers[-1:] if settings.is_small else optimizers)]
    pairs = {
        f"{name} has the bits of all-fast with {optimizer}, {dtype}": (name, optimizer, dtype)
        for optimizer, dtype in kinds
        for name in _EXACT
    }

    @cache
    def shards_of(optimizer: EmbeddingOptimizer) -> ShardSet:
        return small_shards(settings, f"bits-{optimizer}", optimizer)

    @cache
    def weights(name: PlacementName, optimizer: EmbeddingOptimizer, dtype: DenseDtype) -> str:
        # A staging area that is too small for comfort: rows move at every batch.
        config = config_on(settings, placement=name, staging_bytes=STAGING_BYTES, dense_dtype=dtype)
        out = settings.scratch / f"bits-{optimizer}-{dtype}-{name}"
        return weights_of(shards_of(optimizer), config, out)

    for check in records.pieces(list(pairs)):
        name, *kind = pairs[check]
        with records.catching(check):
            records.check(check, weights(name, *kind) == weights("all-fast", *kind))


def config_on(settings: PartSettings, **more: Any) -> TrainConfig:
    """Return the settings of a run on the device of a part."""
    return TrainConfig(device=settings.device, kernels=settings.step_kernels, **more)


def small_shards(settings: PartSettings, name: str, optimizer: str, embedding_dim: int = 16) -> ShardSet:
    """Shards with some forty thousand rows, more than the staging slots hold."""
    return write_kaggle_shards(
        draw_kaggle(3_000 if settings.is_small else 40_000, SMALL_SCALE),
        settings.scratch / name / "shards",
        batch_size=512,
        embedding_dim=embedding_dim,
        hot_share=0.05,
        optimizer=optimizer,
        num_evaluation=512,
    )


def drawn_samples(settings: PartSettings) -> KaggleSamples:
    """Draw the samples that speeds are measured with."""
    return draw_kaggle(SMALL_SAMPLES, SMALL_SCALE) if settings.is_small else draw_kaggle(SAMPLES)


def packed_shards(
    settings: PartSettings, samples: KaggleSamples, batch_size: int, embedding_dim: int
) -> ShardSet:
    """Open samples as shards, which are written unless an earlier part or piece has done so."""
    folder = settings.scratch / f"speed-{embedding_dim}-{batch_size}" / "shards"
    if (folder / MANIFEST).exists():
        return ShardSet.open(folder)
    return write_kaggle_shards(samples, folder, batch_size=batch_size, embedding_dim=embedding_dim)


def base_config(settings: PartSettings, optimizer: Literal["sgd", "adagrad"] = "sgd") -> TrainConfig:
    """Return the settings of all-fast that speeds are measured with."""
    own: Any = {"embedding_optimizer": optimizer, "dense_optimizer": optimizer}
    return config_on(settings, placement="all-fast", dense_dtype="auto", **own)


def weights_of(shards: ShardSet, config: TrainConfig, out: Path) -> str:
    """Train, and return a checksum of the weights."""
    # Without safetensors no run is written, and all else of a GPU day is done.
    from ...train.run import train

    train(shards.manifest.folder, config, out)
    return checksum_of_weights(out)


def checksum_of_weights(run: Path) -> str:
    """Return a checksum of the weights of a finished run, which are not read into memory."""
    return hash_file(run / "weights.safetensors")[1]


def compile_host_kernels(settings: PartSettings, records: Records) -> None:
    """Train a few batches without a GPU, so that later processes find the host's kernels compiled."""
    settings = replace(settings, device="late")
    shards = small_shards(settings, "host-kernels", "adagrad")
    config = config_on(settings, placement="lookahead", staging_bytes=STAGING_BYTES)
    order = epoch_order(shards.is_hot_only, config.seed, 0, spread=shards.is_grouped)[:_STEPS]
    run_steps(build_trainer(shards, config, RecordedOrder(order.astype(np.int32))), lambda *_: None)


def run_kernel_tests(settings: PartSettings, records: Records) -> None:
    """Run the tests that compare every kernel with its twin; see `run_tests`."""
    _run_tests([_KERNEL_TESTS], settings, records)


def run_tests(settings: PartSettings, records: Records) -> None:
    """Run the other tests that need a GPU, and write down each.

    Without a GPU they are only collected, which imports all they need.
    """
    paths = sorted((_ROOT / "tests").rglob("test_*.py"))
    found = [path for path in paths if _KERNEL_TESTS not in path.parents and "mark.gpu" in path.read_text()]
    _run_tests(found, settings, records)


def _run_tests(paths: Sequence[Path], settings: PartSettings, records: Records) -> None:
    # Imported here: where pytest is missing, all other parts run.
    import pytest

    files = [str(path) for path in paths if path.exists()]
    if not files:
        records.check("tests", False, f"{_ROOT} has no tests that need a GPU")
        return
    options = ["-q", "-W", "default", "-m", "gpu", "-p", "no:cacheprovider", "--rootdir", str(_ROOT)]
    options += ["-c", str(_ROOT / "pyproject.toml")]
    # Without a GPU the tests can at least be collected, which finds what no longer imports.
    if settings.torch_device.type == "cpu":
        records.check("tests are collected", pytest.main([*options, "--collect-only", *files]) == 0)
        return
    if importlib.util.find_spec("pytest_timeout") is not None:
        options.append(f"--timeout={_TEST_SECONDS}")
    options.append("--continue-on-collection-errors")
    writer = CheckWriter(records)
    ended = pytest.main([*options, *files], plugins=[writer])
    # A run without a single test has found nothing.
    records.check("tests are run", writer.num_collected > 0, f"pytest ended with {ended}")


class CheckWriter:
    """A plugin of pytest that writes a check for each test, and stops where there is no time for another."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.num_collected, self._last_seconds = 0, 0.0
        self._faults: list[str] = []
        self._is_skipped = False

    def pytest_collection_finish(self, session: Any) -> None:
        """Leave out the tests that an earlier call has run; others have left out those without a GPU."""
        self.num_collected = len(session.items)
        left = set(self._records.announce([item.nodeid for item in session.items]))
        session.items[:] = [item for item in session.items if item.nodeid in left]

    def pytest_collectreport(self, report: Any) -> None:
        """Note a file that cannot be imported."""
        if report.failed:
            self._records.check(f"{report.nodeid} is collected", False, _end_of(report))

    def pytest_runtest_protocol(self, item: Any) -> bool | None:
        """End the run before a test that would be killed in its middle."""
        if self._records.has_time(self._last_seconds):
            return None
        item.session.shouldstop = "no time is left"
        return True

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        """A test begins."""
        self._last_seconds, self._faults, self._is_skipped = 0.0, [], False

    def pytest_runtest_logreport(self, report: Any) -> None:
        """The fixtures or the body of a test have ended."""
        self._last_seconds += report.duration
        if report.failed:
            self._faults.append(_end_of(report))
        self._is_skipped |= report.skipped

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        """A test has ended, so it is written down."""
        detail = "skipped" if self._is_skipped else "".join(self._faults[:1])
        self._records.check(nodeid, not self._faults and not self._is_skipped, detail)
        self._records.finish(nodeid)


def _end_of(report: Any) -> str:
    return str(report.longreprtext)[-OUTPUT_CHARACTERS:]
