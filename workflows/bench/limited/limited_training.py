"""One training run under a limit of memory, in a process of its own, and what it cost.

The contestants train the same batches to the same bits and differ in where cold rows are: in memory without
any limit; in files by their next use (`lookahead`); in a memory-mapped table with random advice (`hybrid`);
and in that table with the pages of each batch read ahead, sorted, by sixteen threads.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from ....pipeline.sizes import ByteSize
from ....stats.kernel import kernel
from ....train.config import TrainConfig
from ....train.data.batch import Batch
from ....train.data.shards import Shards
from ....train.execution.step_source import StepSource
from ....train.trainer import Trainer, run_steps
from ....train.trainer_building.build_trainer import build_trainer
from ....train.trainer_building.devices import set_threads
from .memory_limit import MemoryLimit

IN_MEMORY = "in memory, no limit"
LOOKAHEAD = "lookahead"
MAPPED = "mapped, random advice"
READ_AHEAD = "mapped, sorted reads ahead"
CONTESTANTS = (IN_MEMORY, LOOKAHEAD, MAPPED, READ_AHEAD)
_READERS = 16
"""Threads that touch pages; the device is fastest with that many requests at a time."""
_PAGE_BYTES = 4096


@dataclass(frozen=True, kw_only=True, slots=True)
class LimitedRun:
    """One run."""

    contestant: str
    shards: Path
    slow_bytes: int
    staging_bytes: int
    epochs: int
    seed: int
    threads: int
    limit: MemoryLimit | None
    """Group of processes that it joins; None: no limit."""


def train_limited(folder: Path, run: LimitedRun) -> dict[str, Any]:
    """Train, and return what it took; the files of rows lie in ``folder``."""
    # The limit holds from here on, after everything that every contestant loads.
    if run.limit is not None:
        run.limit.join()
    set_threads(run.threads)
    shards = Shards.open(run.shards)
    start = time.perf_counter()
    trainer = build_trainer(shards, _config_of(run), spill_folder=folder)
    # Setting up is measured apart from training, as are the bytes it reads.
    with _pages_read_ahead(trainer) if run.contestant == READ_AHEAD else _nothing():
        setup_seconds = time.perf_counter() - start
        before = _disk_traffic(trainer)
        cpu_before = time.process_time()
        run_steps(trainer, lambda *_: None)
        cpu_seconds = time.process_time() - cpu_before
        after = _disk_traffic(trainer)
    return {
        "num_samples": trainer.num_samples,
        "training_seconds": trainer.meter.training_seconds,
        "training_cpu_seconds": cpu_seconds,
        "setup_seconds": setup_seconds,
        **{name: after[name] - count for name, count in before.items()},
        "peak_bytes": run.limit.peak_bytes() if run.limit else None,
        "digest": digest_of(trainer),
    }


def digest_of(trainer: Trainer) -> str:
    """Return the xxh3-128 of all weights, read in parts."""
    digest = xxhash.xxh3_128()
    weights = trainer.weights()
    for name in sorted(weights):
        for part in weights.parts(name):
            digest.update(part.contiguous().numpy().data)
    return digest.hexdigest()


def _config_of(run: LimitedRun) -> TrainConfig:
    is_mapped = run.contestant in (MAPPED, READ_AHEAD)
    # A limit of one byte puts all rows in the file.
    slow_bytes = {IN_MEMORY: None, LOOKAHEAD: ByteSize(run.slow_bytes)}.get(run.contestant, ByteSize(1))
    return TrainConfig(
        placement="hybrid" if is_mapped else "lookahead",
        slow_bytes=slow_bytes,
        staging_bytes=ByteSize(run.staging_bytes),
        epochs=run.epochs,
        seed=run.seed,
        embedding_optimizer="sgd",
        dense_optimizer="sgd",
        threads=run.threads,
    )


def _disk_traffic(trainer: Trainer) -> dict[str, int]:
    """Return the bytes that went to and came from the device so far, and the requests."""
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        lines = []
    # A system without these counts leaves all bytes at 0.
    counted = {name: int(count) for name, count in (line.split(": ") for line in lines)}
    bytes_written = counted.get("write_bytes", 0)
    stores = trainer.embeddings.spill_traffic()
    requests = sum(store.reads + store.writes for store in stores)
    if not stores:
        # A mapped page is read by a fault of its own, and written back by itself.
        requests = resource.getrusage(resource.RUSAGE_SELF).ru_majflt + bytes_written // _PAGE_BYTES
    return {"bytes_read": counted.get("read_bytes", 0), "bytes_written": bytes_written, "requests": requests}


@contextmanager
def _nothing() -> Iterator[None]:
    yield


@contextmanager
def _pages_read_ahead(trainer: Trainer) -> Iterator[None]:
    """Let each batch that is read for a later step touch its pages first, in the order of the file."""
    # Rows of a page come together, so a batch asks for pages and not for rows.
    (width,) = trainer.embeddings.widths
    weights_SD = width.executor.slow.weights_SD.numpy()
    rows_of_page = max(_PAGE_BYTES // (4 * weights_SD.shape[1]), 1)

    with ThreadPoolExecutor(_READERS, "read-ahead") as pool:
        read = trainer.shards.training_batch

        def read_ahead(number: int) -> Batch:
            batch = read(number)
            rows_N, _ = width.placement.slow.locate(width.reader.read(batch))
            pages_U = np.unique(rows_N // rows_of_page)
            parts = np.array_split(pages_U * rows_of_page, _READERS)
            list(pool.map(lambda part: touch_rows(weights_SD, part), parts))
            return batch

        trainer.step_source = StepSource(trainer.embeddings, read_ahead, lambda _: False)
        yield


@kernel
def touch_rows(weights_SD: NDArray[np.float32], slots_N: NDArray[np.int64]) -> float:
    """Read one number of each row, so that its page is in memory; returns their sum."""
    total = 0.0
    for i in range(slots_N.size):
        total += weights_SD[slots_N[i], 0]
    return total
