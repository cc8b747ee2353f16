"""``hotset stats --html``: the report as one HTML page that needs no network.

The page contains Vega's scripts (0.9 MB, from vl-convert) and, for each section of `sections`, a chart and
its numbers as a table. It requests nothing: scripts and images are embedded, and fonts are the browser's.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import vl_convert
from altair.utils.schemapi import debug_mode

from .tables import TextTable

_FRAME = Path(__file__).with_name("report_page.html")
"""The page around its content: the colors of both themes, and the script that draws."""
_NUMBER_AND_UNIT = re.compile(r"(\d) ((?:[KMGT]iB|B|GB/s|Tflop/s|[kMG])\b)")


Commands = tuple[str, Sequence[str]]
"""The name of an alternative, or "", and its commands to paste."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report: text, chart and tables."""

    name: str
    title: str
    text: str
    chart: Callable[[], Mapping[str, Any]] | None
    """Returns the chart, as Vega-Lite has it."""
    tables: Sequence[TextTable] = ()
    """The numbers of the chart, shown at a click."""
    shown: Sequence[TextTable] = ()
    """Tables shown below the chart without a click."""
    commands: Sequence[Commands] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice: sentences and commands under a heading."""

    heading: str
    sentences: Sequence[str]
    commands: Sequence[Commands] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the report."""

    title: str
    facts: Sequence[tuple[str, str]]
    advice: Sequence[Advice]
    notes: Sequence[str]
    """Notes at the top: warnings, and what was left out."""
    sections: Sequence[Section] = field(default_factory=list)


def render(page: Page) -> str:
    """Return the page as one HTML document."""
    # Altair would hold every part of a chart against its schema, which takes as long as all the rest.
    with debug_mode(False):
        specs = {section.name: section.chart() for section in page.sections if section.chart is not None}
    # "<" is escaped because "</script>" in a name would end the element that holds the JSON.
    specs_json = json.dumps(specs, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    parts = {
        "<!--title-->": html.escape(f"hotset: {page.title}"),
        "<!--body-->": "\n".join([_head(page), *map(_section, page.sections)]),
        "/*scripts*/": vl_convert.javascript_bundle(),  # type: ignore[call-arg]  # the snippet is optional
        "/*specs*/": specs_json,
    }
    # Split once rather than replace one by one: what is filled in may hold a placeholder's text itself.
    pieces = re.split("|".join(map(re.escape, parts)), _FRAME.read_text(encoding="utf-8"))
    return "".join(piece + part for piece, part in zip(pieces, [*parts.values(), ""], strict=True))


def _prose(text: str) -> str:
    """Return text as HTML; no line breaks before a unit."""
    return html.escape(_NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text))


def _head(page: Page) -> str:
    # Every text is escaped: names of features and files are the user's.
    facts = "".join(f"<div><dt>{html.escape(k)}</dt><dd>{_prose(v)}</dd></div>" for k, v in page.facts)
    advice = "".join(
        f"<dt>{html.escape(one.heading)}</dt><dd>{_list(one.sentences)}{_commands(one.commands)}</dd>"
        for one in page.advice
    )
    notes = "".join(f'<p class="note">{_prose(note)}</p>' for note in page.notes)
    contents = "".join(
        f'<li><a href="#{section.name}">{html.escape(section.title)}</a></li>' for section in page.sections
    )
    return (
        f"<header><h1>Embedding access report: {html.escape(page.title)}</h1><dl>{facts}</dl></header>"
        f'{notes}<section id="advice"><h2>What to do</h2><dl>{advice}</dl></section>'
        f'<nav aria-label="Contents"><h2>Contents</h2><ol>{contents}</ol></nav>'
    )


def _list(sentences: Sequence[str]) -> str:
    if len(sentences) == 1:
        return f"<p>{_prose(sentences[0])}</p>"
    return f"<ul>{''.join(f'<li>{_prose(sentence)}</li>' for sentence in sentences)}</ul>"


def _commands(blocks: Sequence[Commands]) -> str:
    """Return blocks of commands, each of which is copied as a whole."""
    return "".join(
        (f'<p class="name">{html.escape(name)}:</p>' if name else "")
        + f"<pre>{chr(10).join(map(_command, lines))}</pre>"
        for name, lines in blocks
    )


def _command(line: str) -> str:
    """Return a command that narrow pages break between words only."""
    words = map(html.escape, line.split(" "))
    return " ".join(f"<span>{word}</span>" if word.startswith("--") else word for word in words)


def _section(section: Section) -> str:
    chart = f'<div class="chart" id="chart-{section.name}"></div>' if section.chart is not None else ""
    shown = "".join(map(_table, section.shown))
    numbers = "".join(map(_table, section.tables))
    details = f"<details><summary>Numbers</summary>{numbers}</details>" if numbers else ""
    return (
        f'<section id="{section.name}"><h2>{html.escape(section.title)}</h2>'
        f"<p>{_prose(section.text)}</p>{_commands(section.commands)}{chart}{shown}{details}</section>"
    )


def _table(table: TextTable) -> str:
    title = f"<h3>{html.escape(table.title)}</h3>" if table.title else ""
    head = "".join(f"<th>{html.escape(column)}</th>" for column in table.columns)
    shades = table.shades or [[0.0] * len(row) for row in table.rows]
    rows = "".join(
        f"<tr>{''.join(map(_cell, row, shade))}</tr>" for row, shade in zip(table.rows, shades, strict=True)
    )
    second = ' class="two-texts"' if table.num_texts > 1 else ""
    body = f"<table{second}><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
    return f'{title}<div class="scroll">{body}</div>'


def _cell(text: str, shade: float) -> str:
    style = f' style="--shade: {round(45 * shade)}%"' if shade else ""
    return f"<td{style}>{html.escape(text)}</td>"
