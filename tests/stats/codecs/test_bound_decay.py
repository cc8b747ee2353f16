"""Bounds fall from twice their value to it, by the formulas of the paper."""

from __future__ import annotations

import math

import pytest

from hotset.stats.codecs.bound_decay import BOUND_DECAYS, BoundDecay, bound_factor


def published(decay: str, done: float, c: float = 2.0) -> float:
    """The schedules as the paper's code has them, with its constant c."""
    if decay == "constant":
        return c
    if decay == "linear":
        return c - done * (c - 1)
    if decay == "log":
        return 1 + (c - 1) * (1 - math.log(1 + done * (math.e - 1)))
    return c * max(1 - math.floor(10 * done) * (1 - 1 / c) / 10, 1 / c)


@pytest.mark.parametrize("decay", ["constant", "linear", "log", "step"])
def test_factors_are_those_of_the_paper(decay: BoundDecay) -> None:
    found = [bound_factor(decay, step, 100) for step in range(100)]
    assert found == pytest.approx([published(decay, step / 100) for step in range(100)])
    assert found[0] == 2 and found == sorted(found, reverse=True)
    assert bound_factor(decay, 100, 100) == 1


def test_without_a_decay_bounds_stay() -> None:
    assert set(BOUND_DECAYS) == {"none", "constant", "linear", "log", "step"}
    assert [bound_factor("none", step, 10) for step in range(20)] == [1] * 20
    assert bound_factor("linear", 0, 0) == 1
