"""All embedding tables of a model: an executor and a placement for each row width among them.

Most models have one width. Rows of other widths live in tensors of their own and are planned apart; the
model joins their embeddings (`model.Projections`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from ..data.batch import Batch, BatchIds, IdReader, Table
from ..device_streams import Lanes, lanes_of
from ..meter import Meter
from ..model.dlrm_shape import tables_by_width
from ..placements.placements import Placement
from ..rows.initial_values import InitialValues
from ..rows.mapped_rows import HostMemory
from ..rows.row_optimizers import RowOptimizer
from ..rows.step_plan import NOTHING_TO_MOVE, StepPlan, Transfer
from ..rows.tiers import Tier
from .executor import Executor
from .transfer_thread import Conveyor

_Work = tuple[tuple[Transfer | None, ...], str]
"""One transfer a width, and the kind of work they count as."""


@dataclass(frozen=True, slots=True)
class Width:
    """The tables of one row width."""

    embedding_dim: int
    tables: tuple[int, ...]
    """Their positions among all tables."""
    reader: IdReader
    placement: Placement
    executor: Executor


@dataclass(frozen=True, slots=True)
class Part:
    """What one row width does for one batch."""

    ids: BatchIds
    plan: StepPlan


@dataclass(frozen=True, slots=True)
class Step:
    """One batch with its step plans."""

    number: int
    """Which of the training or evaluation batches this is."""
    batch: Batch
    parts: tuple[Part, ...]
    """One a row width."""
    item: int | None = None
    """The transfer it waits for."""


class Embeddings:
    """Every row of a model and what moves them."""

    def __init__(self, num_tables: int, widths: Sequence[Width], lanes: Lanes) -> None:
        self.widths = tuple(widths)
        self.conveyor: Conveyor[_Work] = Conveyor(self._transfer, lanes)
        self._place = {
            table: (width, place) for width in self.widths for place, table in enumerate(width.tables)
        }
        assert sorted(self._place) == list(range(num_tables))

    @classmethod
    def build(
        cls,
        tables: Sequence[Table],
        make_placement: Callable[[Sequence[Table]], Placement],
        optimizer: RowOptimizer,
        seed: int,
        device: torch.device,
        meter: Meter,
        host: HostMemory | None = None,
    ) -> Embeddings:
        """Lay out the tiers of each width; their rows are not yet set."""
        widths, lanes = [], lanes_of(device)
        for dim, chosen in tables_by_width([table.embedding_dim for table in tables]).items():
            placement = make_placement([tables[table] for table in chosen])
            fast, slow = build_tiers(placement, dim, optimizer, device, host)
            initial = InitialValues.of(seed, chosen, placement.num_rows)
            executor = Executor(fast, slow, optimizer, initial, meter, lanes)
            widths.append(Width(dim, chosen, IdReader(tables, chosen), placement, executor))
        return cls(len(tables), widths, lanes)

    def initialise(self) -> None:
        """Give every row its initial values, and compile the kernels of a run."""
        for width in self.widths:
            width.executor.initialise()
            width.executor.warm_up()

    def plan(self, number: int, batch: Batch) -> Step:
        """The next training step."""
        return Step(number, batch, tuple(_planned(width, batch) for width in self.widths))

    def plan_evaluation(self, number: int, batch: Batch) -> Step:
        """A step that reads the newest weights and moves no row for good."""
        parts = []
        for width in self.widths:
            ids = width.reader.read(batch)
            parts.append(Part(ids, width.placement.plan_evaluation(ids)))
        return Step(number, batch, tuple(parts))

    def step_at_home(self, number: int, batch: Batch) -> Step:
        """A step all of whose look-ups are of rows at home on the fast tier."""
        parts = (Part(width.reader.read(batch), NOTHING_TO_MOVE) for width in self.widths)
        return Step(number, batch, tuple(parts))

    def send(self, transfers: Sequence[Transfer | None], after: int, kind: str) -> int:
        """Queue one transfer a width as one item; returns its number."""
        return self.conveyor.put((tuple(transfers), kind), after)

    def arrive(self, step: Step) -> None:
        """Return once the rows of the step are where it wants them."""
        for width, part in zip(self.widths, step.parts, strict=True):
            width.executor.copy_hot(part.plan)
        if step.item is not None:
            self.conveyor.wait_for(step.item)

    def _transfer(self, work: _Work) -> None:
        transfers, kind = work
        for width, transfer in zip(self.widths, transfers, strict=True):
            if transfer is not None:
                width.executor.transfer(transfer, kind)

    @contextmanager
    def settled(self) -> Iterator[None]:
        """Between two transfers, with the newest values of all staged rows copied home: for evaluation and
        checkpoints. Nothing is evicted."""
        with self.conveyor.paused():
            for width in self.widths:
                width.executor.copy_residents_home()
            yield

    def look_up(self, step: Step) -> list[torch.Tensor]:
        """(B, F, D) embeddings of each width."""
        return [
            width.executor.look_up(part.ids, part.plan)
            for width, part in zip(self.widths, step.parts, strict=True)
        ]

    def update(self, step: Step, embeddings: Sequence[torch.Tensor]) -> None:
        """One optimizer step on every row the batch looked up."""
        for width, part, emb_BFD in zip(self.widths, step.parts, embeddings, strict=True):
            width.executor.update(part.ids, emb_BFD, part.plan)
        if step.item is not None:
            self.conveyor.computed(step.item)

    def finish(self) -> None:
        """Bring every row home after the last step."""
        self.conveyor.drain()
        for width in self.widths:
            width.executor.copy_hot(width.placement.plan_finish())

    def rows_by_table(self) -> list[dict[str, int]]:
        """Rows and vectors of each table that went each way or were made, evaluation apart."""
        counts: list[dict[str, int]] = [{}] * len(self._place)
        for table, (width, place) in self._place.items():
            counts[table] = {way: int(rows[place]) for way, rows in width.executor.traffic.rows_F.items()}
        return counts

    def close(self) -> None:
        """Stop the thread of transfers."""
        self.conveyor.close()

    def set_table(self, table: int, weights_ND: torch.Tensor) -> None:
        """Give every row of one table its weights, where all are on the fast tier."""
        width, place = self._place[table]
        width.executor.fast.weights_SD[width.executor.fast.layout.slots_of_table(place)] = weights_ND

    def table(self, table: int, *, state: bool = False) -> torch.Tensor:
        """(num_rows, D) host weights of one table in id order, or its (num_rows, W) optimizer state.

        Valid when every row is at home.
        """
        width, place = self._place[table]
        return width.executor.table(place, state=state)


def build_tiers(
    placement: Placement,
    embedding_dim: int,
    optimizer: RowOptimizer,
    device: torch.device,
    host: HostMemory | None,
) -> tuple[Tier, Tier]:
    """The fast and the slow tier of a placement, rows not yet set."""
    state_width = optimizer.state_width(embedding_dim)
    num_staging = placement.num_staging_slots
    fast = Tier(placement.fast, embedding_dim, state_width, num_staging=num_staging, device=str(device))
    return fast, Tier(placement.slow, embedding_dim, state_width, host=host)


def _planned(width: Width, batch: Batch) -> Part:
    ids = width.reader.read(batch)
    return Part(ids, width.placement.plan(ids, is_hot_only=batch.is_hot_only))
