"""The tables of one row width, what moves their rows, and a step as it is planned for each width."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch

from ...stats.batch_rows import LookupsByRow
from ..data.batch import Batch, BatchIds, IdReader
from ..placements.placements import Placement
from ..placements.staging_placements import ColdRows, StagingPlacement
from ..rows.changed_rows import ChangedRows
from ..rows.step_plan import StepPlan
from .executor import Executor

if TYPE_CHECKING:
    from ..exchange.width_exchange import WidthExchange


class WidthLookups(NamedTuple):
    """The lookups of a step in the tables of a width, as its tiers serve them."""

    ids: BatchIds
    by_row: LookupsByRow
    exchange: WidthExchange | None = None
    """Which of their rows other ranks look up, where there are several."""


@dataclass(frozen=True, slots=True)
class RowWidth:
    """The tables of one row width."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Their positions among all tables."""
    reader: IdReader
    placement: Placement
    executor: Executor
    changed: ChangedRows | None = None
    """Which rows steps have changed, for checkpoints; None: nobody wants to know."""

    def read(self, number: int, batch: Batch) -> WidthLookups:
        """The lookups of a batch in these tables, and the same by row; training batches come in their
        order."""
        ids = self.reader.read(batch)
        return WidthLookups(ids, self.reader.by_row(ids))

    def cold_rows(self, number: int, batch: Batch) -> ColdRows:
        """The rows of a batch that staging slots have to serve, to plan it alone; batches come in their
        order."""
        assert isinstance(self.placement, StagingPlacement)
        return self.placement.find_cold_rows(self.reader.read(batch))

    def newest_rows(self, position: int, first: int, stop: int) -> torch.Tensor:
        """(stop - first, D) newest weights of some rows of a table that live here; valid while no transfer
        runs, and where none of them is in a file.

        Args:
            position: of the table among those of the width.
        """
        ids_N = np.arange(first, stop)
        weights_ND = torch.empty(ids_N.size, self.embedding_dim)
        state_NW = torch.empty(ids_N.size, self.executor.fast.state_SW.shape[1])
        tables_N = np.full(ids_N.size, position)
        is_copied_N = self.executor.copy_newest(
            tables_N, ids_N, self.executor.staged.by_row(), weights_ND, state_NW
        )
        assert is_copied_N.all(), "rows are in memory"
        return weights_ND


@dataclass(frozen=True, slots=True)
class WidthStep:
    """The part of a step that concerns one row width."""

    ids: BatchIds
    lookups: LookupsByRow
    """The same lookups by row."""
    plan: StepPlan
    exchange: WidthExchange | None = None
    """Exchange between ranks, where there are several."""


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """One batch with its step plans."""

    number: int
    """Which of the training or evaluation batches this is."""
    batch: Batch
    """The samples that are computed here: all of the batch, or those of this rank."""
    num_samples: int
    """Samples of the batch, those of all ranks."""
    parts: tuple[WidthStep, ...]
    """One per row width."""
    item: int | None = None
    """The item of the transfer thread that brings its rows; None where it needs none."""
