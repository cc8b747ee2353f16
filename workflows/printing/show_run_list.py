"""Runs beside each other: a table for the terminal, and a page with their curves."""

from __future__ import annotations

import html
import re
from collections.abc import Mapping, Sequence
from typing import Any

import xxhash
from rich.console import Console
from rich.markup import escape
from rich.measure import Measurement
from rich.table import Table

from ...pipeline.errors import format_byte_size
from ..console import plain_table, print_line, print_table
from .read_runs import Run, differing_settings

_FIGURES = ("run", "AUC", "log loss", "samples/s", "moved")
_LEAST_ROOM = 20
_BETWEEN_COLUMNS = 2
_UNLIMITED = 10_000
"""Columns of a terminal."""
_MOST_SHOWN = 12
"""Settings that differ, at most: more of them say that the runs are of different experiments."""
_FINGERPRINT = re.compile("[0-9a-f]{32}")
_SHOWN_DIGITS = 8
_WIDTH, _HEIGHT, _MARGIN = 480, 220, 48
_SHOWN_WIDTH = 640
"""Pixels of a chart where there is room; it shrinks on narrow screens."""
_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#888888")
"""Okabe and Ito's palette, with gray for black, which a dark page would hide."""
_STYLE = """
:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2em auto;padding:0 1em;max-width:75em}
.wide{overflow-x:auto}
table{border-spacing:0}
td,th{padding:.2em .7em;text-align:left;vertical-align:top;white-space:nowrap}
td.text{white-space:normal;min-width:16em;overflow-wrap:anywhere}
svg{max-width:100%;height:auto;display:block}
text{fill:currentColor;font-size:11px}
"""


def show_run_list(runs: Sequence[Run], console: Console) -> None:
    """Print runs, the best AUC first, each with the settings that not all have alike."""
    names = differing_settings(runs)
    ordered = best_first(runs)
    differences = [_differences(run, names) for run in ordered]
    rows = [(escape(run.name), *_figures(run)) for run in ordered]
    table = _table(_FIGURES, rows)
    # Differences take the room that figures leave; where it is narrow, they stand below as sentences.
    used = Measurement.get(console, console.options.update(max_width=_UNLIMITED), table).maximum
    room = console.width - used - _BETWEEN_COLUMNS
    longest = max((len(word) for text in differences for word in text.split()), default=0)
    if room >= max(longest, _LEAST_ROOM):
        beside = [(*row, escape(text)) for row, text in zip(rows, differences, strict=True)]
        console.print(_table((*_FIGURES, "what differs"), beside))
        return
    print_table(console, table)
    for run, text in zip(ordered, differences, strict=True):
        if text:
            print_line(console, f"{run.name}: {text}")


def _table(titles: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    table = plain_table("", titles, texts=("run", "what differs"))
    for row in rows:
        table.add_row(*row)
    return table


def best_first(runs: Sequence[Run]) -> list[Run]:
    """Return the runs by falling AUC, those without one behind the others."""
    return sorted(runs, key=lambda run: -(_number(run, "auc") or 0.0))


def page_of_runs(runs: Sequence[Run]) -> str:
    """Return a page of HTML with the table and the curves of runs; it needs nothing else."""
    names = differing_settings(runs)
    ordered = best_first(runs)
    # The color of a row is that of its curves below.
    rows = []
    for number, run in enumerate(ordered):
        swatch = f'<td style="background:{_COLORS[number % len(_COLORS)]}">&nbsp;</td>'
        figures = "".join(f"<td>{html.escape(cell)}</td>" for cell in (run.name, *_figures(run)))
        texts = "".join(
            f'<td class="text">{html.escape(text)}</td>'
            for text in (_differences(run, names), _provenance(run))
        )
        rows.append(f"<tr>{swatch}{figures}{texts}</tr>")
    titles = ("", "run", "AUC", "log loss", "samples/s", "bytes moved", "what differs", "made by")
    # A chart for each series that any of the runs has.
    charts = [
        f"<h2>{title}</h2>{_chart({run.name: run.curves.get(name, []) for run in ordered})}"
        for name, title in (
            ("validation", "AUC of the validation part by step"),
            ("evaluation", "AUC of the test part by step"),
            ("loss", "Training loss by step, nats per sample"),
        )
        if any(run.curves.get(name) for run in ordered)
    ]
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>hotset runs</title><style>{_STYLE}</style></head><body><h1>Runs</h1>"
        '<div class="wide"><table><tr>'
        + "".join(f"<th>{title}</th>" for title in titles)
        + f"</tr>{''.join(rows)}</table></div>{''.join(charts)}</body></html>\n"
    )


def _figures(run: Run) -> list[str]:
    if run.summary is None:
        return ["damaged" if run.fault else "unfinished", "", "", ""]
    auc, log_loss, speed = (_number(run, name) for name in ("auc", "log_loss", "samples_per_second"))
    moved = [_number(run, name) for name in ("bytes_to_fast", "bytes_to_slow")]
    # Ranks count what they move each for itself, and the first one writes the summary.
    whose = " (rank 0)" if run.summary.get("exchange") else ""
    return [
        "-" if auc is None else f"{auc:.4f}",
        "-" if log_loss is None else f"{log_loss:.4f}",
        "-" if speed is None else f"{speed:,.0f}",
        "-" if None in moved else format_byte_size(int(sum(each or 0 for each in moved))) + whose,
    ]


def _number(run: Run, name: str) -> float | None:
    value: Any = (run.summary or {}).get(name)
    return float(value) if type(value) in (int, float) else None


def _differences(run: Run, names: Sequence[str]) -> str:
    if run.fault:
        return run.fault
    shown = [f"{name} {_short(run.settings[name])}" for name in names if run.settings.get(name) is not None]
    more = len(shown) - _MOST_SHOWN
    return ", ".join(shown[:_MOST_SHOWN]) + (f", and {more} more" if more > 0 else "")


def _short(value: Any) -> str:
    """Return a setting in a word: fingerprints by their first digits, the text of a schema file by a hash."""
    text = str(value)
    if "\n" in text:
        return f"{xxhash.xxh3_128_hexdigest(text.encode(errors='replace'))[:_SHOWN_DIGITS]} (of a file)"
    return text[:_SHOWN_DIGITS] if _FINGERPRINT.fullmatch(text) else text


def _provenance(run: Run) -> str:
    """The command, commit and processor that made a run, as far as it says so."""
    found = (run.summary or {}).get("provenance")
    if not isinstance(found, dict):
        return ""
    machine = found.get("machine")
    cpu = machine.get("cpu") if isinstance(machine, dict) else None
    return "; ".join(str(each) for each in (found.get("command"), found.get("commit"), cpu) if each)


def _chart(curves: Mapping[str, Sequence[tuple[int, float]]]) -> str:
    """Draw the curves of runs over the same axes as SVG, in the colors of the table."""
    # All curves share their axes; a constant one must not divide by zero.
    points = [point for curve in curves.values() for point in curve]
    last = max(max(step for step, _ in points), 1)
    low, high = min(value for _, value in points), max(value for _, value in points)
    span = (high - low) or 1.0

    def place(step: int, value: float) -> str:
        x = _MARGIN + step / last * (_WIDTH - 2 * _MARGIN)
        y = _HEIGHT - _MARGIN - (value - low) / span * (_HEIGHT - 2 * _MARGIN)
        return f"{x:.1f},{y:.1f}"

    # Placements have equal curves, so each is drawn wider than those above it: all of them are seen.
    lines = []
    for number, (name, curve) in enumerate(curves.items()):
        color = _COLORS[number % len(_COLORS)]
        width = 1.5 + 1.5 * min(len(curves) - 1 - number, len(_COLORS))
        title = f"<title>{html.escape(name)}</title>"
        if len(curve) > 1:
            path = " ".join(place(*point) for point in curve)
            shape = f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width}">'
            lines.append(f"{shape}{title}</polyline>")
        # A curve of one point has no line, so the point itself is drawn.
        for point in curve[:1] if len(curve) == 1 else []:
            x, y = place(*point).split(",")
            lines.append(f'<circle cx="{x}" cy="{y}" r="{2 + width / 2}" fill="{color}">{title}</circle>')
    bottom, right = _HEIGHT - _MARGIN, _WIDTH - _MARGIN
    axes = (
        f'<path d="M{_MARGIN},{_MARGIN}V{bottom}H{right}" fill="none" stroke="#888"/>'
        f'<text x="{_MARGIN - 6}" y="{bottom}" text-anchor="end">{low:.4g}</text>'
        f'<text x="{_MARGIN - 6}" y="{_MARGIN + 4}" text-anchor="end">{high:.4g}</text>'
        f'<text x="{right}" y="{bottom + 16}" text-anchor="end">step {last:,}</text>'
    )
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_SHOWN_WIDTH}">{axes}{"".join(lines)}</svg>'
