"""Charts over fast memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from hotset.workflows.report.charts import hot_samples_chart

_SIZES = (16_384, 65_536, 262_144, 1_646_000)


def bytes_in(value: Any) -> Iterator[float]:
    """The places on the axis of bytes, of every mark of a chart."""
    if isinstance(value, dict):
        if type(value.get("x")) in (int, float):
            yield value["x"]
        for item in value.values():
            yield from bytes_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from bytes_in(item)


def chart_of(plan_bytes: int) -> dict[str, Any]:
    """The chart of fully hot samples over four budgets."""
    pytest.importorskip("altair")
    rows = [
        dict(
            order="frequency",
            bytes=num_bytes,
            num_hot_rows=num_bytes // 128,
            hot_lookup_share=0.5,
            hot_sample_share=0.25,
        )
        for num_bytes in _SIZES
    ]
    return hot_samples_chart(rows, plan_bytes)


@pytest.mark.parametrize(("plan_bytes", "marked"), [(2**28, _SIZES[-1]), (128, _SIZES[0]), (10**5, 10**5)])
def test_no_mark_of_a_plan_lies_outside_the_axis(plan_bytes: int, marked: int) -> None:
    places = set(bytes_in(chart_of(plan_bytes)))
    assert marked in places
    assert min(places) >= _SIZES[0] and max(places) <= _SIZES[-1]
