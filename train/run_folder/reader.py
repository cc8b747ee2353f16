"""Reads the files of a finished run, and checks all of them.

A run folder may come from anywhere, so nothing of it is used unchecked: its config is typed data, its files
have the checksums of the manifest, its weights the names, shapes and finite values that the config promises.

The weights of a run that is larger than memory are read for as many batches of the evaluation part together
as the memory has room for their distinct rows. For each such group the file is read once from its start to
its end, a few megabytes at a time, without those that have no wanted row. So the larger the memory, the fewer
times the file is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...pipeline.errors import MIB, HotsetError, ManifestError, ShardError
from ...pipeline.folders.manifest import MANIFEST, Manifest, hash_file
from ...pipeline.schema.schema import DENSE_PREFIX
from ..data.batch import EmbeddingTable
from ..data.shards import Shards
from ..rows.tiers import FileTier, Layout
from ..run_config import RUN_HINT, RunConfig, unfinished_run
from .files import RUN_STAGE, RUN_VERSION, STATES, WEIGHTS
from .weights import Weights, open_weights

_PART_BYTES = 8 * MIB
"""Bytes of a tensor that are checked or read at a time."""
_BYTES_OF_NUMBERS = 40
"""Bytes per row that finding the rows of a group takes besides the weights: numbers, sorted and joined."""


def read_weights(run: Path) -> Weights:
    """Return every tensor of a run by name, read on access.

    Raises:
        HotsetError: the file is missing or damaged, or holds other values than float32.
    """
    return open_weights(run / WEIGHTS, RUN_HINT)


def read_states(run: Path) -> Weights:
    """The optimizer states of a run by name; raises HotsetError as `read_weights`."""
    return open_weights(run / STATES, RUN_HINT)


def read_manifest(run: Path, checked: tuple[str, ...] = ()) -> Manifest:
    """Return the manifest of a finished run.

    Args:
        checked: files that are hashed.

    Raises:
        HotsetError: there is none: the run is unfinished.
        ManifestError: it is damaged or that of a stage, or a file has changed.
    """
    if not (run / MANIFEST).exists():
        raise unfinished_run(run, MANIFEST)
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


def refuse_other_tables(config: RunConfig, shards: Shards, hint: str, *, may_grow: bool = False) -> None:
    """Raise ShardError unless shards have the tables and widths of a run.

    Args:
        may_grow: whether tables may have other numbers of rows.
    """
    folder = shards.manifest.folder
    trained, found = (
        [
            f"{table.name}{'' if may_grow else f' of {table.num_rows} rows'}, {table.embedding_dim} wide"
            + (f", of {', '.join(own.name for own in table.features)}" if table.features else "")
            for table in each.tables
        ]
        for each in (config, shards)
    )
    for number, (old, new) in enumerate(zip_longest(trained, found, fillvalue="nothing"), 1):
        if old != new:
            raise ShardError(f"table {number} of {folder} is {new}, the run has {old}", hint=hint)
    for name in ("embedding_dim", "num_dense"):
        size, trained_size = getattr(shards, name), getattr(config, name)
        if size != trained_size:
            raise ShardError(f"{folder} has {name} {size}, the run {trained_size}", hint=hint)


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
    """Raise HotsetError unless the tensor ``name`` is finite; read it in parts."""
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


class SavedTier(FileTier):
    """The rows of one dim, all of them in the file of weights.

    Args:
        memory_bytes: memory that rows may take.
    """

    def __init__(
        self, tables: Sequence[EmbeddingTable], embedding_dim: int, weights: Weights, memory_bytes: int
    ) -> None:
        layout = Layout.of([0] * len(tables), [table.num_rows for table in tables])
        super().__init__(layout, embedding_dim, 0)
        self._names = [table.name for table in tables]
        self._weights = weights
        row_bytes = 4 * embedding_dim
        # An eighth for the part of the file that is read, the rest for rows.
        self._part_rows = max(min(memory_bytes // 8, _PART_BYTES) // row_bytes, 1)
        left = memory_bytes - self._part_rows * row_bytes
        self._most_read = left // (row_bytes + _BYTES_OF_NUMBERS)

    @property
    def most_read(self) -> int:
        return self._most_read

    def fill(self, wanted_U: NDArray[np.int64], weights_UD: NDArray[np.float32]) -> None:
        """Read the rows from the file, table by table."""
        for table, name in enumerate(self._names):
            own = self.layout.slots_of_table(table)
            start, end = np.searchsorted(wanted_U, [own.start, own.stop])
            wanted = wanted_U[start:end] - own.start
            _fill_rows(self._weights, name, wanted, weights_UD[start:end], self._part_rows)


def _fill_rows(
    weights: Weights,
    name: str,
    ids_U: NDArray[np.int64],
    rows_UD: NDArray[np.float32],
    part_rows: int,
) -> None:
    """Read rows of a table, ascending, with so many rows of the file in memory at a time."""
    num_rows, _ = weights.shapes[name]
    for first in range(0, num_rows, part_rows):
        # The wanted rows ascend, so those of this part of the file are a range of them.
        start, end = np.searchsorted(ids_U, [first, first + part_rows])
        if start == end:
            continue
        part = weights.rows(name, first, min(first + part_rows, num_rows))
        rows_UD[start:end] = part.numpy()[ids_U[start:end] - first]


def read_rows(run: Path, name: str, ids_N: NDArray[np.integer[Any]]) -> torch.Tensor:
    """Return rows of a table of a run by id, (N, embedding_dim); raises HotsetError if one is damaged."""
    weights = read_weights(run)
    ids_U, places_N = np.unique(ids_N, return_inverse=True)
    width = weights.shapes[name][1]
    rows_UD = np.empty((ids_U.size, width), np.float32)
    _fill_rows(weights, name, ids_U.astype(np.int64), rows_UD, max(_PART_BYTES // (4 * width), 1))
    if not np.isfinite(rows_UD).all():
        raise _not_finite(run, name)
    return torch.from_numpy(rows_UD[places_N])
