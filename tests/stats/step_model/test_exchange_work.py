"""Rows that cross between ranks, against drawn logs."""

from __future__ import annotations

import numpy as np
import pytest

from hotset.stats.prediction.access_rates import AccessRates
from hotset.stats.step_model.exchange_work import exchanged_rows, reduced_bytes

NUM_ROWS, SAMPLES, RANK_BATCH = 3000, 8192, 256


def counted(num_ranks: int, *, is_striped: bool) -> tuple[AccessRates, float, float]:
    """Draw a log and count what crosses: rates, vectors and gradients for one rank and step."""
    rng = np.random.default_rng(0)
    ids = (NUM_ROWS * rng.random((SAMPLES, 2)) ** 3).astype(np.int64)
    parts = ids.reshape(-1, num_ranks, RANK_BATCH * 2)
    used = np.zeros((parts.shape[0], num_ranks, NUM_ROWS), np.bool_)
    for step, rank in np.ndindex(parts.shape[:2]):
        used[step, rank, parts[step, rank]] = True
    uses_RN = used.sum(axis=0)
    homes = np.arange(NUM_ROWS) % num_ranks if is_striped else uses_RN.argmax(axis=0)
    remote = used.copy()
    remote[:, homes, np.arange(NUM_ROWS)] = False
    # The vector of a first use crosses to nobody.
    first = used.any(axis=1).argmax(axis=0)
    early = remote[first, :, np.arange(NUM_ROWS)].sum()
    steps = parts.shape[0] * num_ranks
    rates = AccessRates.of_counts([np.bincount(ids.ravel(), minlength=NUM_ROWS)], SAMPLES)
    return rates, (remote.sum() - early) / steps, remote.sum() / steps


@pytest.mark.parametrize("num_ranks", [2, 4])
@pytest.mark.parametrize("is_striped", [True, False])
def test_expected_rows_are_near_those_of_a_drawn_log(num_ranks: int, is_striped: bool) -> None:
    rates, vectors, gradients = counted(num_ranks, is_striped=is_striped)
    found = exchanged_rows(rates, SAMPLES, RANK_BATCH, num_ranks, is_striped=is_striped)
    assert found.gradients == pytest.approx(gradients, rel=0.05)
    assert found.vectors == pytest.approx(vectors, rel=0.05)


def test_one_rank_sends_nothing() -> None:
    rates, _, _ = counted(2, is_striped=True)
    found = exchanged_rows(rates, SAMPLES, RANK_BATCH, 1, is_striped=True)
    assert (found.vectors, found.gradients) == (0, 0)
    assert reduced_bytes(1000, 1) == 0 and reduced_bytes(1000, 4) == 6000
