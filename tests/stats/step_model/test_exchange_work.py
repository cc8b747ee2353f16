"""Rows that cross between ranks, against drawn logs."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from hotset.stats.prediction.access_rates import AccessRates
from hotset.stats.step_model.exchange_work import exchanged_rows, most_uses_share, reduced_bytes

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


@pytest.mark.parametrize("num_ranks", [2, 3])
def test_the_share_of_the_rank_with_the_most_uses_is_that_of_every_way_to_draw_them(num_ranks: int) -> None:
    num_uses = np.arange(1.0, 7.0)
    exact = [
        np.mean([max(map(ranks.count, ranks)) for ranks in product(range(num_ranks), repeat=int(uses))])
        / uses
        for uses in num_uses
    ]
    found = most_uses_share(num_uses, num_ranks, 1e12)
    assert found == pytest.approx(exact, abs=0.01)
    # Between whole numbers of uses the share lies between theirs.
    between = most_uses_share(num_uses[:-1] + 0.5, num_ranks, 1e12)
    assert between == pytest.approx((found[:-1] + found[1:]) / 2)


@pytest.mark.parametrize("num_ranks", [2, 4, 8])
def test_more_uses_are_spread_more_evenly_down_to_an_equal_share(num_ranks: int) -> None:
    num_uses = np.array([1.0, 3.0, 9.0, 30.0, 64.0, 65.0, 200.0, 5000.0])
    found = most_uses_share(num_uses, num_ranks, 5000.0)
    assert found[0] == 1 and found[-1] == pytest.approx(1 / num_ranks)
    assert (np.diff(found) < 0).all()
    # The two laws meet where one ends.
    assert found[4] == pytest.approx(found[5], rel=0.01)


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_the_share_of_many_uses_is_that_of_drawn_ones_each_rank_using_a_row_once_a_step(
    num_ranks: int,
) -> None:
    rng = np.random.default_rng(1)
    drawn = rng.multinomial(256, np.full(num_ranks, 1 / num_ranks), 20_000).max(axis=1).mean() / 256
    assert most_uses_share(np.array([256.0]), num_ranks, 1e12) == pytest.approx(drawn, abs=0.004)
    # Half of all places in 60 steps are taken, none twice.
    taken = 30 * num_ranks
    places = rng.multivariate_hypergeometric([60] * num_ranks, taken, 20_000)
    found = most_uses_share(np.array([taken]), num_ranks, 60 * num_ranks)
    assert found == pytest.approx(places.max(axis=1).mean() / taken, abs=0.004)


def test_homes_by_use_never_send_more_and_more_ranks_never_less() -> None:
    rates, _, _ = counted(2, is_striped=True)
    striped, by_use = (
        [exchanged_rows(rates, SAMPLES, RANK_BATCH, ranks, is_striped=is_striped) for ranks in (2, 4, 8)]
        for is_striped in (True, False)
    )
    for one, other in zip(striped, by_use, strict=True):
        assert 0 < other.gradients < one.gradients and 0 < other.vectors < one.vectors
        # First uses cross to nobody, later ones both ways.
        assert one.vectors < one.gradients and other.vectors < other.gradients
    assert [each.gradients for each in striped] == sorted(each.gradients for each in striped)
