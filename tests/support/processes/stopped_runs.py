"""Runs that are stopped on the way, and the files that must have the same bytes in two runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.processes.kills import Killed
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings
from hotset.train.run import RunOptions, train

WITH_STATES = ("weights.safetensors", "states.safetensors")
WITH_ORDER = ("weights.safetensors", "batch_order.npy")
WITH_LOG = ("weights.safetensors", "metrics.jsonl")


def train_until(
    num_samples: int, data: Path, config: TrainConfig, out: Path, *, every: int = 4, **options: Any
) -> None:
    """Train, and die as by a kill after the step that reaches so many samples."""

    def progress(stage: str, done: int, *_: object) -> None:
        if stage == "train" and done >= num_samples:
            raise Killed

    settings = CheckpointSettings(checkpoint_every=every)
    with pytest.raises(Killed):
        train(data, config, out, RunOptions(progress=progress, checkpoints=settings, **options))


def assert_same_files(found: Path, wanted: Path, names: tuple[str, ...] = WITH_STATES) -> None:
    """Compare files of two runs byte by byte."""
    for name in names:
        assert (found / name).read_bytes() == (wanted / name).read_bytes(), name
