"""What the report says, section by section: a chart, the numbers behind it, and how to read both."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any

from ...pipeline.sizes import format_byte_size
from . import series_tables as tables
from .report_page import Page, Section
from .report_sentences import advice_paragraphs, order_of, percent

_MOST_PARTS = 12
"""Of the log whose pairs are shown as a matrix."""
_HARDEST = 4
"""Tables named in the coverage chart."""


def build_page(
    name: str, statistics: Mapping[str, Any], advice: Mapping[str, Any] | None, *, is_kaggle: bool
) -> Page:
    """The report of a folder.

    Args:
        name: of the folder.
        statistics: every series, as `frequency_statistics` returns them.
        advice: what `advise` returned; None where no model fits the log.
        is_kaggle: compare with FAE's published points, which are of Criteo's Kaggle log at 64 bytes a row.
    """
    charts = import_module(".report_charts", __package__)  # Altair, an extra
    sections = [
        _budgets(statistics, charts, is_kaggle),
        *([_placements(advice, charts), _memory(advice)] if advice else []),
        _coverage(statistics, charts),
        *_policies(statistics, charts),
        _unique_rows(statistics, charts),
        _drift(statistics, charts),
    ]
    notes = [f"Warning: {text}." for text in statistics["warnings"]]
    notes += [f"Left out: {text}." for text in statistics["left_out"]]
    return Page(name, _facts(statistics), advice_paragraphs(statistics, advice), notes, sections)


def _facts(statistics: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = order_of(statistics)[-1]["bytes"]
    return [
        ("training samples", f"{statistics['num_train_samples']:,}"),
        ("tables", f"{statistics['num_features']:,}"),
        ("rows", f"{statistics['num_rows']:,}"),
        ("all rows", format_byte_size(rows)),
        ("a row", f"{statistics['row_bytes']:,} bytes, dim {statistics['embedding_dim']}"),
    ]


def _budgets(statistics: Mapping[str, Any], charts: Any, is_kaggle: bool) -> Section:
    chosen = next(row["bytes"] for row in statistics["budgets"] if row["is_chosen"])
    rows = statistics["hot_samples"]
    text = (
        "A sample is fully hot when every row it looks up is hot: a batch of such samples moves nothing. "
        "FAE counts 5 % of the log: it misses rows that exact counts find, and fills the rest of the memory "
        "with rows it never saw. Peeling makes most samples fully hot, at the price of some hot look-ups."
    )
    if is_kaggle:
        text += (
            " The diamonds are FAE's published figures for the full Kaggle log of 33.8 M rows; "
            "a shorter log has fewer rows, so its curve lies further left."
        )
    chart = charts.hot_samples(rows, chosen, with_published=is_kaggle)
    return Section("hot-samples", "What memory for hot rows buys", text, chart, tables.hot_samples(rows))


def _placements(advice: Mapping[str, Any], charts: Any) -> Section:
    batch, machine = advice["workload"]["batch_size"], advice["machine"]
    link, host = (machine[f"{name}_bytes_per_second"] / 1e9 for name in ("link", "host"))
    text = (
        f"Predicted steps of {batch:,} samples with {link:g} GB/s each way between host and fast memory, "
        f"{host:g} GB/s of random rows in host memory and {machine['flops'] / 1e12:g} Tflop/s: expectations, "
        "not measurements. hotset advise takes other speeds."
    )
    chart = charts.advice(advice["options"], batch)
    return Section(
        "placements", "Which placement, with how much memory", text, chart, tables.placements(advice)
    )


def _memory(advice: Mapping[str, Any]) -> Section:
    text = (
        "For the fastest placement of each size. Hot and staged rows with their optimizer state; dense "
        "parameters with gradients and state; activations and inputs of the batches in flight; buffers for "
        "rows on their way."
    )
    every, fastest = (tables.memory(advice, only_fastest=some) for some in (False, True))
    return Section("memory", "What the memory is for", text, None, every, [fastest])


def _coverage(statistics: Mapping[str, Any], charts: Any) -> Section:
    features = statistics["features"]
    hardest = sorted(features, key=lambda feature: -feature["rows_for_share"]["0.9"])[:_HARDEST]
    names = [feature["name"] for feature in hardest]
    text = (
        "How many of the look-ups of each table its most looked-up rows serve. Named are the tables that "
        f"need the most rows for 90 %: {', '.join(names)}."
    )
    chart = charts.coverage(statistics["coverage"], names, order_of(statistics))
    return Section("coverage", "How look-ups fall on rows", text, chart, tables.features(features))


def _policies(statistics: Mapping[str, Any], charts: Any) -> Iterator[Section]:
    found = statistics["miss_ratios"]
    if not found["curve"]:
        return
    first = percent(found["num_first_uses"] / found["num_needed"], 0)
    text = (
        f"Simulated on {found['num_batches']:,} batches of {found['batch_size']:,} samples drawn from the "
        f"training part in its shuffled order, with every slot under the policy's rule. {first} of the rows "
        "needed were needed for the first time; their initial values are made in place and not fetched. "
        "lookahead knows the order and evicts what is needed last: no policy does with fewer fetches. "
        "dataset evicts the rarest row, static keeps the most important ones for good, lfu and lru go by "
        "past use."
    )
    chart, table = charts.miss_ratios(found), tables.miss_ratios(found)
    yield Section("policies", "What each cache policy would fetch again", text, chart, table)


def _unique_rows(statistics: Mapping[str, Any], charts: Any) -> Section:
    rows = statistics["unique_rows"]
    text = (
        "A batch looks most rows up more than once, and each has to cross a link only once. The line is what "
        "independent look-ups with these counts would give, the points were counted in the log's own order."
    )
    chart = charts.unique_rows(rows) if rows else None
    return Section("unique-rows", "Different rows of a batch", text, chart, tables.unique_rows(rows))


def _drift(statistics: Mapping[str, Any], charts: Any) -> Section:
    drift = statistics["drift"]
    text = (
        f"Every training part chooses the {format_byte_size(drift['budget_bytes'])} of rows it looks up "
        "most; this is what they serve in parts that come later (age 0: in the part itself)."
    )
    chart = charts.drift_by_age(drift["by_age"]) if len(drift["by_age"]) > 1 else None
    shown = [tables.drift_parts(drift)]
    if 1 < len(drift["by_age"]) <= _MOST_PARTS:
        titles = {
            "hot_lookup_share": "Look-ups of each part that hot rows chosen on another serve",
            "common_rows_share": "Hot rows of each part that another would have chosen too",
        }
        shown += [tables.drift_matrix(drift, key, title) for key, title in titles.items()]
    return Section("drift", "How hot rows age", text, chart, tables.drift_pairs(drift), shown)
