"""The folder of a training run: its files, and who may write.

    config.json           settings, model and tables: all that `evaluate` needs except the weights
    metrics.jsonl         losses and evaluations in the order they were measured
    weights.safetensors   dense layers and tables; its bytes depend on the weights alone
    states.safetensors    states of the optimizers of rows and dense layers, for runs that start from this one
    batch_order.npy       (num_steps,) int32, the training batch of each step
    summary.json          quality and cost; a folder without it is unfinished
    vocabulary/           the sealed vocabulary of the ids, if the shards' folder had it: `predict` needs it
    manifest.json         written last: bytes and checksums of the files above, as in a stage's folder
    checkpoints/          of an unfinished run: what the same command goes on from

Tables are stored under their feature's name in id order, whatever the placement; dense layers as
``dense.bottom.0.weight`` and so on.

A folder is free, or holds a run to resume, or is being written by another process; a run is resumed if its
``config.json`` fits the command. Metrics may go to TensorBoard too, by torch's writer; a resumed run rewrites
that file from the metrics of its checkpoint, so that every line is there once.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ...pipeline.errors import HotsetError, MissingExtraError, format_byte_size, install_hint
from ...pipeline.folders.disk import link_folder, make_folder, manifest_of
from ...pipeline.folders.manifest import MANIFEST, Manifest
from ..config import CONFIG, METRICS, MOST_MICRO_BATCHES, SUMMARY, RunTable, TrainConfig, read_object
from ..config_parts import ChosenExchange
from ..data.batch import BATCH_ORDER
from ..data.shards import ShardOrigin, ShardSet, vocabulary_of
from ..model.gradients import cpu_features
from ..model.kernels import choose_library
from ..model.shapes import choose_labels, choose_model, recorded_name
from .weights import RUN_STAGE, RUN_VERSION, STATES, WEIGHTS, Weights, send_weights, write_weights

CHECKPOINTS = "checkpoints"
"""Folder of the checkpoints of an unfinished run."""
VOCABULARY = "vocabulary"
"""The vocabulary that the run keeps."""
RUN_FILES = (CONFIG, METRICS, WEIGHTS, BATCH_ORDER, SUMMARY)
"""Files of a finished run, without its manifest."""
BEST_PREFIX = "best-"
"""Beginning of the names of files with the best weights so far, which a finished run does not have."""


class ReservedRoom:
    """A nameless file that reserves space for files that are written later.

    Args:
        what: the files it is for, for the message.
        way_out: the option that does without them, for the hint; empty where there is none.

    Raises:
        HotsetError: the disk is too small.
    """

    def __init__(
        self,
        folder: Path,
        num_bytes: int,
        what: str = "checkpoints",
        way_out: str = "train without them: --checkpoint-every off",
    ) -> None:
        self._left = num_bytes
        # The file has no name, so the room is free again however the process ends.
        try:
            with tempfile.TemporaryFile(dir=folder) as file:
                if num_bytes:
                    os.posix_fallocate(file.fileno(), 0, num_bytes)
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise HotsetError(
                f"{folder} has no room for {format_byte_size(num_bytes)} of {what}: {error.strerror}",
                hint="write --out to a larger disk" + (f", or {way_out}" if way_out else ""),
            ) from error
        weakref.finalize(self, os.close, self._file)

    def give(self, num_bytes: int) -> None:
        """Release up to so many bytes for a file that is written next."""
        if self._left:
            self._left = max(self._left - num_bytes, 0)
            os.ftruncate(self._file, self._left)


def refuse_missing_folder(path: Path) -> None:
    """Raise HotsetError unless ``path`` is a folder."""
    if not path.is_dir():
        raise HotsetError(f"{path} is not a folder", hint=f"`mkdir -p {shlex.quote(str(path))}` creates it")


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """Turn a full disk or a read-only folder into a HotsetError."""
    try:
        yield
    except OSError as error:
        raise HotsetError(
            f"{path} cannot be written: {error.strerror or error}",
            hint="free disk space, and run the same command: it resumes from the last checkpoint",
        ) from error


_log = logging.getLogger(__name__)


def refuse_occupied(path: Path) -> None:
    """Raise HotsetError unless ``path`` is absent, empty, or killed as it began."""
    if is_vacant(path):
        return
    # Name what is there, so that a user knows whether it may be deleted.
    state = "is not empty"
    hint = "give another --out, or remove the folder"
    if (path / CONFIG).exists():
        state = f"holds {'an unfinished' if is_unfinished(path) else 'a finished'} run"
    if (path / MANIFEST).exists():
        hint += f"; `--init-from {shlex.quote(str(path))}` with another --out trains it further"
    raise HotsetError(f"{path} {state}", hint=hint)


def is_vacant(path: Path) -> bool:
    """Return whether a new run may use ``path``; raise HotsetError if unreadable."""
    try:
        return not path.exists() or all(child.name == f".{CONFIG}.tmp" for child in path.iterdir())
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error


def is_unfinished(path: Path) -> bool:
    """Return whether ``path`` holds a run that was begun and not sealed."""
    return (path / CONFIG).exists() and not (path / MANIFEST).exists()


def remove_begun(path: Path) -> None:
    """Remove an unfinished run without a checkpoint, which can then begin again."""
    with explained(path):
        for name in (METRICS, WEIGHTS, STATES, BATCH_ORDER, SUMMARY):
            (path / name).unlink(missing_ok=True)
        # Files that a kill left under their temporary names.
        for child in path.iterdir():
            is_aside = child.name in {f".{name}.tmp" for name in (*RUN_FILES, STATES, MANIFEST)}
            if is_aside or child.name.startswith(BEST_PREFIX):
                child.unlink()
        for name in (CHECKPOINTS, VOCABULARY):
            if (path / name).is_dir():
                shutil.rmtree(path / name)
        # The config goes last: as long as anything is left, the same command finds a run to go on with.
        (path / CONFIG).unlink(missing_ok=True)


@contextmanager
def claimed(path: Path) -> Iterator[None]:
    """Make the folder of a run, and lock it against other processes.

    The lock ends with the process, however it ends. An empty folder is removed where the run is refused.

    Raises:
        HotsetError: it cannot be made, or another process trains there.
    """
    # Folders that did not exist before are ours to remove.
    made = [folder for folder in (path, *path.parents) if not folder.exists()]
    make_folder(path)
    descriptor = os.open(path, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise HotsetError(
            f"{path} is being written by another process",
            hint="wait until that run ends, or stop it: the same command then resumes",
        ) from None
    except OSError as error:
        # A file system without locks; runs in it are on their own.
        _log.info("%s cannot be locked: %s", path, error.strerror)
    try:
        yield
    except BaseException:
        for folder in made:
            with suppress(OSError):  # it holds what the run wrote
                folder.rmdir()
        raise
    finally:
        os.close(descriptor)


def describe(
    shards: ShardSet, config: TrainConfig, threads: int, *, is_replay: bool, predicts: str = "probability"
) -> dict[str, Any]:
    """The contents of ``config.json``: settings, model and tables of a run.

    An unfinished run is resumed by the same settings alone, so nothing stands here that may differ between
    two processes of a run.

    Args:
        config: with nothing left open, see `resolve`.
        predicts: of its loss, see `RunConfig`.
    """
    origin = ShardOrigin.of(shards)
    # What a run with one label and the log loss does not have stands in no description.
    of_labels: dict[str, Any] = {}
    if labels := choose_labels(config, shards.labels):
        of_labels["labels"] = list(labels)
    if predicts != "probability":
        of_labels["predicts"] = predicts
    return {
        # Defaults that the shards decided are written out, so that the run can be repeated elsewhere.
        "config": asdict(config) | asdict(config.optimizers(shards.embedding_optimizer)),
        "threads": threads,
        "dense_dtype": config.dense_dtype,
        "dense_products": choose_library(cpu_features(), config.dense_dtype),
        "is_replay": is_replay,
        "shards": shards.manifest.fingerprint,
        "vocabulary": vocabulary_of(shards),
        "schema": origin.schema if origin is not None else None,
        "batch_size": shards.batch_size,
        "model": recorded_name(config, shards.embedding_dim),
        "dense_model": choose_model(config, shards.embedding_dim).to_json(),
        "embedding_dim": shards.embedding_dim,
        "num_dense": shards.num_dense,
        **of_labels,
        "tables": [
            RunTable(
                name=table.name,
                num_rows=table.num_rows,
                embedding_dim=table.embedding_dim,
                num_hot=table.num_hot,
                is_multi_hot=table.is_multi_hot,
                features=table.features,
            ).to_json()
            for table in shards.tables
        ],
    }


def settings_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the part of a description that decides the bits of a run."""
    left_out = ("threads", "schema", "dense_products")
    found = {name: value for name, value in description.items() if name not in left_out}
    if isinstance(found.get("config"), dict):
        found["config"] = {
            name: value for name, value in found["config"].items() if name not in ("threads", "mover")
        }
    return found


def read_begun(path: Path) -> dict[str, Any]:
    """Return ``config.json`` of an unfinished run; raises HotsetError where it is damaged."""
    return read_object(path / CONFIG, "give another --out, or remove the folder")


def refuse_other_settings(path: Path, recorded: Mapping[str, Any], description: Mapping[str, Any]) -> None:
    """Raise HotsetError unless an unfinished run has these settings, but for threads and the mover."""
    # Through JSON, so that tuples and lists compare as the file has them.
    wanted = settings_of(json.loads(json.dumps(description)))
    found = without_removed(path, recorded)
    if isinstance(found.get("config"), dict):
        found["config"] = _ADDED | found["config"]
    for name, value in differences(settings_of(found), wanted):
        raise HotsetError(
            f"{path} holds an unfinished run with other settings: {name} is {value[0]!r}, here {value[1]!r}",
            hint="give the settings of that run to resume it, or another --out, or remove the folder",
        )


def recorded_micro_batches(recorded: Mapping[str, Any]) -> int | None:
    """Return the micro-batches of an unfinished run; None where its config does not say."""
    config = recorded.get("config")
    found = config.get("micro_batches", config.get("shares")) if isinstance(config, dict) else None
    return found if isinstance(found, int) and 1 <= found <= MOST_MICRO_BATCHES else None


def recorded_exchange(recorded: Mapping[str, Any]) -> ChosenExchange:
    """Return the codecs of an unfinished run; none where its config names none."""
    found = recorded.get("exchange")
    try:
        return ChosenExchange() if found is None else ChosenExchange.of_json(found)
    except (ValueError, KeyError, TypeError, AttributeError):
        return ChosenExchange()  # `refuse_other_settings` says what is wrong with it


_RENAMED = {"shares": "micro_batches"}
"""Settings of a run by their earlier names."""
_REMOVED: dict[str, object] = {
    "plan": "auto",
    "window": 64,
    "history_length": None,
    "attention_mlp": None,
    "last_mlp": None,
    "cross_structure": None,
    "decay_start": None,
    "decay_power": 2.0,
    "plateau_factor": 0.1,
    "plateau_patience": 1,
    "evaluate_time": None,
}
"""Settings that `TrainConfig` and its recipe no longer have, with the values that a run may have had."""
_ADDED: dict[str, object] = {"freeze": [], "last_batch": "keep", "engine": "hotset"}
"""Settings that earlier versions did not have, with what they did."""
_REMOVED_OF_EXCHANGE: dict[str, tuple[object, ...]] = {
    "decay": ("none", "linear"),
    "sync_rows": (0,),
    "sync_every": (None,),
    "homes": ("by-use",),
}
"""The same of the codecs between ranks, each with the values that are continued."""


def without_removed(path: Path, description: Mapping[str, Any]) -> dict[str, Any]:
    """Return the description of a run by the options of this version.

    Args:
        description: contents of its ``config.json``, of this version or an earlier one.

    Raises:
        HotsetError: the run was begun with an option that is no more.
    """
    found = dict(description)
    if isinstance(found.get("config"), dict):
        config = found["config"] = _renamed(path, found["config"])
        if isinstance(config.get("recipe"), dict):
            config["recipe"] = _renamed(path, config["recipe"])
    if isinstance(found.get("exchange"), dict):
        exchange = found["exchange"] = dict(found["exchange"])
        for name, values in _REMOVED_OF_EXCHANGE.items():
            if (value := exchange.pop(name, values[0])) not in values:
                option = name if name in ("homes", "sync_every", "sync_rows") else f"exchange_{name}"
                raise _of_removed_option(path, option, value)
    return found


def _renamed(path: Path, settings: Mapping[str, Any]) -> dict[str, Any]:
    kept = {_RENAMED.get(name, name): value for name, value in settings.items()}
    for name, default in _REMOVED.items():
        if (value := kept.pop(name, default)) != default:
            raise _of_removed_option(path, name, value)
    return kept


def _of_removed_option(path: Path, name: str, value: object) -> HotsetError:
    option = f"--{name.replace('_', '-')} {value}"
    return HotsetError(
        f"{path} was begun with {option}, an option that this version does not have",
        hint="give another --out, or remove the folder",
    )


def differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings that differ, with both values."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        pair = (found.get(name), wanted.get(name))
        if isinstance(pair[0], dict) and isinstance(pair[1], dict):
            yield from differences(pair[0], pair[1], f"{prefix}{name}.")
        elif pair[0] != pair[1]:
            yield f"{prefix}{name}", pair


_SUFFIX = ".hotset"


class TensorboardEvents:
    """The event file of one run, in a folder that no other run writes.

    Args:
        folder: created; a file that an earlier process of the run wrote there is written again.

    Raises:
        HotsetError: it cannot be written.
        MissingExtraError: tensorboard is not installed.
    """

    def __init__(self, folder: Path, metrics: Iterable[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ModuleNotFoundError as error:
            raise MissingExtraError(
                "--tensorboard needs tensorboard", hint=install_hint("tensorboard")
            ) from error
        make_folder(folder)
        self._folder = folder
        with explained(folder):
            for path in folder.glob(f"events.out.tfevents.*{_SUFFIX}"):
                path.unlink()
            self._writer: Any = SummaryWriter(str(folder), filename_suffix=_SUFFIX)
        for line in metrics:
            self.add(json.loads(line))

    def add(self, entry: Mapping[str, Any]) -> None:
        """Add the numbers of one line of metrics, at its step."""
        with explained(self._folder):
            for tag, value in _numbers(entry):
                self._writer.add_scalar(tag, value, entry["step"])
            self._writer.flush()


_NO_CURVES = ("step", "samples", "num_samples", "total_weight", "num_groups")
"""Numbers of a line that do not change with the weights."""


def _numbers(entry: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, float]]:
    """Yield the numbers of a line by tags such as ``train/loss`` and ``validation/hot/auc``."""
    for name, value in entry.items():
        if isinstance(value, Mapping):
            yield from _numbers(value, f"{prefix}{name}/")
        elif isinstance(value, int | float) and name not in _NO_CURVES:
            yield f"{prefix or 'train/'}{name}", float(value)


class RunFolder:
    """The folder of a run while it is written.

    Args:
        is_first: whether this process writes: it is alone, or rank 0. Others send it their rows.
    """

    def __init__(self, path: Path, weight_bytes: int = 0, *, is_first: bool = True) -> None:
        self.path = path
        self._is_first = is_first
        self._room = ReservedRoom(path, weight_bytes, "weights", way_out="") if weight_bytes else None
        self.metrics: list[str] = []
        """Lines of the metrics so far."""
        self.tensorboard: TensorboardEvents | None = None
        """Where the metrics go for TensorBoard too."""

    @classmethod
    def begin(cls, path: Path, config: Mapping[str, Any], *, weight_bytes: int = 0) -> RunFolder:
        """Create the folder and write its config, with room reserved for the weights.

        Raises:
            HotsetError: something is in the folder already, or the disk is too small.
        """
        refuse_occupied(path)
        make_folder(path)
        folder = cls(path, weight_bytes)
        folder._write(CONFIG, _to_json(config))
        return folder

    @classmethod
    def resume(cls, path: Path, metrics: Iterable[str], *, weight_bytes: int = 0) -> RunFolder:
        """Go on with an unfinished run, whose log is that of a checkpoint again.

        Raises:
            HotsetError: the folder cannot be written, or its disk is too small.
        """
        folder = cls(path, weight_bytes)
        folder.metrics = list(metrics)
        folder._write(METRICS, "".join(f"{line}\n" for line in folder.metrics))
        # What the end of the run had written before a kill is written again.
        for name in (WEIGHTS, STATES, BATCH_ORDER, SUMMARY):
            (path / name).unlink(missing_ok=True)
        return folder

    def log(self, entry: Mapping[str, Any]) -> None:
        """Append one line to the metrics."""
        if not self._is_first:
            return
        line = json.dumps(entry)
        with explained(self.path / METRICS), open(self.path / METRICS, "a") as file:
            file.write(f"{line}\n")
        self.metrics.append(line)
        if self.tensorboard is not None:
            self.tensorboard.add(entry)

    def keep_vocabulary(self, vocabulary: Manifest) -> None:
        """Keep the vocabulary of the ids, as links where the disk allows it."""
        link_folder(vocabulary, self.path / VOCABULARY)

    def save_weights(self, weights: Weights) -> None:
        """Write all weights, float32 tensors on the host."""
        self._room = None
        self._write_weights(WEIGHTS, weights)

    def save_states(self, states: Weights) -> None:
        """Write the states of all optimizers, where there are any."""
        if len(states):
            self._write_weights(STATES, states)

    def _write_weights(self, name: str, weights: Weights) -> None:
        if self._is_first:
            with self._aside(name) as aside:
                write_weights(aside, weights)
        else:
            send_weights(weights)

    def save_batch_order(self, numbers: list[int]) -> None:
        """Write the training batch of each step."""
        if not self._is_first:
            return
        # Given a path, numpy would append ".npy" to its name.
        with self._aside(BATCH_ORDER) as aside, open(aside, "wb") as file:
            np.save(file, np.array(numbers, np.int32))

    def finish(self, summary: Mapping[str, Any]) -> None:
        """Write the summary, seal the folder as finished, and remove its checkpoints."""
        if not self._is_first:
            return
        self._write(SUMMARY, _to_json(summary))
        self.seal()
        # Last, so that a kill before leaves an unfinished run that can be resumed.
        if (self.path / CHECKPOINTS).is_dir():
            shutil.rmtree(self.path / CHECKPOINTS)

    def seal(self) -> None:
        """Write the manifest of the files that are there."""
        there = [name for name in (*RUN_FILES, STATES) if (self.path / name).exists()]
        shards = read_object(self.path / CONFIG).get("shards")
        # What the run was made from, and the vocabulary that it keeps.
        inputs = [{"name": "shards", "fingerprint": shards}]
        if (self.path / VOCABULARY).is_dir():
            kept = Manifest.read(self.path / VOCABULARY)
            inputs.append({"name": VOCABULARY, "fingerprint": kept.fingerprint})
        # Settings and results are in the files that it lists.
        self._write(MANIFEST, _to_json(manifest_of(self.path, there, RUN_STAGE, RUN_VERSION, inputs)))

    def _write(self, name: str, text: str) -> None:
        with self._aside(name) as aside:
            aside.write_text(text)

    @contextmanager
    def _aside(self, name: str) -> Iterator[Path]:
        # Renamed when complete, so that a file under its final name is always whole.
        aside = self.path / f".{name}.tmp"
        with explained(self.path / name):
            yield aside
            os.replace(aside, self.path / name)


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
