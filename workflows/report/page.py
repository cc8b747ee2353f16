"""``hotset stats --html``: the report as one HTML page that needs no network.

A section has a chart, its numbers as a table, and an explanation. The advice at the top is sentences computed
from the statistics, and the commands that follow from them. The page contains Vega's scripts (0.9 MB, from
vl-convert) and requests nothing: scripts and images are embedded, and fonts are the browser's.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import vl_convert
from altair.utils.schemapi import debug_mode
from jinja2 import Environment
from markupsafe import Markup

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.folder import Row
from ...stats.curves import where_doubling_stops_paying
from ..console import TextTable
from . import tables
from .charts import (
    BLUE,
    ORANGE,
    PUBLISHED,
    PUBLISHED_ROW_BYTES,
    ChartSpec,
    bar_chart,
    coverage_chart,
    dense_chart,
    drift_chart,
    hot_samples_chart,
    miss_ratios_chart,
    placements_chart,
    unique_rows_chart,
)
from .sentences import (
    LEAST_GAIN,
    budget_sentences,
    drift_sentences,
    label_rate,
    order_of,
    peel_share,
    percent,
    placement_sentence,
    policy_sentences,
    rebuild_commands,
    size_option,
)
from .tables import drift_matrix, text_table

_PAGE = Path(__file__).with_name("report_page.html")
"""The template of the page, with the colors of both themes and the script that draws."""
_NUMBER_AND_UNIT = re.compile(r"(\d) ((?:[KMGT]iB|B|GB/s|Tflop/s|[kMG])\b)")
_MOST_BARS = 60
"""Rows of a chart; of a log with more features it has the first ones by size, and the table all."""
_NEARLY_EQUAL = 1.1
"""Ratio of two budgets up to which another one is not worth a command."""
_MOST_PARTS = 12
"""Parts of a log up to which a matrix shows every pair of them."""
_LEAST_SAMPLES = 1_000_000
"""Training samples from which a log is compared with figures published for 39 M."""
_NUM_NAMED_TABLES = 4
"""Tables that the coverage chart names."""

Commands = tuple[str, Sequence[str]]
"""The name of an alternative, or "", and its commands to paste."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of the report: text, chart and tables."""

    name: str
    title: str
    text: str
    chart: Callable[[], Mapping[str, Any]] | None
    """Returns the chart, as Vega-Lite has it."""
    tables: Sequence[TextTable] = ()
    """The numbers of the chart, shown at a click."""
    shown: Sequence[TextTable] = ()
    """Tables shown below the chart without a click."""
    commands: Sequence[Commands] = ()


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice: sentences and commands under a heading."""

    heading: str
    sentences: Sequence[str]
    commands: Sequence[Commands] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The content of the report."""

    title: str
    facts: Sequence[tuple[str, str]]
    advice: Sequence[Advice]
    notes: Sequence[str]
    """Notes at the top: warnings, and what was left out."""
    sections: Sequence[Section]


def build_page(folder: Path, statistics: dict[str, Any], advice: dict[str, Any] | None) -> Page:
    """Return the report of a folder.

    Args:
        folder: as the commands of the report name it.
        statistics: every series, as `frequency_statistics` returns them, and the command in ``provenance``.
        advice: result of `advise`; None where no model fits the log.
    """
    # From the question with the largest effect to the smallest; provenance last, for readers who repeat it.
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


def render(page: Page) -> str:
    """Return the page as one HTML document."""
    # Altair would hold every part of a chart against its schema, which takes as long as all the rest.
    with debug_mode(False):
        specs = {section.name: section.chart() for section in page.sections if section.chart is not None}
    # "<" is escaped because "</script>" in a name would end the element that holds the JSON.
    specs_json = json.dumps(specs, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    scripts = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the snippet is optional
    # All text is escaped, as names of features and files are the user's.
    jinja = Environment(autoescape=True)
    jinja.filters["prose"] = _prose
    template = jinja.from_string(_PAGE.read_text(encoding="utf-8"))
    return template.render(page=page, specs=Markup(specs_json), scripts=Markup(scripts))


def _prose(text: str) -> str:
    """Return text in which no line breaks before a unit."""
    return _NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text)


def _facts(statistics: dict[str, Any]) -> list[tuple[str, str]]:
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


def _hot_samples(statistics: dict[str, Any]) -> Section:
    plan_bytes = next(row["bytes"] for row in statistics["budgets"] if row["is_chosen"])
    rows = statistics["hot_samples"]
    text = (
        "A sample is fully hot when every row it looks up is hot; a batch of such samples transfers nothing. "
        "FAE's released code counts 5% of the log, so it misses rows that exact counts find and fills the "
        "rest of the memory with rows it never saw; the calibration of its paper, hotset split --mode "
        "fae-paper, is not drawn. Peeling makes the most samples fully hot, at the cost of some hot lookups."
    )
    # FAE's figures are of Criteo's Kaggle log, and of numbers of rows: shown at the bytes these take here.
    row_bytes: int | None = None
    provenance = statistics["provenance"]
    if provenance["schema"] == "criteo-kaggle" and statistics["num_train_samples"] >= _LEAST_SAMPLES:
        if provenance["settings"]["split"]["feature_dims"]:
            text += " FAE's published figures are left out: rows have several widths."
        else:
            row_bytes = statistics["row_bytes"]
            sizes = " MB, ".join(f"{num_bytes // 10**6}" for num_bytes, _ in PUBLISHED)
            text += (
                f" The diamonds are FAE's figures for the full Kaggle log of 33.8 M rows ({sizes} MB at "
                f"{PUBLISHED_ROW_BYTES} bytes per row), drawn at the bytes of as many rows of {row_bytes} "
                "bytes; a shorter log has fewer rows, so its curve lies further left."
            )
    chart = partial(hot_samples_chart, rows, plan_bytes, published_row_bytes=row_bytes)
    title = "How much fast memory do hot rows need?"
    return Section("hot-samples", title, text, chart, [text_table("hot_samples", rows)])


def _placements(advice: dict[str, Any], folder: Path) -> Section:
    machine = advice["machine"]
    link, host = machine["link_bytes_per_second"] / 1e9, machine["host_bytes_per_second"] / 1e9
    teraflops = machine["flops"] / 1e12
    # The command has the bandwidths that were used, ready to be changed.
    text = (
        f"Predicted, not measured, for steps of {advice['workload']['batch_size']:,} samples, {link:g} GB/s "
        f"each way between host and fast memory, {host:g} GB/s for random rows in host memory, and "
        f"{teraflops:g} Tflop/s. Dots are computed, lines connect them. With the bandwidths of your machine:"
    )
    command = (
        f"hotset advise {shlex.quote(str(folder))} --link-gbps {link:g} --host-gbps {host:g} "
        f"--teraflops {teraflops:g}"
    )
    return Section(
        "placements",
        "Which placement, with how much fast memory?",
        text,
        partial(placements_chart, advice),
        [text_table("placements", tables.advice_rows(advice))],
        commands=[("", [command])],
    )


def _memory(advice: dict[str, Any]) -> Section:
    text = (
        "Fast memory by use, for the fastest placement of each size: hot and staged rows with their "
        "optimizer state; dense parameters with gradients and optimizer state; activations and inputs of "
        "the batches in flight; and buffers for transfers."
    )
    every = text_table("memory", tables.advice_rows(advice, with_too_large=True))
    fastest = text_table("memory", tables.advice_rows(advice, only_fastest=True))
    return Section("memory", "What uses the fast memory?", text, None, [every], [fastest])


def _coverage(statistics: dict[str, Any]) -> Section:
    features = statistics["features"]
    needing_most = sorted(features, key=lambda feature: -feature["rows_for_share"]["0.9"])
    names = [feature["name"] for feature in needing_most[:_NUM_NAMED_TABLES]]
    text = (
        "The share of each table's lookups that its top rows serve. The named tables need the most rows to "
        f"serve 90%: {', '.join(names)}."
    )
    chart = partial(coverage_chart, statistics["coverage"], names, order_of(statistics))
    return Section("coverage", "Lookup distribution", text, chart, [text_table("features", features)])


def _policies(statistics: dict[str, Any]) -> Iterator[Section]:
    # Without batches nothing was simulated.
    found = statistics["miss_ratios"]
    if not found["curve"]:
        return
    text = (
        f"Policies compared as such, on {found['num_batches']:,} batches of {found['batch_size']:,} samples "
        "drawn from the shuffled training part: the policy governs all slots, no row is pinned, and "
        f"transfers run {found['prefetch']} batches ahead. No run has these settings; the section "
        "on what placements move has those of runs. "
        f"{percent(found['num_first_uses'] / found['num_needed'], 0)} of the rows needed are first uses: "
        "they are initialized in their slots, not fetched. "
        "lookahead knows the batch order and evicts the row whose next use is farthest away; no policy "
        "fetches fewer rows. dataset evicts the lowest-ranked row, static keeps the highest-ranked rows "
        "permanently, and lfu and lru decide by past use."
    )
    numbers = text_table("miss_ratios_curve", found["curve"])
    chart = partial(miss_ratios_chart, found["curve"])
    yield Section("policies", "Refetched rows by cache policy", text, chart, [numbers])


def _unique_rows(statistics: dict[str, Any]) -> Section:
    rows = statistics["unique_rows"]
    text = (
        "A batch looks up most rows more than once, but has to transfer each of them only once. The blue "
        "line is what independent lookups with these counts would give; the points were counted in batches "
        "of the log in its original order."
    )
    chart = partial(unique_rows_chart, rows) if rows else None
    return Section("unique-rows", "Distinct rows per batch", text, chart, [text_table("unique_rows", rows)])


def _drift(statistics: dict[str, Any]) -> Section:
    drift = statistics["drift"]
    text = (
        f"Each training part chooses {format_byte_size(drift['budget_bytes'])} of rows, those it looks up "
        "most; the chart shows what they serve in later parts (age 0: in the part itself)."
    )
    # With one part there is nothing to compare, and too wide a matrix cannot be read.
    num_ages = len(drift["by_age"])
    shown = [text_table("drift_parts", drift["parts"])]
    if 1 < num_ages <= _MOST_PARTS:
        titles = {
            "hot_lookup_share": "Share of each part's lookups that hot rows chosen on another part serve",
            "common_rows_share": "Share of each part's hot rows that another part would have chosen too",
        }
        shown += [drift_matrix(drift, key, title) for key, title in titles.items()]
    chart = partial(drift_chart, drift["by_age"]) if num_ages > 1 else None
    return Section(
        "drift", "How hot rows age", text, chart, [text_table("drift_pairs", drift["pairs"])], shown
    )


def provenance_section(provenance: dict[str, Any]) -> Section:
    """Return the logs, the settings and the command of the folder."""
    logs = provenance["logs"]
    # The command is complete: it holds every setting that differs from the default of its schema.
    text = (
        f"hotset {provenance['hotset']}, schema {provenance['schema']}, {len(logs)} "
        f"log file{'s' if len(logs) > 1 else ''}. "
        "This command, in the folder of the logs, writes the same bytes again:"
    )
    # Skipped lines and ids of another folder are first: the files alone do not show them.
    skipped = sum(provenance["bad_lines"].values())
    if skipped:
        text = f"{skipped:,} bad lines were skipped. {text}"
    if provenance["is_adopted"]:
        text = f"Ids are those of another folder (MODEL_DIR). {text}"
    return Section(
        "provenance",
        "Provenance",
        text,
        None,
        [TextTable(["folder", "fingerprint"], list(provenance["fingerprints"].items()))],
        [text_table("logs", logs)],
        [("", [provenance["command"]])],
    )


def default_runs_sections(found: dict[str, Any]) -> Iterator[Section]:
    """Yield what the placements move by default."""
    rows = found["placements"]
    if not rows:
        return
    table, unit = "default_runs_placements", "bytes per sample, both ways together"
    bars = [(row, unit, row["bytes_to_fast_per_sample"] + row["bytes_to_slow_per_sample"]) for row in rows]
    chart = partial(
        bar_chart,
        table,
        "Bytes that each placement moves",
        {unit: BLUE},
        bars,
        heading="both per sample",
        title=unit,
    )
    text = tables.describe_default_runs(found)
    yield Section("default-runs", "What do the placements move?", text, chart, [text_table(table, rows)])


def hot_tables_section(rows: Sequence[Row]) -> Section:
    """Return which tables take the plan's fast memory."""
    shares = {"share of the hot bytes": "hot_bytes_share", "share of all cold lookups": "cold_lookup_share"}
    largest = tables.by_hot_bytes(rows)
    chart = partial(_bars_and_marks, "hot_tables", "Share of the hot bytes by table", largest, shares)
    # The reading is explained in words, because the chart holds two shares of different wholes.
    text = (
        "Bars show each table's share of the plan's hot bytes, marks its share of the lookups that still hit "
        "cold rows. A table with a long bar and a mark far out would use more; one with a short bar and a "
        "mark near 0 has all it needs."
    )
    numbers = text_table("hot_tables", rows)
    return Section("hot-tables", "Which tables use the hot rows?", text, chart, [numbers])


def _bars_and_marks(table: str, description: str, rows: Sequence[Row], shares: dict[str, str]) -> ChartSpec:
    """Return a chart of two shares of the first rows: bars, and marks across them."""
    (bar, bar_key), (mark, mark_key) = shares.items()
    first = rows[:_MOST_BARS]
    bars = [(row, bar, row[bar_key] or 0.0) for row in first]
    marks = [(row, mark, row[mark_key]) for row in first if row[mark_key] is not None]
    return bar_chart(table, description, {bar: BLUE, mark: ORANGE}, bars, marks)


def log_sections(log: dict[str, Any]) -> Iterator[Section]:
    """Yield labels, missing values and dense features, if columns were kept."""
    if not log["labels"]:
        return
    # In a log without labels no part has a rate, and there is nothing to show.
    parts = [row for row in log["parts"] if row["label_rate"] is not None]
    if parts:
        yield _labels(log, parts)
    yield _missing(log)
    if any(row["num_values"] for row in log["dense"]):
        yield _dense(log)


def _labels(log: dict[str, Any], parts: Sequence[Row]) -> Section:
    colors = {"training": BLUE, "evaluation": ORANGE}
    bars = [
        (row, "training" if row["is_training"] else "evaluation", row["label_rate"])
        for row in parts[:_MOST_BARS]
    ]
    description = "Label rate of each part of the log"
    chart = partial(bar_chart, "log_parts", description, colors, bars, heading="label rate")
    text = (
        "The share of clicked samples (label 1) in each part of the log, in the order of the log. Below, the "
        "same of fully hot, mixed and evaluation samples: if hot and mixed ones differ, a model that trains "
        "on one kind first sees another log."
    )
    numbers, shown = (text_table(f"log_{name}", log[name]) for name in ("parts", "labels"))
    return Section("labels", "How often is the label 1?", text, chart, [numbers], [shown])


def _missing(log: dict[str, Any]) -> Section:
    rows = log["missing"]
    # A table with all features is below; the chart shows those that lack most.
    lacking = sorted(
        (row for row in rows if row["missing_share"]), key=lambda row: -float(row["missing_share"])
    )
    chart = None
    text = "Every feature has a value in every training sample."
    if lacking:
        shares = {
            "training samples without a value": "missing_share",
            "evaluation": "evaluation_missing_share",
        }
        chart = partial(_bars_and_marks, "log_missing", "Missing values by feature", lacking, shares)
        text = (
            f"{len(rows) - len(lacking)} of {len(rows)} features have a value in every training sample. Bars "
            "show the share of training samples without one, marks that of evaluation samples. The table "
            "compares the label rates: where they differ, that a value is missing says something by itself."
        )
    return Section("missing", "Which values are missing?", text, chart, [text_table("log_missing", rows)])


def _dense(log: dict[str, Any]) -> Section:
    rows = log["dense"]
    # The transform loses values without a word, so its losses are named here.
    clamped = [row["feature"] for row in rows if (row["clamped_share"] or 0) > 0]
    losses = "No value is made 0 by a transform."
    if clamped:
        losses = (
            f'log1p turns values below 0 into 0, in {", ".join(clamped)}; transform = "none" in the schema '
            "keeps them."
        )
    text = (
        "Values of the training part before their transform: lines from the 1% to the 99% quantile, bars "
        f"over the middle half, dots at the median (errors below 1%). {losses}"
    )
    numbers, shown = text_table("log_dense_bins", log["dense_bins"]), text_table("log_dense", rows)
    chart = partial(dense_chart, rows[:_MOST_BARS])
    return Section("dense", "Dense features", text, chart, [numbers], [shown])


def categories_section(rows: Sequence[Row], folder: Path) -> Section:
    """Return the top categories of each table by name."""
    text = (
        "The most looked-up categories of each table in the training part, as the log writes them, with "
        "their share of the table's lookups and the label rate of their samples. More of one table:"
    )
    command = shlex.join(["hotset", "stats", str(folder), "--feature", rows[0]["table"], "--top", "100"])
    shown = [text_table("categories", rows)]
    return Section("categories", "Top categories", text, None, shown=shown, commands=[("", [command])])


def advise_reader(folder: Path, statistics: dict[str, Any], advice: dict[str, Any] | None) -> list[Advice]:
    """Return what to do, most important first.

    Args:
        folder: as commands name it.
        statistics: every series.
        advice: result of `advise`; None where no model fits the log.
    """
    # In the order in which a reader decides: how much memory, for which placement, under which policy.
    found = [
        Advice("Memory", budget_sentences(statistics), _budget_commands(folder, statistics)),
        Advice(
            "Placement",
            [] if advice is None else [placement_sentence(advice)],
            [] if advice is None else _training_commands(folder, statistics, advice),
        ),
        Advice("Policy", policy_sentences(statistics["miss_ratios"])),
        Advice("Age", drift_sentences(statistics["drift"])),
    ]
    return [one for one in found if one.sentences]


def _can_rebuild(statistics: dict[str, Any]) -> bool:
    # `pack` reads columns/, whose labels are a part of the statistics unless it was discarded.
    return bool(statistics["log"]["labels"])


def _budget_commands(folder: Path, statistics: dict[str, Any]) -> list[Commands]:
    """Return how to get the best budget, or peeled rows."""
    if not _can_rebuild(statistics) or statistics["mode"] != "budget":
        # Commands are offered only where this folder can be rebuilt by them.
        return []
    provenance = statistics["provenance"]
    curve = order_of(statistics)
    sizes = [row["bytes"] for row in curve]
    # Three budgets: what the plan has, from where more stops paying, and the largest that was simulated.
    chosen = next(row["bytes"] for row in statistics["budgets"] if row["is_chosen"])
    stop = where_doubling_stops_paying(sizes, [row["hot_sample_share"] for row in curve], LEAST_GAIN)
    wanted = sizes[-1] if stop is None else stop
    blocks: list[Commands] = []
    # A budget that is nearly the wanted one is left as it is.
    if chosen < sizes[-1] and not wanted / _NEARLY_EQUAL <= chosen <= wanted * _NEARLY_EQUAL:
        size = size_option(wanted)
        blocks.append((f"Hot rows of {size}", rebuild_commands(provenance, folder, hot_bytes=size)))
    # With several row widths peeling needs the bytes of each, which `preprocess` finds.
    if peel_share(statistics) is not None and not provenance["settings"]["split"]["feature_dims"]:
        name = "Or rows ranked by peeling" if blocks else "Rows ranked by peeling"
        blocks.append((name, rebuild_commands(provenance, folder, first="rank", rank_by="peel")))
    return blocks


def _training_commands(folder: Path, statistics: dict[str, Any], advice: dict[str, Any]) -> list[Commands]:
    """Return how to train with the placement that is enough."""
    enough = advice["enough"]
    option = next(option for option in advice["options"] if option["fast_bytes"] == enough["fast_bytes"])
    best = option["placements"][0]
    train = ["hotset", "train", str(folder), "--placement", best["placement"]]
    # Hot rows and staging are given in full, so that the run is the one that was predicted.
    lines = []
    if best["placement"] in ("lookahead", "cache", "fae"):
        if not _can_rebuild(statistics) or statistics["mode"] != "budget":
            return []
        hot_bytes = size_option(best["memory"]["hot"])
        lines = rebuild_commands(statistics["provenance"], folder, hot_bytes=hot_bytes)
        if best["memory"]["staging"]:
            train += ["--staging-bytes", size_option(best["memory"]["staging"])]
        if best["prefetch"] is not None:
            train += ["--prefetch", str(best["prefetch"])]
    return [("", [*lines, shlex.join([*train, "--out", "RUN"])])]
