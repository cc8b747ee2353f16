"""The charts of the report, drawn by Vega-Lite.

A chart shows rows of a table (`tables.COLUMNS`), and the cells of a row are the tooltip of its marks. Colors
are CSS variables of the page, so one drawing serves the light and the dark theme; the palette is Okabe and
Ito's, which color-blind readers can distinguish.
"""

from __future__ import annotations

import itertools
import math
import statistics
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import altair as alt
from altair.utils import schemapi

from ...pipeline.statistics.folder import Row
from ...stats.curves import Interval
from .tables import COLUMNS, advice_rows, cells_of

HEIGHT = 320
"""Height of a plot (pixels)."""
_ROW_HEIGHT = 19
"""Height of a bar with the room around it (pixels)."""
BLUE, ORANGE, GREEN, PURPLE, INK, GREY = (
    f"var(--{name})" for name in ("blue", "orange", "green", "purple", "ink", "faint")
)
_BYTES = (
    "datum.value >= 1099511627776 ? format(datum.value / 1099511627776, '~r') + ' TiB' : "
    + " : ".join(
        f"datum.value >= {1024**power} ? format(datum.value / {1024**power}, '~r') + ' {unit}'"
        for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB"))
    )
    + " : datum.value + ' B'"
)
"""A Vega expression that writes a number of bytes in the largest unit it reaches."""
_NUMBER = "abs(datum.value) < 1 ? format(datum.value, '~g') : format(datum.value, '~s')"
_MOST_TICKS = 7

ChartSpec = dict[str, Any]
"""A chart as Vega-Lite has it; the page adds fonts and colors."""


def chart_spec(layers: Sequence[alt.Chart], description: str, height: float = HEIGHT) -> ChartSpec:
    """Return layers as one chart that fills its element's width."""
    sized = alt.layer(*layers).properties(
        width="container",
        height=height,
        description=description,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    with warnings.catch_warnings():
        # Altair's own validation triggers it; nothing here can avoid it.
        warnings.simplefilter("ignore", DeprecationWarning)
        spec: ChartSpec = sized.to_dict(validate=schemapi.DEBUG_MODE)
    return spec


def _percent_axis(title: str, domain: Sequence[float] | None = (0, 1)) -> alt.Y:
    """Return a y axis of shares, labeled in percent."""
    scale = alt.Scale(domain=domain, nice=False) if domain else alt.Scale(zero=True, nice=True)
    return alt.Y("y:Q", title=title, scale=scale, axis=alt.Axis(format="~%", tickCount=6))


def _byte_axis(title: str, sizes: Sequence[float]) -> alt.X:
    """Return a logarithmic x axis over ``sizes`` in bytes."""
    low = min(sizes)
    high = max(sizes)
    axis = alt.Axis(
        labelExpr=_BYTES, values=_byte_ticks(low, high), grid=False, labelOverlap="greedy", labelSeparation=8
    )
    scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def _byte_ticks(low: float, high: float) -> list[int]:
    """Return powers of 16 between both ends, or a finer ladder."""
    powers = [1 << power for power in range(10, 50)]
    choices = (powers[::4], powers[::2], powers, sorted([*powers, *(size // 2 * 3 for size in powers)]))
    for ticks in choices:
        inside = [size for size in ticks if low <= size <= high]
        if len(inside) >= 4:
            return inside
    # The axis spans less than two octaves: equal steps of a power of two, about five of them.
    step = 2 ** max(0, round(math.log2(max(1.0, (high - low) / 5))))
    return [size for size in range(math.ceil(low / step) * step, int(high) + 1, step)]


def _color(colors: Mapping[str, str], hidden: Collection[str] = ()) -> alt.Color:
    """Return each name's color, with a legend of those not hidden."""
    values = [name for name in colors if name not in hidden]
    # A phone has room for one name in a row.
    columns = alt.ExprRef("width < 480 ? 1 : 3")
    legend = None
    if len(values) > 1:
        legend = alt.Legend(
            title=None, orient="top", columns=columns, values=values, labelLimit=0, symbolOpacity=1
        )
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color("name:N", scale=scale, legend=legend)


def _mark(table: str, row: Row, name: str, **places: Any) -> Row:
    """Return a mark's name, places and cells of its row in ``table``."""
    headings = [heading for heading, _, _ in COLUMNS[table]]
    return {"name": name, **places, **dict(zip(headings, cells_of(table, row), strict=True))}


def _marks(table: str, rows: Sequence[Row], x: str, y_of_names: Mapping[str, str]) -> list[Row]:
    """Return the marks of lines that each have a name and a column of y."""
    return [_mark(table, row, name, x=row[x], y=row[key]) for row in rows for name, key in y_of_names.items()]


def _tooltip(table: str) -> list[alt.Tooltip]:
    return [alt.Tooltip(field=heading, type="nominal") for heading, _, _ in COLUMNS[table] if heading]


def _lines(
    table: str,
    points: list[Row],
    axes: tuple[alt.X, alt.Y],
    color: alt.Color,
    *,
    dashed: Sequence[str] = (),
    thin: Sequence[str] = (),
    has_dots: bool = True,
) -> list[alt.Chart]:
    """Return lines through marks, and what a pointer can hit."""
    base = alt.Chart(alt.Data(values=points)).encode(x=axes[0], y=axes[1], detail="name:N", color=color)
    is_thin = alt.FieldOneOfPredicate(field="name", oneOf=list(thin))
    is_dashed = alt.FieldOneOfPredicate(field="name", oneOf=list(dashed))
    lines = base.mark_line(point={"filled": True, "size": 36} if has_dots else False).encode(
        strokeWidth=alt.condition(is_thin, alt.value(1), alt.value(2.25)),
        strokeDash=alt.condition(is_dashed, alt.value([5, 4]), alt.value([1, 0])),
    )
    # Wide and invisible, so that the pointer need not be exact. (Vega-Lite's "nearest" loses tooltips.)
    targets = base.mark_point(filled=True, size=450, opacity=0).encode(tooltip=_tooltip(table))
    return [lines, targets]


def _points(
    points: list[Row], axes: tuple[alt.X, alt.Y], color: alt.Color, tooltip: list[alt.Tooltip], **mark: Any
) -> alt.Chart:
    """Return points that belong to no line."""
    base = alt.Chart(alt.Data(values=points)).encode(x=axes[0], y=axes[1], color=color, tooltip=tooltip)
    return base.mark_point(filled=True, opacity=1, **mark)


_ALL_TABLES = "all tables together"


def coverage_chart(rows: Sequence[Row], named: Sequence[str], all_tables: Sequence[Row]) -> ChartSpec:
    """Return the share of lookups that each table's top rows serve.

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
    together = [
        {"table": _ALL_TABLES, "num_rows": row["num_hot_rows"], "lookup_share": row["hot_lookup_share"]}
        for row in all_tables
        if row["num_hot_rows"]
    ]
    points = [
        _mark("coverage", row, row["table"], x=row["num_rows"], y=row["lookup_share"])
        for row in [*rows, *together]
    ]
    # Powers of ten within the data: ticks beyond the longest line would only widen the chart.
    most = max(point["x"] for point in points)
    axis = alt.Axis(format="~s", values=[10**k for k in range(10) if 10**k <= most], grid=False)
    scale = alt.Scale(type="log", domain=[1, most], nice=False)
    x = alt.X("x:Q", title="top rows (those with the most lookups)", scale=scale, axis=axis)
    color = _color(colors, hidden=others)
    axes = (x, _percent_axis("share of lookups"))
    layers = _lines("coverage", points, axes, color, thin=others, has_dots=False)
    return chart_spec(layers, "Share of lookups by number of top rows, per table")


def unique_rows_chart(rows: Sequence[Row]) -> ChartSpec:
    """Return the distinct rows per batch, expected and measured, by batch size."""
    # Computed figures are drawn as lines, those counted in batches as points.
    lines = {"lookups": "num_lookups", "distinct rows, expected": "expected"}
    counted = {"distinct rows, measured": "measured"}
    points, measured = (_marks("unique_rows", rows, "batch_size", each) for each in (lines, counted))
    # Both axes are logarithmic: equal factors of rows then have equal lengths.
    sizes = [row["batch_size"] for row in rows]
    x = alt.X(
        "x:Q",
        title="batch size (samples)",
        scale=alt.Scale(type="log", base=2, domain=[min(sizes), max(sizes)], nice=False),
        axis=alt.Axis(values=sizes, grid=False, format=",", labelOverlap="greedy", labelSeparation=8),
    )
    y = alt.Y(
        "y:Q", title="rows", scale=alt.Scale(type="log", nice=True), axis=alt.Axis(format="~s", tickCount=6)
    )
    color = _color(dict(zip([*lines, *counted], (INK, BLUE, ORANGE), strict=True)))
    layers = _lines("unique_rows", points, (x, y), color, has_dots=False)
    layers.append(_points(measured, (x, y), color, _tooltip("unique_rows"), size=55))
    return chart_spec(layers, "Distinct rows per batch by batch size")


def drift_chart(by_age: Sequence[Row]) -> ChartSpec:
    """Return the shares that hot rows serve as they age."""
    lines = {
        "hot lookups": "hot_lookup_share",
        "fully hot samples": "hot_sample_share",
        "lookups of unseen rows": "unseen_lookup_share",
    }
    points = _marks("drift_by_age", by_age, "age", lines)
    # The age of a part is its distance from the part that chose the hot rows.
    axis = alt.Axis(values=[row["age"] for row in by_age], format="d", grid=False)
    title = "age of the hot rows (parts of the log)"
    x = alt.X("x:Q", title=title, scale=alt.Scale(domain=[0, by_age[-1]["age"]]), axis=axis)
    color = _color(dict(zip(lines, (INK, BLUE, ORANGE), strict=True)))
    layers = _lines("drift_by_age", points, (x, _percent_axis("share")), color)
    return chart_spec(layers, "What hot rows serve as they age")


PUBLISHED = ((4_000_000, 0.51), (20_000_000, 0.65), (140_000_000, 0.76))
"""FAE's Kaggle points: bytes of hot rows, fully hot samples (PVLDB 15(1), figure 5)."""
PUBLISHED_ROW_BYTES = 64
"""Bytes of a row there: dim 16, without optimizer state."""
_FAE = "FAE, full log"
_PLAN = "the plan"
_ORDERS = {
    "frequency": ("exact counts", BLUE),
    "peel": ("peeled", GREEN),
    "sampled": ("sampled counts", ORANGE),
    "fae": ("FAE's code, 5% sample", ORANGE),
}
"""By order of rows its name and color."""
_POLICY_COLORS = {"lookahead": BLUE, "dataset": GREEN, "static": ORANGE, "lfu": PURPLE, "lru": INK}
PLACEMENT_COLORS = {
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
    """Return fully hot samples by budget and order; hot lookups are dashed.

    Args:
        rows: the series ``hot_samples``.
        plan_bytes: the plan's budget, marked by a vertical line; one of more than all rows at their size.
        published_row_bytes: bytes of a row; FAE's published points are shown at as many rows of this size.
            None leaves them out.
    """
    names = {row["order"]: f"fully hot, {_ORDERS.get(row['order'], (row['order'],))[0]}" for row in rows}
    lookups = "hot lookups"
    table = "hot_samples"
    # One line for each order of rows, and the hot lookups of the first order.
    points = [
        _mark(table, row, names[row["order"]], x=row["bytes"], y=row["hot_sample_share"]) for row in rows
    ]
    first = [row for row in rows if row["order"] == rows[0]["order"]]
    points += _marks(table, first, "bytes", {lookups: "hot_lookup_share"})
    sizes = [row["bytes"] for row in rows]
    axes = (_byte_axis("fast memory for hot rows", sizes), _percent_axis("share"))
    # Published figures are shown where the axis reaches anyway, and never stretch it.
    published = [
        {"name": _FAE, "x": x, "y": y} for x, y in published_points(published_row_bytes) if x <= max(sizes)
    ]
    colors = {lookups: INK} | {name: _ORDERS.get(order, ("", PURPLE))[1] for order, name in names.items()}
    color = _color(colors | {_PLAN: GREY} | ({_FAE: PURPLE} if published else {}))
    # A plan outside the axis is marked at its end, since beyond the last size every row is hot anyway: a line
    # outside would shrink the whole chart to nothing.
    plan = {"name": _PLAN, "x": min(max(plan_bytes, min(sizes)), max(sizes))}
    tooltip = [alt.Tooltip("name:N"), alt.Tooltip("y:Q", title="fully hot samples", format=".0%")]
    layers = [
        alt.Chart(alt.Data(values=[plan])).mark_rule(strokeDash=[2, 3]).encode(x=axes[0], color=color),
        *_lines(table, points, axes, color, dashed=[lookups], has_dots=False),
        _points(published, axes, color, tooltip, shape="diamond", size=80),
    ]
    return chart_spec(layers, "Share of fully hot samples by fast memory")


def published_points(row_bytes: int | None) -> list[tuple[float, float]]:
    """Return FAE's points at rows of ``row_bytes``; none for None."""
    factor = (row_bytes or 0) / PUBLISHED_ROW_BYTES
    return [(num_bytes * factor, share) for num_bytes, share in PUBLISHED if factor]


def miss_ratios_chart(curve: Sequence[Row]) -> ChartSpec:
    """Return the share of rows that each policy loads again, by slots."""
    table = "miss_ratios_curve"
    # Bytes on the axis, not slots: tables of several widths share them.
    points = [_mark(table, row, row["policy"], x=row["bytes"], y=row["refetched_share"]) for row in curve]
    x = _byte_axis("fast memory of the cache", [point["x"] for point in points])
    y = _percent_axis("rows loaded again, of those a batch needs", domain=None)
    layers = _lines(table, points, (x, y), _color_of(points, _POLICY_COLORS), dashed=["lru"])
    return chart_spec(layers, "Rows loaded again by policy and fast memory")


def _color_of(points: Sequence[Row], colors: Mapping[str, str]) -> alt.Color:
    """Return the colors of the names that occur, in their usual order."""
    present = {point["name"] for point in points}
    return _color({name: color for name, color in colors.items() if name in present})


def placements_chart(advice: dict[str, Any]) -> ChartSpec:
    """Return the predicted speed of each placement by fast memory."""
    table = "placements"
    points = [
        _mark(table, row, row["placement"], x=row["fast_bytes"], y=row["batch_size"] / row["step_seconds"])
        for row in advice_rows(advice)
    ]
    x = _byte_axis("fast memory, all uses together", [point["x"] for point in points])
    y = alt.Y(
        "y:Q",
        title="samples per second (predicted)",
        scale=alt.Scale(domain=[0, 1.05 * max(point["y"] for point in points)], nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    color = _color_of(points, PLACEMENT_COLORS)
    # all-fast has one size, at which others are as fast: a mark that stands out below their dots.
    alone = [point for point in points if [other["name"] for other in points].count(point["name"]) == 1]
    layers = [
        _points(alone, (x, y), color, _tooltip(table), shape="diamond", size=190),
        *_lines(table, points, (x, y), color),
    ]
    return chart_spec(layers, "Predicted speed by placement and fast memory")


_VALUE_ROOM = 1.3
"""Length of the axis beyond the longest bar, where a text stands at its end."""


def bar_chart(
    table: str,
    description: str,
    colors: Mapping[str, str],
    bars: Sequence[tuple[Row, str, float]],
    marks: Sequence[tuple[Row, str, float]] = (),
    *,
    heading: str | None = None,
    title: str | None = None,
    row_height: float = _ROW_HEIGHT,
) -> ChartSpec:
    """Return horizontal bars from 0, and perhaps marks across them.

    Args:
        table: the table that has the rows; its first column names them.
        description: description of the chart, for readers who do not see it.
        colors: by name in the legend; none is shown where each bar has its own.
        bars: rows from the top to the bottom, each with its name in the legend and its value.
        marks: likewise.
        heading: the column whose cells stand at the end of the bars; None: an axis of percent instead.
        title: title of the axis of values.
        row_height: height of a bar with the room around it (pixels).
    """
    drawn, marked = (
        [_mark(table, row, name, value=value, label=cells_of(table, row)[0]) for row, name, value in each]
        for each in (bars, marks)
    )
    # Never 0, so that a chart of empty bars still has a scale.
    most = max([1e-12, *(row["value"] for row in [*drawn, *marked])])
    if heading is None:
        axis = alt.Axis(format="~%", tickCount=6)
    else:
        most *= _VALUE_ROOM
        axis = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
    x = alt.X("value:Q", title=title, scale=alt.Scale(domain=[0, most], nice=heading is None), axis=axis)
    labels = [row["label"] for row in drawn]
    y = _names(labels)
    color = _color(colors, hidden=colors if labels == [row["name"] for row in drawn] else ())
    base, across = (
        alt.Chart(alt.Data(values=each)).encode(x=x, y=y, color=color, tooltip=_tooltip(table))
        for each in (drawn, marked)
    )
    layers = [base.mark_bar(height=row_height * 0.62)]
    if heading is not None:
        text = alt.Text(field=heading, type="nominal")
        ink = alt.value("var(--ink)")
        layers.append(base.mark_text(align="left", dx=5, fontSize=12).encode(text=text, color=ink))
    if marks:
        layers.append(across.mark_tick(opacity=1, thickness=3, height=row_height * 0.85))
    return chart_spec(layers, description, row_height * max(1, len(bars)))


def dense_chart(dense: Sequence[Row]) -> ChartSpec:
    """Return each dense feature's 1% to 99%, middle half and median.

    Args:
        dense: rows of dense features in the series ``log``; those without a value are left out.
    """
    places = {"low": "0.01", "from": "0.25", "middle": "0.5", "to": "0.75", "high": "0.99"}
    rows = [
        _mark("log_dense", row, row["feature"], **{key: row["quantiles"][at] for key, at in places.items()})
        for row in dense
        if row["num_values"]
    ]
    low = min((row["low"] for row in rows), default=0)
    high = max((row["high"] for row in rows), default=1)
    # Logarithmic on both sides of 0, since dense values span decades and may be 0 or negative. Linear around
    # it: up to 1, less for small values.
    largest = max((abs(row[key]) for row in rows for key in places), default=1.0) or 1.0
    scale = alt.Scale(
        type="symlog",
        constant=1.0 if largest >= 10 else max(largest / 100, 1e-6),
        domain=[min(low, 0), high if high > 0 or low < 0 else 1],
        nice=False,
    )
    ticks = _powers(low, high, most=_MOST_TICKS)
    axis = alt.Axis(values=ticks, labelExpr=_NUMBER, labelOverlap="greedy", labelSeparation=6)
    x = alt.X("low:Q", title="value (logarithmic)", scale=scale, axis=axis)
    y = _names([row["name"] for row in rows], field="name")
    base = alt.Chart(alt.Data(values=rows)).encode(x=x, y=y, tooltip=_tooltip("log_dense"))
    # A rule from the 1st to the 99th percentile, a bar over the middle half, a point at the median.
    layers = [
        base.mark_rule(color=BLUE, strokeWidth=1.5).encode(x2="high:Q"),
        base.mark_bar(color=BLUE, height=_ROW_HEIGHT * 0.5).encode(x=alt.X("from:Q"), x2="to:Q"),
        base.mark_point(filled=True, color=ORANGE, size=55, opacity=1).encode(x=alt.X("middle:Q")),
    ]
    return chart_spec(layers, "Range of each dense feature", _ROW_HEIGHT * max(1, len(rows)))


def _powers(low: float, high: float, most: int) -> list[float]:
    """Return 0 and powers of ten between both ends.

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


_CURVE_COLORS = (BLUE, ORANGE, GREEN, PURPLE, INK)


def curves_chart(title: str, curves: Mapping[str, Sequence[tuple[int, float]]]) -> ChartSpec:
    """Return curves over steps: the first few in colors, others grey.

    Args:
        title: what the curves show.
        curves: points (step, value) by name; those without one are left out, and equal ones are one line.
    """
    # Placements train the same weights, so that many curves are equal.
    names: dict[tuple[tuple[int, float], ...], list[str]] = {}
    for name, curve in curves.items():
        if curve:
            names.setdefault(tuple(curve), []).append(name)
    lines = {
        " = ".join(each[:2]) + (f" and {len(each) - 2} more" if len(each) > 2 else ""): curve
        for curve, each in names.items()
    }
    colors = dict(itertools.zip_longest(lines, _CURVE_COLORS[: len(lines)], fillvalue=GREY))
    points = [
        {
            "name": name,
            "step": step,
            "value": value,
            "run": name,
            "at step": f"{step:,}",
            title: f"{value:.4f}",
        }
        for name, curve in lines.items()
        for step, value in curve
    ]
    x = alt.X("step:Q", title="step", axis=alt.Axis(format="~s", grid=False, tickCount=5))
    y = alt.Y("value:Q", title=title, scale=alt.Scale(zero=False), axis=alt.Axis(format="~g", tickCount=5))
    tooltip = [alt.Tooltip(field=key, type="nominal") for key in ("run", "at step", title)]
    hidden = [name for name, color in colors.items() if color == GREY]
    base = alt.Chart(alt.Data(values=points)).encode(x=x, y=y, color=_color(colors, hidden))
    layers = [
        base.mark_line(strokeWidth=2, point={"filled": True, "size": 30}),
        base.mark_point(filled=True, size=450, opacity=0).encode(tooltip=tooltip),
    ]
    return chart_spec(layers, title, 0.7 * HEIGHT)


def factor_chart(
    name: str,
    slope: Interval,
    points: Sequence[tuple[float, float, float, float]],
    speeds: tuple[float, float],
) -> ChartSpec:
    """Return the speed by one factor, with the band of its slope.

    Args:
        name: of the factor.
        slope: elasticity with its 95% interval.
        points: value, speed and the quartiles of the speed, by rising value.
        speeds: ends of the axis, in samples per second.
    """
    # All laws of the band pass through the middle of the points.
    values = [value for value, *_ in points]
    middle, level = statistics.geometric_mean(values), statistics.geometric_mean(each[1] for each in points)
    rows = [
        {
            "value": value,
            "speed": speed,
            "low": low,
            "high": high,
            "from": level * (value / middle) ** slope.low,
            "to": level * (value / middle) ** slope.high,
            name: f"{value:g}",
            "samples/s": f"{speed:,.0f}",
            "middle half": f"{low:,.0f} to {high:,.0f}",
        }
        for value, speed, low, high in points
    ]
    axis = alt.Axis(values=values, format=",", grid=False, labelOverlap="greedy", labelSeparation=4)
    scale = alt.Scale(type="log", domain=[values[0], values[-1]], nice=False)
    x = alt.X("value:Q", title=name, scale=scale, axis=axis)
    scale = alt.Scale(type="log", domain=list(speeds), nice=True)
    decades = range(math.floor(math.log10(speeds[0])), math.ceil(math.log10(speeds[1])) + 1)
    axis = alt.Axis(format="~s", values=[10**power for power in decades])
    tooltip = [alt.Tooltip(field=key, type="nominal") for key in (name, "samples/s", "middle half")]
    base = alt.Chart(alt.Data(values=rows)).encode(x=x)
    at = base.encode(y=alt.Y("speed:Q", title=None, scale=scale, axis=axis))
    # The band may leave the axis: its ends are cut.
    band = base.mark_area(color=BLUE, opacity=0.15, clip=True)
    layers = [
        band.encode(y=alt.Y("from:Q", title=None, scale=scale, axis=axis), y2="to:Q"),
        base.mark_rule(color=BLUE).encode(y=alt.Y("low:Q", title=None, scale=scale), y2="high:Q"),
        at.mark_line(color=BLUE, point={"filled": True, "size": 36, "color": BLUE}),
        at.mark_point(filled=True, size=450, opacity=0).encode(tooltip=tooltip),
    ]
    return chart_spec(layers, f"Speed by {name}", HEIGHT / 2)


def _names(names: Sequence[str], field: str = "label") -> alt.Y:
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
    return alt.Y(f"{field}:N", sort=list(names), scale=alt.Scale(padding=0), axis=axis)
