"""``hotset stats --html``: one page that needs no network; what stands in it comes from `report_sections`.

The page holds Vega's scripts (0.9 MB, from vl-convert), a drawing for each series and the numbers behind each
as a table. It asks for nothing: no font, no script, no image is loaded from anywhere.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

from .series_tables import Table

_FRAME = Path(__file__).with_name("report_page.html")
"""The page around its content: the colours of both themes, and the script that draws."""


@dataclass(frozen=True, slots=True)
class Section:
    """One finding: what it says, a chart, the table behind it."""

    name: str
    title: str
    text: str
    chart: Mapping[str, Any] | None
    table: Table
    shown: Sequence[Table] = ()
    """Tables that stand open below the chart."""


@dataclass(frozen=True, slots=True)
class Page:
    """All of the report."""

    title: str
    facts: Sequence[tuple[str, str]]
    advice: Sequence[tuple[str, str]]
    notes: Sequence[str]
    """What to know first: warnings, and what could not be found out."""
    sections: Sequence[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """The page as one HTML document."""
    scripts = import_module("vl_convert").javascript_bundle()
    specs = {section.name: section.chart for section in page.sections if section.chart is not None}
    specs_json = json.dumps(specs, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "<!--title-->": html.escape(f"hotset: {page.title}"),
        "<!--body-->": "\n".join([_head(page), *map(_section, page.sections)]),
        "/*scripts*/": scripts,
        "/*specs*/": specs_json,
    }
    pieces = re.split("|".join(map(re.escape, parts)), _FRAME.read_text(encoding="utf-8"))
    return "".join(piece + part for piece, part in zip(pieces, [*parts.values(), ""], strict=True))


def _head(page: Page) -> str:
    facts = "".join(f"<div><dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd></div>" for k, v in page.facts)
    advice = "".join(
        f"<dt>{html.escape(about)}</dt><dd>{html.escape(text)}</dd>" for about, text in page.advice
    )
    notes = "".join(f'<p class="note">{html.escape(note)}</p>' for note in page.notes)
    return (
        f"<header><h1>How rows are accessed: {html.escape(page.title)}</h1><dl>{facts}</dl></header>"
        f'{notes}<section id="advice"><h2>What to do</h2><dl>{advice}</dl></section>'
    )


def _section(section: Section) -> str:
    chart = (
        f'<div class="wide"><div class="chart" id="chart-{section.name}"></div></div>'
        if section.chart is not None
        else ""
    )
    shown = "".join(map(_table, section.shown))
    return (
        f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>'
        f"<p>{html.escape(section.text)}</p>{chart}{shown}<details><summary>Numbers</summary>{_table(section.table)}</details></section>"
    )


def _table(table: Table) -> str:
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    shades = table.shades or [[0.0] * len(row) for row in table.rows]
    rows = "".join(
        f"<tr>{''.join(map(_cell, row, shade))}</tr>" for row, shade in zip(table.rows, shades, strict=True)
    )
    body = f"<table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'{title}<div class="scroll">{body}</div>'


def _cell(text: str, shade: float) -> str:
    style = f' style="--shade: {round(45 * shade)}%"' if shade else ""
    return f"<td{style}>{html.escape(text)}</td>"
