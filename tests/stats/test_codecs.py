"""Bounds fall from twice their value to it, linearly."""

from __future__ import annotations

import pytest

from hotset.stats.codecs import bound_factor


def test_factors_are_those_of_the_linear_schedule() -> None:
    found = [bound_factor(step, 100) for step in range(102)]
    assert found == pytest.approx([2 - step / 100 for step in range(100)] + [1, 1])


def test_without_early_steps_bounds_stay() -> None:
    assert [bound_factor(step, 0) for step in range(20)] == [1] * 20
