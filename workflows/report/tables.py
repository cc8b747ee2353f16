"""The series of the statistics as text tables and Polars frames.

A series is rows of plain data. `COLUMNS` has the columns of each that people see: in the terminal, the report
and the tooltips of its charts. Files and JSON have all of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.folder import Row
from ...pipeline.statistics.frequencies import SERIES
from ...train.advice import PlacementAdvice
from .sentences import percent, rounded

if TYPE_CHECKING:
    import polars as pl

_FEW_CATEGORIES = 5
"""Categories of a table that are shown."""
_LEAST_SHADE = 0.15
"""Shade of the least share of a matrix."""
_LEAST_SHADED_WIDTH = 0.1
"""Shares that span less than this are not spread over all shades."""


@dataclass(frozen=True, slots=True)
class TextTable:
    """A table of cells ready to print."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    title: str = ""
    shades: Sequence[Sequence[float]] = ()
    """Shade of each cell in [0, 1], where the table is a heat map too; empty where it is none."""
    num_texts: int = 1
    """First columns that are text."""


def count(number: int | None) -> str:
    """Return a number with its thousands marked; nothing for None."""
    return "" if number is None else f"{number:,}"


def _whole(number: float) -> str:
    return f"{number:,.0f}"


def _percent_2(share: float | None) -> str:
    return percent(share, 2)


def _percent_4(share: float) -> str:
    return percent(share, 4)


def _difference(found: float, expected: float) -> str:
    return f"{100 * (found / expected - 1):+.1f}%"


def _sum_of_bytes(*numbers: float) -> str:
    return f"{sum(numbers):,.0f} B"


def _speed(batch_size: int, step_seconds: float) -> str:
    return rounded(batch_size / step_seconds)


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _hot(is_hot: bool | None) -> str:
    return "hot" if is_hot else ""


def _kind(kind: str) -> str:
    return "fully hot" if kind == "hot" else kind


def _part(is_training: bool) -> str:
    return "" if is_training else "evaluation"


CHOSEN = "<- chosen"
"""The mark of the plan's budget."""


def _chosen(is_chosen: bool) -> str:
    return CHOSEN if is_chosen else ""


def _printable(category: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in category)


def shown(category: str, most: int = 32) -> str:
    """Return a category as one short line of printable characters."""
    text = _printable(category)
    return text if len(text) <= most else f"{text[: most - 1]}…"


def short_number(value: float | None) -> str:
    """Return a number with three digits: 1234567 as ``1.23 M``."""
    if value is None:
        return ""
    for unit, name in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * unit and abs(value) < 1e13:
            return f"{value / unit:.3g}{name}"
    return f"{value:.3g}"


def predicted_seconds(seconds: float) -> str:
    """Return a predicted time in microseconds, with two digits."""
    return f"{float(f'{1e6 * seconds:.2g}'):,.0f} µs"


def predicted_bytes(num_bytes: float) -> str:
    """Return predicted bytes with two digits."""
    # Two digits of the number as it is printed, so rounded in its own unit.
    unit = 1024 ** (max(0, int(num_bytes).bit_length() - 1) // 10)
    return format_byte_size(float(f"{num_bytes / unit:.2g}") * unit)


_SERVED = (
    ("hot lookups", "hot_lookup_share", percent),
    ("fully hot samples", "hot_sample_share", percent),
    ("lookups of unseen rows", "unseen_lookup_share", percent),
)
_LABELS = (
    ("clicks", "num_clicks", count),
    ("label rate", "label_rate", _percent_2),
)
_FAST = (("fast memory", "fast_bytes", format_byte_size), ("placement", "placement", str))
USES = ("hot", "staging", "dense", "activations", "inputs", "transfers")
"""Uses of fast memory, in the order of the columns."""

COLUMNS: dict[str, Sequence[tuple[str, str, Callable[..., str]]]] = {
    "features": (
        ("table", "name", str),
        ("rows", "num_rows", count),
        *((f"top {k}", f"top_share_{k}", percent) for k in (1, 10, 100, 1000)),
        ("rows for 80%", "rows_for_share_0.8", count),
        *((f"for {k}%", f"rows_for_share_{k / 100:g}", count) for k in (90, 95, 99)),
    ),
    "budgets": (
        ("hot bytes", "bytes", format_byte_size),
        ("hot rows", "num_hot_rows", count),
        ("of all rows", "row_share", _percent_2),
        ("hot lookups", "hot_lookup_share", percent),
        ("fully hot samples", "hot_sample_share", percent),
        ("", "is_chosen", _chosen),
    ),
    "coverage": (
        ("table", "table", str),
        ("top rows", "num_rows", count),
        ("lookups", "lookup_share", percent),
    ),
    "hot_samples": (
        ("order", "order", str),
        ("memory", "bytes", format_byte_size),
        ("hot rows", "num_hot_rows", count),
        ("hot lookups", "hot_lookup_share", percent),
        ("fully hot samples", "hot_sample_share", percent),
    ),
    "miss_ratios_curve": (
        ("policy", "policy", str),
        ("fast memory", "bytes", format_byte_size),
        ("slots", "num_slots", count),
        ("refetched rows", "num_refetched", count),
        ("share of rows needed", "refetched_share", percent),
    ),
    "default_runs_placements": (
        ("placement", "placement", str),
        ("fast memory for rows", "fast_bytes", format_byte_size),
        ("to fast", "bytes_to_fast", format_byte_size),
        ("to slow", "bytes_to_slow", format_byte_size),
        ("both per sample", "bytes_to_fast_per_sample bytes_to_slow_per_sample", _sum_of_bytes),
        ("rows initialized on first use", "rows_initialized", count),
        ("transfers shortened", "shortened", count),
    ),
    "unique_rows": (
        ("batch size", "batch_size", count),
        ("lookups", "num_lookups", count),
        ("expected", "expected", _whole),
        ("measured", "measured", _whole),
        ("difference", "measured expected", _difference),
    ),
    "drift_parts": (
        ("part", "name", str),
        ("samples", "num_samples", count),
        ("hot lookups under the plan", "plan_hot_lookup_share", percent),
        ("fully hot samples under the plan", "plan_hot_sample_share", percent),
        ("out-of-vocabulary lookups", "no_id_share", percent),
    ),
    "drift_pairs": (
        ("chosen on", "chosen_on", str),
        ("serves", "serves", str),
        ("rows in common", "common_rows_share", percent),
        *_SERVED,
    ),
    "drift_by_age": (("age (parts)", "age", count), *_SERVED),
    "hot_tables": (
        ("table", "table", str),
        ("rows", "num_rows", count),
        ("hot rows", "num_hot_rows", count),
        ("hot bytes", "hot_bytes", format_byte_size),
        ("of the budget", "hot_bytes_share", percent),
        ("of all lookups", "lookup_share", percent),
        ("hot lookups", "hot_lookup_share", percent),
        ("of all cold lookups", "cold_lookup_share", percent),
        ("evaluation lookups of oov", "evaluation_oov_share", percent),
    ),
    "log_labels": (("samples", "kind", _kind), ("number", "num_samples", count), *_LABELS),
    "log_parts": (
        ("part", "part", str),
        ("samples", "num_samples", count),
        *_LABELS,
        ("", "is_training", _part),
    ),
    "log_missing": (
        ("feature", "feature", str),
        ("type", "type", str),
        ("missing", "missing_share", percent),
        ("in evaluation", "evaluation_missing_share", percent),
        ("label rate if missing", "label_rate_missing", percent),
        ("if present", "label_rate_present", percent),
    ),
    "log_dense": (
        ("feature", "feature", str),
        ("transform", "transform", str),
        ("missing", "missing_share", percent),
        ("zero", "zero_share", percent),
        ("negative", "negative_share", percent),
        ("made 0", "clamped_share", percent),
        ("least", "min", short_number),
        ("mean", "mean", short_number),
        ("5%", "quantiles_0.05", short_number),
        ("median", "quantiles_0.5", short_number),
        ("95%", "quantiles_0.95", short_number),
        ("greatest", "max", short_number),
    ),
    "log_dense_bins": (
        ("feature", "feature", str),
        ("from", "low", short_number),
        ("to", "high", short_number),
        ("values", "num_values", count),
    ),
    "categories": (
        ("table", "table", str),
        ("category", "category", shown),
        ("lookups", "num_lookups", count),
        ("share", "lookup_share", percent),
        ("label rate", "label_rate", percent),
        ("", "is_hot", _hot),
    ),
    "rows_of_table": (
        ("id", "id", count),
        ("category", "category", _printable),
        ("lookups", "count", count),
        ("share", "share", _percent_4),
        ("up to here", "cumulative_share", _percent_4),
        ("", "is_hot", _hot),
    ),
    "placements": (
        *_FAST,
        ("samples/s", "batch_size step_seconds", _speed),
        ("step", "step_seconds", predicted_seconds),
        ("to fast per step", "to_fast_bytes", predicted_bytes),
        ("to slow per step", "to_slow_bytes", predicted_bytes),
        ("prefetch", "prefetch", _text),
        ("needs", "memory_bytes", format_byte_size),
    ),
    "memory": (
        *_FAST,
        *((use, f"memory_{use}", format_byte_size) for use in USES),
        ("sum", "memory_bytes", format_byte_size),
    ),
}
"""By table its columns: the heading, the keys of a flat row, and how their values are written."""


_TEXTS = (str, shown, _kind)


def text_table(name: str, rows: Sequence[Row], title: str = "") -> TextTable:
    """Return rows as a table with the columns of ``name``."""
    columns = COLUMNS[name]
    if name == "hot_tables":
        rows = by_hot_bytes(rows)
    if name == "categories":
        rows = _first_categories(rows)
    num_texts = next(place for place, (*_, write) in enumerate(columns) if write not in _TEXTS)
    headings = [heading for heading, _, _ in columns]
    return TextTable(headings, [cells_of(name, row) for row in rows], title, num_texts=num_texts)


def cells_of(name: str, row: Row) -> list[str]:
    """Return the cells of one row of the table ``name``."""
    flat = _flat(row)
    return [write(*(flat[key] for key in keys.split())) for _, keys, write in COLUMNS[name]]


def by_hot_bytes(rows: Sequence[Row]) -> list[Row]:
    """Return tables by falling hot bytes."""
    return sorted(rows, key=lambda row: -int(row["hot_bytes"]))


def _first_categories(rows: Sequence[Row]) -> list[Row]:
    """Return the top categories of each table, named once."""
    places: Counter[str] = Counter()
    found = []
    for row in rows:
        places[row["table"]] += 1
        if places[row["table"]] <= _FEW_CATEGORIES:
            found.append(row if places[row["table"]] == 1 else row | {"table": ""})
    return found


def advice_rows(
    advice: PlacementAdvice, *, only_fastest: bool = False, with_too_large: bool = False
) -> list[Row]:
    """Return the placements of each size of fast memory, the fastest first, as rows of ``placements``."""
    return [
        {**one, "fast_bytes": option["fast_bytes"], "batch_size": advice["workload"]["batch_size"]}
        for option in advice["options"]
        for one in [
            *option["placements"][: 1 if only_fastest else None],
            *(option["too_large"] if with_too_large else []),
        ]
    ]


def drift_matrix(drift: dict[str, Any], key: str, title: str) -> TextTable:
    """Return one share as a matrix of hot sets and parts.

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
    """Return the shade of a share; white means none."""
    return 0.0 if share is None else _LEAST_SHADE + (1 - _LEAST_SHADE) * (share - low) / width


def describe_default_runs(found: dict[str, Any]) -> str:
    """Return the settings that default runs were simulated with."""
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


def series_frames(statistics: Mapping[str, Any]) -> Iterator[tuple[str, pl.DataFrame]]:
    """Yield series as frames; one of several tables is ``SERIES_TABLE``."""
    # Polars takes 0.2 s to import, which other outputs do without.
    import polars as pl

    for name, rows in named_tables(statistics):
        yield name, pl.DataFrame([_flat(row) for row in rows], infer_schema_length=None)


def named_tables(statistics: Mapping[str, Any]) -> Iterator[tuple[str, list[Row]]]:
    """Yield series and rows; one of several tables is ``SERIES_TABLE``."""
    for name in SERIES:
        found = statistics.get(name, {})
        if isinstance(found, list):
            yield name, found
            continue
        for key, rows in found.items():
            # Single figures have no table; --json has them.
            if isinstance(rows, list):
                yield f"{name}_{key}", rows


def _flat(row: Mapping[str, Any]) -> Row:
    """Return a row without nesting: ``{"top_share": {"1": 0.5}}`` -> ``{"top_share_1": 0.5}``."""
    flat: Row = {}
    for key, cell in row.items():
        if isinstance(cell, dict):
            flat |= {f"{key}_{inner_key}": inner for inner_key, inner in cell.items()}
        else:
            flat[key] = cell
    return flat
