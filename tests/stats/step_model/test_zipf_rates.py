"""Zipf's law: shares add up, and the rows of drawn logs are those expected."""

from __future__ import annotations

import math

import numpy as np
import pytest

from hotset.stats.prediction.access_rates import AccessRates, expected_unique_rows
from hotset.stats.prediction.row_loads import EpochUses
from hotset.stats.step_model.zipf_rates import seen_rates, zipf_rates, zipf_shares
from hotset.workflows.bench.limited.drawn_shards import zipf_ids

SKEWS = [0.0, 0.8, 1.0, 1.05, 1.2]


@pytest.mark.parametrize("skew", SKEWS)
@pytest.mark.parametrize("num_rows", [1, 7, 5000, 200_000])
def test_all_rows_have_all_lookups(skew: float, num_rows: int) -> None:
    shares = zipf_shares(np.linspace(0, num_rows, 5), num_rows, skew)
    assert shares.sum() == pytest.approx(1) and (shares >= 0).all()
    rates = zipf_rates(3, num_rows, skew, 1)
    assert rates.num_rows.sum() == 3 * num_rows
    assert rates.lookups_per_sample == pytest.approx(3, rel=1e-3)


@pytest.mark.parametrize("skew", SKEWS)
def test_drawn_ids_follow_the_law(skew: float) -> None:
    rng = np.random.default_rng(0)
    num_rows, num_samples, batch = 20_000, 16_384, 1024
    ids = zipf_ids(rng.random((num_samples, 1)), num_rows, skew)
    rates = zipf_rates(1, num_rows, skew, 1)
    distinct = np.mean([np.unique(part).size for part in np.split(ids, num_samples // batch)])
    assert expected_unique_rows(rates.rates, batch, rates.num_rows) == pytest.approx(distinct, rel=0.03)
    # The rows that a log shows, and the batches that use them.
    uses = EpochUses.of_rates(seen_rates(rates, num_samples), num_samples, batch)
    assert uses.num_first_uses == pytest.approx(np.unique(ids).size, rel=0.02)
    assert uses.rows_per_batch == pytest.approx(distinct, rel=0.03)


@pytest.mark.parametrize("skew", [0.0, 0.7, 1.0, 1.0 + 1e-7, 1.005, 1.3])
def test_shares_are_the_areas_under_the_density(skew: float) -> None:
    num_rows, steps = 40, 2000
    # The middle of many thin slices between k + 1 and k + 2, for each id k.
    x = 1 + (np.arange(num_rows * steps) + 0.5) / steps
    areas = (x**-skew).reshape(num_rows, steps).sum(axis=1)
    shares = zipf_shares(np.arange(num_rows + 1, dtype=np.float64), num_rows, skew)
    assert shares == pytest.approx(areas / areas.sum(), rel=1e-6)
    assert (np.diff(shares) <= 1e-15).all()


def test_several_lookups_of_a_sample_meet_a_row_as_often_as_at_least_one_of_them_does() -> None:
    one, four = (zipf_rates(2, 100, 1.1, pooling) for pooling in (1, 4))
    assert four.rates == pytest.approx(1 - (1 - one.rates) ** 4)
    assert (four.num_rows == one.num_rows).all() and one.num_rows.tolist() == [2] * 100


def test_a_log_shows_rows_by_how_often_they_were_looked_up() -> None:
    rates = AccessRates(np.array([0.5, 3e-3, 1e-3]), np.array([7, 100_000, 400_000]))
    found = seen_rates(rates, 1000)
    shown = dict(zip(found.rates.tolist(), found.num_rows.tolist(), strict=True))
    # Rows that are looked up often are there with their rate; of the others Poisson's law tells the counts.
    assert shown[0.5] == 7
    for count in (1, 2, 5):
        wanted = sum(
            rows * math.exp(-mean) * mean**count / math.factorial(count)
            for mean, rows in ((3.0, 100_000), (1.0, 400_000))
        )
        assert shown[count / 1000] == pytest.approx(wanted, abs=1)
    assert (np.diff(found.rates) <= 0).all() and (found.num_rows > 0).all()
    unseen = 100_000 * math.exp(-3) + 400_000 * math.exp(-1)
    assert found.num_rows.sum() == pytest.approx(500_007 - unseen, abs=10)
