"""The work of a cell's steps, from its factors alone: what predictions start from."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from ...stats.batches.work_division import most_row_ranges, num_row_ranges
from ...stats.prediction.access_rates import expected_unique_rows
from ...stats.prediction.row_loads import EpochUses
from ...stats.ranking.row_bytes import row_bytes
from ...stats.step_model.exchange_work import with_exchange
from ...stats.step_model.part_model import MeasuredStep
from ...stats.step_model.step_work import StepWork
from ...stats.step_model.zipf_rates import seen_rates, zipf_rates
from ...train.model.dlrm_shape import DlrmShape
from .cells import Cell
from .run_cell import WARM_UP_STEPS, CellRecord, num_steps_of

STAGED = ("cache", "lookahead", "hybrid-uva")
"""Placements that load rows into slots."""
PLANNED_ONLINE = ("cache", "hybrid-uva")
"""Those that plan a batch right before it runs, and read it once more for that."""
_PREFETCH = 2
"""Batches that transfers run ahead by default."""


class _Moves(NamedTuple):
    """Rows of a step that move beside the loop."""

    moved: float
    initialized: float


def shape_of(cell: Cell) -> DlrmShape:
    """Return the sizes of the cell's model."""
    return DlrmShape(cell.num_dense, cell.num_tables, cell.embedding_dim, cell.bottom_mlp, cell.top_mlp)


def work_of(cell: Cell, threads: int) -> StepWork:
    """Return the expected work of a step of the cell."""
    shape = shape_of(cell)
    num_steps = WARM_UP_STEPS + num_steps_of(cell)
    num_samples = num_steps * cell.batch_size
    # A rank keeps its part of the rows, serves them to all ranks, and computes its part of the samples.
    every = zipf_rates(cell.num_tables, cell.rows_of_table, cell.skew, cell.pooling)
    rates = every.part(cell.ranks)
    samples = cell.batch_size // cell.ranks
    distinct = expected_unique_rows(rates.rates, cell.batch_size, rates.num_rows)
    width = row_bytes(cell.embedding_dim, cell.optimizer)
    moves = _Moves(0.0, 0.0)
    vectors = 0.0
    # What each placement moves beside the loop, or in it.
    sends_bags = cell.placement == "hybrid" and cell.ranks == 1
    sends_rows = cell.placement in ("hybrid", "hybrid-dedup") and not sends_bags
    is_staged = cell.placement in STAGED
    if is_staged:
        # Rows that no sample of the run looks up need no slot.
        uses = EpochUses.of_rates(seen_rates(rates, num_samples), num_samples, cell.batch_size)
        moves = _moves(cell, uses, int(cell.fast_share * cell.bytes_of_rows) // width)
    elif sends_bags:
        # No row of a drawn log is hot: each bag sends its vector, and receives a gradient.
        vectors = 2.0 * cell.batch_size * cell.num_tables
    elif sends_rows:
        # What a rank serves is one lookup of each row, so there is no bag on several ranks.
        vectors = 2 * distinct
    ranges = num_row_ranges(cell.lookups // cell.ranks, most_row_ranges(threads))
    work = StepWork(
        batch_size=samples,
        threads=threads,
        bottom=shape.bottom,
        top=shape.top,
        num_vectors=shape.num_vectors,
        embedding_dim=cell.embedding_dim,
        num_bags=samples * cell.num_tables,
        lookups=cell.lookups / cell.ranks,
        lookup_ranges=ranges,
        # Gradients that are sent row by row are summed before, by one thread.
        update_ranges=1 if sends_rows else ranges,
        distinct_rows=distinct,
        row_bytes=width,
        table_bytes=cell.bytes_of_rows / cell.ranks,
        # A label, the dense features and the ids: four bytes each.
        input_bytes=4 * (cell.batch_size * (1 + cell.num_dense) + cell.lookups),
        staged_rows=distinct if is_staged else 0.0,
        cached_rows=distinct if cell.placement == "cache" else 0.0,
        num_reads=2 if cell.placement in PLANNED_ONLINE else 1,
        moved_rows=moves.moved,
        # Without a plan the rows of a batch are moved when it is there.
        is_ahead=cell.placement != "hybrid-uva",
        initialized_rows=moves.initialized,
        in_place_vectors=vectors,
        unset_bytes=4.0 * cell.embedding_dim * cell.lookups if sends_bags and cell.pooling > 1 else 0.0,
    )
    if cell.ranks == 1:
        return work
    return with_exchange(work, seen_rates(every, num_samples), num_samples, cell.ranks, codec=cell.codec)


def _moves(cell: Cell, uses: EpochUses, num_slots: int) -> _Moves:
    """Return the expected moves of a placement that loads rows."""
    initialized = uses.num_first_uses / uses.num_batches
    # The rows of a batch stay where the next one needs them, too, and go otherwise.
    loads = uses.successive_loads() / uses.num_batches
    if cell.placement == "lookahead":
        loads = uses.lookahead_loads(num_slots, _PREFETCH) / uses.num_batches
    elif cell.placement == "cache":
        loads = uses.cache_loads(num_slots) / uses.num_batches
    # Every row that is loaded is written back; first uses are not fetched.
    return _Moves(max(2 * loads - initialized, 0.0), initialized)


def measured_step(record: CellRecord) -> MeasuredStep:
    """Return a measured cell as the fit takes it."""
    beside = {f"beside {name}": seconds for name, seconds in record.beside.items()}
    work = work_of(record.cell, record.threads)
    if work.initialized_rows:
        work = replace(work, initialized_rows=_initialized_when_warm(record.cell))
    return MeasuredStep(work, record.step_seconds, record.parts | beside)


def _initialized_when_warm(cell: Cell) -> float:
    """Return the rows of a step that no step before it has used, the mean over the measured steps."""
    rates = zipf_rates(cell.num_tables, cell.rows_of_table, cell.skew, cell.pooling).part(cell.ranks)
    # Most rows are used first in the steps of the warm-up, whose seconds are left out.
    before, after = (
        expected_unique_rows(rates.rates, steps * cell.batch_size, rates.num_rows)
        for steps in (WARM_UP_STEPS, WARM_UP_STEPS + num_steps_of(cell))
    )
    return (after - before) / num_steps_of(cell)
