"""Charts over fast memory: fully hot samples, refetched rows by policy, predicted speed by placement."""

from __future__ import annotations

from collections.abc import Sequence

import altair as alt

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.coverage import OrderRow
from ...pipeline.statistics.traffic import MissRatios
from ...train.advice import MemoryOption
from .chart_layers import (
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
from .report_sentences import percent, rounded

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
    rows: Sequence[OrderRow], plan_bytes: int, *, published_row_bytes: int | None = None
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


def miss_ratios_chart(found: MissRatios) -> ChartSpec:
    """Return the share of rows that each policy fetches again, by slots; ``found`` is `planner`."""
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
    # The legend names the placements that are there, in their usual colors.
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
