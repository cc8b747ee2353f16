"""Series as tables of text, for the report and for the terminal: one function each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...pipeline.sizes import format_byte_size
from .report_sentences import percent

Rows = Sequence[Mapping[str, Any]]
USES = ("hot", "staging", "dense", "activations", "inputs", "transfers")
"""What fast memory is used for."""


@dataclass(frozen=True, slots=True)
class Table:
    """Cells as they are written; the first column is text."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    shades: Sequence[Sequence[float]] = ()
    """Of each cell, in [0, 1], where the table is a picture too; none shades nothing."""


def features(rows: Rows) -> Table:
    """How unevenly each table's look-ups fall on its rows."""
    columns = ["table", "rows", "top 1", "top 10", "top 100", "top 1000"]
    cells = [
        [
            row["name"],
            f"{row['num_rows']:,}",
            *(percent(share) for share in row["top_share"].values()),
            *(f"{needed:,}" for needed in row["rows_for_share"].values()),
        ]
        for row in rows
    ]
    return Table([*columns, "rows for 80 %", "90 %", "95 %", "99 %"], cells)


def coverage(rows: Rows) -> Table:
    """What the first rows of each table serve."""
    cells = [[row["table"], f"{row['num_rows']:,}", percent(row["lookup_share"])] for row in rows]
    return Table(["table", "most looked-up rows", "look-ups"], cells)


def hot_samples(rows: Rows) -> Table:
    """What each budget makes hot under each order."""
    cells = [
        [
            row["order"],
            format_byte_size(row["bytes"]),
            f"{row['num_hot_rows']:,}",
            percent(row["hot_lookup_share"]),
            percent(row["hot_sample_share"]),
        ]
        for row in rows
    ]
    return Table(["order", "memory", "hot rows", "hot look-ups", "fully hot samples"], cells)


def miss_ratios(found: Mapping[str, Any]) -> Table:
    """What each policy fetches again."""
    cells = [
        [
            row["policy"],
            format_byte_size(row["bytes"]),
            f"{row['num_slots']:,}",
            f"{row['num_refetched']:,}",
            percent(row["refetched_share"]),
        ]
        for row in found["curve"]
    ]
    return Table(["policy", "fast memory", "slots", "rows fetched again", "of those needed"], cells)


def unique_rows(rows: Rows) -> Table:
    """Different rows of a batch."""
    cells = [
        [
            f"{row['batch_size']:,}",
            f"{row['num_lookups']:,}",
            f"{row['expected']:,.0f}",
            f"{row['measured']:,.0f}",
            f"{100 * (row['measured'] / row['expected'] - 1):+.1f} %",
        ]
        for row in rows
    ]
    return Table(["samples of a batch", "look-ups", "expected", "measured", "measured less expected"], cells)


_AGED = {
    "hot look-ups": "hot_lookup_share",
    "fully hot samples": "hot_sample_share",
    "look-ups of rows never seen": "unseen_lookup_share",
}


def drift_parts(drift: Mapping[str, Any]) -> Table:
    """What the plan's hot rows serve in each part of the log."""
    shares = {
        "hot look-ups by the plan": "plan_hot_lookup_share",
        "fully hot samples by the plan": "plan_hot_sample_share",
        "look-ups without an id": "no_id_share",
    }
    cells = [
        [part["name"], f"{part['num_samples']:,}", *(percent(part[key]) for key in shares.values())]
        for part in drift["parts"]
    ]
    return Table(["part", "samples", *shares], cells)


def drift_by_age(drift: Mapping[str, Any]) -> Table:
    """What hot sets serve as they age."""
    cells = [[f"{row['age']}", *(percent(row[key]) for key in _AGED.values())] for row in drift["by_age"]]
    return Table(["age in parts", *_AGED], cells)


def drift_matrix(drift: Mapping[str, Any], key: str, title: str) -> Table:
    """One share of `drift_pairs` as a matrix: a row for each hot set, a column for each part.

    Shades run from the least share to the greatest of other parts: a set serves its own part best.
    """
    parts = [part["name"] for part in drift["parts"]]
    sets = list(dict.fromkeys(pair["chosen_on"] for pair in drift["pairs"]))
    found = {(pair["chosen_on"], pair["serves"]): pair[key] for pair in drift["pairs"]}
    others = [share for (on, part), share in found.items() if on != part and share is not None]
    low, high = min(others, default=0.0), max(others, default=1.0)
    cells = [[on, *(percent(found[on, part]) for part in parts)] for on in sets]
    shades = [[0.0, *(_shade(found[on, part], low, high) for part in parts)] for on in sets]
    return Table(["chosen on", *parts], cells, title, shades)


def _shade(share: float | None, low: float, high: float) -> float:
    if share is None:
        return 0.0
    return min(1.0, 0.15 + 0.85 * (share - low) / (high - low)) if high > low else 0.5


def drift_pairs(drift: Mapping[str, Any]) -> Table:
    """What each part's hot set serves of each part."""
    shares = {"rows in common": "common_rows_share"} | _AGED
    cells = [
        [pair["chosen_on"], pair["serves"], *(percent(pair[key]) for key in shares.values())]
        for pair in drift["pairs"]
    ]
    return Table(["chosen on", "serves", *shares], cells)


def placements(advice: Mapping[str, Any]) -> Table:
    """Predicted steps."""
    batch = advice["workload"]["batch_size"]
    cells = [
        [
            format_byte_size(option["fast_bytes"]),
            one["placement"],
            f"{batch / one['step_seconds']:,.0f}",
            f"{1e6 * one['step_seconds']:,.0f} µs",
            format_byte_size(one["to_fast_bytes"]),
            format_byte_size(one["to_slow_bytes"]),
            "" if one["prefetch"] is None else str(one["prefetch"]),
            format_byte_size(one["memory_bytes"]),
        ]
        for option in advice["options"]
        for one in option["placements"]
    ]
    columns = ["fast memory", "placement", "samples/s", "step", "up a step", "down a step", "prefetch"]
    return Table([*columns, "needs"], cells)


def memory(advice: Mapping[str, Any], *, only_fastest: bool) -> Table:
    """Bytes by use, of the fastest placement that fits each size or of all, those too large too."""
    cells = [
        [
            format_byte_size(option["fast_bytes"]),
            one["placement"],
            *(format_byte_size(one["memory"][use]) for use in USES),
            format_byte_size(one["memory_bytes"]),
        ]
        for option in advice["options"]
        for one in (
            option["placements"][:1] if only_fastest else [*option["placements"], *option["too_large"]]
        )
    ]
    return Table(["fast memory", "placement", *USES, "sum"], cells)
