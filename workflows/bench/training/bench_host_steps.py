"""``hotset bench host-steps``: what the host does for each step of a GPU, on a device that does nothing.

The loop's thread must queue a step faster than a GPU takes it: 65,536 samples take some 2 ms. The threads
that read ahead must read, check and pack as many samples in that time; their CPU time per sample is that of
all cores together. No GPU is needed: all verbs of the device return at once. A GPU's own calls come on top,
one copy, one recorded step and a few events.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ....pipeline.folders.stage_totals import LookupsTotals
from ....pipeline.sizes import ByteSize
from ....pipeline.stages.transpose import TransposeConfig, transpose
from ....stats.ranking.row_bytes import row_bytes
from ....train.config import PlacementName, TrainConfig
from ....train.data.shards import Shards
from ....train.device.verbs import Event, Graph, StreamName
from ....train.steps.packed_batch import bytes_per_sample
from ....train.steps.queued_steps import QueuedSteps
from ....train.trainer_building.build_trainer import build_trainer
from ...machine_facts import describe_machine
from ..measuring.kaggle_shards import draw_kaggle, write_kaggle_shards

_EPOCHS = 3
"""The first one is that in which memory is allocated, and what is recorded recorded."""
_NANOSECONDS = 1e9
_MICROSECONDS = 1e6
_OPTIMIZER: Literal["sgd"] = "sgd"


@dataclass(frozen=True, kw_only=True, slots=True)
class HostStepsConfig:
    """What the benchmark may vary."""

    samples: int = 1_000_000
    """Samples to generate."""

    scale: float = 4.0
    """Divisor of the rows of each table."""

    batch_sizes: tuple[int, ...] = (65_536, 16_384, 2_048)
    """Batch sizes to measure."""

    placements: tuple[PlacementName, ...] = ("all-fast", "lookahead")
    """Placements to measure."""

    hot_share: float = 0.0075
    """Share of the rows that is hot."""

    def __post_init__(self) -> None:
        if min(self.batch_sizes, default=0) < 1 or self.samples < 1:
            raise ValueError("batch_sizes and samples must be 1 or more")


CONFIG = HostStepsConfig


class IdleDevice:
    """A device that does nothing, and counts what it is asked for."""

    is_timed = False

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.calls: list[str] = []
        """Names in the order of the calls: a list, whose growth costs the least."""

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.allocate(shape, dtype)

    def pin(self, tensor: torch.Tensor) -> bool:
        return True

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self.calls.append("copy")

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        self.calls.append("launch")

    def record(self, stream: StreamName) -> Event:
        self.calls.append("record")
        return self

    def wait(self, stream: StreamName, event: Event) -> None:
        self.calls.append("wait")

    def wait_on_host(self, event: Event) -> None:
        self.calls.append("wait on the host")

    def synchronize(self) -> None:
        self.calls.append("synchronize")

    def capture(self, stream: StreamName, queue_work: Callable[[], None]) -> Graph:
        self.calls.append("capture")
        queue_work()
        return self

    def replay(self, stream: StreamName, graph: Graph) -> None:
        self.calls.append("replay")

    def close(self) -> None:
        """Nothing is under way."""


def measure(config: HostStepsConfig) -> dict[str, Any]:
    """Measure every batch size and placement."""
    samples = draw_kaggle(config.samples, config.scale)
    staging = ByteSize(int(4 * config.hot_share * sum(samples.num_rows)) * row_bytes(16, _OPTIMIZER))
    rows: list[dict[str, Any]] = []
    transposed: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hotset-host-steps-") as scratch:
        for batch_size in config.batch_sizes:
            folder = Path(scratch) / str(batch_size) / "shards"
            write_kaggle_shards(
                samples, folder, batch_size=batch_size, embedding_dim=16, hot_share=config.hot_share
            )
            shards = Shards.open(folder)
            # Once for the code of kernels, which is loaded or compiled at its first use.
            is_first = not rows
            if is_first:
                _transpose(shards, folder.parent / "first")
            transposed.append({"batch_size": batch_size} | _transpose(shards, folder.parent / "lookups"))
            if is_first:
                for placement in config.placements:
                    _measure(shards, placement, staging)
            for placement in config.placements:
                facts = {"batch_size": batch_size, "placement": placement}
                rows += [facts | row for row in _measure(shards, placement, staging)]
    return {"rows": rows, "transposed": transposed, "machine": describe_machine()}


def _transpose(shards: Shards, out: Path) -> dict[str, float]:
    """Group the lookups of all batches by row, as `hotset transpose` does; return what that takes."""
    begin = time.process_time()
    lookups = transpose(TransposeConfig(), shards.manifest, out)
    cpu_seconds = time.process_time() - begin
    totals = LookupsTotals.of(lookups)
    return {
        "samples_per_cpu_second": totals.samples / cpu_seconds,
        "stored_bytes_per_sample": sum(entry.num_bytes for entry in lookups.files) / totals.samples,
        "packed_bytes_per_sample": bytes_per_sample(totals, shards.num_dense),
    }


def _measure(shards: Shards, placement: PlacementName, staging: ByteSize) -> list[dict[str, Any]]:
    """Queue the steps of some epochs, of which the first does not count; return a row for each kind of
    batch."""
    device = IdleDevice()
    config = TrainConfig(
        placement=placement,
        epochs=_EPOCHS,
        # One core for reading and one for the loop, whose CPU times are told apart.
        threads=1,
        device="late",
        kernels="torch",
        staging_bytes=staging,
        embedding_optimizer=_OPTIMIZER,
        dense_optimizer=_OPTIMIZER,
    )
    # Runs have checkpoints by default, for which the rows that change are marked.
    trainer = build_trainer(shards, config, verbs=device, tracks_changes=True)
    runner = trainer.runner
    assert isinstance(runner, QueuedSteps)
    found: list[_QueuedStep] = []
    ahead: _Ahead | None = None
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
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
            taking, stopped = taken - stopped, time.thread_time()
            found.append(
                _QueuedStep(
                    "hot-only" if step.step.batch.is_hot_only else "mixed",
                    stopped - begin,
                    time.perf_counter() - wall,
                    taking,
                    begin - taken,
                    Counter(device.calls),
                    (runner.sent_bytes - sent) / step.step.num_samples,
                )
            )
            if ahead is not None:
                ahead.look()
            stopped = time.thread_time()
            trainer.step += 1
        assert ahead is not None
        of_ahead = ahead.per_sample(shards.batch_size)
    counted = found[shards.num_training_batches :]
    by_kind = {kind: [step for step in counted if step.kind == kind] for kind in ("hot-only", "mixed")}
    return [_row(kind, steps_of_kind) | of_ahead for kind, steps_of_kind in by_kind.items() if steps_of_kind]


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

    def per_sample(self, batch_size: int) -> dict[str, float]:
        """Return the nanoseconds of all threads and of that one."""
        num_samples = batch_size * (self._runner.num_prepared - self._num_prepared)
        return {
            "reading_ns_per_sample": (_seconds_of_others() - self._of_others) / num_samples * _NANOSECONDS,
            "ordering_ns_per_sample": self._of_thread
            / max(batch_size * self._num_of_thread, 1)
            * _NANOSECONDS,
        }


def _seconds_of_others() -> float:
    """CPU seconds of all threads but the calling one."""
    return time.process_time() - time.thread_time()


@dataclass(frozen=True, slots=True)
class _QueuedStep:
    """The time of one step in the thread that queues."""

    kind: str
    cpu_seconds: float
    wall_seconds: float
    taking_seconds: float
    """CPU time of taking the step from the threads that read."""
    waiting_seconds: float
    """CPU time of waiting until it is packed."""
    calls: Counter[str]
    sent_bytes: float
    """Bytes of the batch that are sent, per sample."""


def _row(kind: str, steps: Sequence[_QueuedStep]) -> dict[str, Any]:
    """The figures of the batches of one kind."""
    cpu = np.array([step.cpu_seconds for step in steps]) * _MICROSECONDS
    # The step in the middle by its number of calls stands for all: a mean would be of no real step.
    middle = sorted(steps, key=lambda step: step.calls.total())[len(steps) // 2]
    return {
        "kind": kind,
        "steps": len(steps),
        "loop_us": float(np.median(cpu)),
        "loop_us_least": float(cpu.min()),
        "loop_wall_us": float(np.median([step.wall_seconds for step in steps])) * _MICROSECONDS,
        "taking_us": float(np.median([step.taking_seconds for step in steps])) * _MICROSECONDS,
        "waiting_us": float(np.median([step.waiting_seconds for step in steps])) * _MICROSECONDS,
        "sent_bytes_per_sample": float(np.median([step.sent_bytes for step in steps])),
        "calls": dict(middle.calls),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print a row for each batch size, placement and kind of batch."""
    table = Table(
        "batch",
        "placement",
        "kind",
        "loop us",
        "least",
        "wall us",
        "taking us",
        "waiting us",
        "reading ns/sample",
        "in order",
        "sent bytes/sample",
        "calls of a step",
    )
    for row in result["rows"]:
        calls = ", ".join(f"{count} {name}" for name, count in row["calls"].items())
        table.add_row(
            f"{row['batch_size']:,}",
            row["placement"],
            row["kind"],
            f"{row['loop_us']:.0f}",
            f"{row['loop_us_least']:.0f}",
            f"{row['loop_wall_us']:.0f}",
            f"{row['taking_us']:.0f}",
            f"{row['waiting_us']:.0f}",
            f"{row['reading_ns_per_sample']:.0f}",
            f"{row['ordering_ns_per_sample']:.0f}",
            f"{row['sent_bytes_per_sample']:.0f}",
            calls,
        )
    console.print(table)
    for stored in result["transposed"]:
        millions = stored["samples_per_cpu_second"] / 1e6
        console.print(
            f"batch {stored['batch_size']:,}: transpose groups {millions:.2f} M samples in a CPU second, and "
            f"stores {stored['stored_bytes_per_sample']:.0f} bytes for each; with its values a sample is "
            f"{stored['packed_bytes_per_sample']:.0f} bytes of a step's copy"
        )
    console.print(
        "CPU time, and wall time where it says so. Loop: the thread that queues, which takes each step from "
        "those that read before, and waits where they are behind, as beside a device that does nothing. "
        "Reading: all other threads, which the cores share. In order: the one through which all steps go."
    )
