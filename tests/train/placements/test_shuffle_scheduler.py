"""The shuffle scheduler on hand-made sequences of test losses."""

from __future__ import annotations

import pytest

from hotset.train.placements.shuffle_scheduler import ShuffleScheduler


def rates(losses: list[float], start: float = 50.0) -> list[float]:
    scheduler = ShuffleScheduler(rate=start)
    found = []
    for loss in losses:
        scheduler.observe(loss)
        found.append(scheduler.rate)
    assert scheduler.losses == losses
    return found


def test_a_rise_halves_the_rate() -> None:
    assert rates([0.5, 0.6, 0.7, 0.7]) == [50, 25, 12.5, 12.5]


def test_the_rate_stays_at_one_or_more() -> None:
    assert rates([0.1, 0.2, 0.3, 0.4], start=3.0) == [3, 1.5, 1, 1]


def test_four_falls_in_a_row_double_the_rate_and_count_anew() -> None:
    losses = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    assert rates(losses, start=10.0) == [10, 10, 10, 10, 20, 20, 20, 20, 40]


def test_the_rate_stays_at_a_hundred_or_less() -> None:
    assert rates([0.9, 0.8, 0.7, 0.6, 0.5], start=80.0)[-1] == 100


def test_a_rise_or_an_equal_loss_breaks_a_row_of_falls() -> None:
    assert rates([0.9, 0.8, 0.7, 0.6, 0.65, 0.6, 0.55, 0.5, 0.45])[-2:] == [25, 50]
    assert rates([0.9, 0.8, 0.7, 0.6, 0.6, 0.5, 0.4, 0.3]) == [50.0] * 8


def test_the_first_loss_changes_nothing() -> None:
    assert rates([123.0]) == [50]


@pytest.mark.parametrize(
    ("rate", "num_mixed", "num_hot_only", "expected"),
    [
        (50.0, 10, 30, [(5, 15), (5, 15)]),
        (100.0, 10, 30, [(10, 30)]),
        (1.0, 3, 6, [(1, 2), (1, 2), (1, 2)]),
        (50.0, 4, 1, [(2, 0), (2, 1)]),
        (40.0, 5, 7, [(2, 2), (2, 3), (1, 2)]),
        (50.0, 6, 0, [(3, 0), (3, 0)]),
        (50.0, 0, 4, [(0, 4)]),
    ],
)
def test_a_turn_is_a_share_of_the_epoch(
    rate: float, num_mixed: int, num_hot_only: int, expected: list[tuple[int, int]]
) -> None:
    assert list(ShuffleScheduler(rate=rate).turns(num_mixed, num_hot_only)) == expected


def test_a_changed_rate_holds_from_the_next_turn() -> None:
    scheduler = ShuffleScheduler()
    turns = scheduler.turns(8, 8)
    assert next(turns) == (4, 4)
    scheduler.rate = 25.0
    assert list(turns) == [(2, 2), (2, 2)]


def test_the_variants_are_those_of_paper_and_code() -> None:
    paper, code = ShuffleScheduler.variant("paper"), ShuffleScheduler.variant("code")
    assert (paper.rate, paper.is_adaptive) == (50.0, True)
    assert (code.rate, code.is_adaptive) == (100.0, False)
