"""Findings of `characterise`: verdicts on published observations, elasticities, and their page.

An observation is supported where the whole interval of a claim agrees, contradicted where none of it does,
and undecided where only a part does. A sweep that other programs disturbed has no verdicts.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

from rich.console import Console

from ...stats.curves import Interval, log_slope, verdict
from ..characterise import FACTORS, Cell, CellRun, Characterised, median_seconds, quartiles
from ..console import TextTable, print_line, print_table
from ..machine import describe_machine

NAMES = {
    "mlp_width": "MLP width",
    "batch_size": "batch size",
    "num_dense": "dense features",
    "num_tables": "tables",
    "rows_of_table": "rows of a table",
    "pooling": "lookups per feature",
    "embedding_dim": "embedding dim",
    "skew": "skew",
    "mlp_depth": "MLP depth",
}
"""The factors that are numbers, in words."""
_FLAT = 0.1
"""Elasticities nearer to zero count as flat."""
_LINEAR = 0.15
"""Exponents so near to one count as linear."""
_SATURATED = 0.9
_DEPENDS = 1.2
"""The best speed over the worst from which speed depends on a factor."""
_LEAST_POINTS = 3
_MOST_TAKEN = 0.1
"""Share of the cores of a sweep that other programs may take while its verdicts still count."""


class Point(NamedTuple):
    """The speed at one value of a factor, in samples per second."""

    value: float
    speed: float
    low: float
    """Lower quartile over steps."""
    high: float
    """Upper quartile."""


Elasticities = dict[str, tuple[Interval, list[Point]]]
"""By factor the slope of the speed and its points."""


def points_of(runs: Sequence[CellRun], factor: str) -> list[Point]:
    """Return the points of the cells that differ from the base in one factor alone, by rising value."""
    base = Cell()
    found = []
    for cell, (low, middle, high) in quartiles(runs).items():
        value = getattr(cell, factor)
        # Zero has no logarithm: a skew of 0 is left out, and so are placements.
        if replace(cell, **{factor: getattr(base, factor)}) == base and not isinstance(value, str) and value:
            # A slow step is a low speed.
            speeds = (cell.batch_size / seconds for seconds in (middle, high, low))
            found.append(Point(float(value), *speeds))
    return sorted(found)


def elasticities(runs: Sequence[CellRun]) -> Elasticities:
    """Return slope and points of each factor that has enough values: ``d log speed / d log factor``."""
    every = {factor: points_of(runs, factor) for factor in FACTORS}
    return {
        factor: (log_slope([point[:2] for point in points]), points)
        for factor, points in every.items()
        if len(points) >= _LEAST_POINTS
    }


def placement_speeds(runs: Sequence[CellRun]) -> dict[str, dict[str, float]]:
    """Return samples per second by model and placement, of the models that have two placements or more."""
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for cell, seconds in median_seconds(runs).items():
        found[_model_of(cell)][cell.placement] = cell.batch_size / seconds
    return {name: speeds for name, speeds in found.items() if len(speeds) > 1}


def _model_of(cell: Cell) -> str:
    """Return what sets the model of a cell apart from the base, in words."""
    changed = [name for name in NAMES if getattr(cell, name) != getattr(Cell(), name)]
    return ", ".join(f"{NAMES[name]} {getattr(cell, name)}" for name in changed) or "base"


PAPERS = {
    "Acun et al. 2021": "Acun et al., Understanding Training Efficiency of Deep Learning Recommendation "
    "Models at Scale, HPCA 2021, arXiv 2011.05497",
    "Feng et al. 2024": "Feng et al., Accelerating Communication in Deep Learning Recommendation Model "
    "Training with Dual-Level Adaptive Lossy Compression, SC 2024, arXiv 2407.04272",
}
"""The papers of the observations, by the names that tables give them."""
_ACUN, _FENG = PAPERS


def disturbance(runs: Sequence[CellRun]) -> str | None:
    """Return what disturbed a sweep too much for verdicts; None where nothing did."""
    taken = statistics.mean(run.taken_share for run in runs)
    if taken <= _MOST_TAKEN:
        return None
    return f"other programs took {taken:.0%} of the cores: measure again on a quiet machine for verdicts"


def observations(runs: Sequence[CellRun]) -> list[dict[str, Any]]:
    """Return the published observations, each with a verdict from the intervals of the sweep.

    Returns:
        ``text`` and ``source`` of each, ``verdict``, None of a sweep that was disturbed, and what was
        ``measured``.
    """
    found = elasticities(runs)
    spread = statistics.median((run.high - run.low) / run.step_seconds for run in runs)
    checked: tuple[tuple[str, str, _Claims], ...] = (
        ("Speed depends on dense features, sparse features and MLP", _ACUN, _factors_matter(found, spread)),
        ("Speed rises with the batch, then saturates", _ACUN, _batch_saturates(found)),
        ("Speed is flat in the rows of tables until they leave a tier", _ACUN, _rows_are_flat(found)),
        ("Lookups per feature cost linearly", _ACUN, _lookups_are_linear(found)),
        ("No placement is best for every model", _ACUN, _no_best_placement(runs, spread)),
        (
            "A GPU gains more with dense features and MLPs, less with sparse features",
            _ACUN,
            ([], "it needs a GPU"),
        ),
        (
            "Larger batches cost quality unless rates are tuned again",
            _ACUN,
            ([], "the labels of cells are drawn"),
        ),
        ("The exchange takes over 60% of a step on 32 GPUs", _FENG, ([], "it needs several GPUs")),
    )
    is_quiet = disturbance(runs) is None
    return [
        {
            "text": text,
            "source": source,
            "verdict": verdict(claims) if is_quiet else None,
            "measured": measured,
        }
        for text, source, (claims, measured) in checked
    ]


_Claims = tuple[Sequence[bool | None], str]
"""Claims that must all hold, none where nothing was measured, and what was."""
_TOO_FEW: _Claims = ([], "too few cells")


def _factors_matter(found: Elasticities, spread: float) -> _Claims:
    names = ("num_dense", "num_tables", "mlp_width")
    if not all(name in found for name in names):
        return _TOO_FEW
    # The best speed over the worst: the law of a factor need not be a power. Both of its ends vary.
    ratios = []
    for name in names:
        speeds = [point.speed for point in found[name][1]]
        ratio = max(speeds) / min(speeds)
        ratios.append(Interval(ratio, 2 * ratio * spread))
    measured = ", ".join(
        f"{NAMES[name]} {each.value:.2f} ± {each.error:.2f}" for name, each in zip(names, ratios, strict=True)
    )
    return [each.lies_in(_DEPENDS, math.inf) for each in ratios], f"best over worst speed: {measured}"


def _batch_saturates(found: Elasticities) -> _Claims:
    points = found["batch_size"][1] if "batch_size" in found else []
    half = len(points) // 2
    if half < _LEAST_POINTS:
        return _TOO_FEW
    small, large = (log_slope([point[:2] for point in each]) for each in (points[:half], points[half:]))
    lost = Interval(small.value - large.value, math.hypot(small.error, large.error))
    best = max(point.speed for point in points)
    enough = next(point.value for point in points if point.speed >= _SATURATED * best)
    return [each.lies_in(_FLAT, math.inf) for each in (small, lost)], (
        f"elasticity {_shown(small)} of small batches, {_shown(large)} of large ones; "
        f"{_SATURATED:.0%} of the best speed from {enough:,.0f} samples on"
    )


def _rows_are_flat(found: Elasticities) -> _Claims:
    if "rows_of_table" not in found:
        return _TOO_FEW
    slope = found["rows_of_table"][0]
    return [slope.lies_in(-_FLAT, _FLAT)], f"elasticity {_shown(slope)}"


def _lookups_are_linear(found: Elasticities) -> _Claims:
    # A feature with one lookup is no list: nothing is added up, which is other work.
    lists = [point[:2] for point in found["pooling"][1] if point.value > 1] if "pooling" in found else []
    if len(lists) <= _LEAST_POINTS:
        return _TOO_FEW
    # Seconds of a sample less those of the shortest list: with a linear cost they grow in proportion.
    (fewest, fastest), *others = lists
    more = [(value - fewest, 1 / speed - 1 / fastest) for value, speed in others]
    if min(seconds for _, seconds in more) <= 0:
        # No exponent: the claim fails where the speed of lists certainly does not fall.
        slope = log_slope(lists)
        is_flat = slope.lies_in(-_FLAT, math.inf)
        return [False if is_flat else None], f"elasticity {_shown(slope)} of lists"
    slope = log_slope(more)
    return [slope.lies_in(1 - _LINEAR, 1 + _LINEAR)], f"exponent {_shown(slope)} of further lookups"


def _no_best_placement(runs: Sequence[CellRun], spread: float) -> _Claims:
    best = Counter[str]()
    models = placement_speeds(runs)
    for speeds in models.values():
        # Where all-fast fits there is nothing to choose. A winner leads by more than steps of a run vary.
        others = sorted(((speed, name) for name, speed in speeds.items() if name != "all-fast"), reverse=True)
        if len(others) > 1 and others[0][0] > (1 + 2 * spread) * others[1][0]:
            best[others[0][1]] += 1
    if best.total() < _LEAST_POINTS:
        return [], "too few models with a clear winner"
    measured = ", ".join(f"{name} in {count}" for name, count in sorted(best.items()))
    # One winner contradicts only where no model is left open.
    is_open = len(best) == 1 and best.total() < len(models)
    return [None if is_open else len(best) > 1], f"clearly best of {best.total()} models: {measured}"


def _shown(interval: Interval) -> str:
    return f"{interval.value:+.2f} ± {interval.error:.2f}"


def findings_record(result: Characterised) -> dict[str, Any]:
    """Return speeds and findings as plain data, ready for JSON.

    Returns:
        ``speeds``, as the file has them; ``observations`` with their verdicts, and ``papers`` by source;
        ``disturbance``, why there are none; ``elasticities`` with half of their 95% interval and their
        points, value and samples per second with quartiles; ``placements``, samples per second by model;
        ``machine``, as benchmarks record it.
    """
    return {
        "num_cells": len(median_seconds(result.runs)),
        "num_runs": len(result.runs),
        "minutes": result.minutes,
        "speeds": result.speeds.to_json(),
        "disturbance": disturbance(result.runs),
        "observations": observations(result.runs),
        "papers": PAPERS,
        "elasticities": [
            {"factor": factor, "slope": slope.value, "error": slope.error, "points": points}
            for factor, (slope, points) in elasticities(result.runs).items()
        ],
        "placements": placement_speeds(result.runs),
        "machine": describe_machine(),
    }


def finding_tables(result: Characterised) -> dict[str, TextTable]:
    """Return the tables of verdicts, elasticities, placements, speeds and cells."""
    observed = [
        [each["text"], each["verdict"] or "no verdict", each["measured"], each["source"]]
        for each in observations(result.runs)
    ]
    slopes = [
        [NAMES[factor], _shown(slope), ", ".join(f"{each.value:g}: {each.speed:,.0f}" for each in points)]
        for factor, (slope, points) in elasticities(result.runs).items()
    ]
    placements = FACTORS["placement"]
    models = [
        [model, *(f"{speeds[name]:,.0f}" if name in speeds else "-" for name in placements)]
        for model, speeds in placement_speeds(result.runs).items()
    ]
    speeds = [[name, f"{value:.3g}", unit] for name, value, unit in result.speeds.in_units()]
    timed = [
        [_model_of(cell), cell.placement, *(f"{1e6 * each:,.0f}" for each in seconds)]
        for cell, seconds in quartiles(result.runs).items()
    ]
    return {
        "observations": TextTable(
            ("observation", "verdict", "measured", "source"), observed, "Published observations", num_texts=4
        ),
        "elasticities": TextTable(
            ("factor", "slope", "samples/s by value"),
            slopes,
            "Elasticities of the speed, with 95% intervals",
            num_texts=3,
        ),
        "placements": TextTable(("model", *placements), models, "Samples per second by placement"),
        "speeds": TextTable(
            ("speed", "", "unit"),
            speeds,
            f"Speeds of {result.speeds.device_name}, {result.speeds.threads} threads",
        ),
        "cells": TextTable(
            ("model", "placement", "lower quartile", "median", "upper quartile"),
            timed,
            "Times of a step in µs",
            num_texts=2,
        ),
    }


def show_findings(result: Characterised, console: Console) -> None:
    """Print verdicts, elasticities, speeds by placement, and the speeds of the machine."""
    tables = finding_tables(result)
    print_line(console, tables["observations"].title, style="bold")
    for text, decision, measured, source in tables["observations"].rows:
        print_line(console, f"{decision}: {text} ({source}). Measured: {measured}.")
    for paper in PAPERS.values():
        print_line(console, paper)
    disturbed = disturbance(result.runs)
    if disturbed is not None:
        print_line(console, f"Warning: no verdicts: {disturbed}.", style="bold yellow")
    print_line(console, "")
    for name in ("elasticities", "placements", "speeds"):
        if tables[name].rows:
            print_table(console, tables[name])
    num_cells, num_runs = len(tables["cells"].rows), len(result.runs)
    print_line(console, f"{num_cells} cells, {num_runs} runs in {result.minutes:.1f} minutes.")


def findings_page(result: Characterised) -> str:
    """Return the findings of a sweep as one HTML document."""
    # Altair takes a second to import, which other outputs do without.
    from .charts import factor_chart
    from .page import Page, Section, render

    found = elasticities(result.runs)
    # All charts have one axis of speed, so that their slopes can be compared.
    ends = [end for _, points in found.values() for point in points for end in (point.low, point.high)]
    charts = [
        partial(factor_chart, NAMES[factor], slope, points, (min(ends), max(ends)))
        for factor, (slope, points) in found.items()
    ]
    # Sections have the titles of their tables.
    tables = {name: replace(table, title="") for name, table in finding_tables(result).items()}
    base = ", ".join(f"{name} {getattr(Cell(), field):g}" for field, name in NAMES.items())
    by_factor = (
        "Samples per second of a model that differs from the base model in one factor; both axes are "
        "logarithmic, so a power law is a line. Its slope is the elasticity: -1 halves the speed where the "
        "factor doubles. Bands are 95% intervals of the slope, bars the middle half of the steps.\n"
        f"The base model: {base}."
    )
    verdicts = (
        "supported: the whole 95% interval agrees. contradicted: none of it does. undecided: the interval "
        "is too wide, cells are missing, or one machine cannot show it.\n"
    ) + "\n".join(PAPERS.values())
    speeds = "What hotset advise --speeds predicts with."
    sections = [
        Section("factors", "Speed by factor", by_factor, charts, [tables["elasticities"]]),
        Section("observations", "Published observations", verdicts, None, shown=[tables["observations"]]),
        # A short sweep has no model with several placements.
        *(
            [Section("placements", "Samples per second by placement", "", None, shown=[tables["placements"]])]
            if tables["placements"].rows
            else []
        ),
        Section("speeds", "Speeds of this machine", speeds, None, [tables["speeds"]]),
        Section(
            "cells",
            "Cells",
            "Every model that was timed, with the quartiles of its steps in µs.",
            None,
            [tables["cells"]],
        ),
    ]
    disturbed = disturbance(result.runs)
    facts = [
        ("threads", f"{result.speeds.threads}"),
        ("cells", f"{len(tables['cells'].rows)}"),
        ("runs of cells", f"{len(result.runs)}"),
        ("minutes", f"{result.minutes:.1f}"),
    ]
    notes = [] if disturbed is None else [f"No verdicts: {disturbed}."]
    return render(Page(f"Training speed of {result.speeds.device_name}", facts, [], notes, sections))
