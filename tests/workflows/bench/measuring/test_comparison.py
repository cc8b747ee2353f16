"""A kernel's speed is that of its best round, beside its reference's and what bounds it."""

from __future__ import annotations

from hotset.workflows.bench.measuring.comparison import Comparison, cpu_seconds


def nothing() -> None:
    """Take no time to speak of."""


def test_speeds_are_those_of_the_best_rounds() -> None:
    one = Comparison("a", "Python", nothing, 100, nothing, 10, nothing)
    assert one.describe([(4.0, 1.0, 1.0), (2.0, 5.0, 0.5)]) == {
        "lookups_per_second": 50.0,
        "plain_lookups_per_second": 10.0,
        "ratio": 5.0,
        "plain": "Python",
        "bound_lookups_per_second": 200.0,
        "times_bound": 4.0,
    }


def test_a_kernel_may_have_no_bound() -> None:
    one = Comparison("a", "Python", nothing, 100, nothing, 10)
    assert one.seconds()[2] == 0 and "times_bound" not in one.describe([(4.0, 1.0, 0.0)])


def test_each_function_is_called_once_a_turn() -> None:
    called: list[str] = []
    jobs = [lambda name=name: called.append(name) for name in ("kernel", "reference", "bound")]
    seconds = Comparison("a", "", jobs[0], 1, jobs[1], 1, jobs[2]).seconds()
    assert sorted(called) == ["bound", "kernel", "reference"] and min(seconds) > 0
    assert cpu_seconds(nothing) > 0
