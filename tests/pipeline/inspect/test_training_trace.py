"""A stretch of the shuffled order holds the samples that pack would put first.

Tests `lookups`, too.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.formats.arrow_files import fixed_lists, read_batch
from hotset.pipeline.formats.lookups import ONE_EACH, TableLookups
from hotset.pipeline.inspect import training_trace
from hotset.pipeline.inspect.training_trace import draw_trace
from hotset.pipeline.runtime.resources import Resources
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.preprocess import PreprocessConfig
from hotset.stats.id_tables import mix64_pair
from hotset.tests.support.logs.criteo_text import draw_samples
from hotset.tests.support.naive.naive_stages import run_to


@pytest.fixture
def samples(tmp_path: Path, rng: np.random.Generator) -> Manifest:
    config = PreprocessConfig(count=CountConfig(eval_fraction=0.25))
    return run_to("encode", tmp_path, draw_samples(200, rng), config)


@pytest.mark.parametrize("workers", [1, 2])
def test_the_whole_training_part_comes_in_the_shuffled_order(samples: Manifest, workers: int) -> None:
    told: list[tuple[int, int]] = []
    resources = Resources(workers=workers, progress=lambda _, done, total: told.append((done, total)))
    drawn = draw_trace(samples, 150, 10**6, resources, seed=5)
    assert told[-1] == (150, 150) and [done for done, _ in told] == sorted({done for done, _ in told})
    ids = np.concatenate(
        [fixed_lists(read_batch(samples, entry).column("ids"), 26, np.int32) for entry in samples.files]
    )
    order = sorted(range(150), key=lambda sample: int(mix64_pair(np.uint64(5), np.uint64(sample))))
    first_row = np.cumsum([0, *(table["num_rows"] for table in samples.totals["tables"])])[:-1]
    np.testing.assert_array_equal(drawn.rows.reshape(150, 26), ids[order] + first_row)
    assert drawn.batch_starts(64).tolist() == [0, 64 * 26, 128 * 26]


def test_a_shorter_trace_is_the_beginning_of_a_longer_one(
    samples: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, part = (draw_trace(samples, 150, number, Resources(workers=1)) for number in (150, 60))
    assert 20 < part.num_samples < 110
    np.testing.assert_array_equal(part.rows, whole.rows[: part.rows.shape[0]])
    monkeypatch.setattr(training_trace, "MAX_LOOKUPS", 26 * 40)
    assert draw_trace(samples, 150, 150, Resources(workers=1)).num_samples < 80
    assert draw_trace(samples, 0, 150, Resources(workers=1)).num_samples == 0


def test_lists_are_cut_with_their_samples() -> None:
    lists = TableLookups(np.arange(6, dtype=np.int32), np.array([0, 2, 2, 6], np.int32))
    assert lists.num_samples == 3
    part = lists.of_samples(1, 3)
    assert part.ids.tolist() == [2, 3, 4, 5] and part.offsets.tolist() == [0, 0, 4]
    assert TableLookups(np.arange(6, dtype=np.int32), ONE_EACH).of_samples(2, 4).ids.tolist() == [2, 3]
