"""Small runs on the late device, drawn at random, and faults planted in what orders their work."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import HotsetError
from hotset.stats.row_bytes import OPTIMIZERS, row_bytes
from hotset.tests.support.shard_factory import ShardSpec, write_shards
from hotset.tests.support.trained_models import assert_equal_bits, trained
from hotset.train import device
from hotset.train.data.shards import ShardSet
from hotset.train.device import Event, LateDevice, LateEvent, StreamName
from hotset.train.loop import Trainer

PLACEMENTS: tuple[dict[str, Any], ...] = (
    {"placement": "all-fast"},
    {"placement": "lookahead"},
    {"placement": "cache", "cache_policy": "lfu"},
    {"placement": "cache", "cache_policy": "lru", "cache_batches": 2},
    {"placement": "hybrid"},
    {"placement": "hybrid-dedup"},
    {"placement": "hybrid-uva"},
    {"placement": "fae"},
)


@dataclass(frozen=True, slots=True)
class DrawnRun:
    """Shards and settings of a run whose staging slots are few, so that victims are young."""

    shards: ShardSet
    fields: dict[str, Any]


def draw_run(seed: int, folder: Path, *, has_one_width: bool = False) -> DrawnRun:
    """Draw a run; its staging slots hold one batch and hardly more."""
    rng = np.random.default_rng(seed)
    batch_size = int(rng.integers(4, 16))
    num_rows = tuple(int(n) for n in rng.integers(20, 120, rng.integers(2, 4)))
    dims = [int(dim) for dim in rng.choice([3, 4, 8], len(num_rows))] if rng.random() < 0.3 else None
    if has_one_width:
        dims = None
    spec = ShardSpec(
        num_rows=num_rows,
        num_hot=tuple(int(rng.integers(1, 6)) for _ in num_rows),
        batch_size=batch_size,
        num_hot_only=0 if seed % 5 == 0 else int(rng.integers(1, 3 * batch_size)),
        num_mixed=int(rng.integers(10, 18) * batch_size + rng.integers(0, batch_size)),
        num_evaluation=20,
        skew=float(rng.choice([0.0, 1.2, 1.6])),
        table_dims=None if dims is None else tuple(dims),
        embedding_optimizer=str(rng.choice(OPTIMIZERS)),
        seed=seed,
    )
    most_rows = batch_size * len(num_rows)
    widest = row_bytes(max(dims or [spec.embedding_dim]), spec.embedding_optimizer)
    fields = {
        "staging_bytes": int(most_rows * rng.uniform(0.7, 2.0)) * widest,
        "prefetch": int(rng.integers(0, 4)),
        "seed": seed,
        "dense_optimizer": str(rng.choice(["sgd", "adagrad", "adam"])),
    }
    return DrawnRun(ShardSet.open(write_shards(folder / f"shards{seed}", spec)), fields)


def train_late(run: DrawnRun, seed: int, **fields: Any) -> Trainer:
    """Train on the late device, in the order of its seed."""
    return trained(run.shards, device=f"late:{seed}", **run.fields, **fields)


def is_wrong(run: DrawnRun, wanted: Trainer, seed: int, **fields: Any) -> bool:
    """Whether a run on the late device ends with other bits than ``wanted``, or does not end well."""
    try:
        assert_equal_bits(train_late(run, seed, **fields), wanted)
    except (AssertionError, IndexError, RuntimeError, HotsetError):
        return True
    return False


def wanted_of(run: DrawnRun, placement: str = "all-fast", **fields: Any) -> Trainer:
    """Train on the host, or with ``device`` among the fields; the bits that a placement must end with.

    fae orders its batches by itself; the others follow the order of all-fast.
    """
    base = "fae" if placement == "fae" else "all-fast"
    return trained(run.shards, placement=base, **run.fields, **fields)


def keep_slow(monkeypatch: pytest.MonkeyPatch, stream: StreamName) -> None:
    """Let one stream run hardly ever while others have work."""
    begin = LateDevice.__init__

    def begin_with_slow_stream(device: LateDevice, seed: int = 0) -> None:
        begin(device, seed)
        device._slow = stream

    monkeypatch.setattr(LateDevice, "__init__", begin_with_slow_stream)
    monkeypatch.setattr(device, "_CALLS_OF_A_WHILE", 10**9)
    monkeypatch.setattr(device, "_SLOW_SHARE", 0.99)


def forget_moves_on_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the host go on without the events of the rows that move."""
    wait = LateDevice.wait_on_host

    def wait_for_others(device: LateDevice, event: Event) -> None:
        if getattr(event, "stream", None) != "moves":
            wait(device, event)

    monkeypatch.setattr(LateDevice, "wait_on_host", wait_for_others)


def ignore_waits(monkeypatch: pytest.MonkeyPatch, waiting: StreamName, recorded: StreamName) -> None:
    """Let one stream go on without the events of another."""
    wait = LateDevice.wait

    def waits_for_others(device: LateDevice, stream: StreamName, event: Event) -> None:
        assert isinstance(event, LateEvent)
        if (stream, event.stream) != (waiting, recorded):
            wait(device, stream, event)

    monkeypatch.setattr(LateDevice, "wait", waits_for_others)
