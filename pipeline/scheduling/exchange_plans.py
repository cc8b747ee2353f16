"""The plans of whole epochs for the ranks of one row width: homes, what crosses, and the files of each rank.

Homes are planned over the whole epoch, see `stats.exchange`; then the rows that concern each rank are cut
out, a chunk of steps at a time.
"""
# ruff: noqa: N815  (arrays carry shape suffixes)

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ...stats.batches.epoch_order import epoch_order
from ...stats.exchange.fixed_homes import stay_at
from ...stats.exchange.home_moves import NO_HOME, HomeChoices, MoveCosts, follow_choices
from ...stats.exchange.home_plan import RowUses, plan_order
from ...stats.exchange.rank_masks import mask_type
from ...stats.exchange.rank_steps import NEVER_USED, PlannedUses, cut_ranks, mark_early
from ...stats.exchange.volume import NOTHING, Crossings, StepRows, count_crossings
from ..folders.file_facts import RankFacts, ShardFacts
from ..folders.manifest import Manifest
from ..folders.output import Output
from ..folders.stage_totals import RanksEpoch
from ..folders.temporary_files import array_in
from ..formats.stage_settings import ShardSettings
from ..sizes import MIB
from .cold_batches import ColdWidth
from .exchange_files import StepsPart, open_steps
from .ranked_batches import training_files

CHUNK_ENTRIES = 1 << 18
"""Rows of the steps that are cut out as one chunk."""
FILE_BYTES = 32 * MIB


@dataclass(frozen=True, slots=True)
class WidthHomes:
    """Where the rows of a width live before their first use, and what it costs to move them."""

    width: ColdWidth
    homes_K: NDArray[np.uint8]
    costs: MoveCosts | None
    """None where homes stay."""


class ExchangePlans:
    """Plans the epochs of one width and writes the files of every rank.

    Args:
        shards: the log.
        planned: homes of the width.
        uses: of all training batches.
        output: the folder that is written.
        room_bytes: memory that the plan of an epoch may take; it is kept on disk where that is too little.
    """

    def __init__(
        self, shards: Manifest, planned: WidthHomes, uses: RowUses, output: Output, room_bytes: int
    ) -> None:
        self._planned = planned
        self._uses = uses
        self._output = output
        self._room_bytes = room_bytes
        self._is_grouped = ShardSettings.of(shards).is_grouped
        self._is_hot_only = _kinds_of_batches(shards)
        # Homes and last uses go on from epoch to epoch.
        self._homes_K = np.full(uses.num_rows, NO_HOME, np.uint8)
        self._last_steps_K = np.full(uses.num_rows, NEVER_USED, np.int32)
        self._num_steps = 0
        """Steps of the epochs before."""

    def write(self, seed: int, num_epochs: int) -> list[RanksEpoch]:
        """Write the files of the first epochs of a run with this seed; return what crosses in each."""
        return [self._epoch(seed, epoch) for epoch in range(num_epochs)]

    def _epoch(self, seed: int, epoch: int) -> RanksEpoch:
        order = epoch_order(self._is_hot_only, seed, epoch, spread=self._is_grouped).astype(np.int64)
        planned, crossed = self._plan(order)
        self._write_ranks(planned, order, epoch)
        self._num_steps += order.size
        return RanksEpoch(
            steps=order.size,
            vectors=crossed.vectors,
            early=crossed.early,
            moves=crossed.moves,
            gradients=crossed.gradients,
        )

    def _plan(self, order: NDArray[np.int64]) -> tuple[PlannedUses, Crossings]:
        """Follow an epoch step by step: where each row lives, and whether its vector may travel early."""
        uses = self._uses
        choices = self._choices(order)
        before_U, after_U, is_early_U = (self._zeros(np.uint8) for _ in range(3))
        crossed = NOTHING
        for number, batch in enumerate(order.tolist(), self._num_steps):
            part = uses.of_batch(batch)
            keys = uses.keys[part]
            if choices is None:
                before, after = stay_at(keys, self._planned.homes_K, self._homes_K)
            else:
                own = HomeChoices(*(each[part] for each in choices))
                before, after = follow_choices(keys, own, self._homes_K)
            before_U[part] = before
            after_U[part] = after
            is_early_U[part] = mark_early(keys, before, number, self._last_steps_K)
            # Behind the marks, because it notes the step of each row.
            step = StepRows(keys, uses.masks[part], before, after)
            crossed += count_crossings(step, number, self._last_steps_K)
        return PlannedUses(uses.offsets, uses.keys, uses.masks, before_U, after_U, is_early_U), crossed

    def _choices(self, order: NDArray[np.int64]) -> HomeChoices | None:
        if self._planned.costs is None:
            return None
        masks = self._zeros(mask_type(self._uses.num_ranks))
        choices = HomeChoices(self._zeros(np.uint8), masks, self._zeros(np.uint8))
        plan_order(self._uses, order, self._planned.costs, choices)
        return choices

    def _zeros(self, dtype: type[np.unsignedinteger]) -> NDArray[np.unsignedinteger]:
        """An array with a number for each entry; the arrays of an epoch share the room."""
        return array_in(self._room_bytes // 8, self._output, self._uses.keys.shape, dtype)

    def _write_ranks(self, planned: PlannedUses, order: NDArray[np.int64], epoch: int) -> None:
        """Cut out the steps of each rank and write them, a chunk of steps of all ranks after the other."""
        num_ranks = self._uses.num_ranks
        # Steps with about as many rows are cut together: few calls, and arrays of bounded size.
        num_rows = np.diff(self._uses.offsets)[order]
        bounds = np.flatnonzero(np.diff(np.cumsum(num_rows) // CHUNK_ENTRIES)) + 1
        first = 0
        with ExitStack() as stack:
            files = [
                stack.enter_context(_RankFiles(self._output, self._planned, epoch, rank, num_ranks))
                for rank in range(num_ranks)
            ]
            for batches in np.split(order, bounds):
                for file, steps in zip(files, cut_ranks(planned, batches, num_ranks), strict=True):
                    file.write(StepsPart(first, batches.astype(np.int32), steps))
                first += batches.size


class _RankFiles:
    """The files of one rank in an epoch, of bounded size, written part by part inside a block.

    Parts are cut again even where a file is finished: its bounds follow from the parts before.
    """

    def __init__(self, output: Output, planned: WidthHomes, epoch: int, rank: int, num_ranks: int) -> None:
        self._output = output
        self._dim = planned.width.embedding_dim
        self._epoch = epoch
        self._rank = rank
        self._num_ranks = num_ranks
        self._number = 0
        """Number of the file that parts are written to."""
        self._first_step = 0
        self._num_steps = 0
        self._num_bytes = 0
        self._stack = ExitStack()
        self._write: Callable[[StepsPart], None] | None = None
        """Writes to that file; None where it is finished already."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: Any) -> None:
        # After an error the file stays unfinished.
        self._stack.__exit__(*error)

    def write(self, part: StepsPart) -> None:
        """Write a part, and end the file once it is full."""
        if not part.steps.num_steps:
            return
        if not self._num_steps:
            self._begin(part.first_step)
        if self._write is not None:
            self._write(part)
        self._num_steps += part.steps.num_steps
        self._num_bytes += sum(each.nbytes for each in part.steps)
        if self._num_bytes >= FILE_BYTES:
            self._stack.close()
            self._write = None
            self._number += 1
            self._num_steps = 0
            self._num_bytes = 0

    def _begin(self, first_step: int) -> None:
        self._first_step = first_step
        name = f"epoch-{self._epoch:05}.width-{self._dim:05}.rank-{self._rank:05}-{self._number:05}.arrow"
        if self._output.has(name):
            return
        path = self._stack.enter_context(self._output.writing(name, 0, self._facts))
        self._write = self._stack.enter_context(open_steps(path, self._rank, self._num_ranks))

    def _facts(self) -> RankFacts:
        return RankFacts(
            kind="steps",
            embedding_dim=self._dim,
            epoch=self._epoch,
            rank=self._rank,
            first_step=self._first_step,
            num_steps=self._num_steps,
        )


def _kinds_of_batches(shards: Manifest) -> NDArray[np.bool_]:
    """(num_training_batches,); whether each looks up hot rows alone, by the number of the trainer."""
    is_hot_only: list[bool] = []
    for entry in training_files(shards):
        facts = ShardFacts.of(shards, entry)
        marked = set(facts.hot_only_batches or ())
        is_hot_only += [facts.kind == "hot_only" or n in marked for n in range(facts.num_batches)]
    return np.array(is_hot_only, np.bool_)
