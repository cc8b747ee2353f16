"""Predicting raw lines: the bits of `evaluate`, every line in order, and what is refused.

Tests `loaded_model` and `predict_config`, too.
"""

from __future__ import annotations

import gzip
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

import hotset
from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError, InputError
from hotset.pipeline.raw.part import RawParts
from hotset.stats.metrics import probabilities
from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, run_on_criteo, run_on_lists
from hotset.train.options.predict_config import PredictConfig
from hotset.train.scoring import predict_log
from hotset.train.scoring.predict_log import RunPredictor, predict_file


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"), pooling="mean")


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_criteo(tmp_path_factory.mktemp("criteo"), model="dcnv2")


def logits_of(predictor: RunPredictor, parts: RawParts) -> NDArray[np.float32]:
    return np.concatenate(list(predictor.logits(parts, "the log")))


@pytest.mark.parametrize("block_bytes", [700, 4 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_are_those_of_evaluate(
    lists: ScoredRun, block_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the parts of the log, which end in the middle of batches, and the number of threads."""
    monkeypatch.setattr(predict_log, "_BLOCK_BYTES", block_bytes)
    predictor = RunPredictor(lists.run, PredictConfig(threads=threads))
    found = logits_of(predictor, predictor.parts_of_file(lists.log))
    np.testing.assert_array_equal(found, lists.evaluated())
    assert found.size == NUM_EVALUATION and np.unique(found).size > 50


def test_criteo_logs_are_predicted_with_and_without_labels(criteo: ScoredRun, tmp_path: Path) -> None:
    predictor = RunPredictor(criteo.run)
    wanted = criteo.evaluated()
    np.testing.assert_array_equal(logits_of(predictor, predictor.parts_of_file(criteo.log)), wanted)
    bare = tmp_path / "bare.tsv.gz"
    lines = criteo.log.read_bytes().splitlines(keepends=True)
    bare.write_bytes(gzip.compress(b"".join(line[2:] for line in lines)))
    parts = predictor.parts_of_file(bare, has_label=False)
    np.testing.assert_array_equal(logits_of(predictor, parts), wanted)


def test_rows_that_do_not_fit_are_read_from_the_weights(lists: ScoredRun) -> None:
    predictor = RunPredictor(lists.run, PredictConfig(slow_bytes=ByteSize(900)))
    found = logits_of(predictor, predictor.parts_of_file(lists.log))
    np.testing.assert_array_equal(found, lists.evaluated())


class Wide(nn.Module):
    """A user's model whose samples are not said to be independent."""

    def __init__(self, inputs: hotset.ModelInputs) -> None:
        super().__init__()
        self.layer = nn.Linear(inputs.num_dense + inputs.total_dim, 1)

    def forward(self, dense: torch.Tensor, embeddings: dict[str, torch.Tensor]) -> torch.Tensor:
        logits: torch.Tensor = self.layer(torch.cat([dense, *embeddings.values()], dim=1))
        return logits.squeeze(1)


def test_a_users_module_predicts_a_parquet_log(tmp_path: Path) -> None:
    scored = run_on_lists(tmp_path, format="parquet", model_source=Wide, model=f"{__name__}:Wide")
    predictor = RunPredictor(scored.run, model_source=Wide)
    found = logits_of(predictor, predictor.parts_of_file(scored.log))
    np.testing.assert_array_equal(found, scored.evaluated(Wide))


def test_a_table_in_memory_has_the_predictions_of_its_log(lists: ScoredRun, criteo: ScoredRun) -> None:
    predictor = RunPredictor(lists.run)
    assert lists.lines is not None
    names = list(lists.lines.kinds)
    columns = {name: [row[number] for row in lists.lines.rows] for number, name in enumerate(names)}
    table = pl.DataFrame(columns, strict=False).to_arrow()
    np.testing.assert_array_equal(logits_of(predictor, predictor.parts_of_table(table)), lists.evaluated())

    # Criteo's categories are hex digits in text, and the hash tables have 32 bits.
    predictor = RunPredictor(criteo.run)
    fields = ["label", *predictor.schema.dense, *predictor.schema.sparse]
    frame = pl.read_csv(criteo.log, separator="\t", has_header=False, new_columns=fields, infer_schema=False)
    frame = frame.with_columns(pl.col(predictor.schema.dense).cast(pl.Int32))
    found = logits_of(predictor, predictor.parts_of_table(frame.to_arrow()))
    np.testing.assert_array_equal(found, criteo.evaluated())


def test_the_file_has_every_line_in_order(lists: ScoredRun, tmp_path: Path) -> None:
    predictor = RunPredictor(lists.run)
    assert predict_file(predictor, lists.log, tmp_path / "s.parquet") == NUM_EVALUATION
    found = pq.read_table(tmp_path / "s.parquet")
    assert found.schema.equals(pa.schema([pa.field("probability", pa.float32(), nullable=False)]))
    wanted = probabilities(lists.evaluated()).astype(np.float32)
    np.testing.assert_array_equal(found["probability"].to_numpy(), wanted)


@pytest.mark.parametrize("is_packed", [False, True])
@pytest.mark.parametrize("block_bytes", [700, 4 << 20])
def test_progress_is_told_with_the_samples_that_the_log_may_have(
    lists: ScoredRun, tmp_path: Path, block_bytes: int, is_packed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Estimated from the bytes that are read; a compressed log has an unknown length."""
    monkeypatch.setattr(predict_log, "_BLOCK_BYTES", block_bytes)
    log = lists.log
    if is_packed:
        log = tmp_path / "log.csv.gz"
        log.write_bytes(gzip.compress(lists.log.read_bytes()))
    told: list[tuple[int, int]] = []
    predictor = RunPredictor(lists.run)
    predict_file(
        predictor, log, tmp_path / "s.parquet", progress=lambda done, total: told.append((done, total))
    )
    assert told[0][0] == 16 and told[-1] == (NUM_EVALUATION, NUM_EVALUATION)
    for done, total in told[:-1]:
        assert total == 0 if is_packed else done <= total
    # Lines differ in length, so only the whole log tells the number.
    if not is_packed:
        totals = [total for _, total in told]
        assert NUM_EVALUATION / 3 < min(totals) and set(totals[-2:]) == {NUM_EVALUATION}
        assert block_bytes == 700 or set(totals) == {NUM_EVALUATION}


def test_another_batch_size_changes_no_line(lists: ScoredRun) -> None:
    predictor = RunPredictor(lists.run, PredictConfig(batch_size=7))
    found = logits_of(predictor, predictor.parts_of_file(lists.log))
    np.testing.assert_allclose(found, lists.evaluated(), rtol=0, atol=1e-5)


def test_a_bad_line_is_named_and_no_file_is_left(lists: ScoredRun, tmp_path: Path) -> None:
    lines = lists.log.read_text().splitlines()
    lines[40] = "1,broken"
    (tmp_path / "bad.csv").write_text("\n".join(lines))
    with pytest.raises(InputError, match=r"bad\.csv, line 41: found 2 fields, want 10"):
        predict_file(RunPredictor(lists.run), tmp_path / "bad.csv", tmp_path / "s.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.csv"]


def test_an_empty_log_has_no_predictions(criteo: ScoredRun, tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_bytes(b"")
    assert predict_file(RunPredictor(criteo.run), tmp_path / "empty.tsv", tmp_path / "s.parquet") == 0
    assert pq.read_table(tmp_path / "s.parquet").num_rows == 0


def test_a_run_predicts_where_nothing_of_its_data_is_left(criteo: ScoredRun, tmp_path: Path) -> None:
    shutil.copytree(criteo.run, tmp_path / "moved")
    wanted = criteo.evaluated()
    (tmp_path / "data").mkdir()
    predictor = RunPredictor(tmp_path / "moved")
    np.testing.assert_array_equal(logits_of(predictor, predictor.parts_of_file(criteo.log)), wanted)


@pytest.mark.parametrize("name", ["C1.arrow", "manifest.json"])
def test_a_damaged_vocabulary_is_refused(criteo: ScoredRun, tmp_path: Path, name: str) -> None:
    shutil.copytree(criteo.run, tmp_path / "run")
    path = tmp_path / "run/vocabulary" / name
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))
    with pytest.raises(HotsetError, match="is damaged"):
        RunPredictor(tmp_path / "run")


def test_weights_that_diverged_are_refused(criteo: ScoredRun) -> None:
    predictor = RunPredictor(criteo.run)

    def no_number(batch: Any, embeddings: Any) -> torch.Tensor:
        return torch.full((batch.num_samples,), float("nan"))

    dense: Any = predictor._model.dense
    dense.predict = no_number
    with pytest.raises(HotsetError, match="a prediction for the log is no number"):
        logits_of(predictor, predictor.parts_of_file(criteo.log))


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 0), ("threads", 0), ("threads", 1025), ("slow_bytes", -1)]
)
def test_settings_without_sense_are_refused(field: str, value: int) -> None:
    settings: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=field):
        PredictConfig(**settings)
