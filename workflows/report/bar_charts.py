"""Charts with a row for each name: bars with their value, and the range of each dense feature."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import altair as alt

from ...pipeline.statistics.log import DenseRow
from .chart_layers import BLUE, ORANGE, ChartRow, ChartSpec, chart_spec
from .log_tables import short_number

_ROW_HEIGHT = 19
"""Height of a row of a chart (pixels)."""
_VALUE_ROOM = 1.3
"""How far the axis extends beyond the longest bar, for its value."""
_NUMBER = "abs(datum.value) < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
_MOST_TICKS = 7
_LINE_LETTERS = 40
"""Letters of an axis title in a line, so that a phone has room for it."""


@dataclass(frozen=True, slots=True)
class Bar:
    """One row: a name, a value as a bar, and perhaps another value as a mark across it."""

    name: str
    value: float
    text: str
    """The value as it is written; where there is a mark, its value too."""
    mark: float | None = None
    tooltip: Mapping[str, str] | None = None
    color: str = BLUE


def bar_chart(bars: Sequence[Bar], title: str, description: str) -> ChartSpec:
    """Return horizontal bars from 0, with their values written behind them.

    Args:
        bars: from the top to the bottom.
        title: of the axis of values, which has no labels: every bar has its value.
        description: of the chart, for readers who do not see it.
    """
    rows = [
        {
            "name": bar.name,
            "value": bar.value,
            "text": bar.text,
            "mark": bar.mark,
            "color": bar.color,
            **(bar.tooltip or {}),
        }
        for bar in bars
    ]
    # Never 0, so that a chart of empty bars still has a scale.
    most = max([1e-12, *(bar.value for bar in bars), *(bar.mark or 0 for bar in bars)])
    # Room behind the longest bar for its value, and twice that factor where a mark has one too.
    room = _VALUE_ROOM
    if any(bar.mark is not None for bar in bars):
        room *= room
    y = _names([bar.name for bar in bars])
    lines = textwrap.wrap(title, _LINE_LETTERS)
    x = alt.X(
        "value:Q",
        title=lines,
        scale=alt.Scale(domain=[0, room * most], nice=False),
        axis=alt.Axis(labels=False, ticks=False, grid=False, domain=False),
    )
    keys = ["name", *(bars[0].tooltip or {})] if bars else ["name"]
    tooltip = [alt.Tooltip(f"{key}:N") for key in keys]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, tooltip=tooltip)
    drawn = base.mark_bar(height=_ROW_HEIGHT * 0.62).encode(color=alt.Color("color:N", scale=None))
    # Without marks each value stands right behind its bar.
    if all(bar.mark is None for bar in bars):
        texts = base.mark_text(align="left", dx=5, fontSize=12, color="var(--ink)").encode(text="text:N")
        return chart_spec([drawn, texts], description, _ROW_HEIGHT * max(1, len(bars)))
    # Values stand in a column at the right edge, where neither bars nor marks reach.
    marks = base.mark_tick(color=ORANGE, opacity=1, thickness=3, height=_ROW_HEIGHT * 0.85)
    texts = base.mark_text(align="right", fontSize=12, color="var(--ink)")
    layers = [
        drawn,
        marks.encode(x=alt.X("mark:Q", title=lines)),
        texts.encode(x=alt.value(alt.ExprRef("width")), text="text:N"),
    ]
    return chart_spec(layers, description, _ROW_HEIGHT * max(1, len(bars)))


def dense_chart(dense: Sequence[DenseRow]) -> ChartSpec:
    """Return the range of each dense feature: 1% to 99%, the middle half, and the median.

    Args:
        dense: rows of the series ``log``, features without a value are left out.
    """
    rows = [_range(row) for row in dense if row["num_values"]]
    low = min((row["low"] for row in rows), default=0)
    high = max((row["high"] for row in rows), default=1)
    ticks = _powers(low, high, most=_MOST_TICKS)
    # Logarithmic on both sides of 0, linear around it.
    # A symmetric logarithm, since counts span decades and dense values may be 0 or negative.
    scale = alt.Scale(
        type="symlog",
        constant=_constant(rows),
        domain=[min(low, 0), high if high > 0 or low < 0 else 1],
        nice=False,
    )
    axis = alt.Axis(values=ticks, labelExpr=_NUMBER, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("low:Q", title="value (logarithmic)", scale=scale, axis=axis)
    tooltips = [alt.Tooltip(f"{key}:N") for key in ("name", "1%", "25%", "median", "75%", "99%")]
    base = alt.Chart(alt.Data(values=rows)).encode(
        x=x, y=_names([row["name"] for row in rows]), tooltip=tooltips
    )
    # A rule from the 1st to the 99th percentile, a bar over the middle half, a point at the median.
    layers = [
        base.mark_rule(color=BLUE, strokeWidth=1.5).encode(x2="high:Q"),
        base.mark_bar(color=BLUE, height=_ROW_HEIGHT * 0.5).encode(x=alt.X("from:Q"), x2="to:Q"),
        base.mark_point(filled=True, color=ORANGE, size=55, opacity=1).encode(x=alt.X("middle:Q")),
    ]
    return chart_spec(layers, "Range of each dense feature", _ROW_HEIGHT * max(1, len(rows)))


def _range(row: DenseRow) -> ChartRow:
    quantiles = row["quantiles"]
    shown = {"1%": "0.01", "25%": "0.25", "median": "0.5", "75%": "0.75", "99%": "0.99"}
    return {
        "name": row["feature"],
        "low": quantiles["0.01"],
        "from": quantiles["0.25"],
        "middle": quantiles["0.5"],
        "to": quantiles["0.75"],
        "high": quantiles["0.99"],
    } | {name: short_number(quantiles[share]) for name, share in shown.items()}


def _constant(rows: Sequence[ChartRow]) -> float:
    """Return the size around which the axis turns from linear to logarithmic: 1, less for small values."""
    sizes = [abs(row[key]) for row in rows for key in ("low", "from", "middle", "to", "high") if row[key]]
    largest = max(sizes, default=1.0)
    return 1.0 if largest >= 10 else max(largest / 100, 1e-6)


def _powers(low: float, high: float, most: int) -> list[float]:
    """Return 0 and the powers of ten between both ends, every second or third of them where they are many.

    They begin at 1, or where both ends are below 10 at a tenth of the last one.
    """
    # Both sides begin at the same power: one close to 0 on one side alone would stand where 0 does.
    ends = [end for end in (high, -low) if end > 0]
    first = min(0, max((_last_power(end) for end in ends), default=0) - 1)
    positive, negative = (
        [10.0**power for power in range(first, _last_power(end) + 1)] if end > 0 else []
        for end in (high, -low)
    )
    step = max(1, -(-(len(positive) + len(negative)) // most))
    return [*(-value for value in negative[::step][::-1]), 0.0, *positive[::step]]


def _last_power(end: float) -> int:
    """Return the exponent of the last power of ten up to ``end``."""
    return math.floor(math.log10(end) + 1e-9)


def _names(names: Sequence[str]) -> alt.Y:
    # Names that are too long are cut by the chart itself, so that the whole name remains in the tooltip.
    axis = alt.Axis(
        title=None,
        ticks=False,
        domain=False,
        labelColor="var(--ink)",
        labelPadding=7,
        labelLimit=120,
        labelOverlap=False,
    )
    return alt.Y("name:N", sort=list(names), scale=alt.Scale(padding=0), axis=axis)
