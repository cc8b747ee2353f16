"""Edits of a finished run, and the run sealed again, so that every checksum fits."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file

from hotset.train.run_folder.files import RunFolder

Edit = Callable[[Path], None]


def seal_again(run: Path) -> None:
    """Write the manifest of a run as for files that it has now."""
    (run / "manifest.json").unlink()
    RunFolder(run).seal()


def set_key(name: str, key: str, value: Any) -> Edit:
    """Set a value in a JSON file; dots in ``key`` stand between keys, a function changes what is there."""

    def edit(run: Path) -> None:
        whole = parts = json.loads((run / name).read_bytes())
        *outer, last = key.split(".")
        for part in outer:
            parts = parts[int(part) if isinstance(parts, list) else part]
        parts[last] = value(parts[last]) if callable(value) else value
        (run / name).write_text(json.dumps(whole))

    return edit


def of_tensors(name: str, change: Callable[[dict[str, torch.Tensor]], Any]) -> Edit:
    """Change the tensors of a file in place."""

    def edit(run: Path) -> None:
        tensors = load_file(run / name)
        change(tensors)
        save_file({key: tensor.contiguous() for key, tensor in tensors.items()}, run / name)

    return edit


def of_order(change: Callable[[Any], Any]) -> Edit:
    """Replace the batches of the steps by what ``change`` returns."""

    def edit(run: Path) -> None:
        np.save(run / "batch_order.npy", change(np.load(run / "batch_order.npy")).astype(np.int32))

    return edit


def both(*edits: Edit) -> Edit:
    """Make several edits that agree with each other."""

    def edit(run: Path) -> None:
        for each in edits:
            each(run)

    return edit
