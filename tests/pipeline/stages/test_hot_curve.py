"""Hot rows and samples under each budget, against a walk over all samples."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import SamplesTotals
from hotset.pipeline.preprocess import preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.stages.hot_curve import hot_curves, levels_of_tables
from hotset.tests.support.logs.criteo_text import draw_samples
from hotset.tests.support.logs.list_logs import KINDS, recipe
from hotset.tests.support.logs.other_logs import draw_log, write_csv
from hotset.tests.support.naive.naive_stages import ids_of, run_to
from hotset.tests.support.preprocess_runs import CONFIG

NUM_SAMPLES = 90


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    """Encoded samples in parts of a few lines."""
    log = draw_samples(NUM_SAMPLES, np.random.default_rng(8))
    return run_to("encode", tmp_path_factory.mktemp("curve"), log, CONFIG)


def drawn_budgets(samples: Manifest, num_budgets: int, rng: np.random.Generator) -> np.ndarray:
    """(num_budgets, num_tables), hot rows of each table, not falling."""
    tables = SamplesTotals.of(samples).tables
    drawn = [np.sort(rng.integers(0, table.num_rows + 1, num_budgets)) for table in tables]
    return np.stack(drawn, axis=1)


@pytest.mark.parametrize("num_train", [1, 37, NUM_SAMPLES])
@pytest.mark.parametrize("workers", [1, 3])
def test_curves_are_those_of_a_walk_over_the_samples(
    samples: Manifest, num_train: int, workers: int, rng: np.random.Generator
) -> None:
    assert len(samples.files) > 3, "parts end before and behind the last training sample"
    tables = SamplesTotals.of(samples).tables
    budgets = [drawn_budgets(samples, 4, rng) for _ in range(3)]
    orders = [levels_of_tables(num_hot, tables) for num_hot in budgets]
    told: list[tuple[int, int]] = []
    resources = Resources(workers=workers, progress=lambda _, done, total: told.append((done, total)))
    curves = hot_curves(samples, orders, 4, num_train, resources)
    ids = np.array(ids_of(samples)[:num_train])
    for curve, num_hot in zip(curves, budgets, strict=True):
        is_hot = ids[None] < num_hot[:, None]
        assert curve.samples.tolist() == is_hot.all(axis=2).sum(axis=1).tolist()
        assert curve.lookups.tolist() == is_hot.sum(axis=(1, 2)).tolist()
        assert curve.num_lookups == num_train * len(tables)
    # In samples, and full once the last training sample is counted, whatever parts there are behind it.
    ends = itertools.accumulate(entry.num_samples for entry in samples.files)
    assert told[-1] == (num_train, num_train)
    assert told[:-1] == [(end, num_train) for end in ends if end < num_train]


def test_no_budget_and_all_rows_are_the_ends(samples: Manifest) -> None:
    tables = SamplesTotals.of(samples).tables
    rows = [table.num_rows for table in tables]
    (curve,) = hot_curves(samples, [levels_of_tables(np.array([[0] * len(rows), rows]), tables)], 2, 50)
    assert curve.samples.tolist() == [0, 50]
    assert curve.lookups.tolist() == [0, curve.num_lookups] == [0, 50 * len(rows)]


def test_every_lookup_of_a_list_counts(tmp_path: Path, rng: np.random.Generator) -> None:
    log = draw_log(40, KINDS, np.random.default_rng(3), empty_lists=True)
    preprocess([write_csv(tmp_path / "log", log)], recipe(log, "csv"), tmp_path / "dir", until="encode")
    samples = Manifest.read(tmp_path / "dir" / "samples")
    tables = SamplesTotals.of(samples).tables
    rows = np.array([[table.num_rows for table in tables]])
    (curve,) = hot_curves(samples, [levels_of_tables(rows, tables)], 1, 40)
    lookups = [(table.lookups_train or 0) + (table.lookups_evaluation or 0) for table in tables]
    lookups = [number if table.is_multi_hot else 40 for number, table in zip(lookups, tables, strict=True)]
    assert curve.num_lookups == curve.lookups[0] == sum(lookups) and curve.samples.tolist() == [40]
