"""Reads the files of a finished run, and checks all of them.

A run folder may come from anywhere, so nothing of it is used unchecked: its config is typed data, its files
have the checksums of the manifest, its weights the names, shapes and finite values that the config promises.
"""

from __future__ import annotations

import logging
import stat
from pathlib import Path

import torch

from ...pipeline.errors import HotsetError, ManifestError
from ...pipeline.folders.manifest import MANIFEST, Manifest, hash_file
from ...pipeline.schema.schema import DENSE_PREFIX
from ..run_config import RUN_HINT, RunConfig, read_object
from .files import CONFIG, RUN_STAGE, RUN_VERSION, STATES, SUMMARY, WEIGHTS
from .weights import Weights, open_weights

_log = logging.getLogger(__name__)

_PART_BYTES = 8 * 2**20
"""Bytes of a tensor that are checked at a time."""


def read_config(run: Path, *, must_be_finished: bool = True) -> RunConfig:
    """Return the config of a finished run.

    Raises HotsetError where there is none, or one that no run writes.
    """
    # The summary marks the end of a run: one without it has not ended.
    if not (run / (SUMMARY if must_be_finished else CONFIG)).exists():
        if not run.is_dir():
            state = "is not a folder" if run.exists() else "does not exist"
        else:
            state = "is unfinished" if (run / CONFIG).exists() else "holds no training run"
            state += f": it has no {SUMMARY}"
        raise HotsetError(f"{run} {state}", hint=RUN_HINT)
    return RunConfig.read(read_object(run / CONFIG), str(run / CONFIG))


def _plain_file(path: Path) -> Path:
    """Return ``path``; raise HotsetError unless it is a plain file.

    Opening a pipe waits forever.
    """
    try:
        is_plain = stat.S_ISREG(path.stat().st_mode)
    except OSError as error:
        raise HotsetError(f"{path} cannot be read: {error.strerror}", hint=RUN_HINT) from error
    if not is_plain:
        raise HotsetError(f"{path} cannot be read: it is not a plain file", hint=RUN_HINT)
    return path


def read_weights(run: Path) -> Weights:
    """Return every tensor of a run by name, read on access.

    Raises:
        HotsetError: the file is missing or damaged, or holds other values than float32.
    """
    return open_weights(_plain_file(run / WEIGHTS))


def read_states(run: Path) -> Weights:
    """The optimizer states of a run by name; raises HotsetError as `read_weights`."""
    return open_weights(_plain_file(run / STATES))


def read_manifest(run: Path, checked: tuple[str, ...] = ()) -> Manifest | None:
    """Return the manifest of a run; None, with a warning, for old runs.

    Args:
        checked: files that are hashed.

    Raises:
        ManifestError: there is one, and it is damaged or that of a stage, or a file has changed.
    """
    if not (run / MANIFEST).exists():
        _log.warning("%s has no %s (an earlier hotset wrote it): its files cannot be checked", run, MANIFEST)
        return None
    manifest = Manifest.read(run)
    # The manifest of a stage has the same form, so its name and version are looked at.
    if (manifest.stage, manifest.version) != (RUN_STAGE, RUN_VERSION):
        raise ManifestError(
            f"{run} holds {manifest.stage!r} of version {manifest.version}, "
            f"want {RUN_STAGE!r} of {RUN_VERSION}",
            hint=RUN_HINT,
        )
    refuse_changed_files(manifest, checked)
    return manifest


def refuse_changed_files(manifest: Manifest, names: tuple[str, ...]) -> None:
    """Hash files of a run; raise ManifestError if one has changed."""
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
    """Raise HotsetError unless tensors are exactly those of the config.

    Args:
        model: its dense layers; None: those there are, whatever they are.
    """
    # Tables are those of the config; dense layers those of the model, where it can be built.
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
    """Raise HotsetError if a value of the tensor ``name`` is not finite.

    A part of the tensor is in memory.
    """
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
