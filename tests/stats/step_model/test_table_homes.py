"""Homes of tables, against every way to place them."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hotset.stats.step_model import table_homes
from hotset.stats.step_model.table_homes import HomeCost, choose_table_homes

NAMES = ("replicated", "rows", "tables", "columns", "host")


def drawn_tables(seed: int, num_tables: int) -> list[dict[str, HomeCost]]:
    rng = np.random.default_rng(seed)
    return [
        {name: HomeCost(float(rng.exponential()), int(rng.integers(0, 100))) for name in NAMES}
        for _ in range(num_tables)
    ]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("fast_bytes", [60, 200, 10_000])
def test_no_way_to_place_the_tables_is_quicker(seed: int, fast_bytes: int) -> None:
    tables = drawn_tables(seed, 4)
    best = None
    for homes in product(NAMES, repeat=4):
        costs = [table[name] for table, name in zip(tables, homes, strict=True)]
        if sum(cost.fast_bytes for cost in costs) <= fast_bytes:
            seconds = sum(cost.seconds for cost in costs)
            best = seconds if best is None else min(best, seconds)
    found = choose_table_homes(tables, fast_bytes)
    assert (found and found.seconds) == (best and pytest.approx(best))
    if found:
        assert found.fast_bytes <= fast_bytes and len(found.homes) == 4


def test_without_room_there_is_no_choice() -> None:
    assert choose_table_homes([{"replicated": HomeCost(1.0, 5)}], 4) is None
    assert choose_table_homes([], 0) == table_homes.TableHomes((), 0.0, 0)


def test_thinned_ways_stay_near_the_best(monkeypatch: pytest.MonkeyPatch) -> None:
    tables = drawn_tables(1, 12)
    exact = choose_table_homes(tables, 300)
    monkeypatch.setattr(table_homes, "MOST_WAYS", 32)
    found = choose_table_homes(tables, 300)
    assert exact and found and exact.seconds <= found.seconds <= 1.05 * exact.seconds


@pytest.mark.parametrize("num_choices", [5, 6])
def test_thinning_keeps_the_quickest_way(monkeypatch: pytest.MonkeyPatch, num_choices: int) -> None:
    # The more memory a choice takes, the quicker it is, so none is beaten.
    tables = [{str(size): HomeCost(float(num_choices - size), size) for size in range(num_choices)}]
    monkeypatch.setattr(table_homes, "MOST_WAYS", 4)
    found = choose_table_homes(tables, num_choices)
    assert found and (found.homes, found.seconds) == ((str(num_choices - 1),), 1.0)
