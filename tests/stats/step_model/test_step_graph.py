"""Paths through what waits for what."""

from __future__ import annotations

import pytest

from hotset.stats.step_model.step_graph import longest_path, step_seconds


def test_the_longest_path_is_not_the_sum() -> None:
    seconds = {"a": 1.0, "b": 2.0, "c": 4.0, "d": 1.0}
    assert longest_path(seconds, {"b": ("a",), "d": ("b", "c")}) == 5
    assert longest_path({}, {}) == 0


def test_parts_that_wait_for_each_other_are_refused() -> None:
    with pytest.raises(ValueError, match="waits for itself"):
        longest_path({"a": 1.0, "b": 1.0}, {"a": ("b",), "b": ("a",)})


@pytest.mark.parametrize(
    ("loop", "load", "transfers", "wanted"), [(3, 1, 2, 3), (1, 4, 2, 4), (1, 2, 5, 5), (2, 0, 0, 2)]
)
def test_a_step_takes_as_long_as_the_slowest_thread(
    loop: float, load: float, transfers: float, wanted: float
) -> None:
    assert step_seconds(loop, load, transfers) == wanted


def test_transfers_that_may_not_run_ahead_are_part_of_the_step() -> None:
    assert step_seconds(3, 1, 2, is_ahead=False) == 5


def test_the_loop_loses_a_share_of_the_work_beside_it() -> None:
    assert step_seconds(3, 1, 1, contention=0.5) == 4
