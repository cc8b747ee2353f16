"""The work of a cell's steps, from its factors alone: what predictions start from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean
from typing import NamedTuple

from ...stats.batches.work_division import most_row_ranges, num_row_ranges
from ...stats.prediction.access_rates import AccessRates, buffer_rows, expected_unique_rows
from ...stats.prediction.row_loads import EpochUses
from ...stats.ranking.row_bytes import row_bytes
from ...stats.staging.staging_size import WidthSizes, deepest_prefetch
from ...stats.step_model.exchange_work import with_exchange
from ...stats.step_model.part_model import MeasuredStep
from ...stats.step_model.step_work import StepWork, fresh_bytes
from ...stats.step_model.zipf_rates import seen_rates, zipf_rates
from ...train.model.dlrm_shape import DlrmShape
from .cell_batches import (
    WARM_UP_STEPS,
    distinct_of_kinds,
    num_steps_of,
    rates_of_kinds,
    steps_of_cycle,
)
from .cells import BUDGETED, Cell
from .run_cell import CellRecord

STAGED = ("cache", "lookahead", "hybrid-uva")
"""Placements that load rows into slots."""
PLANNED_ONLINE = ("cache", "hybrid-uva")
"""Those that plan a batch right before it runs, and read it once more for that."""
_IN_PLACE = ("hybrid", "hybrid-dedup", "fae")
"""Those that leave rows on the slow tier, and send vectors."""
_FLOAT_BYTES = 4
_OVERFLOW_PROBABILITY = 1e-6
"""Share of batches that may have more rows than a large one."""


class _Moves(NamedTuple):
    """Rows of a step that move between the tiers."""

    moved: float
    """Loaded or written back beside the loop."""
    initialized: float
    """Given their initial values there."""
    passed: float = 0.0
    """Loaded in passes by the loop itself, which are no others then."""
    is_ahead: bool = True
    """Whether they may move during the step before, and not only once that is over."""


class _Sent(NamedTuple):
    """Vectors and gradients of a step that the loop itself moves between the tiers."""

    vectors: float
    unset_bytes: float
    are_rows: bool
    """Whether a vector is that of a row, and not of a bag."""


def shape_of(cell: Cell) -> DlrmShape:
    """Return the sizes of the cell's model."""
    return DlrmShape(cell.num_dense, cell.num_tables, cell.embedding_dim, cell.bottom_mlp, cell.top_mlp)


def work_of(cell: Cell, threads: int) -> StepWork:
    """Return the expected work of a step of the cell."""
    shape = shape_of(cell)
    num_steps = WARM_UP_STEPS + num_steps_of(cell)
    num_samples = num_steps * cell.batch_size
    # A rank keeps its part of the rows, serves them to all ranks, and computes its part of the samples.
    kinds = rates_of_kinds(cell)
    rates = kinds[0].part(cell.ranks)
    samples = cell.batch_size // cell.ranks
    distinct = fmean(distinct_of_kinds(cell))
    width = row_bytes(cell.embedding_dim, cell.optimizer)
    moves = _Moves(0.0, 0.0)
    # What each placement moves beside the loop, or in it.
    is_staged = cell.placement in STAGED
    if is_staged:
        # Rows that no sample of the run looks up need no slot.
        uses = EpochUses.of_rates(seen_rates(rates, num_samples), num_samples, cell.batch_size)
        moves = _moves(cell, uses, int(cell.fast_share * cell.bytes_of_rows) // width)
    sent = _sent_vectors(cell, distinct_of_kinds(cell))
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
        update_ranges=1 if sent.are_rows else ranges,
        distinct_rows=distinct,
        row_bytes=width,
        table_bytes=cell.bytes_of_rows / cell.ranks,
        # A label, the dense features and the ids: four bytes each.
        input_bytes=4 * (cell.batch_size * (1 + cell.num_dense) + cell.lookups),
        staged_rows=distinct if is_staged else 0.0,
        cached_rows=distinct if cell.placement == "cache" else 0.0,
        num_reads=2 if cell.placement in PLANNED_ONLINE else 1,
        moved_rows=moves.moved,
        passed_rows=moves.passed,
        is_ahead=moves.is_ahead,
        is_read_ahead=cell.placement != "fae",
        initialized_rows=moves.initialized,
        in_place_vectors=sent.vectors,
        unset_bytes=sent.unset_bytes,
    )
    return work if cell.ranks == 1 else _with_exchange(work, cell, kinds, num_samples)


def _with_exchange(work: StepWork, cell: Cell, kinds: Sequence[AccessRates], num_samples: int) -> StepWork:
    """Return the work with what a rank sends to others, the mean over the kinds of batches."""
    found = [
        with_exchange(work, seen_rates(each, num_samples), num_samples, cell.ranks, codec=cell.codec)
        for each in kinds
    ]
    return replace(
        found[0],
        exchanged_rows=fmean(each.exchanged_rows for each in found),
        exchanged_bytes=fmean(each.exchanged_bytes for each in found),
    )


def _sent_vectors(cell: Cell, distinct: Sequence[float]) -> _Sent:
    """Return what the loop itself moves between the tiers, the mean over the kinds of batches.

    Args:
        cell: of any placement.
        distinct: rows of a mixed batch, and of a hot-only one where there are any.
    """
    if cell.placement not in _IN_PLACE:
        return _Sent(0.0, 0.0, are_rows=False)
    # Batches of hot rows alone are served where they are computed.
    share = 1 / len(distinct)
    # All hot rows are copied whenever the kind changes, twice in a cycle.
    copied = 2 * cell.num_hot * cell.num_tables / cell.ranks / steps_of_cycle(cell)
    vector_bytes = _FLOAT_BYTES * cell.embedding_dim
    vectors = copied * row_bytes(cell.embedding_dim, cell.optimizer) / vector_bytes
    if cell.ranks > 1 or cell.placement == "hybrid-dedup":
        # What a rank serves is one lookup of each row, so there is no bag on several ranks.
        return _Sent(vectors + 2 * distinct[0] * share, 0.0, are_rows=True)
    # Each bag sends its vector, and receives a gradient. Those of lists are added in memory that is not kept.
    unset_bytes = share * fresh_bytes(vector_bytes * cell.lookups) if cell.pooling > 1 else 0.0
    return _Sent(vectors + 2.0 * cell.batch_size * cell.num_tables * share, unset_bytes, are_rows=False)


def _moves(cell: Cell, uses: EpochUses, num_slots: int) -> _Moves:
    """Return the expected moves of a placement that loads rows."""
    # A batch of more rows than slots runs in passes, and leaves nothing in the slots for the next one.
    if cell.placement in BUDGETED and uses.num_passes(num_slots) > 1:
        return _Moves(0.0, 0.0, uses.rows_per_batch)
    initialized = uses.num_first_uses / uses.num_batches
    # Of few slots none is free while a batch is computed that needs them.
    prefetch = _prefetch(cell, uses) if cell.placement in BUDGETED else 0
    # The rows of a batch stay where the next one needs them, too, and go otherwise.
    loads = uses.successive_loads() / uses.num_batches
    if cell.placement == "lookahead":
        loads = uses.lookahead_loads(num_slots, prefetch) / uses.num_batches
    elif cell.placement == "cache":
        loads = uses.cache_loads(num_slots) / uses.num_batches
    # Every row that is loaded is written back; first uses are not fetched.
    return _Moves(max(2 * loads - initialized, 0.0), initialized, is_ahead=prefetch > 0)


def _prefetch(cell: Cell, uses: EpochUses) -> int:
    """Return how many batches transfers run ahead by default, which all ranks together decide."""
    most = buffer_rows(cell.ranks * uses.rows_per_batch, _OVERFLOW_PROBABILITY)
    num_rows = cell.num_tables * cell.rows_of_table
    width = WidthSizes(0, num_rows, row_bytes(cell.embedding_dim, cell.optimizer), min(most, num_rows))
    return deepest_prefetch([width], int(cell.fast_share * cell.bytes_of_rows))


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
