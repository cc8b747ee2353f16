"""The folder of a training run.

    config.json           settings, model and tables: all that `evaluate` needs beside the weights
    metrics.jsonl         losses and evaluations in the order they were measured
    weights.safetensors   dense layers and tables; its bytes depend on the weights alone
    states.safetensors    states of the optimizers of rows and dense layers, for runs that start from this one
    batch_order.npy       (num_steps,) int32, the training batch of each step
    summary.json          quality and cost; a folder without it is unfinished
    manifest.json         written last: bytes and checksums of the files above, as in a stage's folder
    checkpoints/          of an unfinished run: what the same command goes on from

Tables are stored under their feature's name in id order, whatever the placement; dense layers as
``dense.bottom.0.weight`` and so on.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shlex
import shutil
import stat
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError

from ..pipeline.errors import HotsetError, ManifestError, first_line
from ..pipeline.folders.checksum import hash_file
from ..pipeline.folders.manifest import MANIFEST, FileEntry, Manifest, checksum_of
from ..pipeline.schema.schema_names import DENSE_PREFIX
from ..pipeline.sizes import format_byte_size
from .checkpoints.checkpoint_files import CHECKPOINTS
from .data.batch_order import BATCH_ORDER
from .run_config import RunConfig
from .weights_file import Weights, open_weights, write_weights

_log = logging.getLogger(__name__)

CONFIG = "config.json"
METRICS = "metrics.jsonl"
WEIGHTS = "weights.safetensors"
SUMMARY = "summary.json"
STATES = "states.safetensors"
"""Optimizer states of rows, by table, and of dense layers; a run whose optimizers have none lacks it."""
RUN_FILES = (CONFIG, METRICS, WEIGHTS, BATCH_ORDER, SUMMARY)
"""Files of a finished run beside its manifest."""
BEST_PREFIX = "best-"
"""Beginning of the names of files with the best weights so far, which a finished run does not have."""
RUN_STAGE = "train"
"""The stage that the manifest of a run names."""
_VERSION = 1
_MOST_CONFIG_BYTES = 64 * 2**20
_PART_BYTES = 8 * 2**20
"""Bytes of a tensor that are checked at a time."""
_HINT = "give the folder that a finished training run wrote (its --out)"


class RunFolder:
    """The folder of a run while it is written."""

    def __init__(self, path: Path, reserved: int | None = None) -> None:
        self.path = path
        self.metrics: list[str] = []
        """Lines of the metrics so far."""
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
        # Last, so that a kill before leaves an unfinished run that can go on.
        if (self.path / CHECKPOINTS).is_dir():
            shutil.rmtree(self.path / CHECKPOINTS)

    def seal(self) -> None:
        """Write the manifest of the files that are there."""
        self._write_aside(MANIFEST, lambda aside: aside.write_text(_to_json(self._manifest())))

    def _manifest(self) -> dict[str, Any]:
        there = [name for name in (*RUN_FILES, STATES) if (self.path / name).exists()]
        entries = [FileEntry(name, 0, *hash_file(self.path / name)) for name in there]
        shards = json.loads((self.path / CONFIG).read_bytes()).get("shards")
        # The keys of a stage's manifest; settings and results stand in the files it lists.
        parts = {
            "stage": RUN_STAGE,
            "version": _VERSION,
            "config": {},
            "inputs": [{"name": "shards", "fingerprint": shards}],
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


def make_folder(path: Path) -> None:
    """Create a folder and its parents; raises HotsetError where that is impossible."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error


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


def refuse_missing_folder(path: Path) -> None:
    """Raise HotsetError unless ``path`` is a folder."""
    if not path.is_dir():
        raise HotsetError(f"{path} is no folder", hint=f"`mkdir -p {shlex.quote(str(path))}` creates it")


def refuse_occupied(path: Path) -> None:
    """Raise HotsetError unless ``path`` is absent, an empty folder, or one that a run just began when it was
    killed."""
    if is_vacant(path):
        return
    # Name what is there, so that a user knows whether it may be deleted.
    state = "is not empty"
    if (path / CONFIG).exists():
        state = f"holds {'an unfinished' if is_unfinished(path) else 'a finished'} run"
    raise HotsetError(f"{path} {state}", hint="give another --out, or remove the folder")


def is_vacant(path: Path) -> bool:
    """Return whether a new run may be written to ``path``; raises HotsetError where it cannot be read."""
    try:
        return not path.exists() or all(child.name == f".{CONFIG}.tmp" for child in path.iterdir())
    except OSError as error:
        raise HotsetError(f"{path} cannot be written: {error.strerror}") from error


def is_unfinished(path: Path) -> bool:
    """Return whether ``path`` holds a run that was begun and not sealed.

    Runs of earlier versions have no manifest; they are finished with their summary. One that was killed
    between the two still has its checkpoints.
    """
    if not (path / CONFIG).exists() or (path / MANIFEST).exists():
        return False
    return not (path / SUMMARY).exists() or (path / CHECKPOINTS).exists()


def remove_begun(path: Path) -> None:
    """Remove what an unfinished run without a checkpoint has written, so that it can be begun again."""
    with explained(path):
        for name in (METRICS, WEIGHTS, STATES, BATCH_ORDER, SUMMARY, CONFIG):
            (path / name).unlink(missing_ok=True)
        for child in path.iterdir():
            is_aside = child.name in {f".{name}.tmp" for name in (*RUN_FILES, STATES, MANIFEST)}
            if is_aside or child.name.startswith(BEST_PREFIX):
                child.unlink()
        if (path / CHECKPOINTS).is_dir():
            shutil.rmtree(path / CHECKPOINTS)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from training in the folder; given back with the process, however it ends.

    Raises:
        HotsetError: another process trains there.
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise HotsetError(
                f"{path} is being written by another process",
                hint="wait until that run ends, or stop it: the same command then resumes",
            ) from None
        except OSError as error:
            # A file system without locks; runs in it are on their own.
            _log.info("%s cannot be locked: %s", path, error.strerror)
        yield
    finally:
        os.close(descriptor)


def refuse_other_settings(path: Path, description: Mapping[str, Any]) -> None:
    """Raise HotsetError unless an unfinished run has these settings; the number of threads may differ."""
    try:
        found = json.loads(_plain_file(path / CONFIG).read_bytes())
        if not isinstance(found, dict):
            raise ValueError("it is no object")
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(
            f"{path / CONFIG} cannot be read: {first_line(error)}",
            hint="give another --out, or remove the folder",
        ) from error
    wanted = settings_of(json.loads(json.dumps(description)))
    for name, value in _differences(settings_of(found), wanted):
        raise HotsetError(
            f"{path} holds an unfinished run with other settings: {name} is {value[0]!r}, here {value[1]!r}",
            hint="give the settings of that run to resume it, or another --out, or remove the folder",
        )


def settings_of(description: Mapping[str, Any]) -> dict[str, Any]:
    """What of a description decides the bits of a run."""
    found = {name: value for name, value in description.items() if name != "threads"}
    if isinstance(found.get("config"), dict):
        found["config"] = {name: value for name, value in found["config"].items() if name != "threads"}
    return found


def _differences(
    found: Mapping[str, Any], wanted: Mapping[str, Any], prefix: str = ""
) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """Yield the settings that differ, with both values."""
    for name in (*wanted, *(name for name in found if name not in wanted)):
        pair = (found.get(name), wanted.get(name))
        if isinstance(pair[0], dict) and isinstance(pair[1], dict):
            yield from _differences(pair[0], pair[1], f"{prefix}{name}.")
        elif pair[0] != pair[1]:
            yield f"{prefix}{name}", pair


def read_config(run: Path, *, must_be_finished: bool = True) -> RunConfig:
    """The config of a finished run; raises HotsetError where there is none, or one that no run writes."""
    # The summary marks the end of a run: one without it has not ended.
    if not (run / (SUMMARY if must_be_finished else CONFIG)).exists():
        state = "is unfinished" if (run / CONFIG).exists() else "holds no training run"
        raise HotsetError(f"{run} {state}: it has no {SUMMARY}", hint=_HINT)
    path = _plain_file(run / CONFIG)
    try:
        if path.stat().st_size > _MOST_CONFIG_BYTES:
            raise ValueError(f"it has {path.stat().st_size} bytes")
        parsed = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise HotsetError(f"{path} cannot be read: {first_line(error)}", hint=_HINT) from error
    return RunConfig.read(parsed, str(path))


def read_weights(run: Path) -> Weights:
    """Every tensor of a run by name, each read when it is asked for.

    Raises:
        HotsetError: the file is missing or damaged, or holds other values than float32.
    """
    return open_weights(_plain_file(run / WEIGHTS))


def read_states(run: Path) -> Weights:
    """The optimizer states of a run by name; raises HotsetError as `read_weights`."""
    return open_weights(_plain_file(run / STATES))


def read_manifest(run: Path) -> Manifest | None:
    """The manifest of a run; None, with a warning, where an earlier version of hotset wrote the run.

    Raises:
        ManifestError: there is one, and it is damaged or that of a stage.
    """
    if not (run / MANIFEST).exists():
        _log.warning("%s has no %s (an earlier hotset wrote it): its files cannot be checked", run, MANIFEST)
        return None
    manifest = Manifest.read(run)
    if (manifest.stage, manifest.version) != (RUN_STAGE, _VERSION):
        raise ManifestError(
            f"{run} holds {manifest.stage!r} of version {manifest.version}, want {RUN_STAGE!r} of {_VERSION}",
            hint=_HINT,
        )
    return manifest


def refuse_changed_files(manifest: Manifest, names: tuple[str, ...]) -> None:
    """Hash files of a run; raises ManifestError where one is not as it was when the run ended."""
    for name in names:
        entry = manifest.entry(name)
        path = manifest.checked_path(entry)
        _, checksum = hash_file(path)
        if checksum != entry.xxh3_128:
            raise ManifestError(
                f"{path} is damaged: its checksum is {checksum}, want {entry.xxh3_128}",
                hint="take the run from a copy, or train again",
            )


def refuse_other_weights(
    run: Path, weights: Weights, config: RunConfig, model: torch.nn.Module | None
) -> None:
    """Raise HotsetError unless there are exactly the tensors that the config describes, in their shapes.

    Args:
        model: its dense layers; None: those there are, whatever they are.
    """
    if model is None:
        wanted = {name: shape for name, shape in weights.shapes.items() if name.startswith(DENSE_PREFIX)}
    else:
        wanted = {f"{DENSE_PREFIX}{name}": tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    wanted |= {table.name: (table.num_rows, table.embedding_dim) for table in config.tables}
    for name in sorted(wanted.keys() | weights.shapes.keys()):
        if wanted.get(name) != weights.shapes.get(name):
            raise HotsetError(
                f"the weights of {run} are not those its config describes: "
                f"{name} has the shape {weights.shapes.get(name)}, want {wanted.get(name)}",
                hint="take the run from a copy, or train again",
            )


def read_finite(run: Path, weights: Weights, name: str) -> torch.Tensor:
    """The tensor ``name``; raises HotsetError where one of its values is no number."""
    tensor = weights[name]
    if not torch.isfinite(tensor).all():
        raise _not_finite(run, name)
    return tensor


def refuse_not_finite(run: Path, weights: Weights, name: str) -> None:
    """Raise HotsetError where a value of the tensor ``name`` is no number; a part of it is in memory."""
    num_rows, width = weights.shapes[name]
    part_rows = max(_PART_BYTES // (4 * max(width, 1)), 1)
    for first in range(0, num_rows, part_rows):
        if not torch.isfinite(weights.rows(name, first, min(first + part_rows, num_rows))).all():
            raise _not_finite(run, name)


def _not_finite(run: Path, name: str) -> HotsetError:
    return HotsetError(
        f"the weights of {run} are damaged: {name} holds values that are not finite",
        hint="take the run from a copy, or train again with lower learning rates",
    )


def _plain_file(path: Path) -> Path:
    """Return ``path``; raises HotsetError where it is no plain file: opening a pipe waits for ever."""
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise HotsetError(f"{path} cannot be read: {error.strerror}", hint=_HINT) from error
    if not is_plain:
        raise HotsetError(f"{path} cannot be read: it is not a plain file", hint=_HINT)
    return path


def _to_json(values: Mapping[str, Any]) -> str:
    return json.dumps(values, indent=1) + "\n"
