"""The report's charts, drawn by Altair (Vega-Lite) from series: each function takes plain data.

Colours are CSS variables of the page, so one drawing serves light and dark; the palette is Okabe and Ito's,
which colour-blind readers tell apart. Lines are named where they run. Numbers in tips are text made here.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt

from ...pipeline.sizes import format_byte_size
from .report_labels import Frame, Label, Points, place_labels
from .report_sentences import percent

WIDTH, HEIGHT = 820, 320
"""Of a plot on a laptop (pixels); narrower windows shrink it."""
BLUE, ORANGE, GREEN, PURPLE, YELLOW, INK, GREY = (
    f"var(--{name})" for name in ("blue", "orange", "green", "purple", "yellow", "ink", "faint")
)
_BYTES = (
    "datum.value >= 1099511627776 ? format(datum.value / 1099511627776, '~r') + ' TiB' : "
    + " : ".join(
        f"datum.value >= {1024**power} ? format(datum.value / {1024**power}, '~r') + ' {unit}'"
        for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB"))
    )
    + " : datum.value + ' B'"
)
PUBLISHED = [(4_000_000, 0.51), (20_000_000, 0.65), (140_000_000, 0.76)]
"""FAE's Kaggle points: bytes of hot rows at dim 16, fully hot samples (PVLDB 15(1), figure 5)."""
_FAE = "published by FAE, full log"
_ORDER_COLORS = {"frequency": BLUE, "peel": GREEN, "fae": ORANGE, "sampled": ORANGE}
ORDERS = {
    "frequency": "exact counts",
    "peel": "peeled",
    "sampled": "sampled counts",
    "fae": "FAE's 5 % sample",
}
Rows = Sequence[Mapping[str, Any]]


def config() -> dict[str, Any]:
    """What all charts share."""
    font = "system-ui, -apple-system, 'Segoe UI', sans-serif"
    axis = {
        "labelColor": "var(--muted)",
        "titleColor": "var(--muted)",
        "gridColor": "var(--grid)",
        "domainColor": "var(--grid)",
        "tickColor": "var(--grid)",
        "labelFontSize": 12,
        "titleFontSize": 12,
        "titleFontWeight": "normal",
        "titlePadding": 8,
    }
    return {
        "background": "transparent",
        "font": font,
        "view": {"stroke": None},
        "axis": axis,
        "legend": {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "labelFontSize": 12},
    }


def spec_of(chart: alt.LayerChart | alt.Chart, description: str) -> dict[str, Any]:
    """A chart as Vega-Lite JSON that fills the width there is."""
    sized = chart.properties(
        width="container",
        height=HEIGHT,
        description=description,
        autosize=alt.AutoSizeParams(type="fit-x", contains="padding"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Altair's own, of its validation
        found: dict[str, Any] = sized.to_dict()
    return found | {"config": config()}


@dataclass(frozen=True, slots=True)
class _Axes:
    """Both axes, for Vega-Lite and for placing labels."""

    x: alt.X
    y: alt.Y
    frame: Frame


def _axes(x: tuple[alt.X, tuple[float, float]], y: tuple[alt.Y, tuple[float, float]], **logs: bool) -> _Axes:
    return _Axes(x[0], y[0], Frame(x[1], y[1], WIDTH, HEIGHT, **logs))


def _percent_axis(title: str, top: float = 1.0) -> tuple[alt.Y, tuple[float, float]]:
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y("y:Q", title=title, scale=scale, axis=alt.Axis(format="~%", tickCount=6)), (0, top)


def _byte_axis(title: str, sizes: Sequence[float]) -> tuple[alt.X, tuple[float, float]]:
    low, high = min(sizes), max(sizes)
    axis = alt.Axis(labelExpr=_BYTES, values=_byte_ticks(low, high), grid=False, labelOverlap="greedy")
    scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis), (low, high)


def _byte_ticks(low: float, high: float) -> list[int]:
    """Powers of four, or finer where those are few."""
    powers = [1 << power for power in range(10, 50)]
    choices = (powers[::2], powers, sorted([*powers, *(size // 2 * 3 for size in powers)]))
    for ticks in choices:
        inside = [size for size in ticks if low <= size <= high]
        if len(inside) >= 4:
            return inside
    step = 2 ** max(0, round(math.log2(max(1.0, (high - low) / 5))))
    return [size for size in range(math.ceil(low / step) * step, int(high) + 1, step)]


def _nice_top(shares: Sequence[float]) -> float:
    """The top of a percent axis: the next of 5, 10, 20, 30, … per cent."""
    most = max(shares, default=0)
    return next((top for top in (0.05, *(k / 10 for k in range(1, 10))) if most <= top), 1.0)


def _lines(
    rows: list[dict[str, Any]],
    axes: _Axes,
    colors: Mapping[str, str],
    *,
    tips: Sequence[str],
    labels: Sequence[str] | None = None,
    dashed: Sequence[str] = (),
    thin: Sequence[str] = (),
    points: bool = True,
    obstacles: Points = (),
    more: Mapping[str, Points] | None = None,
    more_colors: Mapping[str, str] | None = None,
) -> list[alt.Chart]:
    """Lines by name with their names on them, and a tip near each point; ``more`` is only named here."""
    names = list(colors)
    color = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(colors.values())), legend=None)
    base = alt.Chart(alt.Data(values=rows)).encode(x=axes.x, y=axes.y, detail="name:N", color=color)
    is_thin = alt.FieldOneOfPredicate(field="name", oneOf=list(thin))
    is_dashed = alt.FieldOneOfPredicate(field="name", oneOf=list(dashed))
    line = base.mark_line().encode(
        strokeWidth=alt.condition(is_thin, alt.value(1), alt.value(2.25)),
        strokeDash=alt.condition(is_dashed, alt.value([5, 4]), alt.value([1, 0])),
    )
    dots = base.mark_point(filled=True, size=36, opacity=0.9 if points else 0)
    # Wide and unseen, so that the pointer need not be exact. (Vega-Lite's nearest selections lose tips.)
    over = base.mark_point(filled=True, size=450, opacity=0).encode(
        tooltip=[alt.Tooltip(f"{key}:N") for key in tips]
    )
    in_the_way = [name for name in names if name not in thin]
    drawn = {name: [(row["x"], row["y"]) for row in rows if row["name"] == name] for name in in_the_way}
    wanted = [*(names if labels is None else labels), *(more or {})]
    placed = place_labels(drawn | dict(more or {}), wanted, axes.frame, obstacles)
    return [line, dots, over, *_names(placed, dict(colors) | dict(more_colors or {}))]


def _names(labels: Sequence[Label], colors: Mapping[str, str]) -> list[alt.Chart]:
    """Each label once in the page's colour, wide, so that it stands out, and once in its own."""
    layers = []
    for label in labels:
        x = alt.value(alt.ExprRef(f"width * {label.x / WIDTH:.4f}"))
        base = alt.Chart(alt.Data(values=[{}])).encode(x=x, y=alt.value(label.y), text=alt.value(label.name))
        style = {"fontSize": 12, "fontWeight": 600, "baseline": "middle"}
        halo = base.mark_text(stroke="var(--paper)", strokeWidth=4, strokeJoin="round", **style)
        color = "var(--muted)" if colors[label.name] == GREY else colors[label.name]
        layers += [halo, base.mark_text(color=color, **style)]
    return layers


def hot_samples(rows: Rows, chosen: int, *, with_published: bool) -> dict[str, Any]:
    """Fully hot samples by budget, for each order; look-ups of the first order dashed."""
    orders = list(dict.fromkeys(row["order"] for row in rows))
    names = {order: f"fully hot samples, {ORDERS.get(order, order)}" for order in orders}
    lookups = f"hot look-ups, {ORDERS.get(orders[0], orders[0])}"
    data = []
    for row in rows:
        tips = {
            "budget": format_byte_size(row["bytes"]),
            "hot rows": f"{row['num_hot_rows']:,}",
            "fully hot samples": percent(row["hot_sample_share"]),
            "hot look-ups": percent(row["hot_lookup_share"]),
        }
        at = {"x": row["bytes"], "y": row["hot_sample_share"], "name": names[row["order"]]}
        data.append(at | tips)
        if row["order"] == orders[0]:
            data.append(at | tips | {"y": row["hot_lookup_share"], "name": lookups})
    colors = {lookups: INK} | {name: _ORDER_COLORS.get(order, PURPLE) for order, name in names.items()}
    sizes = [row["bytes"] for row in rows]
    axes = _axes(_byte_axis("memory for hot rows", sizes), _percent_axis("share"))
    published = {_FAE: [point for point in PUBLISHED if with_published and point[0] <= max(sizes)]}
    in_the_way = [(chosen, height / 50) for height in range(51)] + published[_FAE]
    tip_names = ["name", "budget", "hot rows", "fully hot samples", "hot look-ups"]
    layers = _mark_at(chosen, "the plan", axes)
    layers += _lines(
        data, axes, colors, tips=tip_names, dashed=[lookups], points=False, obstacles=in_the_way,
        more=published, more_colors={_FAE: PURPLE},
    )  # fmt: skip
    return spec_of(alt.layer(*layers, *_published(published[_FAE], axes)), "Share of hot samples by memory")


def _mark_at(size: int, name: str, axes: _Axes) -> list[alt.Chart]:
    """A vertical line at a budget, named at its foot."""
    base = alt.Chart(alt.Data(values=[{"x": size}])).encode(x=axes.x)
    rule = base.mark_rule(color="var(--muted)", strokeDash=[2, 3])
    text = base.mark_text(align="left", dx=5, dy=-6, baseline="bottom", color="var(--muted)", fontSize=12)
    return [rule, text.encode(y=alt.value(HEIGHT), text=alt.value(name))]


def _published(points: Sequence[tuple[float, float]], axes: _Axes) -> list[alt.Chart]:
    values = [
        {"x": x, "y": y, "source": _FAE, "budget": f"{x // 10**6} MB", "fully hot samples": percent(y, 0)}
        for x, y in points
    ]
    base = alt.Chart(alt.Data(values=values)).encode(x=axes.x, y=axes.y)
    tips = [alt.Tooltip(f"{key}:N") for key in ("source", "budget", "fully hot samples")]
    return [
        base.mark_point(shape="diamond", size=80, color=PURPLE, filled=True, opacity=1).encode(tooltip=tips)
    ]


def coverage(rows: Rows, hardest: Sequence[str], every: Rows) -> dict[str, Any]:
    """Share of look-ups by number of rows: the tables that need the most rows by name, the others faint."""
    palette = dict(zip(hardest, (BLUE, ORANGE, GREEN, PURPLE), strict=False))
    together = "all tables together"
    others = [name for name in dict.fromkeys(row["table"] for row in rows) if name not in palette]
    colors = {name: GREY for name in others} | palette | {together: INK}
    points = [(row["num_rows"], row["lookup_share"], row["table"]) for row in rows]
    points += [
        (row["num_hot_rows"], row["hot_lookup_share"], together) for row in every if row["num_hot_rows"]
    ]
    data = [
        {"x": x, "y": y, "name": name, "table": name, "rows": f"{x:,}", "look-ups": percent(y)}
        for x, y, name in points
    ]
    most = max(row["x"] for row in data)
    axis = alt.Axis(format="~s", values=[10**k for k in range(10) if 10**k <= most], grid=False)
    scale = alt.Scale(type="log", domain=[1, most], nice=False)
    x = alt.X("x:Q", title="most looked-up rows", scale=scale, axis=axis)
    axes = _axes((x, (1, most)), _percent_axis("share of look-ups"))
    layers = _lines(
        data,
        axes,
        colors,
        tips=["table", "rows", "look-ups"],
        labels=[together, *palette],
        thin=others,
        points=False,
    )
    return spec_of(alt.layer(*layers), "Share of look-ups by number of rows, per table")


def miss_ratios(found: Mapping[str, Any]) -> dict[str, Any]:
    """Rows that come again, by policy and slots."""
    colors = {"lookahead": BLUE, "dataset": GREEN, "static": ORANGE, "lfu": PURPLE, "lru": INK}
    data = [
        {
            "x": row["bytes"],
            "y": row["refetched_share"],
            "name": row["policy"],
            "policy": row["policy"],
            "fast memory": format_byte_size(row["bytes"]),
            "slots": f"{row['num_slots']:,}",
            "fetched again": percent(row["refetched_share"]),
        }
        for row in found["curve"]
    ]
    x = _byte_axis("fast memory, all of it for slots", [row["x"] for row in data])
    y = _percent_axis("rows fetched again, of those a batch needs", _nice_top([row["y"] for row in data]))
    tips = ["policy", "fast memory", "slots", "fetched again"]
    layers = _lines(data, _axes(x, y), colors, tips=tips, dashed=["lru"])
    return spec_of(alt.layer(*layers), "Rows fetched again by policy and fast memory")


def unique_rows(rows: Rows) -> dict[str, Any]:
    """Different rows of a batch, expected and measured."""
    keys = {"look-ups": "num_lookups", "different rows, expected": "expected"}
    colors = {"look-ups": INK, "different rows, expected": BLUE}
    data = [_batch(row, name, key) for row in rows for name, key in keys.items()]
    measured = [_batch(row, "different rows, measured", "measured") for row in rows]
    sizes, most = [row["batch_size"] for row in rows], max(row["num_lookups"] for row in rows)
    least = min(row["y"] for row in [*data, *measured])
    ticks = [10**k for k in range(12) if least / 10 < 10**k < most * 10]
    domain = (float(ticks[0]), float(ticks[-1]))
    axis = alt.Axis(values=sizes, grid=False, format=",")
    scale = alt.Scale(type="log", base=2, domain=[min(sizes), max(sizes)], nice=False)
    x = alt.X("x:Q", title="samples of a batch", scale=scale, axis=axis)
    y_scale = alt.Scale(type="log", domain=list(domain), nice=False)
    y = alt.Y("y:Q", title="rows", scale=y_scale, axis=alt.Axis(format="~s", values=ticks))
    axes = _axes((x, (min(sizes), max(sizes))), (y, domain), log_y=True)
    points = {"measured": [(row["x"], row["y"]) for row in measured]}
    tips = ["name", "batch", "rows"]
    layers = _lines(
        data, axes, colors, tips=tips, points=False, more=points, more_colors={"measured": ORANGE}
    )
    dots = alt.Chart(alt.Data(values=measured)).encode(x=axes.x, y=axes.y)
    shown = [alt.Tooltip(f"{key}:N") for key in tips]
    layers.append(dots.mark_point(filled=True, size=55, color=ORANGE, opacity=1).encode(tooltip=shown))
    return spec_of(alt.layer(*layers), "Different rows of a batch by its samples")


def _batch(row: Mapping[str, Any], name: str, key: str) -> dict[str, Any]:
    at = {"x": row["batch_size"], "y": row[key], "name": name}
    return at | {"batch": f"{row['batch_size']:,} samples", "rows": f"{row[key]:,.0f}"}


def drift_by_age(rows: Rows) -> dict[str, Any]:
    """What a part's hot set serves of parts that come later."""
    keys = {
        "hot look-ups": "hot_lookup_share",
        "fully hot samples": "hot_sample_share",
        "look-ups of rows it never saw": "unseen_lookup_share",
    }
    colors = dict(zip(keys, (INK, BLUE, ORANGE), strict=True))
    data = [
        {
            "x": row["age"],
            "y": row[key],
            "name": name,
            "age": f"{row['age']} parts",
            "share": percent(row[key]),
        }
        for row in rows
        for name, key in keys.items()
    ]
    ends = (0, rows[-1]["age"])
    axis = alt.Axis(values=[row["age"] for row in rows], format="d", grid=False)
    x = alt.X("x:Q", title="age of the hot set, in parts of the log", scale=alt.Scale(domain=ends), axis=axis)
    axes = _axes((x, ends), _percent_axis("share"), log_x=False)
    layers = _lines(data, axes, colors, tips=["name", "age", "share"])
    return spec_of(alt.layer(*layers), "What a hot set serves as it ages")


def advice(options: Sequence[Mapping[str, Any]], batch_size: int) -> dict[str, Any]:
    """Predicted speed of each placement by fast memory."""
    palette = {
        "lookahead": BLUE,
        "cache": GREEN,
        "fae": ORANGE,
        "hybrid-dedup": PURPLE,
        "hybrid": GREY,
        "all-fast": INK,
    }
    data = [
        {
            "x": option["fast_bytes"],
            "y": batch_size / one["step_seconds"],
            "name": one["placement"],
            "placement": one["placement"],
            "fast memory": format_byte_size(option["fast_bytes"]),
            "samples a second": f"{batch_size / one['step_seconds']:,.0f}",
        }
        for option in options
        for one in option["placements"]
    ]
    there = {row["name"] for row in data}
    colors = {name: color for name, color in palette.items() if name in there}
    top = 1.12 * max(row["y"] for row in data)
    axis = alt.Axis(format="~s", tickCount=6)
    y = alt.Y(
        "y:Q", title="samples a second, predicted", scale=alt.Scale(domain=[0, top], nice=False), axis=axis
    )
    x = _byte_axis("fast memory, all uses together", [row["x"] for row in data])
    layers = _lines(
        data, _axes(x, (y, (0, top))), colors, tips=["placement", "fast memory", "samples a second"]
    )
    return spec_of(alt.layer(*layers), "Predicted speed by placement and fast memory")
