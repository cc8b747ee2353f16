"""Runs that end as if killed, or by a signal, beside the same runs that nothing stops."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hotset.tests.support.processes.kills import Killed
from hotset.train.config import CheckpointSettings, TrainConfig
from hotset.train.resuming.resume import Interrupted
from hotset.train.run import train

FILES = ("weights.safetensors", "batch_order.npy", "metrics.jsonl")


def train_until(
    data: Path, config: TrainConfig, out: Path, checkpoints: CheckpointSettings, stop: int | None, kind: str
) -> None:
    """Train, and end as if killed, or by a signal, after so many samples; None: at the end.

    Args:
        kind: ``kill`` or ``signal``.
    """

    def progress(stage: str, done: int, total: int, note: str = "") -> None:
        if stage == "train" and stop is not None and done >= stop:
            if kind == "kill":
                raise Killed
            os.kill(os.getpid(), signal.SIGINT)

    try:
        train(data, config, out, checkpoints=checkpoints, progress=progress)
    except (Killed, Interrupted):
        assert stop is not None


def results(out: Path) -> dict[str, bytes]:
    """The files of a finished run that its bits decide."""
    assert (out / "manifest.json").exists() and not (out / "checkpoints").exists()
    return {name: (out / name).read_bytes() for name in FILES}


def unbroken_results(
    folders: pytest.TempPathFactory, train_to_end: Callable[..., None]
) -> Callable[..., dict[str, bytes]]:
    """Return the results of runs that nothing stops, by their settings; each is made once.

    Args:
        train_to_end: called with a folder and the settings.
    """
    kept: dict[str, dict[str, bytes]] = {}

    def results_of(**fields: Any) -> dict[str, bytes]:
        name = repr(sorted(fields.items()))
        if name not in kept:
            out = folders.mktemp("unbroken") / "run"
            train_to_end(out, **fields)
            kept[name] = results(out)
        return kept[name]

    return results_of
