"""The profile can be rebuilt: facts of columns from aggregates, and the whole from real data."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from hotset.pipeline.generate.world import PROFILES
from hotset.workflows.make_profile import dense_facts, make_profile, missing_groups, profile_text


def test_small_integers_are_exact_and_large_ones_follow_the_quantiles() -> None:
    facts = {
        "missing_rate": 0.5,
        "top10_values": {"1": 0.2, "-1": 0.05, "7": 0.01},
        "share_zero": 0.1,
        "share_negative": 0.12,
        "min": -2,
        "max": 90,
        "quantiles": {"0.5": 1, "0.9": 20},
    }
    found = dense_facts(facts)
    assert found["smallest"] == -2
    assert found["coverage"] == {"1": 0.02, "2": 0.12, "3": 0.22, "4": 0.62, "23": 0.9, "93": 1.0}


def test_every_group_of_integers_is_missing_together() -> None:
    aggregates = {
        "categorical_missing_patterns": [{"columns": [], "share": 0.75}, {"columns": ["C3"], "share": 0.25}],
        "integer_columns": {f"I{number}": {"missing_rate": 0.1} for number in range(1, 14)},
    }
    groups = missing_groups(aggregates)
    assert groups[0] == {"patterns": [[], ["C3"]], "shares": [0.75, 0.25]}
    assert sorted(name for group in groups[1:] for name in group["patterns"][1]) == sorted(
        f"I{number}"
        for number in range(1, 14)
        if number != 2  # I2 is never missing
    )


def test_the_text_of_a_profile_is_json_of_the_same_value() -> None:
    profile = {
        "name": "x",
        "click": {"rate": 0.5},
        "dense": [{"name": "I1"}, {"name": "I2"}],
        "weights": [1, 2],
    }
    assert json.loads(profile_text(profile)) == profile


@pytest.mark.slow
@pytest.mark.real_data
@pytest.mark.slow
def test_the_shipped_profile_follows_from_the_real_aggregates(real_data: Path) -> None:
    aggregates = json.loads((real_data / "criteo_sample_stats.json").read_text())
    ranked = pl.read_csv(real_data / "criteo_kaggle_rankcoded_contiguous_20k.csv.gz")
    rebuilt = make_profile(aggregates, ranked, np.random.default_rng(0))
    shipped = json.loads((PROFILES / "criteo-kaggle.json").read_text())
    for kind in ("dense", "sparse"):
        for new, old in zip(rebuilt[kind], shipped[kind], strict=True):
            assert {key: new[key] for key in ("name", "coverage", "edges")} == {
                key: old[key] for key in ("name", "coverage", "edges")
            }
    assert rebuilt["click"] == shipped["click"]
