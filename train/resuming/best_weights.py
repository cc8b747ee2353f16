"""The weights of a run's best evaluation, kept in a file while it trains on.

    best-000001200.safetensors      dense layers and tables, as weights.safetensors has them

They are written as a whole at each better evaluation. A checkpoint names the file that was the best when it
was taken, so files that one of the last checkpoints names are kept beside the best one. The rows of a run
whose cold rows lie in a spill file by their next use are not all at hand before its end: it is refused.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...pipeline.errors import HotsetError
from ...pipeline.folders.checksum import hash_file
from ...pipeline.schema.schema_names import DENSE_PREFIX
from ..checkpoints.reserved_room import ReservedRoom
from ..execution.embeddings import RowWidth
from ..run_folder.run_files import BEST_PREFIX, explained
from ..run_folder.weights_file import Weights, open_weights, write_weights
from ..trainer import Trainer

_log = logging.getLogger(__name__)

_PART_BYTES = 8 * 2**20
"""Bytes of rows that are copied at a time."""


class BestWeights:
    """The file of the best weights so far.

    Args:
        folder: that of the run.
        num_checkpoints: checkpoints that are kept, and may name an earlier file.
    """

    def __init__(self, folder: Path, num_checkpoints: int) -> None:
        self._folder = folder
        self._best: tuple[int, str] | None = None
        """Step and checksum of the best file."""
        # One more than are kept: the one that is being written.
        self._named: deque[int] = deque(maxlen=num_checkpoints + 1)
        self._room: ReservedRoom | None = None

    def reserve(self, num_bytes: int) -> None:
        """Reserve room for the best weights and for better ones, which are written before those go.

        Earlier files that checkpoints still name take more.

        Args:
            num_bytes: of one file of weights.

        Raises:
            HotsetError: the disk is too small.
        """
        there = len(list(self._folder.glob(f"{BEST_PREFIX}*.safetensors")))
        self._room = ReservedRoom(
            self._folder,
            max(2 - there, 0) * num_bytes,
            "best weights",
            "do without --keep-best and --patience",
        )

    def save(self, trainer: Trainer) -> None:
        """Write the weights as they are now; raises HotsetError where the disk is full."""
        path = self._path(trainer.step)
        aside = path.with_suffix(".tmp")
        if self._room is not None:
            self._room.give(trainer.weights().num_bytes)
        with explained(path), trainer.embeddings.rows_written_back():
            write_weights(aside, newest_weights(trainer))
            aside.replace(path)
        self._best = trainer.step, hash_file(path)[1]
        self._remove_all_but({trainer.step, *self._named})

    def load(self, trainer: Trainer) -> bool:
        """Set the run to its best weights; return whether there are any. It cannot train on.

        Raises:
            HotsetError: the file is damaged.
        """
        if self._best is None:
            return False
        step, checksum = self._best
        # The file may have been removed by hand: then the run ends with the weights that it has.
        path = self._path(step)
        if not path.exists():
            _log.warning("%s is gone: the weights are those of the last step", path)
            return False
        if hash_file(path)[1] != checksum:
            raise HotsetError(
                f"{path} is damaged: its checksum is not {checksum}",
                hint="remove it and give the same command again: it keeps the weights of the last step",
            )
        # The best step may be the last one, whose weights are in place.
        if step != trainer.step:
            _set_weights(trainer, open_weights(path))
        return True

    def remove(self) -> None:
        """Remove the files."""
        self._remove_all_but(set())

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes; the file is kept as long as a checkpoint may have it."""
        if self._best is None:
            return {}
        self._named.append(self._best[0])
        return {"step": self._best[0], "xxh3_128": self._best[1]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises ValueError where it is none."""
        if not state:
            return
        step, checksum = state["step"], state["xxh3_128"]
        if type(step) is not int or type(checksum) is not str:
            raise ValueError(f"the best weights are of step {step!r}, with checksum {checksum!r}")
        self._best = step, checksum
        self._named.append(step)

    def _path(self, step: int) -> Path:
        return self._folder / f"{BEST_PREFIX}{step:09}.safetensors"

    def _remove_all_but(self, steps: set[int]) -> None:
        kept = {self._path(step) for step in steps}
        for path in self._folder.glob(f"{BEST_PREFIX}*"):
            if path not in kept:
                path.unlink(missing_ok=True)


def newest_weights(trainer: Trainer) -> Weights:
    """Return the weights as they are now, wherever the newest values of rows are; no transfer may run."""
    whole = trainer.weights()
    positions = _positions(trainer)

    # Tables in parts, each of newest values: a row may be in a slot, in its home, or only just evicted.
    def parts_of(name: str) -> Iterator[torch.Tensor]:
        if name not in positions:
            yield whole[name]
            return
        width, table = positions[name]
        for ids_N in _id_ranges(width, whole.shapes[name][0]):
            weights_ND = torch.empty(ids_N.size, width.embedding_dim)
            state_NW = torch.empty(ids_N.size, width.executor.fast.state_SW.shape[1])
            tables_N = np.full(ids_N.size, table)
            residents = width.executor.residents()
            is_copied_N = width.executor.copy_newest(tables_N, ids_N, residents, weights_ND, state_NW)
            assert is_copied_N.all(), "a run with rows in a file keeps no best weights"
            yield weights_ND

    # Whole tensors where they are small enough to be asked for whole.
    def tensor_of(name: str) -> torch.Tensor:
        return torch.cat(list(parts_of(name))) if name in positions else whole[name]

    return Weights(
        whole.shapes,
        tensor_of,
        parts_of,
        dtypes={name: tensor.dtype for name, tensor in trainer.model.state_dict(prefix=DENSE_PREFIX).items()},
    )


def _set_weights(trainer: Trainer, weights: Weights) -> None:
    """Set dense layers and rows, in every place that rows have; optimizer states become zero."""
    model = trainer.model
    names = model.state_dict()
    model.load_state_dict({name: weights[f"{DENSE_PREFIX}{name}"] for name in names})
    with trainer.embeddings.rows_written_back():
        for width in trainer.embeddings.widths:
            width.executor.forget_residents()
    for name, (width, table) in _positions(trainer).items():
        for ids_N in _id_ranges(width, weights.shapes[name][0]):
            rows_ND = weights.rows(name, int(ids_N[0]), int(ids_N[-1]) + 1).numpy()
            state_NW = np.zeros((ids_N.size, width.executor.fast.state_SW.shape[1]), np.float32)
            width.executor.restore(np.full(ids_N.size, table), ids_N, rows_ND, state_NW)


def _positions(trainer: Trainer) -> dict[str, tuple[RowWidth, int]]:
    """The width of each table, and its position among the tables of that width."""
    return {
        trainer.shards.tables[table].name: (width, position)
        for width in trainer.embeddings.widths
        for position, table in enumerate(width.tables)
    }


def _id_ranges(width: RowWidth, num_rows: int) -> Iterator[np.ndarray[Any, np.dtype[np.int64]]]:
    most = max(_PART_BYTES // (4 * (width.embedding_dim + width.executor.fast.state_SW.shape[1])), 1)
    for first in range(0, num_rows, most):
        yield np.arange(first, min(first + most, num_rows))
