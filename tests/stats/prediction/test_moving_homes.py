"""What is expected where homes move agrees with drawn epochs, and with the bounds on both sides."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import pytest
from numpy.typing import NDArray

from hotset.stats.exchange.count_exchange import count_exchange
from hotset.stats.exchange.home_moves import move_costs
from hotset.stats.exchange.rank_masks import mask_type
from hotset.stats.exchange.ranked_epoch import RankedEpoch
from hotset.stats.prediction import moving_homes as module
from hotset.stats.prediction.epoch_exchange import expected_exchange
from hotset.stats.prediction.moving_homes import expected_moving

NUM_ROWS = 2_000
NEEDS_COMPILED = pytest.mark.skipif(
    bool(numba.config.DISABLE_JIT),
    reason="thousands of rows are drawn and planned, for minutes where not compiled",
)


def drawn_epoch(num_ranks: int, num_steps: int, skew: float, rng: np.random.Generator) -> RankedEpoch:
    """Forty samples a rank and step with three lookups each, whatever the step."""
    weights = np.arange(1, NUM_ROWS + 1) ** -skew
    drawn = rng.choice(NUM_ROWS, (num_steps, num_ranks, 120), p=weights / weights.sum())
    keys: list[NDArray[np.int32]] = []
    masks = []
    for step in drawn:
        uses = np.zeros((NUM_ROWS, num_ranks), np.bool_)
        for rank, rows in enumerate(step):
            uses[rows, rank] = True
        used = np.flatnonzero(uses.any(axis=1))
        keys.append(used.astype(np.int32))
        masks.append((uses[used] << np.arange(num_ranks)).sum(axis=1).astype(mask_type(num_ranks)))
    return RankedEpoch(
        num_ranks=num_ranks,
        num_samples=num_steps * num_ranks * 40,
        offsets=np.cumsum([0, *(each.size for each in keys)]),
        keys=np.concatenate(keys),
        masks=np.concatenate(masks),
        lookups_of_rows=np.bincount(drawn.ravel(), minlength=NUM_ROWS),
        remote_lookups=0,
    )


@NEEDS_COMPILED
@pytest.mark.parametrize("num_ranks", [2, 4, 8])
@pytest.mark.parametrize(("skew", "state"), [(0.0, 4), (1.1, 4), (1.1, 0), (1.1, 9)])
def test_expected_rows_and_moves_are_those_of_drawn_epochs(
    num_ranks: int, skew: float, state: int, rng: np.random.Generator
) -> None:
    epoch = drawn_epoch(num_ranks, 60, skew, rng)
    counted = count_exchange(epoch, 4, state).moving
    costs = move_costs(4, state)
    found = expected_moving(epoch.lookups_of_rows, epoch.num_samples, 40 * num_ranks, num_ranks, costs)
    assert found.rows == pytest.approx(counted.rows, rel=0.03)
    # Moves are so few here that their number is as uncertain as its root.
    assert found.moves == pytest.approx(counted.moves, rel=0.03, abs=3 * counted.moves**0.5)


@NEEDS_COMPILED
def test_steps_beyond_those_drawn_count_by_those_that_are(monkeypatch: pytest.MonkeyPatch) -> None:
    costs = move_costs(16, 1)
    arguments: Any = (np.array([900, 5_000, 20_000]), 100_000, 100, 4, costs)
    whole = expected_moving(*arguments)
    monkeypatch.setattr(module, "_MOST_STEPS", 150)
    assert expected_moving(*arguments) == pytest.approx(whole, rel=0.02)


@NEEDS_COMPILED
@pytest.mark.parametrize("num_ranks", [2, 64])
@pytest.mark.parametrize("num_steps", [9, 60])
def test_it_is_between_the_least_and_homes_by_use(num_steps: int, num_ranks: int) -> None:
    for rank_samples in (64, 512):
        num_samples = num_steps * num_ranks * rank_samples
        step = (num_samples, num_ranks * rank_samples, num_ranks)
        for lookups in (1, 2, 5, 64, 65, num_samples // 2 + 1, num_samples, 3 * num_samples):
            counts = np.array([lookups])
            bounds = expected_exchange(counts, num_samples, num_steps, num_ranks)
            free = expected_moving(counts, *step, move_costs(4, 0))
            slack = 0.04 * bounds.deduplicated + 0.05
            assert bounds.least_possible - slack <= free.rows <= bounds.homes_by_use + slack
            # State that is never worth to be moved leaves homes where they are.
            fixed = expected_moving(counts, *step, move_costs(1, 32_000))
            assert fixed.moves == 0
            assert free.rows - slack <= fixed.rows


def test_rows_that_nobody_looks_up_send_nothing() -> None:
    costs = move_costs(4, 0)
    assert expected_moving(np.zeros(3, np.int64), 100, 10, 2, costs) == (0, 0)
    assert expected_moving(np.array([1, 1]), 0, 10, 2, costs) == (0, 0)
    assert expected_moving(np.array([1, 1]), 100, 10, 2, costs) == (0, 0)
    # The same lookups are expected alike, whenever they are asked for.
    counts = np.array([3, 70, 900])
    assert expected_moving(counts, 4_000, 200, 4, costs) == expected_moving(
        counts[::-1], 4_000, 200, 4, costs
    )
