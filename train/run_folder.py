"""The folder of a training run.

    config.json           settings, model and tables: all that `evaluate` needs beside the weights
    metrics.jsonl         losses and evaluations as they came
    weights.safetensors   dense layers and tables; its bytes depend on the weights alone
    batch_order.npy       (num_steps,) int32, the training batch of each step
    summary.json          written last: a folder without it is unfinished

Tables are stored under their feature's name in id order, whatever the placement; dense layers as
``dense.bottom.0.weight`` and so on.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from ..pipeline.errors import HotsetError
from .data.batch_order import BATCH_ORDER
from .weights_file import Weights, write_weights

CONFIG, METRICS, WEIGHTS, SUMMARY = "config.json", "metrics.jsonl", "weights.safetensors", "summary.json"
DENSE_PREFIX = "dense."


class RunFolder:
    """A run being written."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def begin(cls, path: Path, config: Mapping[str, Any]) -> RunFolder:
        """Make the folder; raises HotsetError where something is in it already."""
        refuse_occupied(path)
        make_folder(path)
        folder = cls(path)
        folder._write_aside(CONFIG, lambda aside: aside.write_text(_to_json(config)))
        return folder

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        with _explained(self.path / METRICS), open(self.path / METRICS, "a") as file:
            file.write(json.dumps(entry) + "\n")

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write all weights, float32 tensors of the host."""
        whole = weights if isinstance(weights, Weights) else Weights.of(weights)
        self._write_aside(WEIGHTS, lambda aside: write_weights(aside, whole))

    def save_batch_order(self, numbers: list[int]) -> None:
        """Write the training batch of each step."""

        def write(aside: Path) -> None:
            with open(aside, "wb") as file:
                np.save(file, np.array(numbers, np.int32))

        self._write_aside(BATCH_ORDER, write)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, which makes the run finished."""
        self._write_aside(SUMMARY, lambda aside: aside.write_text(_to_json(summary)))

    def _write_aside(self, name: str, write: Callable[[Path], Any]) -> None:
        aside = self.path / f".{name}.tmp"
        with _explained(self.path / name):
            write(aside)
            os.replace(aside, self.path / name)


def make_folder(path: Path) -> None:
    """Make a folder and those around it; raises HotsetError where that cannot be."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """A full disk or a read-only folder in one line; what writes weights has errors of its own."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise HotsetError(
            f"{path} cannot be written: {reason}", hint="make room, remove the folder, and train again"
        ) from error


def refuse_occupied(path: Path) -> None:
    """Raise HotsetError where ``path`` is anything but absent or an empty folder."""
    try:
        if not path.exists() or not any(path.iterdir()):
            return
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error
    state = "is not empty"
    if (path / CONFIG).exists():
        state = f"holds {'a finished' if (path / SUMMARY).exists() else 'an unfinished'} run"
    raise HotsetError(f"{path} {state}", hint="give another --out, or remove the folder")


def read_config(run: Path) -> dict[str, Any]:
    """The config of a finished run; raises HotsetError where there is none."""
    if not (run / SUMMARY).exists():
        state = "is unfinished" if (run / CONFIG).exists() else "holds no training run"
        raise HotsetError(
            f"{run} {state}: it has no {SUMMARY}", hint="name the --out of a finished `hotset train`"
        )
    try:
        config = json.loads((run / CONFIG).read_bytes())
    except (OSError, ValueError) as error:
        raise HotsetError(f"{run / CONFIG} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise HotsetError(f"{run / CONFIG} is damaged")
    return config


def read_weights(run: Path) -> dict[str, torch.Tensor]:
    """Every tensor of a run by name, on the host; raises HotsetError where the file is damaged."""
    path = run / WEIGHTS
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_tensor(name) for name in file.keys()}
    except (OSError, SafetensorError) as error:
        raise HotsetError(f"{path} cannot be read: {error}") from error


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
