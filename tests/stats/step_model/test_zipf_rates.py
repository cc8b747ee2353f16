"""Zipf's law: shares add up, and the rows of drawn logs are those expected."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.prediction.access_rates import expected_unique_rows
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
