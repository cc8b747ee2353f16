"""Fitting the dependence: couplings and patterns are recovered from data that have them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.pipeline.generate.profile_fit import (
    FitColumn,
    dense_edges,
    fit_couplings,
    fit_dependence,
    pattern_levels,
    sparse_edges,
)
from hotset.pipeline.generate.world import Coverage

COVERAGE = Coverage(np.array([1.0, 10.0, 1000.0, 100_000.0]), np.array([0.1, 0.3, 0.7, 1.0]))


def drawn_ranks(uniform: NDArray[np.float64]) -> NDArray[np.int64]:
    running = COVERAGE.at(COVERAGE.num_values, np.arange(1, COVERAGE.num_values + 1))
    return np.searchsorted(running, uniform, side="right").astype(np.int64)


def test_couplings_are_recovered(rng: np.random.Generator) -> None:
    wanted = [0.9, 0.6, 0.5]
    shared = rng.random(40_000)
    uniforms = [np.where(rng.random(40_000) < share, shared, rng.random(40_000)) for share in wanted]
    uniforms[0][::7] = np.nan
    uniforms.append(rng.random(40_000))
    np.testing.assert_allclose(fit_couplings([0, 0, 0, None], uniforms), [*wanted, 0.0], atol=0.03)


def test_sparse_edges_stand_where_rows_stop_being_hot() -> None:
    edges = sparse_edges(COVERAGE, 0.0)
    shares = np.diff(COVERAGE.at(100_000, np.arange(100_001)))
    for threshold in (1e-5, 1e-6):
        end = int(np.count_nonzero(shares >= threshold))
        assert end in edges or end == 100_000
    assert np.all(np.diff(edges) > 0) and 0 < edges[0] and edges[-1] < 100_000


def test_dense_edges_are_the_quartiles_that_differ() -> None:
    np.testing.assert_array_equal(dense_edges(np.array([-1, 0, 0, 0, 0, 1, 5, 9])), [1, 4])
    assert len(dense_edges(np.array([-1, 0, 0, 0]))) == 0


def test_patterns_are_told_apart_by_the_columns_they_name() -> None:
    left, right = np.array([0, -1, -1, 3]), np.array([-1, -1, 2, 5])
    columns = [FitColumn(name, COVERAGE, ranks, np.array([1])) for name, ranks in (("a", left), ("b", right))]
    np.testing.assert_array_equal(pattern_levels(columns, [[], ["a"], ["a", "b"]]), [-1, 2, 1, 0])


def test_cold_columns_that_come_together_make_a_class(rng: np.random.Generator) -> None:
    is_cold = rng.random(6000) < 0.25
    edges = sparse_edges(COVERAGE, 0.0)
    ends = COVERAGE.at(100_000, np.array([*edges, 100_000]))
    hot = ends[-3]
    uniforms = [np.where(is_cold, rng.uniform(hot, 1, 6000), rng.uniform(0, hot, 6000)) for _ in range(4)]
    columns = [
        FitColumn(f"C{place}", COVERAGE, drawn_ranks(uniform), edges, 0)
        for place, uniform in enumerate(uniforms)
    ]
    missing = [{"patterns": [[], ["C0"]], "shares": [1.0, 0.0]}]
    fitted = fit_dependence(columns, missing, 2, rng)
    assert fitted["class_weights"] == sorted(fitted["class_weights"], reverse=True)
    assert abs(fitted["class_weights"][1] / 10_000 - 0.25) < 0.03
    couplings = sorted(facts["coupling"] for facts in fitted["columns"].values())
    assert couplings[-2] * couplings[-1] < 0.1  # within a class they are independent
    for place in range(4):
        facts = fitted["columns"][f"C{place}"]
        cold = np.array(facts["class_shares"], float)[:, ends > hot].sum(axis=1) / 1000
        assert cold[0] < 0.1 and cold[1] > 0.9
