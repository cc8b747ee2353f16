"""Sections of the report on the log itself: its files, labels, missing and dense values, and categories."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.coverage import HotTableRow
from ...pipeline.statistics.default_runs import DefaultRuns
from ...pipeline.statistics.folder import Provenance
from ...pipeline.statistics.frequencies import CategoryRow
from ...pipeline.statistics.log import LogSeries
from . import log_tables as tables
from .bar_charts import Bar, bar_chart, dense_chart
from .report_page import Section
from .report_sentences import percent
from .series_tables import TextTable

_MOST_BARS = 60
"""Rows of a chart; of a log with more features it has the first ones by size, and the table all."""


def provenance_section(provenance: Provenance) -> Section:
    """Return the logs, the settings and the command of the folder."""
    logs = [
        [log["name"], format_byte_size(log["bytes"]), f"{log['samples']:,}", f"{log['train_samples']:,}"]
        for log in provenance["logs"]
    ]
    schema = provenance["schema"]
    # The command is complete: it holds every setting that differs from the default of its schema.
    text = (
        f"hotset {provenance['hotset']}, schema {schema}, {len(logs)} "
        f"log file{'s' if len(logs) > 1 else ''}. "
        "This command, in the folder of the logs, writes the same bytes again:"
    )
    # Lines that were skipped and ids of another folder are told first: the files alone do not show them.
    skipped = sum(provenance["bad_lines"].values())
    if skipped:
        text = f"{skipped:,} bad lines were skipped. {text}"
    if provenance["is_adopted"]:
        text = f"Ids are those of another folder (MODEL_DIR). {text}"
    marks = [[folder, fingerprint] for folder, fingerprint in provenance["fingerprints"].items()]
    shown = TextTable(["log file", "size", "samples", "for training"], logs)
    prints = TextTable(["folder", "fingerprint"], marks)
    command = provenance["command"]
    return Section("provenance", "Provenance", text, None, [prints], [shown], [command])


def default_runs_sections(found: DefaultRuns) -> Iterator[Section]:
    """Yield what the placements move with the settings that training has by default."""
    if not found["placements"]:
        return
    bars = []
    for row in found["placements"]:
        # Both ways together decide the order; each way is in the tooltip.
        to_fast, to_slow = row["bytes_to_fast_per_sample"], row["bytes_to_slow_per_sample"]
        text = f"{to_fast + to_slow:,.0f} B"
        tooltip = {
            "to the fast tier": f"{to_fast:,.0f} B",
            "to the slow tier": f"{to_slow:,.0f} B",
            "fast memory for rows": format_byte_size(row["fast_bytes"]),
        }
        bars.append(Bar(row["placement"], to_fast + to_slow, text, tooltip=tooltip))

    title = "bytes per sample, both ways together"
    chart = partial(bar_chart, bars, title, "Bytes that each placement moves")
    text = tables.describe_default_runs(found)
    yield Section("default-runs", "What do the placements move?", text, chart, [tables.default_runs(found)])


def hot_tables_section(rows: Sequence[HotTableRow]) -> Section:
    """Return which tables take the plan's fast memory."""
    largest = tables.by_hot_bytes(rows)
    bars = [
        Bar(
            row["table"],
            row["hot_bytes_share"] or 0.0,
            f"{percent(row['hot_bytes_share'])} · {percent(row['cold_lookup_share'])}",
            row["cold_lookup_share"],
            {
                "hot rows": f"{row['num_hot_rows']:,} of {row['num_rows']:,}",
                "hot bytes": format_byte_size(row["hot_bytes"]),
                "hot lookups": percent(row["hot_lookup_share"]),
                "of all cold lookups": percent(row["cold_lookup_share"]),
            },
        )
        for row in largest[:_MOST_BARS]
    ]

    title = "share of the hot bytes (bar) and of all cold lookups (mark)"
    chart = partial(bar_chart, bars, title, "Share of the hot bytes by table")
    # The reading is explained in words, because the chart holds two shares of different wholes.
    text = (
        "Bars show each table's share of the plan's hot bytes, marks its share of the lookups that still hit "
        "cold rows. A table with a long bar and a mark far out would use more; one with a short bar and a "
        "mark near 0 has all it needs."
    )
    return Section("hot-tables", "Which tables use the hot rows?", text, chart, [tables.hot_tables(rows)])


def log_sections(log: LogSeries) -> Iterator[Section]:
    """Yield labels, missing values and dense features; nothing of a log whose columns were discarded."""
    if not log["labels"]:
        return
    yield from _labels(log)
    yield _missing(log)
    if any(row["num_values"] for row in log["dense"]):
        yield _dense(log)


def _labels(log: LogSeries) -> Iterator[Section]:
    # In a log without labels no part has a rate, and there is nothing to show.
    parts = [row for row in log["parts"] if row["label_rate"] is not None]
    if not parts:
        return
    bars = [
        Bar(
            row["part"],
            row["label_rate"] or 0.0,
            percent(row["label_rate"], 2),
            tooltip={"samples": f"{row['num_samples']:,}", "clicks": f"{row['num_clicks']:,}"},
            color="var(--blue)" if row["is_training"] else "var(--orange)",
        )
        for row in parts[:_MOST_BARS]
    ]

    chart = partial(bar_chart, bars, "label rate", "Label rate of each part of the log")
    text = (
        "The share of clicked samples (label 1) in each part of the log, in the order of the log; parts for "
        "evaluation are orange. Below, the same of fully hot, mixed and evaluation samples: if hot and mixed "
        "ones differ, a model that trains on one kind first sees another log."
    )
    yield Section(
        "labels", "How often is the label 1?", text, chart, [tables.parts(log)], [tables.labels(log)]
    )


def _missing(log: LogSeries) -> Section:
    rows = log["missing"]
    # A table with all features is below; the chart shows those that lack most.
    lacking = [row for row in rows if row["missing_share"]]
    most_first = sorted(lacking, key=lambda row: -(row["missing_share"] or 0.0))[:_MOST_BARS]
    bars = [
        Bar(
            row["feature"],
            row["missing_share"] or 0.0,
            " · ".join(filter(None, map(percent, (row["missing_share"], row["evaluation_missing_share"])))),
            row["evaluation_missing_share"],
            {
                "in evaluation": percent(row["evaluation_missing_share"]),
                "label rate if missing": percent(row["label_rate_missing"]),
                "if present": percent(row["label_rate_present"]),
            },
        )
        for row in most_first
    ]

    title = "share of samples without a value: training (bar), evaluation (mark)"
    chart = partial(bar_chart, bars, title, "Missing values by feature")
    num_whole = len(rows) - len(lacking)
    if not bars:
        text = "Every feature has a value in every training sample."
        return Section("missing", "Which values are missing?", text, None, [tables.missing(log)])
    text = (
        f"{num_whole} of {len(rows)} features have a value in every training sample. Bars show the share of "
        "training samples without one, marks that of evaluation samples. The table compares the label rates: "
        "where they differ, that a value is missing says something by itself."
    )
    return Section("missing", "Which values are missing?", text, chart, [tables.missing(log)])


def _dense(log: LogSeries) -> Section:
    rows = log["dense"]

    chart = partial(dense_chart, rows[:_MOST_BARS])
    # The transform loses values without a word, so its losses are named here.
    clamped = [row["feature"] for row in rows if (row["clamped_share"] or 0) > 0]
    text = (
        "Values of the training part before their transform: lines from the 1% to the 99% quantile, bars "
        "over the middle half, dots at the median (errors below 1%). "
    )
    if clamped:
        text += (
            f'log1p turns values below 0 into 0, in {", ".join(clamped)}; transform = "none" in the schema '
            "keeps them."
        )
    else:
        text += "No value is made 0 by a transform."
    shown = [tables.dense(log)]
    return Section("dense", "Dense features", text, chart, [tables.dense_bins(log)], shown)


def categories_section(rows: Sequence[CategoryRow], folder: Path) -> Section:
    """Return the top categories of each table by name."""
    text = (
        "The most looked-up categories of each table in the training part, as the log writes them, with "
        "their share of the table's lookups and the label rate of their samples. More of one table:"
    )
    command = shlex.join(["hotset", "stats", str(folder), "--feature", rows[0]["table"], "--top", "100"])
    return Section("categories", "Top categories", text, None, [], [tables.categories(rows)], [command])
