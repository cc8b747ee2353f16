"""Placements: where rows live, the step plan of each batch, and who gets which slots.

`all-fast` needs no plan. `hybrid` and `hybrid-dedup` keep every row on the slow tier and do the embedding
work there: one vector per bag each way, as DLRM and XDL do, or one per distinct row of a batch. `fae` keeps a
replica of the hot rows on the fast tier. `lookahead` and `cache` load cold rows into staging slots for the
batches that use them: `lookahead` keeps the hot rows on the fast tier permanently and stages the others by
what is known of the batches to come; `cache` keeps no row there permanently and decides by the past, as
FreqCache does.

A placement decides only what moves: on the CPU all of them give equal bits on the same order of batches.
Those that stage rows are in `staging`, and `fae` in its own module: they are imported where a config asks for
them.

A thread reads and plans batches and queues their transfers, while earlier batches are computed. Staging
placements are planned as batches become known, within the window of `stats.lookahead.step_plans`; where rows
spill to disk, `spilled_run` has planned the run before its first step.

A batch with staging is read, and its cold lookups are located, twice: once to plan it and once to run it. In
between only its distinct cold rows are kept, 12 bytes each. Where readers are several threads, they do both;
plans alone are made by one thread, in the order of the batches.
"""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

import numpy as np
from numpy.typing import NDArray

from ...pipeline.errors import ByteSize, format_byte_size
from ...stats.row_bytes import row_bytes, share_slots
from ..config import TrainConfig
from ..data.batch import Batch, EmbeddingTable, IdReader, Lookups
from ..data.shards import ShardSet
from ..metrics import Kind
from ..model.shapes import tables_by_dim
from ..rows.embeddings import Embeddings, used_slow_rows
from ..rows.step_plan import (
    BAGS_IN_PLACE,
    NOTHING_TO_MOVE,
    ROWS_IN_PLACE,
    ColdRows,
    GroupStep,
    Placement,
    PlannedStep,
    StepPlan,
)
from ..rows.tiers import Layout
from ..threads import Readers

if TYPE_CHECKING:
    from ...stats.lookahead.planner import StagingPlanner
    from ..ranks.exchange import HeldRows
    from .staging import PlanQueue, StagingPlacement


class AllFast(Placement):
    """Every row on the fast tier: the reference for the others."""

    name = "all-fast"

    def __init__(self, tables: Sequence[EmbeddingTable]) -> None:
        super().__init__(tables)
        self.fast = Layout.of(self.no_rows, self.num_rows)
        self.slow = Layout.of(self.no_rows, self.no_rows)

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return NOTHING_TO_MOVE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return NOTHING_TO_MOVE


class Hybrid(Placement):
    """Every row on the slow tier; one vector per bag crosses each way."""

    name = "hybrid"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return BAGS_IN_PLACE

    def plan_evaluation(self, *, is_stale: bool) -> StepPlan:
        return self.plan(is_hot_only=False)


class HybridDedup(Hybrid):
    """Every row on the slow tier; one vector per distinct row crosses each way."""

    name = "hybrid-dedup"

    def plan(self, *, is_hot_only: bool) -> StepPlan:
        return ROWS_IN_PLACE


_WITHOUT_SETTINGS: dict[str, type[Placement]] = {kind.name: kind for kind in (AllFast, Hybrid, HybridDedup)}
_PREFETCH = 2
"""Batches that are read ahead where no transfer is."""
MOST_STEPS_AHEAD = 12
"""Steps that are read ahead for the sake of transfers, at most; a larger prefetch depth has what it needs."""


def build_placements(
    config: TrainConfig, shards: ShardSet, held: Mapping[int, HeldRows] | None = None
) -> dict[int, Placement]:
    """Build the placement of each table group, of which a rank has the rows in ``held``."""
    config = with_staging(config, shards)
    groups = tables_by_dim([table.embedding_dim for table in shards.tables])
    return {
        dim: _build_placement(config, shards, dim, tables, held[dim] if held else None)
        for dim, tables in groups.items()
    }


def _build_placement(
    config: TrainConfig, shards: ShardSet, dim: int, chosen: Sequence[int], held: HeldRows | None
) -> Placement:
    tables = [shards.tables[table] for table in chosen]
    if held is not None:
        tables = held.cut(tables)
        # Rows cross between ranks once a step, so they cross between the tiers of a rank once, too.
        if config.placement == "hybrid":
            return HybridDedup(tables)
    if config.placement == "fae":
        from .fae import Fae

        return Fae(tables, sends="bags" if held is None else "rows")
    # These need no staging, and so nothing of the settings.
    if config.placement in _WITHOUT_SETTINGS:
        return _WITHOUT_SETTINGS[config.placement](tables)
    from .staging import Cache, HybridUva, Lookahead

    if config.placement == "hybrid-uva":
        return HybridUva(tables, shards.most_batch_samples)
    assert config.prefetch is not None, "with_staging comes first"
    num_slots = staging_slots(config, shards)[dim]
    if held is not None:
        num_slots = min(num_slots, max(sum(table.num_rows - table.num_hot for table in tables), 1))
    if config.placement == "lookahead":
        return Lookahead(tables, num_slots, config.prefetch)
    counts_N = count_row_lookups(shards, chosen)
    # A cache keeps no row on the fast tier permanently, so it gets the bytes of the hot rows too.
    return Cache(
        tables,
        num_slots + sum(table.num_hot for table in tables),
        config.prefetch,
        config.cache_policy,
        config.cache_batches,
        config.cache_warmup,
        counts_N if held is None else counts_N[held.keys_R],
    )


def spills(config: TrainConfig, shards: ShardSet) -> bool:
    """Return whether `lookahead` spills cold rows that do not fit in memory.

    They go to a file by next use. The other placements that keep rows in host memory map a file for the rest
    of them.
    """
    if config.placement != "lookahead" or config.slow_bytes is None:
        return False
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    cold_bytes = sum(
        (table.num_rows - table.num_hot) * row_bytes(table.embedding_dim, optimizer)
        for table in shards.tables
    )
    return cold_bytes > config.slow_bytes


def num_planned_steps(config: TrainConfig, shards: ShardSet) -> int:
    """Return the step after which all rows are written back.

    It is the last one of all epochs. With a spill file, which orders cold rows by their next use, planning
    ends at ``--max-steps``.
    """
    whole = config.epochs * shards.num_training_batches
    most = config.recipe.max_steps
    return whole if most is None or not spills(config, shards) else min(whole, most)


def num_steps_ahead(config: TrainConfig, mixed_share: float = 1.0) -> int:
    """Return how many steps are read and planned ahead of the current one.

    Transfers run as many batches with transfers ahead as are prefetched, over those between them that need
    none; two more are the one being computed and the one being prepared.
    """
    assert config.prefetch is not None, "resolve chooses it"
    least = config.prefetch + 2
    # The other placements have a transfer for every batch, or none at all.
    if config.placement != "lookahead" or not mixed_share:
        return least
    return max(least, min(math.ceil((config.prefetch + 1) / mixed_share) + 1, MOST_STEPS_AHEAD))


def with_staging(config: TrainConfig, shards: ShardSet) -> TrainConfig:
    """Fill in the staging budget and the depth that ``config`` leaves open."""
    if config.placement not in ("lookahead", "cache"):
        return replace(config, prefetch=_PREFETCH if config.prefetch is None else config.prefetch)
    # What the user has given is left as it is.
    if config.staging_bytes is not None and config.prefetch is not None:
        return config
    from ...pipeline.formats.ids import cold_widths, staged_sizes
    from ...stats.lookahead.planner import deepest_prefetch, default_staging_bytes

    cold = cold_widths(shards.manifest, [table.num_hot for table in shards.tables])
    sizes = staged_sizes(shards.manifest, cold, config.row_optimizer(shards.embedding_optimizer))
    num_bytes = config.staging_bytes
    if num_bytes is None:
        num_bytes = ByteSize(default_staging_bytes(sizes, config.prefetch))
    prefetch = deepest_prefetch(sizes, num_bytes) if config.prefetch is None else config.prefetch
    return replace(config, staging_bytes=num_bytes, prefetch=prefetch)


def staging_slots(config: TrainConfig, shards: ShardSet) -> dict[int, int]:
    """Return staging slots of each table group, in proportion to its cold rows."""
    assert config.staging_bytes is not None, "with_staging comes first"
    groups = tables_by_dim([table.embedding_dim for table in shards.tables])
    optimizer = config.row_optimizer(shards.embedding_optimizer)
    sizes = [row_bytes(dim, optimizer) for dim in groups]
    # Every group gets slots in proportion to its cold rows.
    num_cold = [
        sum(shards.tables[table].num_rows - shards.tables[table].num_hot for table in tables)
        for tables in groups.values()
    ]
    return dict(zip(groups, share_slots(config.staging_bytes, num_cold, sizes), strict=True))


def count_row_lookups(shards: ShardSet, tables: Sequence[int]) -> NDArray[np.int64]:
    """Return each row's training lookups, (rows of these tables,), table after table."""
    reader = IdReader(shards.tables, tables)
    counts = [np.zeros(shards.tables[table].num_rows, np.int64) for table in tables]
    for number in range(shards.num_training_batches):
        ids = reader.read(shards.training_lookups(number))
        # Bags are numbered sample by sample, so the table of a lookup is its bag modulo their number.
        bags_N = ids.bags_of_tables
        bags_N = np.arange(ids.ids_N.size) if bags_N is None else bags_N
        tables_N = bags_N % len(tables)
        for table, of_table in enumerate(counts):
            of_table += np.bincount(ids.ids_N[tables_N == table], minlength=of_table.size)
    return np.concatenate(counts)


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class ReadBatch:
    """A training batch as a step needs it, before it is planned."""

    batch: Batch
    parts: tuple[GroupStep, ...]
    """Its lookups in each table group."""
    cold: tuple[ColdRows, ...]
    """Rows of each group that staging slots have to serve; none where the batch needs no staging."""


class StepSource:
    """The steps of a run.

    Args:
        embeddings: the rows that the steps move.
        read: returns a training batch by number.
        is_hot_only: whether a training batch looks up hot rows alone.
        is_fresh: whether rows that no batch has used still have their initial values.
        is_resumed: whether rows were restored: at its next use such a row is fetched, not initialized.
        readers: read batches ahead; None: each is read where its step is made.
        read_lookups: returns the lookups of a training batch, of which its cold rows are; None: `read`.
        window_bytes: memory that cold rows of batches known ahead may take; None: `WINDOW_BYTES`.
    """

    def __init__(
        self,
        embeddings: Embeddings,
        read: Callable[[int], Batch],
        is_hot_only: Callable[[int], bool],
        *,
        is_fresh: bool = True,
        is_resumed: bool = False,
        readers: Readers | None = None,
        read_lookups: Callable[[int], Lookups] | None = None,
        window_bytes: int | None = None,
    ) -> None:
        self._embeddings = embeddings
        self._read = read
        self._read_lookups = read_lookups or read
        self._is_hot_only = is_hot_only
        self._is_fresh = is_fresh
        self.is_resumed = is_resumed
        self.readers = readers or Readers()
        self._last_item = -1
        """Item of the last batch that has one."""
        self.num_shortened = 0
        """Transfers that wait for a later batch than the prefetch depth requires."""
        self.num_split = 0
        """Batches that run in passes."""
        self.slots_wanted = 1.0
        """Slots that the largest batch of any group needs, as a multiple of those there are."""
        self.planned: deque[tuple[list[int], Sequence[PlanQueue]]] | None = None
        """Batches and plans of all epochs, where the whole run is planned before its first step."""
        # Either every group stages rows or none does: the placement is one for all of them.
        self.staged = [group for group in embeddings.groups if group.placement.is_staging]
        """Table groups whose cold rows are staged."""
        self.placements = [cast("StagingPlacement", group.placement) for group in self.staged]
        assert not self.staged or len(self.staged) == len(embeddings.groups)
        self._window_bytes = window_bytes

    def steps(
        self,
        epochs: Iterable[Iterable[int]],
        prepare: Callable[[PlannedStep], PlannedStep] | None = None,
    ) -> Generator[PlannedStep]:
        """Yield the steps of epochs of given batches, queued and prepared."""
        with self.readers:
            for numbers, queues in self._epochs(epochs):
                first_item = self._embeddings.transfers.num_items
                for number, read in self.readers.in_order(self._read_whole, numbers):
                    step = self._plan(number, read, queues, first_item)
                    yield step if prepare is None else prepare(step)
                if queues:
                    self._flush(queues)

    def _epochs(self, epochs: Iterable[Iterable[int]]) -> Iterator[tuple[Iterable[int], Sequence[PlanQueue]]]:
        """Yield the batches of each epoch, and the queues of their plans."""
        if self.planned is not None:
            while self.planned:
                yield self.planned.popleft()
            return
        if not self.staged:
            for numbers in epochs:
                yield numbers, ()
            return
        from ...stats.lookahead.step_plans import WINDOW_BYTES
        from .staging import PlanQueue

        window_bytes = WINDOW_BYTES if self._window_bytes is None else self._window_bytes
        # One planner per group serves all epochs: it remembers which rows were used before, and its window.
        planners = [each.planner(window_bytes // len(self.staged)) for each in self.placements]
        self.mark_restored(planners)
        for numbers in epochs:
            queues = list(map(PlanQueue, self.placements, planners))
            yield self._window(numbers, queues), queues
        if any(planner.window is not None and planner.window.is_capped for planner in planners):
            _log.warning(
                "row movement was planned with fewer batches known ahead than would be best, because their "
                "rows take more than %s of memory: more rows move than must",
                format_byte_size(window_bytes),
            )

    def _window(self, numbers: Iterable[int], queues: Sequence[PlanQueue]) -> Iterator[int]:
        """Yield each batch once it is planned: when enough of those after it are known."""
        waiting: deque[int] = deque()
        num_taken = 0
        for number, cold in self.readers.in_order(self.read_cold, numbers):
            waiting.append(number)
            for queue, of_group in zip(queues, cold, strict=False):
                queue.add(of_group)
            while waiting and (
                not self._is_staged(waiting[0]) or all(queue.num_planned > num_taken for queue in queues)
            ):
                num_taken += self._is_staged(waiting[0])
                yield waiting.popleft()
        # The end of the epoch is known now, so whatever was held back is planned.
        for queue in queues:
            queue.finish()
        yield from waiting

    def mark_restored(self, planners: Sequence[StagingPlanner]) -> None:
        """Tell new planners which rows have other than their initial values."""
        if self.is_resumed:
            for group, planner in zip(self.staged, planners, strict=True):
                for rows_N in used_slow_rows(group):
                    planner.mark_used(rows_N)

    def read_cold(self, number: int) -> list[ColdRows]:
        """Return the cold rows of each group; none where a batch needs no staging."""
        if not self._is_staged(number):
            return []
        lookups = self._read_lookups(number)
        return [group.cold_rows(lookups) for group in self.staged]

    def _is_staged(self, number: int) -> bool:
        """Return whether a batch needs staging slots."""
        return not self._is_hot_only(number) or self.placements[0].stages_hot_only

    def _read_whole(self, number: int) -> ReadBatch:
        """Read a batch to run it; any thread may do so, as this part needs no plan."""
        batch = self._read(number)
        parts = tuple(group.read(batch) for group in self._embeddings.groups)
        if not self.staged or not self._is_staged(number):
            return ReadBatch(batch, parts, ())
        cold = zip(self.placements, parts, strict=True)
        return ReadBatch(batch, parts, tuple(each.cold_rows(part.lookups) for each, part in cold))

    def _plan(
        self, number: int, read: ReadBatch, queues: Sequence[PlanQueue], first_item: int
    ) -> PlannedStep:
        """Plan a batch and queue its transfers."""
        batch = read.batch
        if not read.cold:
            plans = [each.placement.plan(is_hot_only=batch.is_hot_only) for each in self._embeddings.groups]
            return self._embeddings.step(number, batch, plans, read.parts)
        plans = [
            queue.take(cold.rows_U, is_fresh=self._is_fresh)
            for queue, cold in zip(queues, read.cold, strict=True)
        ]
        transfers = [plan.transfer for plan in plans]
        # Each group has an ``after``; the last of them is right for all. Plans count from the first batch of
        # their epoch, items from the first of the run.
        after = max(transfer.after for transfer in transfers if transfer)
        after = first_item + after if after >= 0 else -1
        kind: Kind = "hot_only" if batch.is_hot_only else "mixed"
        self._last_item = self._embeddings.send(transfers, after, kind)
        return self._embeddings.step(number, batch, plans, read.parts, self._last_item)

    def count(self, step: PlannedStep) -> None:
        """Count a step that is run; those planned ahead of a checkpoint are planned once more."""
        for part in step.parts:
            self.num_shortened += part.plan.is_shortened
            if (split := part.plan.split) is not None:
                self.num_split += 1
                self.slots_wanted = max(self.slots_wanted, split.rows_U.size / split.num_slots)

    def _flush(self, queues: Sequence[PlanQueue]) -> None:
        """Write back what is staged, once the last batch of the epoch is computed."""
        self._embeddings.send([queue.flush for queue in queues], self._last_item, "flush")
