"""Scores of random samples with weights and groups, held against those of scikit-learn and Polars.

python -m hotset.tests.fuzz.fuzz_scores --cases 100000 --out result.json
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from hotset.pipeline.errors import MissingExtraError
from hotset.train.metrics import CLICKS, SampleScores
from hotset.workflows.bench.harness import Facts, Options, main, new_parser, tell

PARSER = new_parser(__spec__, __doc__)
PARSER.add_argument("--cases", type=int, default=100_000)
_KINDS_OF_SCORES = ("continuous", "few values", "one value", "one class", "rare labels", "whole weights")
_SCORES = ("auc", "pr_auc", "log_loss", "accuracy", "calibration", "normalized_entropy")
_MOST_SAMPLES_OF_CASE = 60
_CASES_AT_A_TIME = 500


def measure(options: Options, scratch: Path) -> Facts:
    """Return the largest difference of each score over random cases."""
    if find_spec("sklearn") is None:
        raise MissingExtraError("scores need scikit-learn", hint="`pip install scikit-learn` installs it")
    rng = np.random.default_rng(0)
    largest: dict[str, float] = {}
    counts = dict.fromkeys(_KINDS_OF_SCORES, 0)
    num_defined: Counter[str] = Counter()
    for first in range(0, options.cases, _CASES_AT_A_TIME):
        numbers = range(first, min(first + _CASES_AT_A_TIME, options.cases))
        cases = []
        for number in numbers:
            kind = _KINDS_OF_SCORES[number % len(_KINDS_OF_SCORES)]
            counts[kind] += 1
            cases.append(_draw_case(kind, rng))
        for case, gauc in zip(cases, _gauc_by_polars(cases), strict=True):
            found = _scores_of(case)
            for name, wanted in (_scores_by_sklearn(case) | {"gauc": gauc}).items():
                own = found.get(name)
                if (own is None) != (wanted is None):
                    raise AssertionError(f"{name} is {own}, want {wanted}")
                if own is not None and wanted is not None:
                    num_defined[name] += 1
                    largest[name] = max(largest.get(name, 0.0), abs(own - wanted) / max(1.0, abs(wanted)))
        tell(f"{numbers.stop} of {options.cases} cases")
    return {
        "cases": counts,
        "cases_with_the_score": dict(num_defined),
        "largest_difference": largest,
        "against": {"scikit-learn": version("scikit-learn"), "polars": version("polars")},
    }


def _draw_case(kind: str, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
    """Return samples with ties, weights of 0, missing labels and groups, of which some have one class."""
    size = int(rng.integers(2, _MOST_SAMPLES_OF_CASE))
    logit_N = rng.normal(-1, 2, size)
    if kind in ("few values", "one value", "whole weights"):
        logit_N = rng.integers(0, 1 if kind == "one value" else 5, size) / 2
    label_N = (rng.random(size) < (0.0 if kind == "one class" else 0.35)).astype(np.float32)
    weight_N = rng.integers(0, 4, size) if kind == "whole weights" else rng.lognormal(0, 2, size)
    weight_N = np.where(rng.random(size) < 0.1, 0, weight_N)
    label_N[rng.random(size) < (0.7 if kind == "rare labels" else 0.1)] = np.nan
    return {
        "logit": logit_N.astype(np.float32),
        "label": label_N,
        "weight": weight_N.astype(np.float32),
        "group": rng.integers(0, 2**64, 1 + size // 4, np.uint64)[rng.integers(0, 1 + size // 4, size)],
        "has_group": rng.random(size) < 0.9,
    }


def _scores_of(case: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return the scores that an evaluation gives."""
    none_N = np.zeros(case["logit"].size, np.bool_)
    counter = SampleScores(none_N.size, CLICKS, ("weight", "group"))
    counter.add(case["logit"], case["label"][:, None], none_N, none_N, case)
    return counter.quality().to_dict()


def _scores_by_sklearn(case: Mapping[str, NDArray[Any]]) -> dict[str, float | None]:
    """Return areas and log loss by scikit-learn, and plain means by NumPy; None where undefined."""
    from sklearn import config_context, metrics

    kept = ~np.isnan(case["label"]) & (case["weight"] > 0)
    label_N, logit_N = case["label"][kept], case["logit"][kept]
    weight_N = case["weight"][kept].astype(np.float64)
    found: dict[str, float | None] = dict.fromkeys(_SCORES)
    if label_N.size == 0:
        return found
    chance_N = 1 / (1 + np.exp(-logit_N.astype(np.float64)))
    rate = np.average(label_N.astype(np.float64), weights=weight_N)
    with config_context(assume_finite=True, skip_parameter_validation=True):
        loss = metrics.log_loss(label_N, chance_N, sample_weight=weight_N, labels=[0, 1])
        found["log_loss"] = float(loss)
        found["accuracy"] = float(np.average((logit_N > 0) == label_N, weights=weight_N))
        if rate > 0:
            found["pr_auc"] = float(metrics.average_precision_score(label_N, logit_N, sample_weight=weight_N))
            found["calibration"] = float(np.average(chance_N, weights=weight_N) / rate)
        if 0 < label_N.sum() < label_N.size:
            found["auc"] = float(metrics.roc_auc_score(label_N, logit_N, sample_weight=weight_N))
            entropy = -(rate * np.log(rate) + (1 - rate) * np.log1p(-rate))
            found["normalized_entropy"] = float(loss / entropy)
    return found


def _gauc_by_polars(cases: Sequence[Mapping[str, NDArray[Any]]]) -> list[float | None]:
    """Return the mean AUC of the groups of each case, from pairs that a join makes."""
    samples = pl.concat(
        pl.DataFrame(
            {name: case[name] for name in ("logit", "label", "weight", "group", "has_group")}
        ).select(pl.lit(number).alias("case"), pl.all())
        for number, case in enumerate(cases)
    )
    samples = samples.filter(pl.col("label").is_not_nan(), pl.col("has_group"), pl.col("weight") > 0)
    samples = samples.with_columns(pl.col("weight").cast(pl.Float64))
    keys = ["case", "group"]
    clicks, others = (samples.filter(pl.col("label") == label) for label in (1, 0))
    above = pl.col("logit") > pl.col("logit_right")
    tied = pl.col("logit") == pl.col("logit_right")
    product = pl.col("weight") * pl.col("weight_right")
    won = (product * (above + 0.5 * tied)).sum() / product.sum()
    areas = clicks.join(others, on=keys).group_by(keys).agg(won.alias("auc"))
    weights = samples.group_by(keys).agg(pl.col("weight").sum())
    mean = (pl.col("auc") * pl.col("weight")).sum() / pl.col("weight").sum()
    found = areas.join(weights, on=keys).group_by("case").agg(mean.alias("gauc"))
    by_case = dict(found.select("case", "gauc").iter_rows())
    return [by_case.get(number) for number in range(len(cases))]


if __name__ == "__main__":
    main(PARSER, measure)
