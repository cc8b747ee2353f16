"""Writes the folder of a run: its log while it trains, its results when it ends, its manifest last."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...pipeline.errors import HotsetError, format_byte_size
from ...pipeline.folders.checksum import hash_file
from ...pipeline.folders.manifest import MANIFEST, FileEntry, Manifest, checksum_of
from ...pipeline.folders.whole_file import link_folder
from ..checkpoints.checkpoint_files import CHECKPOINTS
from ..data.batch_order import BATCH_ORDER
from .run_files import (
    CONFIG,
    METRICS,
    RUN_FILES,
    RUN_STAGE,
    RUN_VERSION,
    STATES,
    SUMMARY,
    VOCABULARY,
    WEIGHTS,
    explained,
    make_folder,
)
from .tensorboard_events import TensorboardEvents
from .unfinished_run import refuse_occupied
from .weights_file import Weights, write_weights


class RunFolder:
    """The folder of a run while it is written."""

    def __init__(self, path: Path, reserved: int | None = None) -> None:
        self.path = path
        self.metrics: list[str] = []
        """Lines of the metrics so far."""
        self.tensorboard: TensorboardEvents | None = None
        """Where the metrics go for TensorBoard too."""
        self._free_reserved: Callable[[], object] = lambda: None
        if reserved is not None:
            self._free_reserved = weakref.finalize(self, os.close, reserved)

    @classmethod
    def begin(cls, path: Path, config: Mapping[str, Any], *, weight_bytes: int = 0) -> RunFolder:
        """Create the folder and write its config, with room reserved for the weights.

        Raises:
            HotsetError: something is in the folder already, or the disk is too small.
        """
        refuse_occupied(path)
        make_folder(path)
        folder = cls(path, _reserve(path, weight_bytes) if weight_bytes else None)
        folder._write_aside(CONFIG, lambda aside: aside.write_text(_to_json(config)))
        return folder

    @classmethod
    def resume(cls, path: Path, metrics: Iterable[str], *, weight_bytes: int = 0) -> RunFolder:
        """Go on with an unfinished run, whose log is that of a checkpoint again.

        Raises:
            HotsetError: the folder cannot be written, or its disk is too small.
        """
        folder = cls(path, _reserve(path, weight_bytes) if weight_bytes else None)
        folder.metrics = list(metrics)
        text = "".join(f"{line}\n" for line in folder.metrics)
        folder._write_aside(METRICS, lambda aside: aside.write_text(text))
        # What the end of the run had written before a kill is written again.
        for name in (WEIGHTS, STATES, BATCH_ORDER, SUMMARY):
            (path / name).unlink(missing_ok=True)
        return folder

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        line = json.dumps(entry)
        with explained(self.path / METRICS), open(self.path / METRICS, "a") as file:
            file.write(f"{line}\n")
        self.metrics.append(line)
        if self.tensorboard is not None:
            self.tensorboard.add(entry)

    def keep_vocabulary(self, vocabulary: Manifest) -> None:
        """Keep the vocabulary of the ids, as links where the disk allows it."""
        link_folder(vocabulary, self.path / VOCABULARY)

    def save_weights(self, weights: Mapping[str, torch.Tensor]) -> None:
        """Write all weights, float32 tensors on the host."""
        whole = weights if isinstance(weights, Weights) else Weights.of(weights)
        self._free_reserved()
        self._write_aside(WEIGHTS, lambda aside: write_weights(aside, whole))

    def save_states(self, states: Weights) -> None:
        """Write the states of all optimizers, where there are any."""
        if len(states):
            self._write_aside(STATES, lambda aside: write_weights(aside, states))

    def save_batch_order(self, numbers: list[int]) -> None:
        """Write the training batch of each step."""

        def write(aside: Path) -> None:
            # Given a path, numpy would append ".npy" to its name.
            with open(aside, "wb") as file:
                np.save(file, np.array(numbers, np.int32))

        self._write_aside(BATCH_ORDER, write)

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, seal the folder, which marks the run as finished, and remove its checkpoints."""
        self._write_aside(SUMMARY, lambda aside: aside.write_text(_to_json(summary)))
        self.seal()
        # Last, so that a kill before leaves an unfinished run that can be resumed.
        if (self.path / CHECKPOINTS).is_dir():
            shutil.rmtree(self.path / CHECKPOINTS)

    def seal(self) -> None:
        """Write the manifest of the files that are there."""
        self._write_aside(MANIFEST, lambda aside: aside.write_text(_to_json(self._manifest())))

    def _manifest(self) -> dict[str, Any]:
        there = [name for name in (*RUN_FILES, STATES) if (self.path / name).exists()]
        # Hashed as they lie on the disk, which is what a reader will find.
        entries = [FileEntry(name, 0, *hash_file(self.path / name)) for name in there]
        shards = json.loads((self.path / CONFIG).read_bytes()).get("shards")
        # What the run was made from, and the vocabulary that it keeps.
        inputs = [{"name": "shards", "fingerprint": shards}]
        if (self.path / VOCABULARY).is_dir():
            kept = Manifest.read(self.path / VOCABULARY)
            inputs.append({"name": VOCABULARY, "fingerprint": kept.fingerprint})
        # The keys of a stage's manifest; settings and results stand in the files it lists.
        parts = {
            "stage": RUN_STAGE,
            "version": RUN_VERSION,
            "config": {},
            "inputs": inputs,
            "files": [entry.to_json() for entry in entries],
            "totals": {},
        }
        return parts | {"checksum": checksum_of(parts)}

    def _write_aside(self, name: str, write: Callable[[Path], object]) -> None:
        # Renamed when complete, so that a file under its final name is always whole.
        aside = self.path / f".{name}.tmp"
        with explained(self.path / name):
            write(aside)
            os.replace(aside, self.path / name)


def _reserve(folder: Path, num_bytes: int) -> int:
    """Take room on the disk by a file without a name, which goes with the process; returns its descriptor."""
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            os.posix_fallocate(file.fileno(), 0, num_bytes)
            return os.dup(file.fileno())
    except OSError as error:
        raise HotsetError(
            f"{folder} has no room for {format_byte_size(num_bytes)} of weights: {error.strerror}",
            hint="write --out to a larger disk",
        ) from error
    return file


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
