"""``hotset bench host-steps``: what the host does for each step of a GPU, on a device that does nothing.

The loop's thread must queue a step faster than a GPU takes it: 65,536 samples take some 2 ms. The threads
that read ahead must read, check and pack as many samples in that time; their CPU time per sample is that of
all cores together. No GPU is needed: all verbs of the device return at once. A GPU's own calls come on top,
one copy, one recorded step and a few events.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from ....pipeline.sizes import ByteSize
from ....pipeline.stages.transpose import TransposeConfig, transpose
from ....stats.ranking.row_bytes import row_bytes
from ....train.config import PlacementName, TrainConfig
from ....train.data.shards import Shards
from ....train.device.verbs import Event, Graph, StreamName
from ....train.trainer_building.build_trainer import build_trainer
from ..measuring.kaggle_shards import draw_kaggle, write_kaggle_shards

_WARM_UP_STEPS = 4
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

    def __init__(self) -> None:
        self.torch_device = torch.device("cpu")
        self.calls: Counter[str] = Counter()

    def allocate(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(tuple(shape), dtype=dtype)

    def allocate_pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        return self.allocate(shape, dtype)

    def pin(self, tensor: torch.Tensor) -> bool:
        return True

    def copy(self, stream: StreamName, source: torch.Tensor, target: torch.Tensor) -> None:
        self.calls["copy"] += 1

    def launch(self, stream: StreamName, kernel: Callable[..., object], *arguments: Any) -> None:
        self.calls["launch"] += 1

    def record(self, stream: StreamName) -> Event:
        self.calls["record"] += 1
        return self

    def wait(self, stream: StreamName, event: Event) -> None:
        self.calls["wait"] += 1

    def wait_on_host(self, event: Event) -> None:
        self.calls["wait on the host"] += 1

    def synchronize(self) -> None:
        self.calls["synchronize"] += 1

    def capture(self, queue_work: Callable[[], None]) -> Graph:
        self.calls["capture"] += 1
        queue_work()
        return self

    def replay(self, graph: Graph) -> None:
        self.calls["replay"] += 1

    def close(self) -> None:
        """Nothing is under way."""


def measure(config: HostStepsConfig) -> dict[str, Any]:
    """Measure every batch size and placement."""
    samples = draw_kaggle(config.samples, config.scale)
    staging = ByteSize(int(4 * config.hot_share * sum(samples.num_rows)) * row_bytes(16, _OPTIMIZER))
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="hotset-host-steps-") as scratch:
        for batch_size in config.batch_sizes:
            folder = Path(scratch) / str(batch_size) / "shards"
            write_kaggle_shards(
                samples, folder, batch_size=batch_size, embedding_dim=16, hot_share=config.hot_share
            )
            shards = Shards.open(folder)
            transpose(TransposeConfig(), shards.manifest, folder.parent / "lookups")
            # Once for the code of kernels, which is loaded or compiled at its first use.
            if not rows:
                for placement in config.placements:
                    _measure(shards, placement, staging)
            for placement in config.placements:
                facts = {"batch_size": batch_size, "placement": placement}
                rows += [facts | row for row in _measure(shards, placement, staging)]
    return {"rows": rows}


def _measure(shards: Shards, placement: PlacementName, staging: ByteSize) -> list[dict[str, Any]]:
    """Queue an epoch; return a row for hot-only batches and one for mixed ones."""
    device = IdleDevice()
    config = TrainConfig(
        placement=placement,
        # One core for reading and one for the loop, whose CPU times are told apart.
        threads=1,
        device="late",
        kernels="torch",
        staging_bytes=staging,
        embedding_optimizer=_OPTIMIZER,
        dense_optimizer=_OPTIMIZER,
    )
    trainer = build_trainer(shards, config, verbs=device)
    seconds: list[float] = []
    calls: list[Counter[str]] = []
    kinds: list[str] = []
    num_samples = 0
    # All reading counts, since it runs ahead of the loop.
    process_begin, loop_begin = time.process_time(), time.thread_time()
    with closing(trainer.embeddings), closing(trainer.steps()) as steps:
        for step in steps:
            # Packed by now, as it is where reading keeps up: the loop does not wait.
            if step.packing is not None:
                step.packing.result()
            before = device.calls.copy()
            begin = time.thread_time()
            trainer.runner.train(step, trainer.step, trainer.rates.of_step(trainer.step))
            seconds.append(time.thread_time() - begin)
            calls.append(device.calls - before)
            kinds.append("hot-only" if step.step.batch.is_hot_only else "mixed")
            trainer.step += 1
            num_samples += step.step.num_samples
        of_others = time.process_time() - process_begin - (time.thread_time() - loop_begin)
    reading = of_others / max(num_samples, 1) * _NANOSECONDS
    return [
        _row(
            kind,
            [number for number in range(_WARM_UP_STEPS, len(kinds)) if kinds[number] == kind],
            seconds,
            calls,
        )
        | {"reading_ns_per_sample": reading}
        for kind in ("hot-only", "mixed")
        if kind in kinds[_WARM_UP_STEPS:]
    ]


def _row(kind: str, steps: list[int], seconds: list[float], calls: list[Counter[str]]) -> dict[str, Any]:
    """The figures of the batches of one kind."""
    found = np.array([seconds[number] for number in steps]) * _MICROSECONDS
    # The step in the middle by its number of calls stands for all: a mean would be of no real step.
    middle = sorted(steps, key=lambda number: sum(calls[number].values()))[len(steps) // 2]
    return {
        "kind": kind,
        "steps": len(steps),
        "loop_us": float(np.median(found)),
        "loop_us_least": float(found.min()),
        "calls": dict(calls[middle]),
    }


def show(result: dict[str, Any], console: Console) -> None:
    """Print a row for each batch size, placement and kind of batch."""
    table = Table("batch", "placement", "kind", "loop us", "least", "reading ns/sample", "calls of a step")
    for row in result["rows"]:
        calls = ", ".join(f"{count} {name}" for name, count in row["calls"].items())
        table.add_row(
            f"{row['batch_size']:,}",
            row["placement"],
            row["kind"],
            f"{row['loop_us']:.0f}",
            f"{row['loop_us_least']:.0f}",
            f"{row['reading_ns_per_sample']:.0f}",
            calls,
        )
    console.print(table)
    console.print("CPU time. Loop: the thread that queues. Reading: all others, which the cores share.")
