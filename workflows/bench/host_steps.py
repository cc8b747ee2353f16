"""Measure what the host does for each step of a GPU, on a device that does nothing.

The loop's thread must queue a step faster than a GPU runs it: 65,536 samples take some 2 ms. The threads that
read ahead must read, check and pack as many samples in that time; their CPU time per sample is that of all
cores together. No GPU is needed: all calls of the device return immediately. The calls of a GPU come on top:
one copy, one recorded step and a few events.

With ``--open-files`` it opens that many small shard files instead, takes the first step, and counts what was
read of them; and it measures the CPU time of reading large batches, with and without verifying them.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, Literal, cast
from unittest import mock

import numpy as np
import torch

from ...pipeline.errors import ByteSize
from ...pipeline.folders.manifest import Manifest
from ...stats.ranking.row_bytes import row_bytes
from ...train.build import build_trainer
from ...train.config import PlacementName, TrainConfig
from ...train.data.shard_file import ShardFile, UnchangedFile
from ...train.data.shards import Shards
from ...train.device import Device, Graph, StreamName
from ...train.gpu.queued_steps import QueuedSteps
from ...train.loop import read_ahead
from ...train.placements.placements import num_steps_ahead
from .. import drawn_shards
from ..drawn_shards import DrawnShards
from .harness import Facts, new_parser, run_script, scratch_folder, tell
from .kaggle_shards import HOT_SHARE, draw_kaggle, write_kaggle_shards

_EPOCHS = 3
"""The first one is that in which memory is allocated, and what is recorded recorded."""
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6
_OPTIMIZER: Literal["sgd"] = "sgd"
_PLACEMENTS: tuple[PlacementName, ...] = ("all-fast", "lookahead")

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--samples", type=int, default=1_000_000, help="samples to draw")
PARSER.add_argument("--scale", type=float, default=4.0, help="divisor of the rows of each table")
PARSER.add_argument("--batch-sizes", type=int, nargs="+", default=[65_536, 16_384, 2_048])
PARSER.add_argument("--open-files", type=int, help="shard files to open, in place of the steps of a GPU")


class IdleDevice:
    """A device that does nothing, and counts its calls."""

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.calls: list[str] = []
        """Names in the order of the calls: a list, whose growth costs the least."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """Return a call that is counted: ``copy``, ``launch``, ``record``, ``wait`` and the others."""

        def count(*_: object) -> IdleDevice:
            self.calls.append(name)
            return self

        # Each call looks its name up once.
        self.__dict__[name] = count
        return count

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    allocate_pinned = allocate

    def pin(self, tensor: torch.Tensor) -> bool:
        return True

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        self.calls.append("capture")
        queue_work()
        return self


def measure(options: argparse.Namespace) -> Facts:
    """Measure every batch size and placement, or how shards are opened."""
    if options.open_files is not None:
        with scratch_folder(options) as scratch:
            return measure_opening(options.open_files, scratch)
    samples = draw_kaggle(options.samples, options.scale)
    staging = ByteSize(int(4 * HOT_SHARE * sum(samples.num_rows)) * row_bytes(16, _OPTIMIZER))
    rows: list[Facts] = []
    with scratch_folder(options) as scratch:
        for batch_size in options.batch_sizes:
            folder = scratch / str(batch_size) / "shards"
            shards = write_kaggle_shards(samples, folder, batch_size=batch_size, embedding_dim=16)
            for placement in _PLACEMENTS:
                # Once for the code of kernels, which is loaded or compiled at its first use.
                if batch_size == options.batch_sizes[0]:
                    _measure(shards, placement, staging)
                facts = {"batch_size": batch_size, "placement": placement}
                rows += [facts | row for row in _measure(shards, placement, staging)]
                tell(f"batches of {batch_size:,}, {placement}: {rows[-1]['loop_us']:.0f} us a step")
    return {"rows": rows}


def _measure(shards: Shards, placement: PlacementName, staging: ByteSize) -> list[Facts]:
    """Queue the steps of some epochs, of which the first does not count; return a row for each kind of
    batch."""
    device = IdleDevice()
    config = TrainConfig(
        placement=placement,
        epochs=_EPOCHS,
        # One core for reading and one for the loop, whose CPU times are measured separately.
        threads=1,
        device="late",
        kernels="torch",
        staging_bytes=staging,
        embedding_optimizer=_OPTIMIZER,
        dense_optimizer=_OPTIMIZER,
    )
    # Runs have checkpoints by default, for which the rows that change are marked.
    trainer = build_trainer(shards, config, device_api=cast(Device, device), tracks_changes=True)
    runner = trainer.runner
    assert isinstance(runner, QueuedSteps)
    found: list[Facts] = []
    ahead: _Ahead | None = None
    with closing(trainer.embeddings.transfers), closing(read_ahead(trainer)) as steps:
        stopped = time.thread_time()
        for step in steps:
            if trainer.step == shards.num_training_batches:
                ahead = _Ahead(runner)
            taken = time.thread_time()
            # Packed before it is queued, as it is where reading keeps up: the loop does not wait then.
            if step.packing is not None:
                step.packing.result()
            device.calls.clear()
            sent = runner.sent_bytes
            wall, begin = time.perf_counter(), time.thread_time()
            runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            ended, wall = time.thread_time(), time.perf_counter() - wall
            found.append(
                {
                    "kind": "hot-only" if step.batch.is_hot_only else "mixed",
                    "loop_us": _MICROSECONDS * (ended - begin),
                    "loop_wall_us": _MICROSECONDS * wall,
                    # From the threads that read, and until it is packed.
                    "taking_us": _MICROSECONDS * (taken - stopped),
                    "waiting_us": _MICROSECONDS * (begin - taken),
                    "sent_bytes_per_sample": (runner.sent_bytes - sent) / step.num_samples,
                    "calls": Counter(device.calls),
                }
            )
            if ahead is not None:
                ahead.look()
            stopped = time.thread_time()
            trainer.step += 1
        assert ahead is not None
        of_ahead = ahead.per_sample(shards.batch_size)
    counted = found[shards.num_training_batches :]
    kinds = [kind for kind in ("hot-only", "mixed") if any(step["kind"] == kind for step in counted)]
    return [_row(kind, [step for step in counted if step["kind"] == kind]) | of_ahead for kind in kinds]


def _row(kind: str, steps: Sequence[Facts]) -> Facts:
    """The CPU times of batches of one kind, in the thread that queues; medians over its steps."""
    names = ("loop_us", "loop_wall_us", "taking_us", "waiting_us", "sent_bytes_per_sample")
    medians = {name: float(np.median([step[name] for step in steps])) for name in names}
    # The step with the median number of calls represents all: a mean would be of no real step.
    middle = sorted(steps, key=lambda step: step["calls"].total())[len(steps) // 2]
    least = min(step["loop_us"] for step in steps)
    return {"kind": kind, "steps": len(steps), "loop_us_least": least} | medians | {"calls": middle["calls"]}


class _Ahead:
    """CPU time of the threads that run ahead of the loop, from now on.

    Args:
        runner: counts the steps that they have prepared.
    """

    def __init__(self, runner: QueuedSteps) -> None:
        self._runner = runner
        self._num_prepared = runner.num_prepared
        self._of_others = _seconds_of_others()
        # Plans and lists of all steps go through this one, whatever number of readers there are.
        (self._thread,) = (each for each in threading.enumerate() if each.name == "steps")
        assert self._thread.ident is not None
        self._clock = time.pthread_getcpuclockid(self._thread.ident)
        self._begin = time.clock_gettime(self._clock)
        self._of_thread = 0.0
        self._num_of_thread = 0

    def look(self) -> None:
        """Note the time so far of the thread that prepares steps in order, which ends before the loop."""
        if self._thread.is_alive():
            with suppress(OSError):
                self._of_thread = time.clock_gettime(self._clock) - self._begin
                self._num_of_thread = self._runner.num_prepared - self._num_prepared

    def per_sample(self, batch_size: int) -> Facts:
        """Return the nanoseconds of all threads and of that one."""
        num_samples = batch_size * (self._runner.num_prepared - self._num_prepared)
        return {
            "reading_ns_per_sample": (_seconds_of_others() - self._of_others) / num_samples * _NANOSECONDS,
            "ordering_ns_per_sample": self._of_thread
            / max(batch_size * self._num_of_thread, 1)
            * _NANOSECONDS,
        }


_SMALL_BATCH = 64
_LARGE_BATCHES = 60
_TRIALS = 5


def measure_opening(num_files: int, folder: Path) -> Facts:
    """Open shards of so many files, take the first step, and read larger batches."""
    small, large = folder / "small", folder / "large"
    with mock.patch.object(drawn_shards, "_FILE_SAMPLES", _SMALL_BATCH):
        drawn = DrawnShards(rows_of_table=1000, skew=1.1, num_batches=num_files, batch_size=_SMALL_BATCH)
        drawn.write(small)
    DrawnShards(rows_of_table=1000, skew=1.1, num_batches=_LARGE_BATCHES).write(large)
    manifest = Manifest.read(large)
    own = next(entry.num_bytes for entry in manifest.files if entry.is_checksums)
    # Once for the code of kernels, which is loaded or compiled at its first use.
    _first_step(large)
    trials = [_first_step(small) for _ in range(_TRIALS)]
    names = ("seconds_to_open", "cpu_seconds_to_open", "seconds_to_first_step", "cpu_seconds_to_first_step")
    return {
        **{name: float(np.median([trial[name] for trial in trials])) for name in names},
        "trials": trials,
        "share_of_checksums": own / sum(entry.num_bytes for entry in manifest.files),
        "reading_ns_per_sample": _reading_ns(large),
    }


def _first_step(folder: Path) -> Facts:
    """Open shards and take one step."""
    read: list[tuple[str, int]] = []
    read_at = UnchangedFile.read_at

    def counting(file: UnchangedFile, position: int, num_bytes: int) -> Any:
        read.append((file._path.name, num_bytes))
        return read_at(file, position, num_bytes)

    with mock.patch.object(UnchangedFile, "read_at", counting):
        begin, begin_cpu = time.perf_counter(), time.process_time()
        shards = Shards.open(folder)
        opened, opened_cpu = time.perf_counter() - begin, time.process_time() - begin_cpu
        bytes_to_open = sum(size for _, size in read)
        trainer = build_trainer(shards, TrainConfig(placement="all-fast", threads=1))
        with closing(read_ahead(trainer)) as steps:
            trainer.runner.train(next(iter(steps)), 0, trainer.rates.of_step(0))
            seconds, cpu_seconds = time.perf_counter() - begin, time.process_time() - begin_cpu
        # The thread that reads ahead is a batch further than the steps that wait.
        num_ahead = num_steps_ahead(trainer.config, shards.mixed_share) + 2
        first = list(next(iter(trainer.order.epochs())))[:num_ahead]
    names = [shards._files[shards._training[number].file].path.name for number in first]
    return {
        "files": len(shards._files),
        "seconds_to_open": opened,
        "cpu_seconds_to_open": opened_cpu,
        "seconds_to_first_step": seconds,
        "cpu_seconds_to_first_step": cpu_seconds,
        "shard_bytes_to_open": bytes_to_open,
        "batches_read": len(read),
        "bytes_read": sum(size for _, size in read),
        "reads_only_batches_planned": {name for name, _ in read} <= set(names),
    }


def _reading_ns(folder: Path) -> dict[str, float]:
    """CPU nanoseconds a sample: verified, of hashed files, as Arrow parses, and of lookups alone."""
    verified, hashed, old = (Shards.open(folder) for _ in range(3))
    hashed.refuse_damage()
    old._files = [ShardFile(file.folder, file.entry, file.facts, file.path.stat()) for file in old._files]
    calls: dict[str, Callable[[int], object]] = {
        "verified": verified.training_batch,
        "hashed_before": hashed.training_batch,
        "parsed_by_arrow": old.training_batch,
        "lookups_verified": verified.training_lookups,
    }
    least = dict.fromkeys(calls, float("inf"))
    # Interleaved, so that a busy machine is busy for all of them.
    for _ in range(_TRIALS):
        for name, read in calls.items():
            begin = time.process_time()
            for number in range(_LARGE_BATCHES):
                read(number)
            seconds = (time.process_time() - begin) / (_LARGE_BATCHES * verified.batch_size)
            least[name] = min(least[name], seconds * _NANOSECONDS)
    return least


def _seconds_of_others() -> float:
    """CPU seconds of all threads but the calling one."""
    return time.process_time() - time.thread_time()


if __name__ == "__main__":
    sys.exit(run_script(PARSER, measure))
