"""The folder of a training run.

    config.json           settings, model and tables: all that `evaluate` needs beside the weights
    metrics.jsonl         losses and evaluations in the order they were measured
    weights.safetensors   dense layers and tables; its bytes depend on the weights alone
    states.safetensors    states of the optimizers of rows and dense layers, for runs that start from this one
    batch_order.npy       (num_steps,) int32, the training batch of each step
    summary.json          quality and cost; a folder without it is unfinished
    vocabulary/           the sealed vocabulary of the ids, where it was beside the shards: `predict` needs it
    manifest.json         written last: bytes and checksums of the files above, as in a stage's folder
    checkpoints/          of an unfinished run: what the same command goes on from

Tables are stored under their feature's name in id order, whatever the placement; dense layers as
``dense.bottom.0.weight`` and so on.
"""

from __future__ import annotations

import shlex
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError

from ...pipeline.errors import HotsetError
from ..data.batch_order import BATCH_ORDER

CONFIG = "config.json"
METRICS = "metrics.jsonl"
WEIGHTS = "weights.safetensors"
SUMMARY = "summary.json"
VOCABULARY = "vocabulary"
"""The vocabulary that the run keeps."""
STATES = "states.safetensors"
"""Optimizer states of rows, by table, and of dense layers; a run whose optimizers have none lacks it."""
RUN_FILES = (CONFIG, METRICS, WEIGHTS, BATCH_ORDER, SUMMARY)
"""Files of a finished run beside its manifest."""
BEST_PREFIX = "best-"
"""Beginning of the names of files with the best weights so far, which a finished run does not have."""
RUN_STAGE = "train"
"""The stage that the manifest of a run names."""
RUN_VERSION = 1
RUN_HINT = "give the folder that a finished training run wrote (its --out)"


def make_folder(path: Path) -> None:
    """Create a folder and its parents; raises HotsetError where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HotsetError(
            f"{path} cannot be written: {error.strerror}", hint="give a folder that can be written"
        ) from error


def refuse_missing_folder(path: Path) -> None:
    """Raise HotsetError unless ``path`` is a folder."""
    if not path.is_dir():
        raise HotsetError(f"{path} is not a folder", hint=f"`mkdir -p {shlex.quote(str(path))}` creates it")


def plain_file(path: Path) -> Path:
    """Return ``path``; raises HotsetError where it is no plain file: opening a pipe waits forever."""
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise HotsetError(f"{path} cannot be read: {error.strerror}", hint=RUN_HINT) from error
    if not is_plain:
        raise HotsetError(f"{path} cannot be read: it is not a plain file", hint=RUN_HINT)
    return path


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a HotsetError; the writer of weights has errors of its
    own."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        reason = getattr(error, "strerror", None) or str(error).splitlines()[0]
        raise HotsetError(
            f"{path} cannot be written: {reason}",
            hint="free disk space, and run the same command: it resumes from the last checkpoint",
        ) from error
