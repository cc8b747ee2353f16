"""The series of the statistics as tables of text, for the report and the terminal: one function each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.coverage import CoverageRow, OrderRow, UniqueRowsRow
from ...pipeline.statistics.drift import Drift, PairShare, PartShare, ServedShare
from ...pipeline.statistics.frequencies import FeatureRow
from ...pipeline.statistics.traffic import MissRatios
from ...train.advice import PlacementAdvice
from .report_sentences import percent, rounded

USES = ("hot", "staging", "dense", "activations", "inputs", "transfers")
"""Uses of fast memory, in the order of the columns."""

_LEAST_SHADE = 0.15
"""Shade of the least share of a matrix."""
_LEAST_SHADED_WIDTH = 0.1
"""Shares that span less than this are not spread over all shades."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of cells ready to print; the first columns are text, the others are numbers."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    shades: Sequence[Sequence[float]] = ()
    """Shade of each cell in [0, 1], where the table is a heat map too; empty where it is none."""
    num_texts: int = 1
    """First columns that are text."""


def features(rows: Sequence[FeatureRow]) -> TextTable:
    """Return how unevenly the lookups of each table are distributed over its rows."""
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
    return TextTable([*columns, "rows for 80%", "for 90%", "for 95%", "for 99%"], cells)


def coverage(rows: Sequence[CoverageRow]) -> TextTable:
    """Return the share of lookups that the top rows of each table serve."""
    cells = [[row["table"], f"{row['num_rows']:,}", percent(row["lookup_share"])] for row in rows]
    return TextTable(["table", "top rows", "lookups"], cells)


def hot_samples(rows: Sequence[OrderRow]) -> TextTable:
    """Return what each budget makes hot under each order of rows."""
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
    return TextTable(["order", "memory", "hot rows", "hot lookups", "fully hot samples"], cells)


def miss_ratios(found: MissRatios) -> TextTable:
    """Return the rows that each policy fetches again."""
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
    return TextTable(["policy", "fast memory", "slots", "refetched rows", "share of rows needed"], cells)


def unique_rows(rows: Sequence[UniqueRowsRow]) -> TextTable:
    """Return the distinct rows per batch, expected and measured, by batch size."""
    cells = [
        [
            f"{row['batch_size']:,}",
            f"{row['num_lookups']:,}",
            f"{row['expected']:,.0f}",
            f"{row['measured']:,.0f}",
            f"{100 * (row['measured'] / row['expected'] - 1):+.1f}%",
        ]
        for row in rows
    ]
    return TextTable(["batch size", "lookups", "expected", "measured", "difference"], cells)


_AGED: dict[str, ServedShare] = {
    "hot lookups": "hot_lookup_share",
    "fully hot samples": "hot_sample_share",
    "lookups of unseen rows": "unseen_lookup_share",
}


def drift_parts(drift: Drift) -> TextTable:
    """Return what the plan's hot rows serve in each part of the log."""
    shares: dict[str, PartShare] = {
        "hot lookups under the plan": "plan_hot_lookup_share",
        "fully hot samples under the plan": "plan_hot_sample_share",
        "out-of-vocabulary lookups": "no_id_share",
    }
    cells = [
        [part["name"], f"{part['num_samples']:,}", *(percent(part[key]) for key in shares.values())]
        for part in drift["parts"]
    ]
    return TextTable(["part", "samples", *shares], cells)


def drift_by_age(drift: Drift) -> TextTable:
    """Return what hot rows serve as they age."""
    cells = [[f"{row['age']}", *(percent(row[key]) for key in _AGED.values())] for row in drift["by_age"]]
    return TextTable(["age (parts)", *_AGED], cells)


def drift_matrix(drift: Drift, key: PairShare, title: str) -> TextTable:
    """Return one share of `drift_pairs` as a matrix: a row for each hot set, a column for each part.

    Shades run from the least share shown to the greatest, but over at least ten percentage points, so that
    equal shades mean equal shares and small differences look small.
    """
    parts = [part["name"] for part in drift["parts"]]
    # Evaluation parts choose no rows, so there are fewer rows than columns.
    sets = list(dict.fromkeys(pair["chosen_on"] for pair in drift["pairs"]))
    found = {(pair["chosen_on"], pair["serves"]): pair[key] for pair in drift["pairs"]}
    # Nor do they have rows in common with others: a part without any share has no column.
    parts = [part for part in parts if any(found[on, part] is not None for on in sets)]
    # Shades are spread over the shares that occur.
    shares = [share for share in found.values() if share is not None]
    low = min(shares, default=0.0)
    width = max(max(shares, default=1.0) - low, _LEAST_SHADED_WIDTH)
    cells = [[on, *(percent(found[on, part]) for part in parts)] for on in sets]
    shades = [[0.0, *(_shade(found[on, part], low, width) for part in parts)] for on in sets]
    return TextTable(["chosen on", *parts], cells, title, shades)


def _shade(share: float | None, low: float, width: float) -> float:
    """Return the shade of a share; the least is not white, which is kept for cells without one."""
    return 0.0 if share is None else _LEAST_SHADE + (1 - _LEAST_SHADE) * (share - low) / width


def drift_pairs(drift: Drift) -> TextTable:
    """Return what the hot rows of each part serve in each other part."""
    shares: dict[str, PairShare] = {"rows in common": "common_rows_share", **_AGED}
    cells = [
        [pair["chosen_on"], pair["serves"], *(percent(pair[key]) for key in shares.values())]
        for pair in drift["pairs"]
    ]
    return TextTable(["chosen on", "serves", *shares], cells)


def placements(advice: PlacementAdvice) -> TextTable:
    """Return the predicted steps of every placement that fits each size."""
    batch = advice["workload"]["batch_size"]
    cells = [
        [
            format_byte_size(option["fast_bytes"]),
            one["placement"],
            rounded(batch / one["step_seconds"]),
            predicted_seconds(one["step_seconds"]),
            predicted_bytes(one["to_fast_bytes"]),
            predicted_bytes(one["to_slow_bytes"]),
            "" if one["prefetch"] is None else str(one["prefetch"]),
            format_byte_size(one["memory_bytes"]),
        ]
        for option in advice["options"]
        for one in option["placements"]
    ]
    columns = ["fast memory", "placement", "samples/s", "step", "to fast per step", "to slow per step"]
    return TextTable([*columns, "prefetch", "needs"], cells)


def predicted_seconds(seconds: float) -> str:
    """Return a predicted time in microseconds, with two digits."""
    return f"{float(f'{1e6 * seconds:.2g}'):,.0f} µs"


def predicted_bytes(num_bytes: float) -> str:
    """Return predicted bytes with two digits."""
    # Two digits of the number as it is printed, so rounded in its own unit.
    unit = 1024 ** (max(0, int(num_bytes).bit_length() - 1) // 10)
    return format_byte_size(float(f"{num_bytes / unit:.2g}") * unit)


def memory(advice: PlacementAdvice, *, only_fastest: bool) -> TextTable:
    """Return bytes by use, of the fastest placement that fits each size or of all, even those too large."""
    # The placements of a size are sorted by speed, the fastest first.
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
    return TextTable(["fast memory", "placement", *USES, "sum"], cells)
