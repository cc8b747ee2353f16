"""Shards from Python: tables, batches of every kind, and counts."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hotset
from hotset.pipeline.folders.manifest import Manifest
from hotset.tests.support.scored_runs import NUM_EVALUATION, prepared_lists
from hotset.train.data import shards as inner


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared_lists(tmp_path_factory.mktemp("lists")).data


def test_tables_and_sizes_are_those_of_the_manifest(data: Path) -> None:
    shards = hotset.Shards(data)
    totals = Manifest.read(data / "shards").totals
    assert shards.folder == data / "shards" and shards.batch_size == 16 and shards.num_dense == 4
    assert shards.num_samples == {"training": 150, "evaluation": NUM_EVALUATION}
    found = shards.tables
    assert found["table"].to_list() == [table["name"] for table in totals["tables"]]
    assert found["num_hot"].to_list() == [table["num_hot"] for table in totals["tables"]]
    assert set(found.filter(found["is_multi_hot"])["table"]) == {"tags", "seen", "codes"}


def test_batches_have_every_feature_by_name(data: Path) -> None:
    shards = hotset.Shards(str(data))
    wanted = inner.Shards.open(data)
    found = list(shards.batches("evaluation"))
    assert sum(batch["label"].size for batch in found) == NUM_EVALUATION
    one_hot = [table.name for table in wanted.tables if not table.is_multi_hot]
    for number, batch in enumerate(found):
        other = wanted.evaluation_batch(number)
        np.testing.assert_array_equal(batch["dense"], other.dense_BK.numpy())
        np.testing.assert_array_equal(np.stack([batch[name] for name in one_hot], axis=1), other.ids_BF)
        offsets, ids = batch["codes"]
        assert offsets[-1] == ids.size and offsets.size == batch["label"].size + 1
        assert batch["is_hot"].dtype == np.bool_
    kinds = [len(list(shards.batches(kind))) for kind in ("hot_only", "mixed", "training")]
    assert kinds[0] + kinds[1] == kinds[2] == wanted.num_training_batches


def test_counts_are_those_of_the_training_part(data: Path) -> None:
    shards = hotset.Shards(data)
    counts = np.zeros_like(shards.counts("site"))
    for batch in shards.batches():
        counts += np.bincount(batch["site"], minlength=counts.size)
    np.testing.assert_array_equal(counts, shards.counts("site"))


def test_what_is_not_there_is_refused(data: Path, tmp_path: Path) -> None:
    shards = hotset.Shards(data)
    unknown: Any = "validation"
    with pytest.raises(hotset.HotsetError, match="there are no batches 'validation'"):
        next(shards.batches(unknown))
    with pytest.raises(hotset.HotsetError, match="has no table 'sites'") as refused:
        shards.counts("sites")
    assert refused.value.hint == "did you mean 'site'?"
    shutil.copytree(data / "shards", tmp_path / "shards")
    with pytest.raises(hotset.HotsetError, match="has no vocabulary beside it"):
        hotset.Shards(tmp_path).counts("site")
