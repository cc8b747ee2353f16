"""Rebuild the generator's profile from aggregates and a rank-coded log.

    python -m hotset.workflows.make_profile AGGREGATES.json RANKED.csv.gz --out PROFILE.json

AGGREGATES holds, for a whole log, the coverage of each categorical column, quantiles and frequent values of
each integer column, and patterns of missing values. RANKED is a part of the same log whose categories are
frequency ranks over the whole log (0 = most frequent; missing is a value like any other). It provides only
the dependence between columns, as shares of latent classes. The same inputs and seed give the same profile on
one machine.

Set by hand, not fitted: the rank of missing values in the ranked part, the columns that depend on each other,
and the planted click model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from ..pipeline.generate.profile_fit import FitColumn, dense_edges, fit_dependence, sparse_edges
from ..pipeline.generate.world import Coverage, without_missing

DENSE = [f"I{number}" for number in range(1, 14)]
SPARSE = [f"C{number}" for number in range(1, 27)]
MISSING_RANKS = {"C4": 1, "C6": 3, "C24": 4} | dict.fromkeys(
    ["C3", "C12", "C16", "C19", "C20", "C21", "C22", "C25", "C26"], 0
)
"""Rank of the missing value in the columns of RANKED that have one."""
DENSE_TOGETHER = [["I1", "I10"], ["I3"], ["I4", "I13"], ["I5"], ["I6"], ["I7", "I9", "I11"], ["I8"], ["I12"]]
"""Groups of integer columns that are missing in the same samples; I2 never is."""
COUPLED = {
    0: ["C3", "C4", "C12", "C16", "C21", "C24"],
    1: ["C7", "C11", "C13"],
    2: ["C2", "C15", "C18"],
    3: ["C24", "C26"],
    4: ["I3", "I4", "I8", "I13"],
    5: ["I7", "I9", "I11"],
}
"""Columns that depend on each other, by group of the fit."""
NUM_CLASSES = 32
"""Latent classes of the fit."""

CLICK: dict[str, Any] = {
    "rate": 0.256,
    "head_octaves": 5,
    "decay": 0.15,
    "sparse": dict.fromkeys(["C2", "C7", "C11", "C13", "C15", "C18"], 0.25)
    | dict.fromkeys(["C3", "C4", "C10", "C12", "C16", "C21", "C24", "C26"], 0.15)
    | dict.fromkeys(["C1", "C5", "C6", "C8", "C9", "C14", "C17", "C19", "C20", "C22", "C23", "C25"], 0.2),
    "pairs": [
        ["C14", "C17", 0.35],
        ["C17", "C23", 0.33],
        ["C6", "C14", 0.33],
        ["C6", "C23", 0.25],
        ["C2", "C17", 0.25],
        ["C2", "C23", 0.25],
        ["C18", "C6", 0.25],
    ],
    "dense": {
        "I1": [0.10, 0.0, 1.2, -0.3],
        "I2": [0.05, 0.06, 2.0, 0.0],
        "I3": [0.03, 0.0, 2.8, 0.1],
        "I4": [-0.03, 0.0, 2.3, 0.1],
        "I5": [-0.06, 0.04, 11.4, -0.6],
        "I6": [-0.08, 0.0, 5.0, -0.4],
        "I7": [0.12, -0.06, 2.0, -0.3],
        "I8": [0.04, 0.0, 3.0, 0.0],
        "I9": [-0.04, 0.05, 5.3, 0.0],
        "I10": [0.15, 0.0, 0.7, 0.0],
        "I11": [0.16, -0.1, 1.2, 0.0],
        "I12": [0.1, 0.0, 0.0, 0.0],
        "I13": [-0.06, 0.06, 2.3, 0.0],
    },
}
"""The planted click model, as the profile stores it."""


def main() -> None:
    """Read the arguments, build the profile and write it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("aggregates", type=Path, help="JSON of aggregates")
    parser.add_argument("ranked", type=Path, help="rank-coded part of the log, CSV with a header")
    parser.add_argument("--out", type=Path, required=True, help="profile to write")
    parser.add_argument("--seed", type=int, default=0, help="seed of the fit")
    options = parser.parse_args()
    aggregates = json.loads(options.aggregates.read_text())
    profile = make_profile(aggregates, pl.read_csv(options.ranked), np.random.default_rng(options.seed))
    options.out.write_text(profile_text(profile))


def make_profile(
    aggregates: dict[str, Any], ranked: pl.DataFrame, rng: np.random.Generator
) -> dict[str, Any]:
    """Return the profile as a JSON object."""
    missing = missing_groups(aggregates)
    integers = aggregates["integer_columns"]
    categories = aggregates["categorical_columns"]
    groups = {name: group for group, names in COUPLED.items() for name in names}

    # From the aggregates: how often each value occurs in a column by itself.
    dense = {name: dense_facts(integers[name]) for name in DENSE}
    sparse = {name: sparse_facts(name, categories[name]) for name in SPARSE}

    # From the ranked part: how columns depend on each other.
    columns = [fit_dense(name, dense[name], ranked, groups.get(name)) for name in DENSE]
    columns += [
        fit_sparse(
            name,
            sparse[name],
            categories[name]["missing_rate"],
            ranked,
            groups.get(name),
        )
        for name in SPARSE
    ]
    fitted = fit_dependence(columns, missing, NUM_CLASSES, rng)
    return {
        "name": "criteo-kaggle",
        "about": "aggregates of the Criteo display advertising challenge (2014), 45,840,617 samples",
        "click": CLICK,
        "class_weights": fitted["class_weights"],
        "missing": fitted["missing"],
        "dense": [{"name": name, **dense[name], **fitted["columns"][name]} for name in DENSE],
        "sparse": [{"name": name, **sparse[name], **fitted["columns"][name]} for name in SPARSE],
    }


def missing_groups(aggregates: dict[str, Any]) -> list[dict[str, Any]]:
    """Return missing patterns: of all categorical columns jointly, and of each group of integers alone."""
    patterns = aggregates["categorical_missing_patterns"]
    groups = [{"patterns": [p["columns"] for p in patterns], "shares": [p["share"] for p in patterns]}]
    for names in DENSE_TOGETHER:
        share = aggregates["integer_columns"][names[0]]["missing_rate"]
        groups.append({"patterns": [[], names], "shares": [round(1 - share, 6), share]})
    return groups


def dense_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """Return the coverage of an integer column in order of value: small ones exactly, then quantiles."""
    # Shares of single values that the aggregates list, among present ones.
    present = 1.0 - facts["missing_rate"]
    shares = {int(value): share / present for value, share in facts["top10_values"].items()}
    shares.setdefault(0, facts["share_zero"])
    if facts["min"] < 0:
        below = sum(share for value, share in shares.items() if value < 0)
        shares.setdefault(facts["min"], facts["share_negative"] - below)

    # Exact from the smallest value upwards, as long as every value is listed.
    knots = {}
    running = 0.0
    value = facts["min"]
    while value in shares:
        running += shares[value]
        knots[value] = min(running, 1.0)
        value += 1

    # Beyond that, the quantiles.
    for quantile, quantile_value in facts["quantiles"].items():
        if quantile_value >= value and float(quantile) > running:
            knots[int(quantile_value)] = float(quantile)
    knots[facts["max"]] = 1.0
    return {
        "smallest": facts["min"],
        "coverage": {str(knot - facts["min"] + 1): round(share, 6) for knot, share in sorted(knots.items())},
    }


def sparse_facts(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    """Return the coverage of a categorical column, and the rank of its missing value if it has one."""
    missing = {"missing_rank": MISSING_RANKS[name]} if name in MISSING_RANKS else {}
    return {**missing, "coverage": facts["recommended_coverage_top_k"]}


def fit_dense(name: str, facts: dict[str, Any], ranked: pl.DataFrame, group: int | None) -> FitColumn:
    """Return an integer column of the ranked part; its ranks are its values minus the smallest one."""
    present = _coverage(facts)
    values = ranked[name].cast(pl.Float64, strict=False).fill_null(np.nan).to_numpy()
    ranks = np.where(np.isnan(values), -1, np.clip(values - facts["smallest"], 0, present.num_values - 1))
    ranks = ranks.astype(np.int64)
    return FitColumn(name, present, ranks, dense_edges(ranks), group)


def fit_sparse(
    name: str, facts: dict[str, Any], missing_share: float, ranked: pl.DataFrame, group: int | None
) -> FitColumn:
    """Return a categorical column of the ranked part, with missing values removed from the ranks."""
    ranks: NDArray[np.int64] = ranked[name].cast(pl.Float64).to_numpy().astype(np.int64)
    present = _coverage(facts)
    if "missing_rank" in facts:
        missing_rank = facts["missing_rank"]
        # Ranks beyond the missing value's close the gap that it leaves.
        ranks = np.where(ranks == missing_rank, -1, ranks - (ranks > missing_rank))
        knots = facts["coverage"]
        knot_ranks = [int(rank) for rank in knots]
        present = without_missing(knot_ranks, list(knots.values()), missing_rank, missing_share)
    return FitColumn(name, present, ranks, sparse_edges(present, missing_share), group)


def profile_text(profile: dict[str, Any]) -> str:
    """Return JSON with one line per column or group, so that a diff shows what changed."""
    lines = []
    for key, value in profile.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            rows = ",\n    ".join(_compact(row) for row in value)
            lines.append(f"  {json.dumps(key)}: [\n    {rows}\n  ]")
        else:
            lines.append(f"  {json.dumps(key)}: {_compact(value)}")
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _compact(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _coverage(facts: dict[str, Any]) -> Coverage:
    ranks = [float(rank) for rank in facts["coverage"]]
    shares = np.array(list(facts["coverage"].values()), np.float64)
    return Coverage(np.array(ranks), shares / shares[-1])


if __name__ == "__main__":
    main()
