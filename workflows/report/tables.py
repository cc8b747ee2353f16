"""The series of the statistics as text tables and Polars frames."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.frequencies import SERIES
from ...train.advice import PlacementAdvice
from .sentences import percent, rounded

if TYPE_CHECKING:
    import polars as pl


from ...pipeline.statistics.folder import Row

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


def features(rows: Sequence[Row]) -> TextTable:
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


def coverage(rows: Sequence[Row]) -> TextTable:
    """Return the share of lookups that the top rows of each table serve."""
    cells = [[row["table"], f"{row['num_rows']:,}", percent(row["lookup_share"])] for row in rows]
    return TextTable(["table", "top rows", "lookups"], cells)


def hot_samples(rows: Sequence[Row]) -> TextTable:
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


def miss_ratios(found: dict[str, Any]) -> TextTable:
    """Return the rows that each policy loads again."""
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


def unique_rows(rows: Sequence[Row]) -> TextTable:
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


_AGED: dict[str, str] = {
    "hot lookups": "hot_lookup_share",
    "fully hot samples": "hot_sample_share",
    "lookups of unseen rows": "unseen_lookup_share",
}


def drift_parts(drift: dict[str, Any]) -> TextTable:
    """Return what the plan's hot rows serve in each part of the log."""
    shares: dict[str, str] = {
        "hot lookups under the plan": "plan_hot_lookup_share",
        "fully hot samples under the plan": "plan_hot_sample_share",
        "out-of-vocabulary lookups": "no_id_share",
    }
    cells = [
        [part["name"], f"{part['num_samples']:,}", *(percent(part[key]) for key in shares.values())]
        for part in drift["parts"]
    ]
    return TextTable(["part", "samples", *shares], cells)


def drift_by_age(drift: dict[str, Any]) -> TextTable:
    """Return what hot rows serve as they age."""
    cells = [[f"{row['age']}", *(percent(row[key]) for key in _AGED.values())] for row in drift["by_age"]]
    return TextTable(["age (parts)", *_AGED], cells)


def drift_matrix(drift: dict[str, Any], key: str, title: str) -> TextTable:
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


def drift_pairs(drift: dict[str, Any]) -> TextTable:
    """Return what the hot rows of each part serve in each other part."""
    shares: dict[str, str] = {"rows in common": "common_rows_share", **_AGED}
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


def series_frames(statistics: dict[str, Any]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield each series by name; a series of several tables is named ``SERIES_TABLE``."""
    # Polars takes 0.2 s to import, which other outputs do without.
    import polars as pl

    for name, rows in _named_tables(statistics):
        yield name, pl.DataFrame([_flat(row) for row in rows], infer_schema_length=None)


def _named_tables(statistics: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yield each series and its rows; a series of several tables is named ``SERIES_TABLE``."""
    series = cast(Mapping[str, Any], statistics)
    for name in SERIES:
        found = series.get(name, {})
        if isinstance(found, list):
            yield name, found
            continue
        for key, rows in found.items():
            # Single figures have no table; --json has them.
            if isinstance(rows, list):
                yield f"{name}_{key}", rows


def _flat(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row without nesting: ``{"top_share": {"1": 0.5}}`` -> ``{"top_share_1": 0.5}``."""
    flat: dict[str, Any] = {}
    for key, cell in row.items():
        if isinstance(cell, dict):
            flat |= {f"{key}_{inner_key}": inner for inner_key, inner in cell.items()}
        else:
            flat[key] = cell
    return flat


_FEW_CATEGORIES = 5
"""Categories of a table that are shown."""


def labels(log: dict[str, Any]) -> TextTable:
    """Return the label rates of hot, mixed and evaluation samples."""
    names = {"hot": "fully hot", "mixed": "mixed", "evaluation": "evaluation"}
    cells = [[names[row["kind"]], *_label_cells(row)] for row in log["labels"]]
    return TextTable(["samples", "number", "clicks", "label rate"], cells)


def parts(log: dict[str, Any]) -> TextTable:
    """Return the label rate of each part of the log."""
    cells = [
        [row["part"], *_label_cells(row), "" if row["is_training"] else "evaluation"] for row in log["parts"]
    ]
    return TextTable(["part", "samples", "clicks", "label rate", ""], cells)


def _label_cells(row: Row) -> list[str]:
    clicks = row["num_clicks"]
    return [f"{row['num_samples']:,}", "" if clicks is None else f"{clicks:,}", percent(row["label_rate"], 2)]


def missing(log: dict[str, Any]) -> TextTable:
    """Return how often each feature has no value, and how the samples without one were labeled."""
    cells = [
        [
            row["feature"],
            row["type"],
            percent(row["missing_share"]),
            percent(row["evaluation_missing_share"]),
            percent(row["label_rate_missing"]),
            percent(row["label_rate_present"]),
        ]
        for row in log["missing"]
    ]
    columns = ["feature", "type", "missing", "in evaluation", "label rate if missing", "if present"]
    return TextTable(columns, cells)


def dense(log: dict[str, Any]) -> TextTable:
    """Return the values of each dense feature, and what its transform does to them."""
    cells = [
        [
            row["feature"],
            row["transform"],
            percent(row["missing_share"]),
            percent(row["zero_share"]),
            percent(row["negative_share"]),
            percent(row["clamped_share"]),
            *(short_number(row[key]) for key in ("min", "mean")),
            *(short_number(row["quantiles"][share]) for share in ("0.05", "0.5", "0.95")),
            short_number(row["max"]),
        ]
        for row in log["dense"]
    ]
    columns = ["feature", "transform", "missing", "zero", "negative", "made 0"]
    return TextTable([*columns, "least", "mean", "5%", "median", "95%", "greatest"], cells)


def dense_bins(log: dict[str, Any]) -> TextTable:
    """Return the values of each dense feature by powers of two."""
    cells = [
        [row["feature"], short_number(row["low"]), short_number(row["high"]), f"{row['num_values']:,}"]
        for row in log["dense_bins"]
    ]
    return TextTable(["feature", "from", "to", "values"], cells)


def short_number(value: float | None) -> str:
    """Return a number with three digits or so, large ones by thousands: 1234567 as ``1.23 M``."""
    if value is None:
        return ""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * unit and abs(value) < 1e13:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def hot_tables(rows: Sequence[Row]) -> TextTable:
    """Return what each table takes of the hot budget, the largest first, and which lookups still miss it."""
    cells = [
        [
            row["table"],
            f"{row['num_rows']:,}",
            f"{row['num_hot_rows']:,}",
            format_byte_size(row["hot_bytes"]),
            percent(row["hot_bytes_share"]),
            percent(row["lookup_share"]),
            percent(row["hot_lookup_share"]),
            percent(row["cold_lookup_share"]),
            percent(row["evaluation_oov_share"]),
        ]
        for row in by_hot_bytes(rows)
    ]
    columns = ["table", "rows", "hot rows", "hot bytes", "of the budget", "of all lookups"]
    return TextTable([*columns, "hot lookups", "of all cold lookups", "evaluation lookups of oov"], cells)


def by_hot_bytes(rows: Sequence[Row]) -> list[Row]:
    """Return tables from the one with the most hot bytes to the one with the fewest."""
    return sorted(rows, key=lambda row: -int(row["hot_bytes"]))


def categories(rows: Sequence[Row]) -> TextTable:
    """Return the top categories of each table."""
    cells = []
    # A table has a name in its first line alone, and only its most frequent categories are printed.
    places: dict[str, int] = {}
    for row in rows:
        place = places[row["table"]] = places.get(row["table"], 0) + 1
        if place <= _FEW_CATEGORIES:
            cells.append(
                [
                    row["table"] if place == 1 else "",
                    shown(row["category"]),
                    f"{row['num_lookups']:,}",
                    percent(row["lookup_share"]),
                    percent(row["label_rate"]),
                    "hot" if row["is_hot"] else "",
                ]
            )
    return TextTable(["table", "category", "lookups", "share", "label rate", ""], cells, num_texts=2)


def shown(category: str, most: int = 32) -> str:
    """Return a category as one line of printable characters, cut off where it is long."""
    text = "".join(letter if letter.isprintable() else " " for letter in category)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def default_runs(found: dict[str, Any]) -> TextTable:
    """Return what each placement moves with the settings that training has by default."""
    cells = [
        [
            row["placement"],
            format_byte_size(row["fast_bytes"]),
            *(format_byte_size(row[key]) for key in ("bytes_to_fast", "bytes_to_slow")),
            f"{row['bytes_to_fast_per_sample'] + row['bytes_to_slow_per_sample']:,.0f} B",
            f"{row['rows_initialized']:,}",
            f"{row['shortened']:,}",
        ]
        for row in found["placements"]
    ]
    columns = ["placement", "fast memory for rows", "to fast", "to slow", "both per sample"]
    return TextTable([*columns, "rows initialized on first use", "transfers shortened"], cells)


def describe_default_runs(found: dict[str, Any]) -> str:
    """Return the settings that `default_runs` were simulated with."""
    settings = found["settings"]
    # Where only the first batches of an epoch were simulated, that is said.
    batches = f"{settings['num_batches']:,}"
    if settings["num_batches"] < settings["num_epoch_batches"]:
        batches = f"the first {batches} of {settings['num_epoch_batches']:,}"
    ahead = "1 batch" if settings["prefetch"] == 1 else f"{settings['prefetch']} batches"
    hot, staging = (format_byte_size(settings[key]) for key in ("hot_bytes", "staging_bytes"))
    return (
        f"Simulated, not measured: epoch 0 of hotset train without options on these shards, {batches} "
        f"batches of {settings['batch_size']:,} samples (order {settings['order']}, seed "
        f"{settings['seed']}), rows of {settings['row_bytes']:,} bytes with "
        f"{settings['embedding_optimizer']}, {hot} of hot rows, {staging} of staging "
        f"({settings['num_slots']:,} slots), transfers {ahead} ahead; cache: "
        f"{settings['cache_policy']} in {settings['cache_slots']:,} slots; fae: the fewest switches, as with "
        "--fae-variant code. A run counts the same bytes."
    )
