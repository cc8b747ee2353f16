"""Axes, lines with a legend, and Vega-Lite JSON for charts.

Colors are CSS variables of the page, so one drawing serves the light and the dark theme; the palette is Okabe
and Ito's, which color-blind readers can distinguish. Numbers in tooltips are formatted here, as text.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import altair as alt
from altair.utils import schemapi

HEIGHT = 320
"""Height of a plot (pixels)."""
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

ChartSpec = dict[str, Any]
"""A chart as Vega-Lite has it."""
ChartRow = dict[str, Any]
"""A point of a chart: what is drawn under x, y and name, and what its tooltip shows."""


def chart_spec(layers: Sequence[alt.Chart], description: str, height: float = HEIGHT) -> ChartSpec:
    """Return layers as one chart in Vega-Lite JSON that fills the width of its element."""
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
    return spec | {"config": _config()}


def _config() -> dict[str, Any]:
    """Return the settings that all charts share."""
    # Colors are variables of the page, so that a chart follows its light or dark theme.
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
        "font": "system-ui, -apple-system, 'Segoe UI', sans-serif",
        "view": {"stroke": None},
        "axis": axis,
        "legend": {"labelColor": "var(--ink)", "labelFontSize": 12, "symbolStrokeWidth": 2.25},
    }


def percent_axis(title: str, top: float = 1.0) -> alt.Y:
    """Return a y axis of shares from 0 to ``top``, labeled in percent."""
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y("y:Q", title=title, scale=scale, axis=alt.Axis(format="~%", tickCount=6))


def byte_axis(title: str, sizes: Sequence[float]) -> alt.X:
    """Return a logarithmic x axis over ``sizes``, labeled in KiB, MiB and so on."""
    low = min(sizes)
    high = max(sizes)
    axis = alt.Axis(
        labelExpr=_BYTES, values=_byte_ticks(low, high), grid=False, labelOverlap="greedy", labelSeparation=8
    )
    scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis)


def _byte_ticks(low: float, high: float) -> list[int]:
    """Return powers of 16 between ``low`` and ``high``, or a finer ladder where those are few."""
    powers = [1 << power for power in range(10, 50)]
    choices = (powers[::4], powers[::2], powers, sorted([*powers, *(size // 2 * 3 for size in powers)]))
    for ticks in choices:
        inside = [size for size in ticks if low <= size <= high]
        if len(inside) >= 4:
            return inside
    # The axis spans less than two octaves: equal steps of a power of two, about five of them.
    step = 2 ** max(0, round(math.log2(max(1.0, (high - low) / 5))))
    return [size for size in range(math.ceil(low / step) * step, int(high) + 1, step)]


def nice_top(shares: Sequence[float]) -> float:
    """Return the top of a percent axis: the next of 5%, 10%, 20%, 30%, …"""
    most = max(shares, default=0)
    return next((top for top in (0.05, *(k / 10 for k in range(1, 10))) if most <= top), 1.0)


def color_by_name(colors: Mapping[str, str], hidden: Collection[str] = ()) -> alt.Color:
    """Return the color of each name, with a legend above the plot of all that are not hidden."""
    values = [name for name in colors if name not in hidden]
    # A phone has room for one name in a row.
    columns = alt.ExprRef("width < 480 ? 1 : 3")
    legend = alt.Legend(
        title=None, orient="top", columns=columns, values=values, labelLimit=0, symbolOpacity=1
    )
    scale = alt.Scale(domain=list(colors), range=list(colors.values()))
    return alt.Color("name:N", scale=scale, legend=legend)


def line_layers(
    rows: list[ChartRow],
    axes: tuple[alt.X, alt.Y],
    color: alt.Color,
    *,
    tooltips: Sequence[str],
    dashed: Sequence[str] = (),
    thin: Sequence[str] = (),
    with_dots: bool = True,
) -> list[alt.Chart]:
    """Return the layers of some lines: strokes, dots, tooltips.

    Args:
        rows: a point each: x, y, the line's name, and the texts of the tooltip.
        axes: x and y of the plot.
        color: of the names, as `color_by_name` returns it.
        tooltips: keys of ``rows`` that a tooltip lists.
        dashed: lines drawn dashed.
        thin: lines drawn thin.
        with_dots: draw the points of the lines too.
    """
    base = alt.Chart(alt.Data(values=rows)).encode(x=axes[0], y=axes[1], detail="name:N", color=color)
    is_thin = alt.FieldOneOfPredicate(field="name", oneOf=list(thin))
    is_dashed = alt.FieldOneOfPredicate(field="name", oneOf=list(dashed))
    line = base.mark_line().encode(
        strokeWidth=alt.condition(is_thin, alt.value(1), alt.value(2.25)),
        strokeDash=alt.condition(is_dashed, alt.value([5, 4]), alt.value([1, 0])),
    )
    dots = base.mark_point(filled=True, size=36, opacity=0.9 if with_dots else 0)
    # Wide and invisible, so that the pointer need not be exact. (Vega-Lite's "nearest" loses tooltips.)
    targets = base.mark_point(filled=True, size=450, opacity=0).encode(
        tooltip=[alt.Tooltip(f"{key}:N") for key in tooltips]
    )
    return [line, dots, targets]


def point_layer(
    rows: list[ChartRow], axes: tuple[alt.X, alt.Y], color: alt.Color, tooltips: Sequence[str], **mark: Any
) -> alt.Chart:
    """Return points that belong to no line; ``mark`` sets their shape and size."""
    base = alt.Chart(alt.Data(values=rows)).encode(x=axes[0], y=axes[1], color=color)
    shown = [alt.Tooltip(f"{key}:N") for key in tooltips]
    return base.mark_point(filled=True, opacity=1, **mark).encode(tooltip=shown)


def budget_line(num_bytes: int, x: alt.X, name: str, color: alt.Color) -> alt.Chart:
    """Return a vertical line at a budget."""
    base = alt.Chart(alt.Data(values=[{"x": num_bytes, "name": name}])).encode(x=x, color=color)
    return base.mark_rule(strokeDash=[2, 3])
