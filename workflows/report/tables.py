"""The series of the statistics as text tables and Polars frames.

A series is rows of plain data. `COLUMNS` has the columns of each that people see: in the terminal, the report
and the tooltips of its charts. Files and JSON have all of the data.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from ...pipeline.errors import (
    format_byte_size,
)
from ...pipeline.statistics.folder import Row
from ...pipeline.statistics.frequencies import SERIES
from ..console import TextTable
from .sentences import percent, rounded

if TYPE_CHECKING:
    import polars as pl

_FEW_CATEGORIES = 5
"""Categories of a table that are shown."""
_CATEGORY_LETTERS = 32
_LEAST_SHADE = 0.15
"""Shade of the least share of a matrix."""
_LEAST_SHADED_WIDTH = 0.1
"""Shares that span less than this are not spread over all shades."""


def _difference(found: float, expected: float) -> str:
    return f"{100 * (found / expected - 1):+.1f}%"


def _sum_of_bytes(*numbers: float) -> str:
    return f"{sum(numbers):,.0f} B"


def _exchanged(*num_bytes: float) -> str:
    return f"{sum(num_bytes) / 1e6:,.3f} MB"


def _speed(batch_size: int, step_seconds: float) -> str:
    return rounded(batch_size / step_seconds)


def _printable(category: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in category)


def shown(category: str) -> str:
    """Return a category as one short line of printable characters."""
    text = _printable(category)
    return text if len(text) <= _CATEGORY_LETTERS else f"{text[: _CATEGORY_LETTERS - 1]}…"


def short_number(value: float) -> str:
    """Return a number with three digits: 1234567 as ``1.23 M``."""
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


def _step(seconds: float, memory_bytes: int, fast_bytes: int) -> str:
    return predicted_seconds(seconds) + ("" if memory_bytes <= fast_bytes else ", does not fit")


_Form = str | Mapping[Any, str] | Callable[..., str]
"""The form of a cell: a format, the text of each value, or a function; None is an empty cell."""
_SERVED = (
    ("hot lookups", "hot_lookup_share", "{:.1%}"),
    ("fully hot samples", "hot_sample_share", "{:.1%}"),
    ("lookups of unseen rows", "unseen_lookup_share", "{:.1%}"),
)
_SAMPLES = {"hot": "fully hot", "mixed": "mixed", "evaluation": "evaluation"}
_LABELS = (
    ("clicks", "num_clicks", "{:,}"),
    ("label rate", "label_rate", "{:.2%}"),
)
_FAST = (("fast memory", "fast_bytes", format_byte_size), ("placement", "placement", "{}"))
USES = ("hot", "staging", "dense", "activations", "inputs", "transfers")
"""Uses of fast memory, in the order of the columns."""

COLUMNS: dict[str, Sequence[tuple[str, str, _Form]]] = {
    "features": (
        ("table", "name", "{}"),
        ("rows", "num_rows", "{:,}"),
        *((f"top {k}", f"top_share_{k}", "{:.1%}") for k in (1, 10, 100, 1000)),
        ("rows for 80%", "rows_for_share_0.8", "{:,}"),
        *((f"for {k}%", f"rows_for_share_{k / 100:g}", "{:,}") for k in (90, 95, 99)),
    ),
    "budgets": (
        ("hot bytes", "bytes", format_byte_size),
        ("hot rows", "num_hot_rows", "{:,}"),
        ("of all rows", "row_share", "{:.2%}"),
        ("hot lookups", "hot_lookup_share", "{:.1%}"),
        ("fully hot samples", "hot_sample_share", "{:.1%}"),
        ("", "is_chosen", {True: "<- chosen"}),
    ),
    "coverage": (
        ("table", "table", "{}"),
        ("top rows", "num_rows", "{:,}"),
        ("lookups", "lookup_share", "{:.1%}"),
    ),
    "hot_samples": (
        ("order", "order", "{}"),
        ("memory", "bytes", format_byte_size),
        ("hot rows", "num_hot_rows", "{:,}"),
        ("hot lookups", "hot_lookup_share", "{:.1%}"),
        ("fully hot samples", "hot_sample_share", "{:.1%}"),
    ),
    "miss_ratios_curve": (
        ("policy", "policy", "{}"),
        ("fast memory", "bytes", format_byte_size),
        ("slots", "num_slots", "{:,}"),
        ("rows loaded again", "num_refetched", "{:,}"),
        ("share of rows needed", "refetched_share", "{:.1%}"),
    ),
    "default_runs_placements": (
        ("placement", "placement", "{}"),
        ("fast memory for rows", "fast_bytes", format_byte_size),
        ("to fast", "bytes_to_fast", format_byte_size),
        ("to slow", "bytes_to_slow", format_byte_size),
        ("both per sample", "bytes_to_fast_per_sample bytes_to_slow_per_sample", _sum_of_bytes),
        ("rows initialized on first use", "rows_initialized", "{:,}"),
        ("transfers shortened", "shortened", "{:,}"),
    ),
    "unique_rows": (
        ("batch size", "batch_size", "{:,}"),
        ("lookups", "num_lookups", "{:,}"),
        ("expected", "expected", "{:,.0f}"),
        ("measured", "measured", "{:,.0f}"),
        ("difference", "measured expected", _difference),
    ),
    "drift_parts": (
        ("part", "name", "{}"),
        ("samples", "num_samples", "{:,}"),
        ("hot lookups under the plan", "plan_hot_lookup_share", "{:.1%}"),
        ("fully hot samples under the plan", "plan_hot_sample_share", "{:.1%}"),
        ("out-of-vocabulary lookups", "no_id_share", "{:.1%}"),
    ),
    "drift_pairs": (
        ("chosen on", "chosen_on", "{}"),
        ("serves", "serves", "{}"),
        ("rows in common", "common_rows_share", "{:.1%}"),
        *_SERVED,
    ),
    "drift_by_age": (("age (parts)", "age", "{:,}"), *_SERVED),
    "hot_tables": (
        ("table", "table", "{}"),
        ("rows", "num_rows", "{:,}"),
        ("hot rows", "num_hot_rows", "{:,}"),
        ("hot bytes", "hot_bytes", format_byte_size),
        ("of the budget", "hot_bytes_share", "{:.1%}"),
        ("of all lookups", "lookup_share", "{:.1%}"),
        ("hot lookups", "hot_lookup_share", "{:.1%}"),
        ("of all cold lookups", "cold_lookup_share", "{:.1%}"),
        ("evaluation lookups of oov", "evaluation_oov_share", "{:.1%}"),
    ),
    "log_labels": (
        ("samples", "kind", _SAMPLES),
        ("number", "num_samples", "{:,}"),
        *_LABELS,
    ),
    "log_label_rates": (
        ("label", "label", "{}"),
        ("samples", "kind", _SAMPLES),
        ("number", "num_samples", "{:,}"),
        ("missing", "num_missing", "{:,}"),
        *_LABELS,
    ),
    "log_parts": (
        ("part", "part", "{}"),
        ("samples", "num_samples", "{:,}"),
        *_LABELS,
        ("", "is_training", {False: "evaluation"}),
    ),
    "log_missing": (
        ("feature", "feature", "{}"),
        ("type", "type", "{}"),
        ("missing", "missing_share", "{:.1%}"),
        ("in evaluation", "evaluation_missing_share", "{:.1%}"),
        ("label rate if missing", "label_rate_missing", "{:.1%}"),
        ("if present", "label_rate_present", "{:.1%}"),
    ),
    "log_dense": (
        ("feature", "feature", "{}"),
        ("transform", "transform", "{}"),
        ("missing", "missing_share", "{:.1%}"),
        ("zero", "zero_share", "{:.1%}"),
        ("negative", "negative_share", "{:.1%}"),
        ("made 0", "clamped_share", "{:.1%}"),
        ("least", "min", short_number),
        ("mean", "mean", short_number),
        ("5%", "quantiles_0.05", short_number),
        ("median", "quantiles_0.5", short_number),
        ("95%", "quantiles_0.95", short_number),
        ("greatest", "max", short_number),
    ),
    "log_dense_bins": (
        ("feature", "feature", "{}"),
        ("from", "low", short_number),
        ("to", "high", short_number),
        ("values", "num_values", "{:,}"),
    ),
    "categories": (
        ("table", "table", "{}"),
        ("category", "category", shown),
        ("lookups", "num_lookups", "{:,}"),
        ("share", "lookup_share", "{:.1%}"),
        ("label rate", "label_rate", "{:.1%}"),
        ("", "is_hot", {True: "hot"}),
    ),
    "rows_of_table": (
        ("id", "id", "{:,}"),
        ("category", "category", _printable),
        ("lookups", "count", "{:,}"),
        ("share", "share", "{:.4%}"),
        ("up to here", "cumulative_share", "{:.4%}"),
        ("", "is_hot", {True: "hot"}),
    ),
    "logs": (
        ("log file", "name", "{}"),
        ("size", "bytes", format_byte_size),
        ("samples", "samples", "{:,}"),
        ("for training", "train_samples", "{:,}"),
    ),
    "placements": (
        *_FAST,
        ("samples/s", "batch_size step_seconds", _speed),
        ("step", "step_seconds memory_bytes fast_bytes", _step),
        ("to fast per step", "to_fast_bytes", predicted_bytes),
        ("to slow per step", "to_slow_bytes", predicted_bytes),
        ("prefetch", "prefetch", "{}"),
        ("needs", "memory_bytes", format_byte_size),
    ),
    "memory": (
        *_FAST,
        *((use, f"memory_{use}", format_byte_size) for use in USES),
        ("sum", "memory_bytes", format_byte_size),
    ),
    "splits": (
        ("split", "split", "{}"),
        ("replicated rows", "replicated_rows", "{:,}"),
        ("hot-only steps", "hot_only_share", "{:.1%}"),
        ("hot-only step", "hot_only_all_to_all hot_only_all_reduce", _exchanged),
        ("mixed step", "mixed_all_to_all mixed_all_reduce", _exchanged),
        ("mean step", "mean_all_to_all mean_all_reduce", _exchanged),
        ("leaves a device", "crossing_bytes", _exchanged),
        ("rows on a device", "memory_bytes", format_byte_size),
    ),
}
"""By table its columns: the heading, the keys of a flat row, and the form of their values."""


def text_table(name: str, rows: Sequence[Row], title: str = "") -> TextTable:
    """Return rows as a table with the columns of ``name``."""
    columns = COLUMNS[name]
    if name == "hot_tables":
        rows = by_hot_bytes(rows)
    if name == "categories":
        rows = _first_categories(rows)
    num_texts = next(place for place, (*_, form) in enumerate(columns) if not _is_text(form))
    headings = [heading for heading, _, _ in columns]
    return TextTable(headings, [cells_of(name, row) for row in rows], title, num_texts=num_texts)


def cells_of(name: str, row: Row) -> list[str]:
    """Return the cells of one row of the table ``name``."""
    flat = _flat(row)
    return [_cell(form, [flat[key] for key in keys.split()]) for _, keys, form in COLUMNS[name]]


def _cell(form: _Form, values: list[Any]) -> str:
    if None in values:
        return ""
    if isinstance(form, str):
        return form.format(*values)
    return form.get(values[0], "") if isinstance(form, Mapping) else form(*values)


def _is_text(form: _Form) -> bool:
    return form in ("{}", shown) or isinstance(form, Mapping)


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
    advice: dict[str, Any], *, only_fastest: bool = False, with_too_large: bool = False
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
    hot, staging = (format_byte_size(settings[key]) for key in ("hot_bytes", "staging_bytes"))
    return (
        f"Simulated, not measured: epoch 0 of hotset train without options, {batches} batches of "
        f"{settings['batch_size']:,} samples (order {settings['order']}, seed {settings['seed']}). Rows take "
        f"{settings['row_bytes']:,} bytes with {settings['embedding_optimizer']}. {hot} holds hot rows, and "
        f"{staging} holds loaded rows ({settings['num_slots']:,} slots, prefetch {settings['prefetch']}). "
        f"cache: {settings['cache_policy']} in {settings['cache_slots']:,} slots. fae: the fewest switches, "
        "as with --fae-variant code. A run counts the same bytes."
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
