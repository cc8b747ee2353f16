"""The sections of the report: for each a chart, the numbers behind it, and how to read both."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.drift import PairShare
from ...pipeline.statistics.frequencies import Statistics
from ...train.advice import PlacementAdvice
from . import series_tables as tables
from .access_charts import coverage_chart, drift_chart, unique_rows_chart
from .log_sections import (
    categories_section,
    default_runs_sections,
    hot_tables_section,
    log_sections,
    provenance_section,
)
from .memory_charts import (
    PUBLISHED,
    PUBLISHED_ROW_BYTES,
    hot_samples_chart,
    miss_ratios_chart,
    placements_chart,
)
from .report_advice import advise_reader
from .report_page import Page, Section
from .report_sentences import label_rate, order_of, percent

_MOST_PARTS = 12
"""Parts of a log up to which a matrix shows every pair of them."""
_LEAST_SAMPLES = 1_000_000
"""Training samples from which a log is compared with figures published for 39 M."""
_NUM_NAMED_TABLES = 4
"""Tables that the coverage chart names."""


def build_page(folder: Path, statistics: Statistics, advice: PlacementAdvice | None) -> Page:
    """Return the report of a folder.

    Args:
        folder: as the commands of the report name it.
        statistics: every series, as `frequency_statistics` returns them, and the command in ``provenance``.
        advice: result of `advise`; None where no model fits the log.
    """
    # From the question with the largest effect to the smallest; provenance last, for whoever repeats it.
    sections = [
        _hot_samples(statistics),
        *([_placements(advice, folder), _memory(advice)] if advice else []),
        *default_runs_sections(statistics["default_runs"]),
        hot_tables_section(statistics["hot_tables"]),
        _coverage(statistics),
        categories_section(statistics["categories"], folder),
        *log_sections(statistics["log"]),
        _drift(statistics),
        *_policies(statistics),
        _unique_rows(statistics),
        provenance_section(statistics["provenance"]),
    ]
    notes = [f"Warning: {text}." for text in statistics["warnings"]]
    notes += [f"Left out: {text}." for text in statistics["left_out"]]
    name = folder.resolve().name
    return Page(name, _facts(statistics), advise_reader(folder, statistics, advice), notes, sections)


def _facts(statistics: Statistics) -> list[tuple[str, str]]:
    """Return the figures at the head of the page."""
    # Left out where the log has no labels.
    rate = label_rate(statistics["log"])
    return [
        ("training samples", f"{statistics['num_train_samples']:,}"),
        ("for evaluation", f"{statistics['samples']['evaluation']:,}"),
        *([("label rate", percent(rate))] if rate is not None else []),
        ("tables", f"{statistics['num_features']:,}"),
        ("rows", f"{statistics['num_rows']:,}"),
        ("size of all rows", format_byte_size(order_of(statistics)[-1]["bytes"])),
        ("bytes per row", f"{statistics['row_bytes']:,} (dim {statistics['embedding_dim']})"),
    ]


def _hot_samples(statistics: Statistics) -> Section:
    plan_bytes = next(row["bytes"] for row in statistics["budgets"] if row["is_chosen"])
    rows = statistics["hot_samples"]
    text = (
        "A sample is fully hot when every row it looks up is hot; a batch of such samples transfers nothing. "
        "FAE's released code counts 5% of the log, so it misses rows that exact counts find and fills the "
        "rest of the memory with rows it never saw; the calibration of its paper, hotset split --mode "
        "fae-paper, is not drawn. Peeling makes the most samples fully hot, at the cost of some hot lookups."
    )
    # FAE's figures are of Criteo's Kaggle log, and of numbers of rows: shown at the bytes these take here.
    row_bytes: int | None = statistics["row_bytes"]
    is_kaggle = statistics["provenance"]["schema"] == "criteo-kaggle"
    if not is_kaggle or statistics["num_train_samples"] < _LEAST_SAMPLES:
        row_bytes = None
    elif statistics["provenance"]["settings"]["split"]["feature_dims"]:
        row_bytes = None
        text += " FAE's published figures are left out: rows have several widths."
    if row_bytes is not None:
        sizes = " MB, ".join(f"{num_bytes // 10**6}" for num_bytes, _ in PUBLISHED)
        text += (
            f" The diamonds are FAE's figures for the full Kaggle log of 33.8 M rows ({sizes} MB at "
            f"{PUBLISHED_ROW_BYTES} bytes per row), drawn at the bytes of as many rows of {row_bytes} bytes; "
            "a shorter log has fewer rows, so its curve lies further left."
        )

    chart = partial(hot_samples_chart, rows, plan_bytes, published_row_bytes=row_bytes)
    title = "How much fast memory do hot rows need?"
    return Section("hot-samples", title, text, chart, [tables.hot_samples(rows)])


def _placements(advice: PlacementAdvice, folder: Path) -> Section:
    batch_size = advice["workload"]["batch_size"]
    machine = advice["machine"]
    link = machine["link_bytes_per_second"] / 1e9
    host = machine["host_bytes_per_second"] / 1e9
    # The command has the bandwidths that were used, ready to be changed.
    text = (
        f"Predicted, not measured, for steps of {batch_size:,} samples, {link:g} GB/s each way between host "
        f"and fast memory, {host:g} GB/s for random rows in host memory, and {machine['flops'] / 1e12:g} "
        "Tflop/s. Dots are computed, lines connect them. With the bandwidths of your machine:"
    )
    command = (
        f"hotset advise {shlex.quote(str(folder))} --link-gbps {link:g} --host-gbps {host:g} "
        f"--teraflops {machine['flops'] / 1e12:g}"
    )

    chart = partial(placements_chart, advice["options"], batch_size)
    title = "Which placement, with how much fast memory?"
    return Section("placements", title, text, chart, [tables.placements(advice)], [], [command])


def _memory(advice: PlacementAdvice) -> Section:
    text = (
        "Fast memory by use, for the fastest placement of each size: hot and staged rows with their "
        "optimizer state; dense parameters with gradients and optimizer state; activations and inputs of "
        "the batches in flight; and buffers for transfers."
    )
    every = tables.memory(advice, only_fastest=False)
    fastest = tables.memory(advice, only_fastest=True)
    return Section("memory", "What uses the fast memory?", text, None, [every], [fastest])


def _coverage(statistics: Statistics) -> Section:
    features = statistics["features"]
    needing_most = sorted(features, key=lambda feature: -feature["rows_for_share"]["0.9"])
    names = [feature["name"] for feature in needing_most[:_NUM_NAMED_TABLES]]
    text = (
        "The share of each table's lookups that its top rows serve. The named tables need the most rows to "
        f"serve 90%: {', '.join(names)}."
    )

    chart = partial(coverage_chart, statistics["coverage"], names, order_of(statistics))
    return Section("coverage", "Lookup distribution", text, chart, [tables.features(features)])


def _policies(statistics: Statistics) -> Iterator[Section]:
    # Without batches nothing was simulated.
    found = statistics["miss_ratios"]
    if not found["curve"]:
        return
    first_uses = percent(found["num_first_uses"] / found["num_needed"], 0)
    text = (
        f"Policies compared as such, on {found['num_batches']:,} batches of {found['batch_size']:,} samples "
        "drawn from the shuffled training part: the policy governs all slots, no row is pinned, and "
        f"transfers run {found['prefetch']} batches ahead. No run has these settings; the section "
        "on what placements move has those of runs. "
        f"{first_uses} of the rows needed are first uses: they are initialized in their slots, not fetched. "
        "lookahead knows the batch order and evicts the row whose next use is farthest away; no policy "
        "fetches fewer rows. dataset evicts the lowest-ranked row, static keeps the highest-ranked rows "
        "permanently, and lfu and lru decide by past use."
    )

    chart = partial(miss_ratios_chart, found)
    yield Section("policies", "Refetched rows by cache policy", text, chart, [tables.miss_ratios(found)])


def _unique_rows(statistics: Statistics) -> Section:
    rows = statistics["unique_rows"]
    text = (
        "A batch looks up most rows more than once, but has to transfer each of them only once. The blue "
        "line is what independent lookups with these counts would give; the points were counted in batches "
        "of the log in its original order."
    )

    chart = partial(unique_rows_chart, rows)
    title = "Distinct rows per batch"
    return Section("unique-rows", title, text, chart if rows else None, [tables.unique_rows(rows)])


def _drift(statistics: Statistics) -> Section:
    drift = statistics["drift"]
    text = (
        f"Each training part chooses {format_byte_size(drift['budget_bytes'])} of rows, those it looks up "
        "most; the chart shows what they serve in later parts (age 0: in the part itself)."
    )

    chart = partial(drift_chart, drift["by_age"])
    shown = [tables.drift_parts(drift)]
    # With one part there is nothing to compare, and too wide a matrix cannot be read.
    if 1 < len(drift["by_age"]) <= _MOST_PARTS:
        titles: dict[PairShare, str] = {
            "hot_lookup_share": "Share of each part's lookups that hot rows chosen on another part serve",
            "common_rows_share": "Share of each part's hot rows that another part would have chosen too",
        }
        shown += [tables.drift_matrix(drift, key, title) for key, title in titles.items()]
    has_ages = len(drift["by_age"]) > 1
    table = tables.drift_pairs(drift)
    return Section("drift", "How hot rows age", text, chart if has_ages else None, [table], shown)
