"""The file of predictions appears whole, in row groups of a million, or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from hotset.pipeline.errors import HotsetError
from hotset.pipeline.formats import score_files
from hotset.pipeline.formats.score_files import score_writer


def test_predictions_keep_their_order_across_row_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(score_files, "_ROWS_OF_GROUP", 100)
    values = np.random.default_rng(0).random(1000).astype(np.float32)
    with score_writer(tmp_path / "s.parquet") as writer:
        for part in np.split(values, 40):
            writer.add(part)
        assert writer.num_samples == 1000
    found = pq.ParquetFile(tmp_path / "s.parquet")
    assert found.num_row_groups == 10
    np.testing.assert_array_equal(found.read()["probability"].to_numpy(), values)


def test_an_interrupted_file_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), score_writer(tmp_path / "s.parquet") as writer:
        writer.add(np.zeros(3, np.float32))
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_file_that_is_there_is_replaced_on_demand_alone(tmp_path: Path) -> None:
    (tmp_path / "s.parquet").write_bytes(b"old")
    with pytest.raises(HotsetError, match="exists"), score_writer(tmp_path / "s.parquet"):
        pass
    with score_writer(tmp_path / "s.parquet", overwrite=True):
        pass
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 0
