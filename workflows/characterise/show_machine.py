"""Prints what `characterise` measured: constants, cells, and the error of predictions."""

from __future__ import annotations

from typing import Any

from rich.console import Console
from rich.table import Table

from ...pipeline.sizes import format_byte_size
from ...train.planning.machine_file import Constant
from ..console import plain_table, print_line, print_table
from .fit_machine import Characterised
from .run_cell import MOST_MISSING

_BEFORE_SIZES = {"bytes": ", ", "row_bytes": ", ", "working_bytes": " in ", "bytes_of_float32": " for "}
"""Facts that are sizes, and what stands between each and the one before it."""


def summary(result: Characterised) -> dict[str, Any]:
    """Return the figures that say how far predictions can be trusted."""
    machine = result.machine
    error = machine.model.error if machine.model else None
    steady = machine.model.steady_error if machine.model else None
    first = machine.model.first_error if machine.model else None
    repeat = machine.model.repeat_error if machine.model else None
    return {
        "num_cells": machine.num_cells,
        "num_held_out": error.num_cells if error else 0,
        "median_error": error.median_error if error else None,
        "p90_error": error.p90_error if error else None,
        "num_pairs": error.num_pairs if error else 0,
        "pairs_in_order": error.pairs_in_order if error else None,
        "steady_median_error": steady.median_error if steady else None,
        "steady_p90_error": steady.p90_error if steady else None,
        "steady_pairs_in_order": steady.pairs_in_order if steady else None,
        "first_median_error": first.median_error if first else None,
        "first_p90_error": first.p90_error if first else None,
        "first_pairs_in_order": first.pairs_in_order if first else None,
        "num_disturbed": machine.model.num_disturbed if machine.model else 0,
        "num_repeated": repeat.num_cells if repeat else 0,
        "repeat_median_error": repeat.median_error if repeat else None,
        "repeat_p90_error": repeat.p90_error if repeat else None,
        "repeat_pairs_in_order": repeat.pairs_in_order if repeat else None,
        "num_cells_that_add_up": sum(record.adds_up for record in result.cells),
        "is_quiet": machine.is_quiet,
        "disturbances": list(machine.disturbances),
        "not_measured": machine.not_measured,
        "minutes": machine.minutes,
    }


def show_machine(result: Characterised, console: Console) -> None:
    """Print the constants, and what predictions are worth."""
    machine = result.machine
    print_table(console, _constants(machine.constants), num_keys=2)
    for line in sentences(result):
        print_line(console, line)


def sentences(result: Characterised) -> list[str]:
    """Say how many cells were measured, how wrong predictions are, and what disturbed them."""
    machine = result.machine
    lines = [f"{machine.num_cells} cells measured in {machine.minutes:.1f} minutes."]
    model = machine.model
    if model is None or model.error is None:
        lines.append(
            "They are too few to predict from: delete this machine file, and run the command again with more "
            "--minutes. It keeps the cells."
        )
    else:
        error = model.error
        order = ""
        if error.pairs_in_order is not None:
            order = f" {error.pairs_in_order:.0%} of {error.num_pairs:,} pairs 10% to 2x apart are in order."
        lines.append(
            f"Times fitted to {model.num_fitted} of them are wrong by {error.median_error:.0%} (median) and "
            f"less than {error.p90_error:.0%} (nine of ten) on the other {error.num_cells}.{order}"
        )
    # Of a cell that was disturbed another run may count: its first one says what a single run meets.
    if model is not None and model.first_error is not None and model.first_error != model.error:
        first = model.first_error
        lines.append(
            f"In their first runs, disturbed or not, it is {first.median_error:.0%} and "
            f"{first.p90_error:.0%}."
        )
    if model is not None and model.num_disturbed:
        lines.append(f"{model.num_disturbed} of the cells were disturbed whenever they ran.")
    # A host with other guests changes its speed from cell to cell, which no model knows ahead.
    if model is not None and model.steady_error is not None:
        steady = model.steady_error
        lines.append(
            "Without the changes in speed of the machine itself meanwhile, the errors are "
            f"{steady.median_error:.0%} and {steady.p90_error:.0%}."
        )
    if model is not None and model.repeat_error is not None:
        repeat = model.repeat_error
        lines.append(
            f"The last run of {repeat.num_cells} of these cells differs from their runs before by "
            f"{repeat.median_error:.0%} and {repeat.p90_error:.0%}, which no model knows ahead."
        )
    # Parts are measured one by one, so on a busy machine something may happen between two of them.
    others = sum(not record.adds_up for record in result.cells)
    if others:
        lines.append(f"The parts of {others} of them miss more than {MOST_MISSING:.0%} of their step.")
    if not machine.is_quiet:
        lines.append(f"The machine was disturbed: {'; '.join(machine.disturbances)}.")
    # Several things may be missing for one reason, which is told once.
    reasons = sorted(set(machine.not_measured.values()))
    if reasons:
        lines.append(f"Not measured: {', '.join(machine.not_measured)} ({'; '.join(reasons)}).")
    return lines


def _constants(constants: tuple[Constant, ...]) -> Table:
    table = plain_table(
        "Constants", ("constant", "of", "median", "quartiles", "times"), texts=("constant", "of")
    )
    for each in constants:
        median, low, high = (_scaled(value, each.unit) for value in (each.median, each.low, each.high))
        # The unit stands once where both ends have it: a terminal of 80 columns has no room for it twice.
        if low.split()[-1] == high.split()[-1]:
            low = low.split()[0]
        table.add_row(each.name, facts_of(each), median, f"{low} to {high}", str(each.repetitions))
    return table


def facts_of(constant: Constant) -> str:
    """Return what a constant was measured on, in words: ``dim 16, 64 B in 1 GiB, 16 per row``."""
    text = ""
    for name, value in constant.facts.items():
        if name in _BEFORE_SIZES:
            text += f"{_BEFORE_SIZES[name]}{format_byte_size(value)}"
        elif name == "lookups_per_row":
            text += f", {value:,.0f} per row"
        else:
            text += f", {name.replace('_', ' ')} {value:,.0f}"
    return text.removeprefix(", ")


def _scaled(value: float, unit: str) -> str:
    # Seconds of one byte mean little to a reader; their inverse is a bandwidth.
    if unit == "seconds per byte":
        return f"{1e-9 / value:.3g} GB/s" if value else "-"
    if unit == "watts":
        return f"{value:.3g} W"
    for scale, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs")):
        if value >= scale:
            return f"{value / scale:.3g} {name}"
    return f"{value / 1e-9:.3g} ns"
