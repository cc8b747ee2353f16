"""Builds the order of a run's batches and the source of its steps, from where an interrupted run has come."""

from __future__ import annotations

from ..config import TrainConfig
from ..data.batch_order import BatchOrder, CutOrder, ResumedOrder, SeededOrder
from ..data.readers import Readers
from ..data.shards import Shards
from ..execution.embeddings import Embeddings
from ..execution.row_parts import refill_stores
from ..execution.spilled_run import SpillLimits
from ..execution.step_source import StepSource
from ..placements.choose_placement import num_planned_steps, spills
from ..placements.fae import FaeOrder
from ..placements.shuffle_scheduler import TEST_SAMPLES, ShuffleScheduler
from ..predict import Predictor
from .build_embeddings import RowTools
from .run_start import RunStart


def build_order(
    shards: Shards,
    config: TrainConfig,
    given: BatchOrder | None,
    scheduler: ShuffleScheduler | None,
    predictor: Predictor,
    start: RunStart | None,
) -> BatchOrder:
    """Build the order of the batches that are still to be trained on.

    Args:
        given: order to use instead of the placement's own.
        scheduler: of the placement ``fae``; None: another placement.
        predictor: finds the test losses that this scheduler needs.
    """
    order = given or _own_order(shards, config, scheduler, predictor, start.test_losses if start else ())
    num_planned = num_planned_steps(config, shards)
    if num_planned < config.epochs * shards.num_training_batches:
        order = CutOrder(order, num_planned)
    if start is not None and start.done is not None:
        order = ResumedOrder(order, start.done)
    return order


def _own_order(
    shards: Shards,
    config: TrainConfig,
    scheduler: ShuffleScheduler | None,
    predictor: Predictor,
    test_losses: tuple[float, ...],
) -> BatchOrder:
    kinds = shards.is_hot_only
    if scheduler is None:
        return SeededOrder(kinds, config.seed, config.epochs, is_grouped=shards.is_grouped)
    # A resumed run makes the decisions of its scheduler once more, by the losses that it had then.
    earlier = iter(test_losses)

    def test_loss() -> float | None:
        found = next(earlier, None)
        return predictor.mean_loss(TEST_SAMPLES) if found is None else found

    return FaeOrder(kinds, config.seed, config.epochs, scheduler, test_loss)


def build_step_source(
    shards: Shards,
    config: TrainConfig,
    tools: RowTools,
    embeddings: Embeddings,
    order: BatchOrder,
    readers: Readers,
    start: RunStart | None,
) -> StepSource:
    """Build the source of a run's steps.

    Args:
        readers: read batches ahead.
        start: rows that were restored, and the steps that are done.
    """
    # Where rows lie in a file by their next fetch, one that was restored is fetched by its plan.
    is_fresh = start is None or start.is_fresh
    has_first_fetches = spills(config, shards)

    def looks_up_hot_rows_alone(number: int) -> bool:
        return bool(shards.is_hot_only[number])

    source = StepSource(
        embeddings,
        shards.training_batch,
        looks_up_hot_rows_alone,
        is_fresh=is_fresh or has_first_fetches,
        is_resumed=start is not None,
        readers=readers,
    )
    # A spill file holds rows by their next use, so it is written once the whole order is known.
    if has_first_fetches:
        assert config.slow_bytes is not None
        source.plan_run(order.epochs(), SpillLimits(config.slow_bytes, tools.folder))
        if start is not None:
            refill_stores(embeddings, start.rows)
    return source
