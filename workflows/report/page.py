"""Pages of one HTML file that need no network, and the report of ``hotset stats --html``.

`characterise` and `runs` build their pages of the same parts. A section has charts, their numbers as a table,
and an explanation. The advice at the top is sentences computed from the statistics, and the commands that
follow from them. A page contains Vega's scripts (0.9 MB, from vl-convert) and requests nothing: scripts and
images are embedded, and fonts are the browser's.
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
from markupsafe import Markup, escape

from ...pipeline.errors import format_byte_size
from ...pipeline.statistics.folder import Row
from ..console import TextTable
from . import tables
from .charts import (
    BLUE,
    ORANGE,
    PLACEMENT_COLORS,
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
    budget_sentences,
    chosen_budget,
    drift_sentences,
    label_rate,
    order_of,
    peel_share,
    percent,
    placement_sentence,
    policy_sentences,
    rebuild_commands,
    recommendation,
    recommended_rows,
    size_option,
)
from .tables import drift_matrix, text_table

_PAGE = Path(__file__).with_name("report_page.html")
"""The template of the page, with the colors of both themes and the script that draws."""
_NUMBER_AND_UNIT = re.compile(r"(\d) ((?:[KMGT]iB|B|GB/s|Tflop/s|[kMG])\b)")
_OPTION = re.compile(r"(?<= )--[a-z][a-z-]*")
_MOST_BARS = 60
"""Rows of a chart; of a log with more features it has the first ones by size, and the table all."""
_MOST_PARTS = 12
"""Parts of a log up to which a matrix shows every pair of them."""
_LEAST_SAMPLES = 1_000_000
"""Training samples from which a log is compared with figures published for 39 M."""
_NUM_NAMED_TABLES = 4
"""Tables that the coverage chart names."""

Drawn = Callable[[], Mapping[str, Any]]
Commands = tuple[str, Sequence[str]]
"""The name of an alternative, or "", and its commands to paste."""


@dataclass(frozen=True, slots=True)
class Section:
    """One section of a page: text, charts and tables."""

    name: str
    title: str
    text: str
    chart: Drawn | Sequence[Drawn] | None
    """Returns the chart, as Vega-Lite has it; of several, each of them."""
    tables: Sequence[TextTable] = ()
    """The numbers of the chart, shown at a click."""
    shown: Sequence[TextTable] = ()
    """Tables shown below the chart without a click."""
    commands: Sequence[Commands] = ()

    @property
    def charts(self) -> dict[str, Drawn]:
        """The charts by the names of their elements."""
        if isinstance(self.chart, Sequence):
            return {f"{self.name}-{number}": chart for number, chart in enumerate(self.chart)}
        return {} if self.chart is None else {self.name: self.chart}


@dataclass(frozen=True, slots=True)
class Advice:
    """A piece of advice: sentences and commands under a heading."""

    heading: str
    sentences: Sequence[str]
    commands: Sequence[Commands] = ()


@dataclass(frozen=True, slots=True)
class Page:
    """The content of a page."""

    title: str
    facts: Sequence[tuple[str, str]]
    advice: Sequence[Advice]
    """What to do; the first is shown, the others at a click."""
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
    # From the question with the largest effect to the smallest, then what is only predicted; provenance last,
    # for readers who repeat it.
    sections = [
        *default_runs_sections(statistics["default_runs"]),
        _hot_samples(statistics),
        hot_tables_section(statistics["hot_tables"]),
        _coverage(statistics),
        categories_section(statistics["categories"], folder),
        *log_sections(statistics["log"]),
        _drift(statistics),
        *_policies(statistics),
        _unique_rows(statistics),
        *([_placements(advice, folder)] if advice else []),
        provenance_section(statistics["provenance"]),
    ]
    notes = [f"Warning: {text}." for text in statistics["warnings"]]
    notes += [f"Left out: {text}." for text in statistics["left_out"]]
    first, *others = (log["name"] for log in statistics["provenance"]["logs"])
    title = f"Embedding access report: {first}" + (f" and {len(others)} more" if others else "")
    facts = [*_facts(statistics), ("folder", folder.resolve().name)]
    return Page(title, facts, advise_reader(folder, statistics, advice), notes, sections)


def render(page: Page) -> str:
    """Return the page as one HTML document."""
    # Altair would hold every part of a chart against its schema, which takes as long as all the rest.
    with debug_mode(False):
        specs = {name: chart() for section in page.sections for name, chart in section.charts.items()}
    # "<" is escaped because "</script>" in a name would end the element that holds the JSON.
    specs_json = json.dumps(specs, ensure_ascii=True, allow_nan=False).replace("<", "\\u003c")
    scripts = vl_convert.javascript_bundle()  # type: ignore[call-arg]  # the snippet is optional
    # All text is escaped, as names of features and files are the user's.
    jinja = Environment(autoescape=True)
    jinja.filters["prose"] = _prose
    template = jinja.from_string(_PAGE.read_text(encoding="utf-8"))
    return template.render(page=page, specs=Markup(specs_json), scripts=Markup(scripts))


def _prose(text: str) -> Markup:
    """Return text in which no line breaks before a unit or within an option."""
    joined = _NUMBER_AND_UNIT.sub("\\1\N{NO-BREAK SPACE}\\2", text)
    return Markup(_OPTION.sub(r"<span>\g<0></span>", str(escape(joined))))


def _facts(statistics: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the figures at the head of the page."""
    # Left out where the log has no labels.
    rate = label_rate(statistics["log"])
    return [
        ("training samples", f"{statistics['num_train_samples']:,}"),
        ("for evaluation", f"{statistics['samples']['evaluation']:,}"),
        *([("label rate", percent(rate))] if rate is not None else []),
        ("tables", f"{statistics['num_tables']:,}"),
        ("rows", f"{statistics['num_rows']:,}"),
        ("size of all rows", format_byte_size(order_of(statistics)[-1]["bytes"])),
        ("bytes per row", f"{statistics['row_bytes']:,} (dim {statistics['embedding_dim']})"),
    ]


def _hot_samples(statistics: dict[str, Any]) -> Section:
    plan_bytes = chosen_budget(statistics)["bytes"]
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
    text = (
        f"Predicted, not measured, for steps of {advice['workload']['batch_size']:,} samples on a typical "
        f"GPU: {link:g} GB/s each way between host and fast memory, {host:g} GB/s for random rows in host "
        f"memory, and {teraflops:g} TFLOP/s. Dots are computed, lines connect them. With the speeds of your "
        "machine, which `hotset characterise` measures, add --speeds FILE to:"
    )
    command = f"hotset advise {shlex.quote(str(folder))}"
    return Section(
        "placements",
        "Predicted speed on a typical GPU",
        text,
        partial(placements_chart, advice),
        [text_table("placements", tables.advice_rows(advice))],
        commands=[("", [command])],
    )


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
    first_uses = percent(found["num_first_uses"] / found["num_needed"], 0)
    text = (
        f"One cache for all rows under each policy, on {found['num_batches']:,} batches of "
        f"{found['batch_size']:,} samples from the shuffled training part. {first_uses} of the rows needed "
        "are first uses, which are initialized and not loaded. lookahead knows the batch order and evicts "
        "the row whose next use is farthest away; no policy loads fewer rows. dataset evicts the row with "
        "the fewest lookups in the log, static never evicts, and lfu and lru decide by past use."
    )
    numbers = text_table("miss_ratios_curve", found["curve"])
    chart = partial(miss_ratios_chart, found["curve"])
    yield Section("policies", "Rows that a cache loads again, by policy", text, chart, [numbers])


def _unique_rows(statistics: dict[str, Any]) -> Section:
    rows = statistics["unique_rows"]
    text = (
        "A batch looks up most rows more than once, but has to transfer each of them only once. The blue "
        "line is the mean of batches drawn from the log without replacement; the points were counted in "
        "batches of the log in its original order."
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
    table = "default_runs_placements"
    bars = [
        (row, row["placement"], row["bytes_to_fast_per_sample"] + row["bytes_to_slow_per_sample"])
        for row in sorted(rows, key=lambda row: -row["bytes_to_fast"] - row["bytes_to_slow"])
    ]
    chart = partial(
        bar_chart,
        table,
        "Bytes that each placement moves",
        PLACEMENT_COLORS,
        bars,
        heading="both per sample",
        title="bytes per sample, both ways together",
        row_height=34,
    )
    text = (
        "all-fast keeps every row on the fast tier, hybrid none; hybrid-dedup sends each row of a batch "
        "once. fae runs fully hot samples apart from the others. cache evicts by past use, lookahead by next "
        "use.\n"
    ) + tables.describe_default_runs(found)
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
    numbers = text_table("log_parts", log["parts"])
    # By name where the log has several labels, the first of which is that of the chart.
    shown = "label_rates" if "label_rates" in log else "labels"
    tables = [text_table(f"log_{shown}", log[shown])]
    return Section("labels", "How often is the label 1?", text, chart, [numbers], tables)


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
    found = [
        _recommended(folder, statistics),
        Advice("Fully hot samples", budget_sentences(statistics), _peel_commands(folder, statistics)),
        Advice("Typical GPU", [] if advice is None else [placement_sentence(advice)]),
        Advice("Cache policies", policy_sentences(statistics["miss_ratios"])),
        Advice("Age of hot rows", drift_sentences(statistics["drift"])),
    ]
    return [one for one in found if one.sentences]


def _recommended(folder: Path, statistics: dict[str, Any]) -> Advice:
    """Return the placement to train with, on hot rows that serve most lookups."""
    hot = chosen = chosen_budget(statistics)
    lines: list[str] = []
    if _can_rebuild(statistics):
        hot = recommended_rows(statistics)
        if hot is not chosen:
            size = size_option(hot["bytes"])
            lines = rebuild_commands(statistics["provenance"], folder, hot_bytes=size)
    placement = "all-fast" if hot["num_hot_rows"] >= statistics["num_rows"] else "lookahead"
    train = shlex.join(["hotset", "train", str(folder), "--placement", placement, "--out", "RUN"])
    return Advice("", recommendation(statistics, hot), [("", [*lines, train])])


def _can_rebuild(statistics: dict[str, Any]) -> bool:
    # `pack` reads columns/, whose labels are a part of the statistics unless it was discarded.
    return bool(statistics["log"]["labels"]) and statistics["mode"] == "budget"


def _peel_commands(folder: Path, statistics: dict[str, Any]) -> list[Commands]:
    """Return how to rank rows by peeling, where that is worth it and this folder can be rebuilt."""
    provenance = statistics["provenance"]
    # With several row widths peeling needs the bytes of each, which `preprocess` finds.
    has_widths = provenance["settings"]["split"]["feature_dims"]
    if not _can_rebuild(statistics) or peel_share(statistics) is None or has_widths:
        return []
    # Any budget up to the next row makes as many rows hot.
    chosen = chosen_budget(statistics)
    least = chosen["num_hot_rows"] * statistics["row_bytes"]
    size = size_option(least, least + statistics["row_bytes"] - 1)
    lines = rebuild_commands(provenance, folder, first="rank", rank_by="peel", hot_bytes=size)
    return [("Rows ranked by peeling", lines)]
