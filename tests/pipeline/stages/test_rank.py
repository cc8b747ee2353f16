"""Ids and places from counts, against sorted lists of rows.

Tests `row_order`, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.errors import ConfigError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import read_batch, values_of
from hotset.pipeline.preprocess import PreprocessConfig
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.rank import RankConfig, rank
from hotset.tests.support.logs.criteo_text import SCHEMA, draw_samples, tree_of
from hotset.tests.support.naive.naive_stages import OOV, naive_log, naive_table, rows_of, run_to
from hotset.tests.support.processes.memory_caps import count_stages_alone


def counts_in(folder: Path, num_samples: int, rng: np.random.Generator) -> Manifest:
    samples = draw_samples(num_samples, rng)
    return run_to("count", folder, samples, PreprocessConfig(count=CountConfig(eval_fraction=0.4)))


@pytest.mark.diagonal(2)
@pytest.mark.parametrize("num_samples", [1, 150])
@pytest.mark.parametrize(("min_count", "workers"), [(1, 1), (2, 2), (5, 1), (1000, 2)])
def test_the_vocabulary_agrees_with_sorted_rows(
    tmp_path: Path, min_count: int, num_samples: int, workers: int, rng: np.random.Generator
) -> None:
    samples = draw_samples(num_samples, rng)
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.4), rank=RankConfig(min_count=min_count))
    vocabulary = run_to("rank", tmp_path, samples, config, workers=workers)
    num_train = num_samples - int(0.4 * num_samples)
    naive = naive_log(samples, num_train, min_count=min_count, num_hot_rows=0)
    assert rows_of(vocabulary) == naive.tables
    assert [place.tolist() for place in places_in(vocabulary)] == naive.places
    for table, rows in zip(vocabulary.totals["tables"], naive.tables, strict=True):
        assert table["oov_count"] == dict(rows)[OOV]
        assert table["missing_id"] == [what for what, _ in rows].index(None if None in dict(rows) else OOV)
    assert vocabulary.totals["num_rows"] == sum(map(len, naive.tables))
    assert vocabulary.totals["num_samples"] == num_samples
    assert vocabulary.totals["num_train_samples"] == num_train


def test_a_feature_may_have_a_min_count_of_its_own(tmp_path: Path, rng: np.random.Generator) -> None:
    samples = draw_samples(150, rng)
    settings = FeatureSettings([("C3", 2), ("C26", 1000)])
    config = PreprocessConfig(
        count=CountConfig(eval_fraction=0.4), rank=RankConfig(min_count=5, feature_min_counts=settings)
    )
    tables = rows_of(run_to("rank", tmp_path, samples, config))
    for f, (name, table) in enumerate(zip(SCHEMA.sparse, tables, strict=True)):
        column = [sample.categories[f] for sample in samples[:90]]
        assert table == naive_table(column, dict(settings).get(name, 5)), name
    with pytest.raises(ConfigError, match="feature_min_counts names 'C27', which is not a feature"):
        unknown = RankConfig(feature_min_counts=FeatureSettings([("C27", 2)]))
        rank(unknown, Manifest.read(tmp_path / "counts"), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def places_in(vocabulary: Manifest) -> list[np.ndarray]:
    entries = {entry.path: entry for entry in vocabulary.files}
    batches = [read_batch(vocabulary, entries[f"{name}.arrow"]) for name in SCHEMA.sparse]
    return [values_of(batch.column("place"), np.int64) for batch in batches]


def test_a_table_whose_ids_do_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rng: np.random.Generator
) -> None:
    counts = counts_in(tmp_path, 100, rng)
    monkeypatch.setattr("hotset.pipeline.stages.rank._MAX_ROWS", 9)
    with pytest.raises(ConfigError, match=r"table C\d+ has \d+ rows, an id goes to 9") as caught:
        rank(RankConfig(), counts, tmp_path / "out")
    assert caught.value.hint == "raise --min-count"


def test_nonsense_is_refused() -> None:
    with pytest.raises(ConfigError, match="min_count must be 1 or more, got 0"):
        RankConfig(min_count=0)
    with pytest.raises(ConfigError, match="rank_by must be one of frequency, peel, sampled, got 'luck'"):
        RankConfig(rank_by="luck")  # type: ignore[arg-type]


@pytest.mark.parametrize("workers", [1, 2])
def test_tables_that_do_not_fit_are_written_through_the_disk_to_the_same_bytes(
    tmp_path: Path, workers: int, rng: np.random.Generator, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = counts_in(tmp_path, 150, rng)
    rank(RankConfig(min_count=2), counts, tmp_path / "whole", Resources(workers=1))
    count_stages_alone(monkeypatch)
    rank(RankConfig(min_count=2), counts, tmp_path / "mapped", Resources(workers=workers, memory_bytes=1))
    assert tree_of(tmp_path / "mapped") == tree_of(tmp_path / "whole")
