"""What a table costs in each home: seconds of a step for what crosses, and the fast memory of one rank."""

from __future__ import annotations

from ..prediction.access_rates import AccessRates
from ..prediction.communication import (
    ParallelStep,
    host_cache,
    pooled,
    replicated_sparse,
    sharded_deduplicated,
)
from .table_homes import HomeCost


def table_costs(
    rates: AccessRates,
    num_rows: int,
    row_bytes: int,
    vector_bytes: int,
    step: ParallelStep,
    link_bytes_per_second: float,
    host_bytes_per_second: float,
) -> dict[str, HomeCost]:
    """Return the cost of each home of a table.

    A table that lies on one rank as a whole is one of many that are spread over the ranks, so its memory
    counts by its share; it has to fit by itself, which the caller checks.

    Args:
        rates: of its rows.
        num_rows: its rows, those included that nothing looks up.
        row_bytes: a row with its state.
        vector_bytes: a row without it.
        step: samples of a rank, and how many there are.
        link_bytes_per_second: between ranks.
        host_bytes_per_second: between the host and fast memory.
    """
    whole = num_rows * row_bytes
    share = -(-whole // step.num_devices)
    # Columns of a table cross in pieces, one from each rank that has some: together the same bytes.
    across = {
        "replicated": (replicated_sparse(rates, step), whole),
        "sharded by rows": (sharded_deduplicated(rates, step), share),
        "sharded by tables": (pooled(1, step), share),
        "sharded by columns": (pooled(1, step), share),
    }
    costs = {
        home: HomeCost(traffic.num_bytes(vector_bytes) / link_bytes_per_second, num_bytes)
        for home, (traffic, num_bytes) in across.items()
    }
    # Nothing is cached: each distinct row of a batch comes with its state, and goes back.
    moved = host_cache(rates, 0, step).num_bytes(row_bytes)
    return costs | {"host": HomeCost(moved / host_bytes_per_second, 0)}
