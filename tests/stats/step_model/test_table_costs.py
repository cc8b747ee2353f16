"""Costs of the homes of a table, by hand for one row."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.prediction.access_rates import AccessRates
from hotset.stats.prediction.communication import ParallelStep
from hotset.stats.step_model.table_costs import table_costs
from hotset.stats.step_model.table_homes import choose_table_homes

STEP = ParallelStep(samples=100, num_devices=2)


def costs_of(rate: float, num_rows: int) -> dict[str, tuple[float, int]]:
    rates = AccessRates(np.array([rate]), np.array([num_rows]))
    found = table_costs(rates, num_rows, 20, 16, STEP, 1e3, 1e2)
    return {home: (cost.seconds, cost.fast_bytes) for home, cost in found.items()}


def test_a_row_that_every_sample_looks_up() -> None:
    found = costs_of(1.0, 1)
    # Half of what a rank needs lies elsewhere; vectors and gradients cross.
    assert found["sharded by rows"] == pytest.approx((2 * 0.5 * 1 * 16 / 1e3, 10))
    assert found["replicated"] == pytest.approx((2 * 0.5 * 1 * 16 / 1e3, 20))
    assert found["sharded by tables"] == pytest.approx((2 * 0.5 * 100 * 16 / 1e3, 10))
    assert found["sharded by columns"] == found["sharded by tables"]
    assert found["host"] == pytest.approx((2 * 1 * 20 / 1e2, 0))


def test_tables_go_to_the_host_only_where_memory_is_short() -> None:
    rates = AccessRates(np.array([0.01]), np.array([1000]))
    tables = [table_costs(rates, 1000, 20, 16, STEP, 1e3, 1e2) for _ in range(3)]
    roomy = choose_table_homes(tables, 10**6)
    tight = choose_table_homes(tables, 10_000)
    assert roomy is not None and "host" not in roomy.homes
    assert tight is not None and tight.homes.count("host") == 2
    assert tight.fast_bytes <= 10_000 and tight.seconds > roomy.seconds
