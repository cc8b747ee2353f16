"""Charts over fast memory: fully hot samples, refetched rows by policy, predicted speed by placement."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ...pipeline.inspect.hot_sample_series import OrderRow
from ...pipeline.inspect.miss_ratio_series import MissRatios
from ...pipeline.sizes import format_byte_size
from ...train.advice_record import MemoryOption
from .chart_layers import (
    BLUE,
    GREEN,
    GREY,
    INK,
    ORANGE,
    PURPLE,
    WIDE,
    Axes,
    ChartRow,
    ChartSpec,
    NamedPoints,
    budget_line,
    byte_axis,
    chart_spec,
    line_layers,
    make_axes,
    nice_top,
    percent_axis,
    point_layer,
)
from .report_sentences import percent, rounded

PUBLISHED = ((4_000_000, 0.51), (20_000_000, 0.65), (140_000_000, 0.76))
"""FAE's Kaggle points: bytes of hot rows, fully hot samples (PVLDB 15(1), figure 5)."""
PUBLISHED_ROW_BYTES = 64
"""Bytes of a row there: dim 16, without optimizer state."""
_FAE = "FAE, full log"
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
    rows: Sequence[OrderRow], plan_bytes: int, *, published_row_bytes: int | None = None, width: float = WIDE
) -> ChartSpec:
    """Return fully hot samples by budget for each order; hot lookups of the first order are dashed.

    Args:
        rows: the series ``hot_samples``.
        plan_bytes: the plan's budget, marked by a vertical line; one of more than all rows at their size.
        published_row_bytes: bytes of a row; FAE's published points are shown at as many rows of this size.
            None leaves them out.
        width: of the plot (pixels).
    """
    orders = list(dict.fromkeys(row["order"] for row in rows))
    # A phone has no room for long names: there the axis says what most lines are.
    is_narrow = width < WIDE / 2
    names = {order: _ORDER_NAMES.get(order, order) for order in orders}
    if not is_narrow:
        names = {order: f"fully hot, {name}" for order, name in names.items()}
    lookups = "hot lookups"
    # One line for each order of rows, and the hot lookups of the first order beside it.
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
    colors = {lookups: INK} | {name: _ORDER_COLORS.get(order, PURPLE) for order, name in names.items()}
    sizes = [row["bytes"] for row in rows]
    shares = percent_axis("fully hot samples" if is_narrow else "share")
    axes = make_axes(byte_axis("fast memory for hot rows", sizes), shares, width)
    # Published figures are shown where the axis reaches anyway, and never stretch it.
    published = [point for point in published_points(published_row_bytes) if point[0] <= max(sizes)]
    # Labels of lines keep clear of these points.
    # A plan outside the axis is marked at its end, since beyond the last size every row is hot anyway: a line
    # outside would shrink the whole chart to nothing.
    marked_bytes = min(max(plan_bytes, min(sizes)), max(sizes))
    plan_line = [(marked_bytes, height / 50) for height in range(51)]
    layers = [
        budget_line(marked_bytes, axes),
        *line_layers(
            points,
            axes,
            colors,
            tooltips=["name", "budget", "hot rows", "fully hot samples", "hot lookups"],
            dashed=[lookups],
            with_dots=False,
            obstacles=published,
            named_points={"the plan": NamedPoints(plan_line, GREY), _FAE: NamedPoints(published, PURPLE)},
        ),
        _published_layer(published, axes),
    ]
    return chart_spec(layers, "Share of fully hot samples by fast memory")


def published_points(row_bytes: int | None) -> list[tuple[float, float]]:
    """Return FAE's points at the bytes that as many rows of ``row_bytes`` take; none for None."""
    if row_bytes is None:
        return []
    return [(num_bytes * row_bytes / PUBLISHED_ROW_BYTES, share) for num_bytes, share in PUBLISHED]


def _published_layer(points: Sequence[tuple[float, float]], axes: Axes) -> alt.Chart:
    rows = [
        {"x": x, "y": y, "source": _FAE, "budget": format_byte_size(x), "fully hot samples": percent(y, 0)}
        for x, y in points
    ]
    tooltips = ("source", "budget", "fully hot samples")
    return point_layer(rows, axes, tooltips, shape="diamond", size=80, color=PURPLE)


def miss_ratios_chart(found: MissRatios, *, width: float = WIDE) -> ChartSpec:
    """Return the share of rows that each policy fetches again, by slots; ``found`` is `miss_ratios`."""
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
    layers = line_layers(points, make_axes(x, y, width), _POLICY_COLORS, tooltips=tooltips, dashed=["lru"])
    return chart_spec(layers, "Refetched rows by policy and fast memory")


def placements_chart(options: Sequence[MemoryOption], batch_size: int, *, width: float = WIDE) -> ChartSpec:
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
    # The legend names the placements that are there, in their usual colors.
    present = {point["name"] for point in points}
    colors = {name: color for name, color in _PLACEMENT_COLORS.items() if name in present}
    top = 1.12 * max(point["y"] for point in points)  # room above the fastest line for its name
    y = alt.Y(
        "y:Q",
        title="samples per second (predicted)",
        scale=alt.Scale(domain=[0, top], nice=False),
        axis=alt.Axis(format="~s", tickCount=6),
    )
    x = byte_axis("fast memory, all uses together", [point["x"] for point in points])
    tooltips = ["placement", "fast memory", "samples per second"]
    axes = make_axes(x, (y, (0, top)), width)
    layers = line_layers(points, axes, colors, tooltips=tooltips)
    # all-fast has one size, at which others are as fast: a mark that stands out below their dots.
    alone = [point for point in points if [other["name"] for other in points].count(point["name"]) == 1]
    layers.insert(0, point_layer(alone, axes, tooltips, shape="diamond", size=190, color=INK))
    return chart_spec(layers, "Predicted speed by placement and fast memory")
