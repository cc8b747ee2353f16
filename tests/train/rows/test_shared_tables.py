"""Training of several features that look up in one table, against tables of torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.totals import by_feature
from hotset.tests.support.naive.naive_lookups import SPEC
from hotset.tests.support.shard_factory import write_shards
from hotset.tests.support.trained_models import EACH_WAY, assert_equal_bits, assert_placements_agree, trained
from hotset.train.data.shards import ShardSet
from hotset.train.placements.placements import count_row_lookups


def test_lookups_of_rows_are_counted_over_all_features_of_a_table(tmp_path: Path) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    wanted = {table.name: np.zeros(table.num_rows, np.int64) for table in shards.tables}
    for number in range(shards.num_training_batches):
        for name, ids_N, _ in shards.training_batch(number).features(shards.tables):
            table = next(each for each in shards.tables if name in {one.name for one in by_feature([each])})
            np.add.at(wanted[table.name], ids_N, 1)
    for tables in ((0, 1), (2,)):
        counts = np.concatenate([wanted[shards.tables[table].name] for table in tables])
        np.testing.assert_array_equal(count_row_lookups(shards, tables), counts)


@pytest.mark.parametrize("optimizer", ["adam", pytest.param("rowwise-adagrad", marks=pytest.mark.slow)])
def test_placements_threads_and_devices_end_with_equal_bits(tmp_path: Path, optimizer: str) -> None:
    shards = ShardSet.open(write_shards(tmp_path / "shards", SPEC))
    fields: dict[str, Any] = {
        "embedding_optimizer": optimizer,
        "prefetch": 1,
        "staging_bytes": ByteSize(4_000),
    }
    all_fast = assert_placements_agree(shards, **fields)
    others = ({"placement": "all-fast"}, {"placement": "fae"}, *EACH_WAY)
    late = [each | {"device": f"late:{number}"} for number, each in enumerate(others)]
    for changes in (*late, {"placement": "lookahead", "threads": 3}):
        assert_equal_bits(trained(shards, all_fast.batch_numbers, **changes, **fields), all_fast)
