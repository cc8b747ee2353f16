"""The page of a measured machine: constants, errors, elasticities, and observations with verdicts."""

from __future__ import annotations

import html
import re
from collections.abc import Sequence

from ..fit_machine import Characterised, product_curves
from ..grid import FACTORS
from ..show_machine import facts_of, sentences
from .placement_speeds import placement_speeds
from .sweep_findings import elasticities, longest_parts, observations
from .torchrec_comparison import compare_with_torchrec

_STYLE = """:root{--page:#fff}
body{background:var(--page);
font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem}
div.wide{overflow-x:auto;background:
linear-gradient(to left,var(--page) 50%,transparent) right/3rem 100% no-repeat local,
linear-gradient(to left,#8888,transparent) right/1rem 100% no-repeat scroll}
table{border-collapse:collapse;margin:.5rem 0 1.5rem}td,th{padding:.2rem .7rem;text-align:left;
border-bottom:1px solid #ccc}.n{text-align:right;font-variant-numeric:tabular-nums}
.short{white-space:nowrap}.long{min-width:10rem}code{white-space:nowrap}
@media(prefers-color-scheme:dark){:root{--page:#111}body{color:#ddd}td,th{border-color:#444}}
@media(max-width:40rem){.cards th{display:none}.cards td{display:block;border:0;padding:0;text-align:left;
min-width:0}.cards td:first-child{font-weight:bold}.cards td:last-child{padding-bottom:1rem}
.cards td:not(:first-child)::before{content:attr(data-of) ": "}}"""

_LONG_CHARACTERS = 24
"""Cells of more may break into lines on a narrow screen; a number or a name in pieces cannot be read."""
_COMMAND = re.compile("`([^`]+)`")
_NUMBER = re.compile(r"-|[-+]?[\d,]+(\.\d+)?(e[-+]\d+)?%?")


def findings_page(result: Characterised) -> str:
    """Return a page of HTML that needs nothing else."""
    machine = result.machine
    cells = result.cells
    threads = f"{machine.threads} thread{'' if machine.threads == 1 else 's'}"
    told = "".join(f"<p>{html.escape(line)}</p>" for line in sentences(result))
    slopes = [
        (each.factor, f"{each.slope:+.2f}", f"±\u00a0{each.error:.2f}", _points(each.points))
        for each in elasticities(cells)
    ]
    grid = [(f"{dense:,}", f"{tables:,}", part) for (dense, tables), part in longest_parts(cells).items()]
    names = FACTORS["placement"]
    placed = [
        (model, *(f"{speeds[name]:,.0f}" if name in speeds else "-" for name in names))
        for model, speeds in placement_speeds(cells).items()
    ]
    judged = [(each.text, each.verdict, each.measured) for each in observations(cells)]
    compared = [
        (name, f"{error.median_error:.0%}", _share(error.pairs_in_order), str(error.num_cells))
        for name, error in compare_with_torchrec(machine, cells).items()
    ]
    products = [
        (name, f"{curve.fixed_seconds:.3g}", f"{curve.flops:.3g}", f"{curve.half_batch:.3g}")
        for name, curve in product_curves(machine.constants).items()
    ]
    constants = [
        (each.name, facts_of(each), f"{each.median:.3g}", f"{each.low:.3g} to {each.high:.3g}", each.unit)
        for each in machine.constants
    ]
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1"><title>Machine</title>'
        f"<style>{_STYLE}</style><h1>{html.escape(machine.device_name)}, {threads}</h1>{told}"
        + _table("Published observations", ("observation", "verdict", "measured here"), judged, cards=True)
        + _table(
            "Elasticities of the speed",
            ("factor", "slope", "95%", "samples/s by value"),
            slopes,
            cards=True,
        )
        + _table("Longest part of a step", ("dense features", "tables", "part"), grid)
        + _table("Samples per second by placement", ("model", *names), placed)
        + _table("Predictions of held-out cells", ("by", "median error", "pairs in order", "cells"), compared)
        + _table(
            "Products of one thread",
            ("numbers", "fixed seconds", "operations per second", "samples at half of them"),
            products,
        )
        + _table("Constants", ("constant", "of", "median", "quartiles", "unit"), constants)
        + "</html>\n"
    )


def _points(points: Sequence[tuple[float, float]]) -> str:
    return ", ".join(f"{value:g}:\u00a0{speed:,.0f}" for value, speed in points)


def _share(share: float | None) -> str:
    return "-" if share is None else f"{share:.0%}"


def _cell(text: str, column: str) -> str:
    of = f'data-of="{html.escape(column)}"'
    # Digits of numbers stand below each other.
    if _is_number(text):
        return f"<td class=n {of}>{html.escape(text)}</td>"
    kind = "long" if len(text) > _LONG_CHARACTERS else "short"
    shown = _COMMAND.sub(r"<code>\1</code>", html.escape(text.replace("± ", "±\u00a0")))
    return f"<td class={kind} {of}>{shown}</td>"


def _is_number(text: str) -> bool:
    return _NUMBER.fullmatch(text) is not None


def _table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, cards: bool = False) -> str:
    """Return a table; one of ``cards`` shows its rows as paragraphs on a narrow screen."""
    # A title stands over its numbers, at their right.
    are_numbers = [all(_is_number(row[column]) for row in rows) for column in range(len(columns))]
    head = "".join(
        f"<th{' class=n' * is_number}>{html.escape(each)}</th>"
        for each, is_number in zip(columns, are_numbers, strict=True)
    )
    body = "".join("<tr>" + "".join(map(_cell, row, columns)) + "</tr>" for row in rows)
    table = f"<table{' class=cards' * cards}><tr>{head}</tr>{body}</table>"
    # A table that is wider than a narrow screen scrolls by itself, with a shadow where it goes on.
    return f'<h2>{html.escape(title)}</h2><div class="wide">{table}</div>'
