"""The charts of the report: row access, fast memory, and bars.

Access: coverage by rank, distinct rows per batch, aging of hot rows. Fast memory: fully hot samples,
refetched rows by policy, predicted speed by placement. Bars: a value per name, and the range of each dense
feature.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.folder import Row
from ...train.advice import MemoryOption
from .charts import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    ChartRow,
    ChartSpec,
    budget_line,
    byte_axis,
    chart_spec,
    color_by_name,
    line_layers,
    nice_top,
    percent_axis,
    point_layer,
)
from .sentences import percent, rounded
from .tables import short_number

_ALL_TABLES = "all tables together"


def coverage_chart(rows: Sequence[Row], named: Sequence[str], all_tables: Sequence[Row]) -> ChartSpec:
    """Return the share of lookups that the top rows of each table serve.

    Args:
        rows: the series ``coverage``.
        named: tables drawn in color and with their names, at most four; the others are thin and grey.
        all_tables: rows of the series ``hot_samples``, for the line of all tables together.
    """
    # Named tables get colors, as far as there are any; all others are grey.
    palette = dict(zip(named, (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    others = [name for name in dict.fromkeys(row["table"] for row in rows) if name not in palette]
    # Later lines cover earlier ones, so the grey ones are first.
    colors = {name: GREY for name in others} | palette | {_ALL_TABLES: INK}
    # One line for each table, and one for the hot rows of all tables together.
    shares = [(row["num_rows"], row["lookup_share"], row["table"]) for row in rows]
    shares += [
        (row["num_hot_rows"], row["hot_lookup_share"], _ALL_TABLES)
        for row in all_tables
        if row["num_hot_rows"]
    ]
    points: list[ChartRow] = [
        {"x": x, "y": y, "name": name, "table": name, "rows": f"{x:,}", "lookups": percent(y)}
        for x, y, name in shares
    ]
    # Powers of ten within the data: ticks beyond the longest line would only widen the chart.
    most = max(point["x"] for point in points)
    axis = alt.Axis(format="~s", values=[10**k for k in range(10) if 10**k <= most], grid=False)
    scale = alt.Scale(type="log", domain=[1, most], nice=False)
    x = alt.X("x:Q", title="top rows (those with the most lookups)", scale=scale, axis=axis)
    layers = line_layers(
        points,
        (x, percent_axis("share of lookups")),
        color_by_name(colors, hidden=others),
        tooltips=["table", "rows", "lookups"],
        thin=others,
        with_dots=False,
    )
    return chart_spec(layers, "Share of lookups by number of top rows, per table")


def unique_rows_chart(rows: Sequence[Row]) -> ChartSpec:
    """Return the distinct rows per batch, expected and measured, by batch size."""
    lines: dict[str, str] = {"lookups": "num_lookups", "distinct rows, expected": "expected"}
    name = "distinct rows, measured"
    colors = {"lookups": INK, "distinct rows, expected": BLUE, name: ORANGE}
    # Computed figures are drawn as lines, those counted in batches as points.
    points = [_batch_point(row, line, key) for row in rows for line, key in lines.items()]
    measured = [_batch_point(row, name, "measured") for row in rows]
    # The y axis ends at powers of ten just beyond the data.
    sizes = [row["batch_size"] for row in rows]
    most = max(row["num_lookups"] for row in rows)
    least = min(point["y"] for point in [*points, *measured])
    ticks = [10**k for k in range(12) if least / 10 < 10**k < most * 10]
    # Both axes are logarithmic: equal factors of rows then have equal lengths.
    x = alt.X(
        "x:Q",
        title="batch size (samples)",
        scale=alt.Scale(type="log", base=2, domain=[min(sizes), max(sizes)], nice=False),
        axis=alt.Axis(values=sizes, grid=False, format=",", labelOverlap="greedy", labelSeparation=8),
    )
    y = alt.Y(
        "y:Q",
        title="rows",
        scale=alt.Scale(type="log", domain=[ticks[0], ticks[-1]], nice=False),
        axis=alt.Axis(format="~s", values=ticks),
    )
    tooltips = ["name", "batch", "rows"]
    color = color_by_name(colors)
    layers = line_layers(points, (x, y), color, tooltips=tooltips, with_dots=False)
    layers.append(point_layer(measured, (x, y), color, tooltips, size=55))
    return chart_spec(layers, "Distinct rows per batch by batch size")


def _batch_point(row: Row, name: str, key: str) -> ChartRow:
    return {
        "x": row["batch_size"],
        "y": row[key],
        "name": name,
        "batch": f"{row['batch_size']:,} samples",
        "rows": f"{row[key]:,.0f}",
    }


def drift_chart(by_age: Sequence[Row]) -> ChartSpec:
    """Return the shares that the hot rows of one part serve in later parts, by the parts in between."""
    lines: dict[str, str] = {
        "hot lookups": "hot_lookup_share",
        "fully hot samples": "hot_sample_share",
        "lookups of unseen rows": "unseen_lookup_share",
    }
    colors = dict(zip(lines, (INK, BLUE, ORANGE), strict=True))
    points = [
        {
            "x": row["age"],
            "y": row[key],
            "name": name,
            "age": f"{row['age']} parts",
            "share": percent(row[key]),
        }
        for row in by_age
        for name, key in lines.items()
    ]
    # The age of a part is its distance from the part that chose the hot rows.
    axis = alt.Axis(values=[row["age"] for row in by_age], format="d", grid=False)
    title = "age of the hot rows (parts of the log)"
    x = alt.X("x:Q", title=title, scale=alt.Scale(domain=[0, by_age[-1]["age"]]), axis=axis)
    axes = (x, percent_axis("share"))
    layers = line_layers(points, axes, color_by_name(colors), tooltips=["name", "age", "share"])
    return chart_spec(layers, "What hot rows serve as they age")


PUBLISHED = ((4_000_000, 0.51), (20_000_000, 0.65), (140_000_000, 0.76))
"""FAE's Kaggle points: bytes of hot rows, fully hot samples (PVLDB 15(1), figure 5)."""
PUBLISHED_ROW_BYTES = 64
"""Bytes of a row there: dim 16, without optimizer state."""
_FAE = "FAE, full log"
_PLAN = "the plan"
_ORDER_COLORS = {"frequency": BLUE, "peel": GREEN, "fae": ORANGE, "sampled": ORANGE}
_ORDER_NAMES = {
    "frequency": "exact counts",
    "peel": "peeled",
    "sampled": "sampled counts",
    "fae": "FAE's code, 5% sample",
}
_POLICY_COLORS = {"lookahead": BLUE, "dataset": GREEN, "static": ORANGE, "lfu": PURPLE, "lru": INK}
_PLACEMENT_COLORS = {
    "lookahead": BLUE,
    "cache": GREEN,
    "fae": ORANGE,
    "hybrid-dedup": PURPLE,
    "hybrid": GREY,
    "all-fast": INK,
}


def hot_samples_chart(
    rows: Sequence[Row], plan_bytes: int, *, published_row_bytes: int | None = None
) -> ChartSpec:
    """Return fully hot samples by budget for each order; hot lookups of the first order are dashed.

    Args:
        rows: the series ``hot_samples``.
        plan_bytes: the plan's budget, marked by a vertical line; one of more than all rows at their size.
        published_row_bytes: bytes of a row; FAE's published points are shown at as many rows of this size.
            None leaves them out.
    """
    orders = list(dict.fromkeys(row["order"] for row in rows))
    names = {order: f"fully hot, {_ORDER_NAMES.get(order, order)}" for order in orders}
    lookups = "hot lookups"
    # One line for each order of rows, and the hot lookups of the first order.
    points: list[ChartRow] = []
    for row in rows:
        point = {
            "x": row["bytes"],
            "y": row["hot_sample_share"],
            "name": names[row["order"]],
            "budget": format_byte_size(row["bytes"]),
            "hot rows": f"{row['num_hot_rows']:,}",
            "fully hot samples": percent(row["hot_sample_share"]),
            "hot lookups": percent(row["hot_lookup_share"]),
        }
        points.append(point)
        if row["order"] == orders[0]:
            points.append(point | {"y": row["hot_lookup_share"], "name": lookups})
    sizes = [row["bytes"] for row in rows]
    # Published figures are shown where the axis reaches anyway, and never stretch it.
    published: list[ChartRow] = [
        {"x": x, "y": y, "name": _FAE, "budget": format_byte_size(x), "fully hot samples": percent(y, 0)}
        for x, y in published_points(published_row_bytes)
        if x <= max(sizes)
    ]
    colors = {lookups: INK} | {name: _ORDER_COLORS.get(order, PURPLE) for order, name in names.items()}
    colors |= {_PLAN: GREY} | ({_FAE: PURPLE} if published else {})
    color = color_by_name(colors)
    axes = (byte_axis("fast memory for hot rows", sizes), percent_axis("share"))
    # A plan outside the axis is marked at its end, since beyond the last size every row is hot anyway: a line
    # outside would shrink the whole chart to nothing.
    marked_bytes = min(max(plan_bytes, min(sizes)), max(sizes))
    shown = ["name", "budget", "hot rows", "fully hot samples", "hot lookups"]
    layers = [
        budget_line(marked_bytes, axes[0], _PLAN, color),
        *line_layers(points, axes, color, tooltips=shown, dashed=[lookups], with_dots=False),
        point_layer(
            published, axes, color, ("name", "budget", "fully hot samples"), shape="diamond", size=80
        ),
    ]
    return chart_spec(layers, "Share of fully hot samples by fast memory")


def published_points(row_bytes: int | None) -> list[tuple[float, float]]:
    """Return FAE's points at the bytes that as many rows of ``row_bytes`` take; none for None."""
    if row_bytes is None:
        return []
    return [(num_bytes * row_bytes / PUBLISHED_ROW_BYTES, share) for num_bytes, share in PUBLISHED]


def miss_ratios_chart(found: dict[str, Any]) -> ChartSpec:
    """Return the share of rows that each policy loads again, by slots; ``found`` is `planner`."""
    # Bytes on the axis, not slots: tables of several widths share them.
    points: list[ChartRow] = [
        {
            "x": row["bytes"],
            "y": row["refetched_share"],
            "name": row["policy"],
            "policy": row["policy"],
            "fast memory": format_byte_size(row["bytes"]),
            "slots": f"{row['num_slots']:,}",
            "refetched": percent(row["refetched_share"]),
        }
        for row in found["curve"]
    ]
    x = byte_axis("fast memory, all used for slots", [point["x"] for point in points])
    y = percent_axis("refetched share of the rows a batch needs", nice_top([point["y"] for point in points]))
    tooltips = ["policy", "fast memory", "slots", "refetched"]
    present = {point["name"] for point in points}
    color = color_by_name({name: color for name, color in _POLICY_COLORS.items() if name in present})
    layers = line_layers(points, (x, y), color, tooltips=tooltips, dashed=["lru"])
    return chart_spec(layers, "Refetched rows by policy and fast memory")


def placements_chart(options: Sequence[MemoryOption], batch_size: int) -> ChartSpec:
    """Return the predicted speed of each placement by fast memory; ``options`` are those of `advise`."""
    points: list[ChartRow] = [
        {
            "x": option["fast_bytes"],
            "y": batch_size / one["step_seconds"],
            "name": one["placement"],
            "placement": one["placement"],
            "fast memory": format_byte_size(option["fast_bytes"]),
            "samples per second": f"about {rounded(batch_size / one['step_seconds'])}",
        }
        for option in options
        for one in option["placements"]
    ]
    # The legend names the placements of the chart, in their usual colors.
    present = {point["name"] for point in points}
    colors = {name: color for name, color in _PLACEMENT_COLORS.items() if name in present}
    top = 1.05 * max(point["y"] for point in points)
    y = alt.Y(
        "y:Q",
        title="samples per second (predicted)",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    x = byte_axis("fast memory, all uses together", [point["x"] for point in points])
    tooltips = ["placement", "fast memory", "samples per second"]
    color = color_by_name(colors)
    layers = line_layers(points, (x, y), color, tooltips=tooltips)
    # all-fast has one size, at which others are as fast: a mark that stands out below their dots.
    alone = [point for point in points if [other["name"] for other in points].count(point["name"]) == 1]
    layers.insert(0, point_layer(alone, (x, y), color, tooltips, shape="diamond", size=190))
    return chart_spec(layers, "Predicted speed by placement and fast memory")


_ROW_HEIGHT = 19
"""Height of a row of a chart (pixels)."""
_VALUE_ROOM = 1.3
"""Length of the axis beyond the longest bar, for its value."""
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
    """Return horizontal bars from 0, followed by their values.

    Args:
        bars: from the top to the bottom.
        title: title of the axis of values, which has no labels: every bar has its value.
        description: description of the chart, for readers who do not see it.
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
    # Room after the longest bar for its value, and twice that factor where a mark has one too.
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
    # Without marks each value follows its bar directly.
    if all(bar.mark is None for bar in bars):
        texts = base.mark_text(align="left", dx=5, fontSize=12, color="var(--ink)").encode(text="text:N")
        return chart_spec([drawn, texts], description, _ROW_HEIGHT * max(1, len(bars)))
    # Values form a column at the right edge, where neither bars nor marks reach.
    marks = base.mark_tick(color=ORANGE, opacity=1, thickness=3, height=_ROW_HEIGHT * 0.85)
    texts = base.mark_text(align="right", fontSize=12, color="var(--ink)")
    layers = [
        drawn,
        marks.encode(x=alt.X("mark:Q", title=lines)),
        texts.encode(x=alt.value(alt.ExprRef("width")), text="text:N"),
    ]
    return chart_spec(layers, description, _ROW_HEIGHT * max(1, len(bars)))


def dense_chart(dense: Sequence[Row]) -> ChartSpec:
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


def _range(row: Row) -> ChartRow:
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
    """Return 0 and powers of ten between both ends, fewer if there are many.

    They begin at 1, or where both ends are below 10 at a tenth of the last one.
    """
    # Both sides begin at the same power: one close to 0 on one side alone would be drawn at 0.
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
