"""Building blocks of the report's charts: axes, lines that carry their names, charts as Vega-Lite JSON.

Colors are CSS variables of the page, so one drawing serves the light and the dark theme; the palette is Okabe
and Ito's, which color-blind readers can tell apart. Numbers in tooltips are formatted here, as text.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import altair as alt
from altair.utils import schemapi

from .report_labels import CHARACTER_WIDTH, Frame, Label, Points, place_labels

WIDE, NARROW = 820, 290
"""Width of a plot on a laptop and on a phone (pixels); other windows stretch or shrink one of them."""
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

"""The rows of one series of the statistics."""
ChartSpec = dict[str, Any]
"""A chart as Vega-Lite has it."""
ChartRow = dict[str, Any]
"""A point of a chart: what is drawn under x, y and name, and what its tooltip shows."""
"""A chart as Vega-Lite JSON."""
_Ends = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Axes:
    """Both axes, for Vega-Lite and for placing labels."""

    x: alt.X
    y: alt.Y
    frame: Frame


@dataclass(frozen=True, slots=True)
class NamedPoints:
    """Points that another layer draws and that only need a label here."""

    points: Points
    color: str


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
        "legend": {"labelColor": "var(--muted)", "titleColor": "var(--muted)", "labelFontSize": 12},
    }


def make_axes(x: tuple[alt.X, _Ends], y: tuple[alt.Y, _Ends], width: float, **logs: bool) -> Axes:
    """Return both axes of a plot of some width, each given as its encoding and the values at its ends."""
    return Axes(x[0], y[0], Frame(x[1], y[1], width, HEIGHT, **logs))


def percent_axis(title: str, top: float = 1.0) -> tuple[alt.Y, _Ends]:
    """Return a y axis of shares from 0 to ``top``, labeled in percent."""
    scale = alt.Scale(domain=[0, top], nice=False)
    return alt.Y("y:Q", title=title, scale=scale, axis=alt.Axis(format="~%", tickCount=6)), (0, top)


def byte_axis(title: str, sizes: Sequence[float]) -> tuple[alt.X, _Ends]:
    """Return a logarithmic x axis over ``sizes``, labeled in KiB, MiB and so on."""
    low = min(sizes)
    high = max(sizes)
    axis = alt.Axis(
        labelExpr=_BYTES, values=_byte_ticks(low, high), grid=False, labelOverlap="greedy", labelSeparation=8
    )
    scale = alt.Scale(type="log", base=2, domain=[low, high], nice=False)
    return alt.X("x:Q", title=title, scale=scale, axis=axis), (low, high)


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


def line_layers(
    rows: list[ChartRow],
    axes: Axes,
    colors: Mapping[str, str],
    *,
    tooltips: Sequence[str],
    labels: Sequence[str] | None = None,
    dashed: Sequence[str] = (),
    thin: Sequence[str] = (),
    with_dots: bool = True,
    obstacles: Points = (),
    named_points: Mapping[str, NamedPoints] | None = None,
) -> list[alt.Chart]:
    """Return the layers of some lines: strokes, dots, tooltips, and each line's name on it.

    Args:
        rows: a point each: x, y, the line's name, and the texts of the tooltip.
        axes: of the plot.
        colors: by name of a line; their order is that of the lines.
        tooltips: keys of ``rows`` that a tooltip lists.
        labels: lines to label, the most important first; all by default.
        dashed: lines drawn dashed.
        thin: lines drawn thin and never labeled; labels may cross them.
        with_dots: draw the points of the lines too.
        obstacles: points that labels keep away from.
        named_points: points drawn elsewhere, by the name to write beside them.
    """
    named = dict(named_points or {})
    names = list(colors)
    color = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(colors.values())), legend=None)
    base = alt.Chart(alt.Data(values=rows)).encode(x=axes.x, y=axes.y, detail="name:N", color=color)
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
    # Thin lines are background: labels are placed as if they were not there.
    to_avoid = {
        name: [(row["x"], row["y"]) for row in rows if row["name"] == name]
        for name in names
        if name not in thin
    }
    to_avoid |= {name: list(found.points) for name, found in named.items()}
    placed = place_labels(to_avoid, [*(names if labels is None else labels), *named], axes.frame, obstacles)
    label_colors = dict(colors) | {name: found.color for name, found in named.items()}
    return [line, dots, targets, *_label_layers(placed, label_colors, axes.frame.width)]


def _label_layers(labels: Sequence[Label], colors: Mapping[str, str], width: float) -> list[alt.Chart]:
    """Draw each label twice: a wide halo in the page's color, so that it stands out, and the text itself."""
    layers = []
    for label in labels:
        # A share of the width, not pixels, because the window stretches or shrinks the plot; but not beyond
        # its edges.
        half = len(label.name) * CHARACTER_WIDTH / 2
        x = alt.value(
            alt.ExprRef(
                f"clamp(width * {label.x / width:.4f}, {half:.1f}, max({half:.1f}, width - {half:.1f}))"
            )
        )
        base = alt.Chart(alt.Data(values=[{}])).encode(x=x, y=alt.value(label.y), text=alt.value(label.name))
        style = {"fontSize": 12, "fontWeight": 600, "baseline": "middle"}
        halo = base.mark_text(stroke="var(--paper)", strokeWidth=4, strokeJoin="round", **style)
        color = "var(--muted)" if colors[label.name] == GREY else colors[label.name]
        layers += [halo, base.mark_text(color=color, **style)]
    return layers


def budget_line(num_bytes: int, axes: Axes) -> alt.Chart:
    """Return a vertical line at a budget."""
    base = alt.Chart(alt.Data(values=[{"x": num_bytes}])).encode(x=axes.x)
    return base.mark_rule(color="var(--muted)", strokeDash=[2, 3])


def point_layer(rows: list[ChartRow], axes: Axes, tooltips: Sequence[str], **mark: Any) -> alt.Chart:
    """Return points that belong to no line; ``mark`` sets their shape, size and color."""
    base = alt.Chart(alt.Data(values=rows)).encode(x=axes.x, y=axes.y)
    shown = [alt.Tooltip(f"{key}:N") for key in tooltips]
    return base.mark_point(filled=True, opacity=1, **mark).encode(tooltip=shown)
