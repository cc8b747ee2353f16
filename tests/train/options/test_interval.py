"""Intervals as people write them."""

from __future__ import annotations

import pytest

from hotset.pipeline.errors import ConfigError
from hotset.train.options.interval import Interval, parse_interval


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("500", Interval(steps=500)),
        ("10min", Interval(seconds=600)),
        ("30s", Interval(seconds=30)),
        ("1.5h", Interval(seconds=5400)),
        ("off", Interval()),
    ],
)
def test_an_interval_is_read_and_printed(text: str, wanted: Interval) -> None:
    assert parse_interval(text) == wanted
    assert parse_interval(str(wanted)) == wanted


@pytest.mark.parametrize("text", ["", "0", "0min", "-5", "1.5", "10 years", "min", "nan", "1e3", "5MIN"])
def test_what_is_no_interval_is_refused(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_interval(text)
    assert "10min" in str(caught.value.hint)


def test_steps_and_time_are_counted_from_the_last_checkpoint() -> None:
    assert [Interval(steps=5).is_due(steps, 1e9) for steps in (0, 4, 5, 6)] == [False, False, True, True]
    assert [Interval(seconds=5).is_due(1, seconds) for seconds in (0, 4.9, 5)] == [False, False, True]
    assert not Interval(seconds=5).is_due(0, 10)
    assert not Interval().is_due(10**9, 1e9) and Interval().is_off
