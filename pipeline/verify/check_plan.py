"""What `verify` checks of the totals of a plan: rows as wide as its config says, and within its budget."""

from __future__ import annotations

from collections.abc import Iterator

from ...stats.ranking.row_bytes import row_bytes
from ..folders.manifest import Manifest
from ..hot_rows.hot_order import row_bytes_of


def faults_of_plan(plan: Manifest) -> Iterator[str]:
    """Rows are as wide as the config says, and the hot ones fit in its budget."""
    config, dims = plan.config, dict(plan.config["feature_dims"])
    for table, found in zip(plan.totals["tables"], row_bytes_of(plan.totals), strict=True):
        dim = dims.get(table["name"], config["embedding_dim"])
        wanted = row_bytes(dim, config["embedding_optimizer"])
        if (table.get("embedding_dim", config["embedding_dim"]), found) != (dim, wanted):
            yield f"{table['name']} has rows of {found} bytes, want {wanted}"
    num_bytes = sum(
        table["num_hot"] * width
        for table, width in zip(plan.totals["tables"], row_bytes_of(plan.totals), strict=True)
    )
    is_estimated = config["mode"] == "fae-paper"  # which may exceed it
    if num_bytes > config["hot_bytes"] and not is_estimated:
        yield f"its hot rows take {num_bytes} bytes, the budget is {config['hot_bytes']}"
