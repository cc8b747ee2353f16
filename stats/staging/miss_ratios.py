"""Miss ratios of the policies over sizes of the fast tier, from the step plans they would run.

Rows are numbered by first appearance in the trace that is simulated, so memory follows the trace and not the
tables. The most important rows that the trace does not use get numbers too: a policy that fills its slots
with them before it starts pays for it.
"""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from ..batches.distinct_rows import find_distinct
from .next_uses import next_uses
from .staging_planner import DEFAULT_WARMUP_RATIO, cache_planner, lookahead_planner
from .step_plans import RowStream, StepPlans

POLICIES = ("lookahead", "lru", "lfu", "dataset", "static")


def distinct_stream(rows: NDArray[np.int64], starts: NDArray[np.int64]) -> RowStream:
    """Return the distinct rows of each batch.

    Args:
        rows: (num_lookups,), each at least 0, in the order of training.
        starts: (num_batches + 1,), where the lookups of each batch begin.
    """
    batches = [rows[first:stop] for first, stop in pairwise(starts)]
    return RowStream.of([find_distinct(batch)[0] for batch in batches])


class CacheSweep:
    """A trace of batches, ready to be run through any policy and number of slots."""

    def __init__(self, stream: RowStream, place_of_row: NDArray[np.int64], max_slots: int) -> None:
        """
        Args:
            stream: rows numbered from 0, without gaps.
            place_of_row: (num_rows,), place of each in the order of importance over all rows there are.
            max_slots: the most that is asked for.
        """
        self._stream = stream
        num_rows = place_of_row.shape[0]
        self._num_keys = num_rows + max_slots
        self._key_of_place = np.arange(num_rows, self._num_keys, dtype=np.int64)
        # Keys beyond the rows of the trace stand for important rows that it does not use.
        is_near = place_of_row < max_slots
        self._key_of_place[place_of_row[is_near]] = np.flatnonzero(is_near)
        # Ranks put both kinds in one order.
        place_of_key = np.empty(self._num_keys, np.int64)
        place_of_key[num_rows:] = np.arange(max_slots)  # some of these places are taken by rows
        place_of_key[:num_rows] = place_of_row
        self._rank_of_key = np.empty(self._num_keys, np.int32)
        self._rank_of_key[np.argsort(place_of_key, kind="stable")] = np.arange(self._num_keys, dtype=np.int32)
        uses = next_uses(stream.offsets, stream.rows, self._num_keys)
        self._exact = RowStream(stream.offsets, stream.rows, None, uses)

    @property
    def least_slots(self) -> int:
        """The distinct rows of the largest batch: no policy can do with fewer."""
        return int(np.diff(self._stream.offsets).max(initial=1))

    def refetches(self, policy: str, num_slots: int) -> int:
        """Count the rows that have to be loaded again; at its first use a row is initialized in its slot.

        At prefetch depth 0. ``lookahead`` starts empty and is then Belady's algorithm, which no policy beats;
        ``lru`` starts empty too; ``lfu`` and ``dataset`` start with 70% of the slots filled with the most
        important rows; ``static`` keeps such rows for good in all slots but those that one batch may need.

        Raises:
            ValueError: no such policy.
            TooFewSlotsError: a batch has more distinct rows than slots.
        """
        if policy == "lookahead":
            planner = lookahead_planner(self._num_keys, num_slots, prefetch=0)
        elif policy == "lru":
            planner = cache_planner("lru", self._num_keys, num_slots, prefetch=0, warmup_ratio=0)
        elif policy in ("lfu", "dataset", "static"):
            # A pinned row keeps its slot, so as many are left as the largest batch needs.
            pinned = self._key_of_place[: max(0, num_slots - self.least_slots)]
            planner = cache_planner(
                policy,  # type: ignore[arg-type]
                self._num_keys,
                num_slots,
                prefetch=0,
                warmup_ratio=1 if policy == "static" else DEFAULT_WARMUP_RATIO,
                warm_rows=pinned if policy == "static" else self._key_of_place,
                rank_of_row=self._rank_of_key,
            )
        else:
            raise ValueError(f"no policy {policy!r}: want one of {', '.join(POLICIES)}")
        plans = planner.plan(self._exact if policy == "lookahead" else self._stream)
        # The planner may hold steps back, which come with the end of the stream.
        rest, _ = planner.finish()
        return _refetches(plans) + _refetches(rest)


def _refetches(plans: StepPlans) -> int:
    return int(plans.rows_to_fast(initializes_first_uses=True).sum())


def slots_to_try(least: int, most: int, num_sizes: int) -> list[int]:
    """Return about ``num_sizes`` sizes from ``least`` to ``most``, evenly in their logarithm, ascending."""
    if most <= least:
        return [least]
    return sorted({int(size) for size in np.geomspace(least, most, num_sizes).round()})
