"""The weights of a run's best evaluation, kept in a file.

    best-000001200.safetensors      dense layers and tables, as weights.safetensors has them

Each better evaluation writes them as a whole; of several ranks the first writes the file, and all read it. A
checkpoint names the file that was the best when it was taken, so files that one of the last checkpoints names
are kept in addition to the best one. A run whose cold rows are in a spill file by their next use is refused,
since not all of its rows are in memory before its end.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...pipeline.errors import HotsetError
from ...pipeline.folders.manifest import hash_file
from ...pipeline.schema.schema import DENSE_PREFIX
from ..loop import Trainer
from ..ranks.ranks import Ranks, raise_on_any_rank, wait_for_first
from ..run_folder.files import BEST_PREFIX, ReservedRoom, explained
from ..run_folder.weights import Weights, open_weights, send_weights, write_weights

_log = logging.getLogger(__name__)


class BestWeights:
    """The file of the best weights so far.

    Args:
        num_checkpoints: checkpoints that are kept, and may name an earlier file.
        ranks: of the run; all of them make the same calls.
    """

    def __init__(self, folder: Path, num_checkpoints: int, ranks: Ranks) -> None:
        self._folder = folder
        self._ranks = ranks
        self._best: tuple[int, str] | None = None
        """Step and checksum of the best file; rank 0 alone knows the checksum of one that it has written."""
        # One more than are kept: the one that is being written.
        self._named: deque[int] = deque(maxlen=num_checkpoints + 1)
        self._room: ReservedRoom | None = None

    def reserve(self, num_bytes: int) -> None:
        """Reserve room for the best weights and their successors.

        Better ones are written before the old ones go. Earlier files that checkpoints still name take more.

        Raises:
            HotsetError: the disk is too small.
        """
        if self._ranks.rank:
            return
        there = len(list(self._folder.glob(f"{BEST_PREFIX}*.safetensors")))
        self._room = ReservedRoom(
            self._folder,
            max(2 - there, 0) * num_bytes,
            "best weights",
            "do without --keep-best and --patience",
        )

    def save(self, trainer: Trainer) -> None:
        """Write the weights as they are now; raises HotsetError where the disk is full."""
        weights = trainer.weights()
        with trainer.embeddings.rows_written_back():
            if self._ranks.rank:
                send_weights(weights)
            else:
                path = self._path(trainer.step)
                aside = path.with_suffix(".tmp")
                if self._room is not None:
                    self._room.give(weights.num_bytes)
                with explained(path):
                    write_weights(aside, weights)
                    aside.replace(path)
        self._best = trainer.step, ""
        wait_for_first(self._ranks, self._end_saving)

    def _end_saving(self) -> int:
        """Note the checksum of the best file, and remove unneeded files, at rank 0."""
        assert self._best is not None
        step, _ = self._best
        self._best = step, hash_file(self._path(step))[1]
        self._remove_all_but({step, *self._named})
        return 0

    def load(self, trainer: Trainer) -> bool:
        """Set the run to its best weights; return whether there are any.

        It cannot train on.

        Raises:
            HotsetError: the file is damaged, or a rank cannot read it.
        """
        if self._best is None or not wait_for_first(self._ranks, self._is_whole):
            return False
        # The best step may be the last one, whose weights are in place.
        step, _ = self._best
        if step != trainer.step:
            with raise_on_any_rank(self._ranks):
                weights = open_weights(self._path(step))
            _set_weights(trainer, weights)
        return True

    def _is_whole(self) -> int:
        """Return whether the best file is there; raises HotsetError where it is damaged."""
        assert self._best is not None
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
        return True

    def remove(self) -> None:
        """Remove the files."""
        if self._ranks.rank == 0:
            self._remove_all_but(set())

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes; the file outlives all checkpoints that name it."""
        if self._best is None:
            return {}
        self._named.append(self._best[0])
        return {"step": self._best[0], "xxh3_128": self._best[1]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; raises ValueError where it is none."""
        if not state:
            return
        step = state["step"]
        checksum = state["xxh3_128"]
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


def _set_weights(trainer: Trainer, weights: Weights) -> None:
    """Set dense layers and rows everywhere; optimizer states become zero."""
    model = trainer.model
    names = model.state_dict()
    model.load_state_dict({name: weights[f"{DENSE_PREFIX}{name}"] for name in names})
    trainer.embeddings.set_weights(weights.rows, trainer.shards.tables)
