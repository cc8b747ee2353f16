"""Checkpoints of a run on several ranks: rank 0 writes what the others send.

Each rank sends the rows that changed, and the errors that it keeps for its next gradients. So the files are
those of one process, rows by table and id, and any number of ranks goes on from them. All ranks wait until a
checkpoint is whole, and learn whether it is: rows of one that was lost still count as changed, at every rank.
At the end of a run, too, rank 0 writes the folder, and the others send it their rows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...pipeline.errors import MIB, SaidElsewhereError
from ..ranks.embeddings import RankedEmbeddings
from ..ranks.messages import GroupErrors
from ..ranks.ranks import Ranks, first_says, gather_numbers, sent_to_first, wait_for_first
from ..rows.embeddings import RowsPart, settle
from ..trainer import Trainer
from .files import CheckpointRecord
from .resume import RunCheckpoints, num_used_rows
from .writer import NotFiniteError, RowsCopy

SAVED_ERRORS = "exchange_errors"
"""Name of this part among those of a run."""


class SavedErrors:
    """A part of a run whose state is the errors of all ranks (`loop.Resumable`)."""

    def __init__(self, ranks: Ranks, groups: Sequence[GroupErrors]) -> None:
        self._ranks = ranks
        self._groups = tuple(groups)
        self._state: dict[str, torch.Tensor] = {}

    def bring_together(self) -> None:
        """Copy all ranks' errors to rank 0, for `state`; all call this."""
        self._state = {}
        for number, group in enumerate(self._groups):
            # An error of -0 is one, too: only rows whose bits are all zeros are left out.
            used = np.flatnonzero(group.errors_HD.view(np.uint32).any(axis=1))
            self._bring(f"width {number} rows", torch.from_numpy(used))
            self._bring(f"width {number} errors", torch.from_numpy(group.errors_HD[used]))

    def state(self) -> Mapping[str, Any]:
        """Return what `restore` takes."""
        return self._state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take this rank's part of a state; raises ValueError where it is none."""
        for number, group in enumerate(self._groups):
            names = [f"rank {self._ranks.rank} width {number} {part}" for part in ("rows", "errors")]
            rows, errors = (state[name] for name in names)
            num_rows, dim = group.errors_HD.shape
            if rows.dtype != torch.int64 or errors.dtype != torch.float32:
                raise ValueError(f"errors are {errors.dtype} of rows {rows.dtype}")
            if rows.dim() != 1 or tuple(errors.shape) != (rows.numel(), dim):
                raise ValueError(f"{tuple(errors.shape)} errors of {tuple(rows.shape)} rows of {dim} numbers")
            if rows.numel() and not 0 <= int(rows.min()) <= int(rows.max()) < num_rows:
                raise ValueError(f"errors of row {int(rows.max())} of {num_rows} hot rows")
            group.errors_HD[:] = 0
            group.errors_HD[rows.numpy()] = errors.numpy()

    def _bring(self, name: str, own: torch.Tensor) -> None:
        ranks = self._ranks
        row_bytes = own.element_size() * (own.shape[1] if own.dim() > 1 else 1)
        counts = gather_numbers(ranks, own.shape[0])
        data = own.contiguous().reshape(-1).view(torch.uint8)
        received = sent_to_first(ranks, data, [row_bytes * count for count in counts])
        for rank, part in enumerate(received):
            found = part.clone().view(own.dtype).reshape(-1, *own.shape[1:]) if rank else own.clone()
            self._state[f"rank {rank} {name}"] = found


_PART_BYTES = 16 * MIB
_NAME_BYTES = 4
_WHOLE, _LOST, _NOT_FINITE = range(3)


class RankCheckpoints(RunCheckpoints):
    """The checkpoints of a run, as one of its ranks takes part; rank 0 alone has a writer."""

    def _prepare(self, folder: Path, run: str, last: CheckpointRecord | None) -> None:
        self._ranks = self._trainer.ranks
        self._error: NotFiniteError | None = None
        """Why the last one was refused, at rank 0."""
        if self._ranks.rank == 0:
            self._writer = self._new_writer(folder, run, last, _PART_BYTES)

    def is_due(self, step: int) -> bool:
        """Return whether a checkpoint is due, by the clock of rank 0."""
        return first_says(self._ranks, self._ranks.rank == 0 and super().is_due(step))

    def take(self, metrics: Iterable[str], *, is_logged: bool = True) -> None:
        """Write a checkpoint of the run as it is now.

        Raises:
            NotFiniteError: weights are not finite.
            SaidElsewhereError: the same, at other ranks than the first.
        """
        trainer = self._trainer
        errors = trainer.resumables.get(SAVED_ERRORS)
        if isinstance(errors, SavedErrors):
            errors.bring_together()
        # Rows that were ever changed, at all ranks together.
        num_used = sum(gather_numbers(self._ranks, num_used_rows(trainer)))
        # Rank 0 writes what all ranks send, and the others wait for it however long that takes.
        if self._ranks.rank == 0:
            with self._standing_still():
                self._begin(metrics, num_used, is_logged=is_logged)
        for parts in _brought_parts(trainer):
            wait_for_first(self._ranks, partial(self._put, parts))
        # Every rank learns what became of it, and counts its rows as saved or changed.
        outcome = wait_for_first(self._ranks, self._end)
        if self._ranks.rank:
            settle(trainer.embeddings, is_lost=outcome != _WHOLE)
        if self._error is not None:
            raise self._error
        if outcome == _NOT_FINITE:
            raise SaidElsewhereError("weights are not finite")
        if outcome == _WHOLE:
            self.last_written = trainer.step

    def _put(self, parts: Sequence[RowsPart]) -> int:
        """Hand rows of all ranks to the writer, at rank 0."""
        with self._standing_still():
            for part in parts:
                self._writer.put(part, lambda: None)
        return 0

    def _end(self) -> int:
        """Return how the writing of the checkpoint ended, at rank 0."""
        try:
            self._finish()
            super().settle(wait=True)
        except NotFiniteError as error:
            self._error = error
            return _NOT_FINITE
        return _WHOLE if self.last_written == self._trainer.step else _LOST

    def advance(self, *, to_end: bool = False) -> None:
        """Nothing is left to be copied once a checkpoint was taken."""

    def settle(self, *, wait: bool = False) -> None:
        """A checkpoint is whole or lost once it was taken."""

    def close(self) -> None:
        """Stop the writer."""
        if self._ranks.rank == 0:
            super().close()


def _brought_parts(trainer: Trainer) -> Iterator[list[RowsPart]]:
    """Yield at rank 0 the rows that changed at any rank.

    They come a part of each rank at a time. Every rank calls this and takes all; the lists of the others are
    empty.
    """
    embeddings = trainer.embeddings
    ranks = trainer.ranks
    assert isinstance(embeddings, RankedEmbeddings)
    # Parts that were copied and not sent yet.
    copied: deque[RowsPart] = deque()

    def put(part: RowsPart, _: Callable[[], None]) -> None:
        # The memory of a part is not used again: it is sent, or written by another thread.
        copied.append(replace(part, ids_N=embeddings.shard_ids(part.tables_N, part.ids_N)))

    copy = RowsCopy(embeddings, _PART_BYTES, trainer.threads, put)
    copy.begin()
    widths = [(group.embedding_dim, group.fast.state_SW.shape[1]) for group in embeddings.groups]
    # One part of each rank at a time, until none has any; its size is said first.
    while True:
        while not copied and copy.is_under_way:
            copy.copy_part()
        own = copied.popleft() if copied else None
        number = [dim for dim, _ in widths].index(own.weights_ND.shape[1]) if own else 0
        found = ranks.gather(
            torch.tensor([own.ids_N.size if own else 0, number], dtype=torch.int64, device="cpu")
        )
        sizes = [(int(count), widths[int(width)]) for count, width in found]
        if not any(count for count, _ in sizes):
            return
        num_bytes = [count * (2 * _NAME_BYTES + 4 * sum(width)) for count, width in sizes]
        packed = [np.ascontiguousarray(each).reshape(-1).view(np.uint8) for each in own.arrays] if own else []
        data = torch.from_numpy(np.concatenate([np.empty(0, np.uint8), *packed]))
        received = zip(sent_to_first(ranks, data, num_bytes), sizes, strict=False)
        parts = [own] if ranks.rank == 0 and own is not None else []
        yield parts + [_unpacked(part, *size) for part, size in received if part.numel()]


def _unpacked(data: torch.Tensor, count: int, width: tuple[int, int]) -> RowsPart:
    # Tables, ids, weights and states, in the order in which they were packed.
    words = data.numpy().view(np.int32)
    dim, state = width
    ends = np.cumsum([count, count, count * dim, count * state])
    tables_N, ids_N, weights, states = np.split(words, ends[:-1])
    floats = np.float32
    return RowsPart(
        tables_N, ids_N, weights.view(floats).reshape(count, dim), states.view(floats).reshape(count, state)
    )
