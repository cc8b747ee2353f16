"""Tables of a log's labels, values and categories, of the tables that are hot, and of runs by default."""

from __future__ import annotations

from collections.abc import Sequence

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.coverage import HotTableRow
from ...pipeline.statistics.default_runs import DefaultRuns
from ...pipeline.statistics.frequencies import CategoryRow
from ...pipeline.statistics.log import LabelCounts, LogSeries
from .report_sentences import percent
from .series_tables import TextTable

_FEW_CATEGORIES = 5
"""Categories of a table that are shown."""


def labels(log: LogSeries) -> TextTable:
    """Return the label rates of hot, mixed and evaluation samples."""
    names = {"hot": "fully hot", "mixed": "mixed", "evaluation": "evaluation"}
    cells = [[names[row["kind"]], *_label_cells(row)] for row in log["labels"]]
    return TextTable(["samples", "number", "clicks", "label rate"], cells)


def parts(log: LogSeries) -> TextTable:
    """Return the label rate of each part of the log."""
    cells = [
        [row["part"], *_label_cells(row), "" if row["is_training"] else "evaluation"] for row in log["parts"]
    ]
    return TextTable(["part", "samples", "clicks", "label rate", ""], cells)


def _label_cells(row: LabelCounts) -> list[str]:
    clicks = row["num_clicks"]
    return [f"{row['num_samples']:,}", "" if clicks is None else f"{clicks:,}", percent(row["label_rate"], 2)]


def missing(log: LogSeries) -> TextTable:
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


def dense(log: LogSeries) -> TextTable:
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


def dense_bins(log: LogSeries) -> TextTable:
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


def hot_tables(rows: Sequence[HotTableRow]) -> TextTable:
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


def by_hot_bytes(rows: Sequence[HotTableRow]) -> list[HotTableRow]:
    """Return tables from the one with the most hot bytes to the one with the fewest."""
    return sorted(rows, key=lambda row: -int(row["hot_bytes"]))


def categories(rows: Sequence[CategoryRow]) -> TextTable:
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


def default_runs(found: DefaultRuns) -> TextTable:
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


def describe_default_runs(found: DefaultRuns) -> str:
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
