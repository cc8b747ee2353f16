"""Charts of how rows are accessed: coverage by rank, distinct rows per batch, hot rows that age."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ...pipeline.statistics.coverage import BatchFigure, BudgetRow, CoverageRow, UniqueRowsRow
from ...pipeline.statistics.drift import DriftAge, ServedShare
from .chart_layers import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    ChartRow,
    ChartSpec,
    chart_spec,
    color_by_name,
    line_layers,
    percent_axis,
    point_layer,
)
from .report_sentences import percent

_ALL_TABLES = "all tables together"


def coverage_chart(
    rows: Sequence[CoverageRow], named: Sequence[str], all_tables: Sequence[BudgetRow]
) -> ChartSpec:
    """Return the share of lookups that the top rows of each table serve.

    Args:
        rows: the series ``coverage``.
        named: tables drawn in color and with their names, at most four; the others are thin and grey.
        all_tables: rows of the series ``hot_samples``, for the line of all tables together.
    """
    # Named tables get colors, as far as there are any; all others are grey.
    palette = dict(zip(named, (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    others = [name for name in dict.fromkeys(row["table"] for row in rows) if name not in palette]
    # Later lines cover earlier ones, so the grey ones come first.
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


def unique_rows_chart(rows: Sequence[UniqueRowsRow]) -> ChartSpec:
    """Return the distinct rows per batch, expected and measured, by batch size."""
    lines: dict[str, BatchFigure] = {"lookups": "num_lookups", "distinct rows, expected": "expected"}
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


def _batch_point(row: UniqueRowsRow, name: str, key: BatchFigure) -> ChartRow:
    return {
        "x": row["batch_size"],
        "y": row[key],
        "name": name,
        "batch": f"{row['batch_size']:,} samples",
        "rows": f"{row[key]:,.0f}",
    }


def drift_chart(by_age: Sequence[DriftAge]) -> ChartSpec:
    """Return the shares that the hot rows of one part serve in later parts, by the parts in between."""
    lines: dict[str, ServedShare] = {
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
