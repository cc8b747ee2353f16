"""Miss-ratio curves: rows that each policy would load again over a trace of the training order, by slots."""

from __future__ import annotations

from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

from ...stats.lookahead.planner import POLICIES, CacheSweep, distinct_stream, slots_to_try
from ...stats.lookahead.step_plans import RowStream
from ..folders.manifest import Manifest
from ..folders.stage_totals import VocabularyTotals
from ..ranking.vocabulary_files import read_tables
from ..runtime.resources import DEFAULT_RESOURCES, Resources
from ..runtime.tasks import run_tasks
from .training_trace import draw_trace

NUM_BATCHES = 32
NUM_SIZES = 7


class MissRatioRow(TypedDict):
    """The rows that one policy loads again with one number of slots."""

    policy: str
    num_slots: int
    bytes: int
    num_refetched: int
    refetched_share: float


class MissRatios(TypedDict):
    """The policies over one trace, see `planner`."""

    batch_size: int
    num_batches: int
    prefetch: int
    num_needed: int
    num_first_uses: int
    curve: list[MissRatioRow]


def miss_ratios(
    vocabulary: Manifest,
    samples: Manifest,
    batch_size: int,
    row_bytes: int,
    resources: Resources = DEFAULT_RESOURCES,
    *,
    seed: int = 0,
    num_batches: int = NUM_BATCHES,
) -> MissRatios:
    """Count the rows loaded under each policy and size of a fast tier without pinned rows.

    Args:
        vocabulary: places of rows in the order of importance.
        samples: written by `encode`.
        batch_size: of the simulated training.
        row_bytes: of a slot; tables of other widths are taken as this wide.
        seed: of the shuffle.
        num_batches: length of the trace; 32 batches of 2,048 take about 10 s CPU.

    Returns:
        ``batch_size``, ``num_batches``, ``num_needed`` (distinct rows of all batches), ``num_first_uses`` (of
        them, those never needed before), and ``curve``: policy, num_slots, bytes, num_refetched and
        refetched_share (of those needed, in [0, 1]; a first use is initialized in its slot). The curve is
        empty where there is no whole batch.
    """
    train = VocabularyTotals.of(vocabulary).num_train_samples
    drawn = draw_trace(samples, train, num_batches * batch_size, resources, seed=seed)
    starts = drawn.batch_starts(batch_size)
    found: MissRatios = {
        "batch_size": batch_size,
        "num_batches": starts.shape[0] - 1,
        "prefetch": 0,
        "num_needed": 0,
        "num_first_uses": 0,
        "curve": [],
    }
    # Less than one whole batch: simulations would have no step.
    if starts.shape[0] < 2:
        return found
    stream = distinct_stream(drawn.rows, starts)
    # Number the rows that occur from 0, so that simulations need no room for the others.
    rows, keys = np.unique(stream.rows, return_inverse=True)
    sizes = slots_to_try(int(np.diff(stream.offsets).max()), rows.shape[0], NUM_SIZES)
    sweep = CacheSweep(RowStream(stream.offsets, keys), _places(vocabulary, rows), sizes[-1])
    curve = found["curve"]
    # Results come in the order of POLICIES, each with one number for each size.
    for fetches in run_tasks(
        _run, [(sweep, policy, sizes) for policy in POLICIES], workers=resources.workers
    ):
        policy = POLICIES[len(curve) // len(sizes)]
        for size, again in zip(sizes, fetches, strict=True):
            curve.append(
                {
                    "policy": policy,
                    "num_slots": size,
                    "bytes": size * row_bytes,
                    "num_refetched": again,
                    "refetched_share": again / stream.rows.shape[0],
                }
            )
        resources.progress("policies", len(curve), len(POLICIES) * len(sizes))
    found["num_needed"] = int(stream.rows.shape[0])
    found["num_first_uses"] = int(rows.shape[0])
    return found


def _run(sweep: CacheSweep, policy: str, sizes: list[int]) -> list[int]:
    """Fetches of one policy at rising sizes; where it needs none, it needs none with more slots."""
    found: list[int] = []
    for size in sizes:
        found.append(0 if found and found[-1] == 0 else sweep.refetches(policy, size))
    return found


def _places(vocabulary: Manifest, rows: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place over all tables of rows numbered through, which ascend."""
    places = read_tables(vocabulary, "place")
    first_row_T = np.cumsum([0, *(place.shape[0] for place in places)])
    # Rows ascend over all tables, so those of one table are a slice.
    ends = np.searchsorted(rows, first_row_T)
    return np.concatenate(
        [
            place[rows[a:b] - first]
            for place, first, a, b in zip(places, first_row_T, ends, ends[1:], strict=False)
        ]
    )
