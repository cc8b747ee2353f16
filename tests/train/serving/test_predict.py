"""Predicting raw lines: the bits of `evaluate`, every line in order, and what is refused.

Batches of encoded samples are the same wherever the parts end.

The vocabulary that a run keeps: linked at its beginning, found again, and that of another log refused.

Rows in other types lose no more than their docstring says.
"""

from __future__ import annotations

import gzip
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from numpy.typing import NDArray

from hotset.pipeline.errors import ByteSize, ConfigError, HotsetError, InputError, ManifestError
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.totals import VocabularyTable
from hotset.pipeline.formats.ids import PartIds
from hotset.pipeline.stages.encode import EncodedSamples
from hotset.stats.metrics import probabilities
from hotset.tests.support.logs.other_logs import write_parquet
from hotset.tests.support.scored_runs import NUM_EVALUATION, ScoredRun, run_on_criteo, run_on_lists
from hotset.tests.support.trained_models import LinearNet
from hotset.train.config import ROW_TYPES, PredictConfig, RowType, TrainConfig, read_config
from hotset.train.data.batch import Batch
from hotset.train.data.shards import ShardOrigin, ShardSet, vocabulary_of
from hotset.train.run import train
from hotset.train.serving import predict as predict_log
from hotset.train.serving.predict import (
    OpenLogs,
    RunPredictor,
    RunTables,
    batches_of,
    open_vocabulary,
    pack_rows,
    predict_file,
    unpack_rows,
)
from hotset.train.verify_run import verify_run


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"), pooling="mean")


@pytest.fixture(scope="module")
def criteo(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_criteo(tmp_path_factory.mktemp("criteo"), model="dcnv2")


def logits_of(predictor: RunPredictor, logs: OpenLogs) -> NDArray[np.float32]:
    return np.concatenate(list(predictor.logits(logs)))


@pytest.mark.parametrize("block_bytes", [700, 4 << 20])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_bits_are_those_of_evaluate(
    lists: ScoredRun, block_bytes: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever the parts of the log, which end in the middle of batches, and the number of threads."""
    monkeypatch.setattr(predict_log, "_BLOCK_BYTES", block_bytes)
    predictor = RunPredictor(lists.run, PredictConfig(threads=threads))
    found = logits_of(predictor, predictor.open_log(lists.log))
    np.testing.assert_array_equal(found, lists.evaluated())
    assert found.size == NUM_EVALUATION and np.unique(found).size > 50


def test_criteo_logs_are_predicted_with_and_without_labels(criteo: ScoredRun, tmp_path: Path) -> None:
    predictor = RunPredictor(criteo.run)
    wanted = criteo.evaluated()
    np.testing.assert_array_equal(logits_of(predictor, predictor.open_log(criteo.log)), wanted)
    bare = tmp_path / "bare.tsv.gz"
    lines = criteo.log.read_bytes().splitlines(keepends=True)
    bare.write_bytes(gzip.compress(b"".join(line[2:] for line in lines)))
    parts = predictor.open_log(bare, has_label=False)
    np.testing.assert_array_equal(logits_of(predictor, parts), wanted)


def test_no_label_is_named_where_columns_have_names(
    lists: ScoredRun, criteo: ScoredRun, caplog: pytest.LogCaptureFixture
) -> None:
    for scored, is_named in ((criteo, False), (lists, True)):
        caplog.clear()
        RunPredictor(scored.run).open_log(scored.log, has_label=False)
        assert ("--no-label changes nothing" in caplog.text) == is_named


def test_rows_that_do_not_fit_are_read_from_the_weights(lists: ScoredRun) -> None:
    predictor = RunPredictor(lists.run, PredictConfig(slow_bytes=ByteSize(900)))
    found = logits_of(predictor, predictor.open_log(lists.log))
    np.testing.assert_array_equal(found, lists.evaluated())


def test_a_users_module_predicts_a_parquet_log(tmp_path: Path) -> None:
    name = f"{LinearNet.__module__}:LinearNet"
    scored = run_on_lists(tmp_path, format="parquet", model_source=LinearNet, model=name)
    predictor = RunPredictor(scored.run, model_source=LinearNet)
    found = logits_of(predictor, predictor.open_log(scored.log))
    np.testing.assert_array_equal(found, scored.evaluated(LinearNet))


def test_a_table_in_memory_has_the_predictions_of_its_log(lists: ScoredRun, criteo: ScoredRun) -> None:
    predictor = RunPredictor(lists.run)
    assert lists.lines is not None
    names = list(lists.lines.kinds)
    columns = {name: [row[number] for row in lists.lines.rows] for number, name in enumerate(names)}
    table = pl.DataFrame(columns, strict=False).to_arrow()
    np.testing.assert_array_equal(logits_of(predictor, predictor.open_table(table)), lists.evaluated())

    # Criteo's categories are hex digits in text, and the hash tables have 32 bits.
    predictor = RunPredictor(criteo.run)
    fields = ["label", *predictor.schema.dense, *predictor.schema.sparse]
    frame = pl.read_csv(
        criteo.log, separator="\t", has_header=False, new_columns=fields, infer_schema_length=0
    )
    frame = frame.with_columns(pl.col(predictor.schema.dense).cast(pl.Int32))
    found = logits_of(predictor, predictor.open_table(frame.to_arrow()))
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
    found = logits_of(predictor, predictor.open_log(lists.log))
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
    np.testing.assert_array_equal(logits_of(predictor, predictor.open_log(criteo.log)), wanted)


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

    dense: Any = predictor._dense
    dense.predict = no_number
    with pytest.raises(HotsetError, match=r"a prediction for .* is no number"):
        logits_of(predictor, predictor.open_log(criteo.log))


@pytest.mark.parametrize(
    ("field", "value"), [("batch_size", 0), ("threads", 0), ("threads", 1025), ("slow_bytes", -1)]
)
def test_settings_without_sense_are_refused(field: str, value: int) -> None:
    settings: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError, match=field):
        PredictConfig(**settings)


TABLES = tuple(
    VocabularyTable(name=name, num_rows=99, oov_id=0, oov_count=0, missing_id=1, is_multi_hot=is_multi_hot)
    for name, is_multi_hot in (("a", False), ("b", True))
)


def drawn(sizes: list[int]) -> list[EncodedSamples]:
    """Parts of so many samples; the sample number is in every value."""
    parts = []
    first = 0
    for size in sizes:
        numbers = np.arange(first, first + size, dtype=np.int32)
        lengths = numbers % 3
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        lists = {"b": (offsets, np.repeat(numbers, lengths))}
        dense = np.stack([numbers, -numbers], axis=1).astype(np.float32)
        parts.append(EncodedSamples(dense, PartIds(TABLES, numbers[:, None], lists)))
        first += size
    return parts


@pytest.mark.parametrize("sizes", [[], [0], [7], [8, 0, 1], [1] * 9, [30], [3, 29, 2]])
def test_batches_do_not_depend_on_the_parts(sizes: list[int]) -> None:
    found = list(batches_of(drawn(sizes), 4))
    wanted = list(batches_of(drawn([sum(sizes)]), 4))
    assert [batch.num_samples for batch in found] == [
        min(4, sum(sizes) - first) for first in range(0, sum(sizes), 4)
    ]
    for batch, other in zip(found, wanted, strict=True):
        assert described(batch) == described(other)
    numbers = [number for batch in found for number in batch.ids_BF[:, 0].tolist()]
    assert numbers == list(range(sum(sizes)))


def described(batch: Batch) -> tuple[object, ...]:
    bags = [(each.offsets_B1.tolist(), each.ids_N.tolist()) for each in batch.bags]
    return batch.ids_BF.tolist(), batch.dense_BK.tolist(), batch.label_B.tolist(), bags


@pytest.fixture(scope="module")
def scored(tmp_path_factory: pytest.TempPathFactory) -> ScoredRun:
    return run_on_lists(tmp_path_factory.mktemp("lists"))


def copy_of(scored: ScoredRun, folder: Path) -> ScoredRun:
    shutil.copytree(scored.data, folder / "data")
    shutil.copytree(scored.run, folder / "run")
    return ScoredRun(folder / "run", folder / "data", scored.log)


def test_a_run_keeps_links_of_the_vocabulary_and_seals_them(scored: ScoredRun) -> None:
    kept = Manifest.read(scored.run / "vocabulary")
    inputs = {source["name"]: source["fingerprint"] for source in Manifest.read(scored.run).inputs}
    assert inputs["vocabulary"] == kept.fingerprint == vocabulary_of(ShardSet.open(scored.data))
    for entry in kept.files:
        assert (scored.run / "vocabulary" / entry.path).samefile(scored.data / "vocabulary" / entry.path)
    assert verify_run(scored.run) == []


def test_the_vocabulary_is_opened_with_its_schema_and_tables(scored: ScoredRun) -> None:
    found = RunTables.open(scored.run)
    assert [table.name for table in found.tables] == list(found.schema.sparse)
    assert {table.name for table in found.tables if table.is_multi_hot} == {"tags", "seen", "codes"}
    assert {table.embedding_dim for table in found.tables} == {4, 8}
    given = RunTables.open(scored.run, scored.data)
    assert (given.schema, given.tables) == (found.schema, found.tables)


@pytest.mark.parametrize("name", ["tags.arrow", "manifest.json", "all"])
def test_verify_finds_what_is_damaged_or_gone(scored: ScoredRun, tmp_path: Path, name: str) -> None:
    own = copy_of(scored, tmp_path)
    if name == "all":
        shutil.rmtree(own.run / "vocabulary")
    else:
        (own.run / "vocabulary" / name).write_bytes(b"{}")
    assert any("vocabulary" in fault for fault in verify_run(own.run))


def test_shards_alone_leave_no_vocabulary(scored: ScoredRun, tmp_path: Path) -> None:
    shutil.copytree(scored.data / "shards", tmp_path / "shards")
    train(tmp_path / "shards", TrainConfig(threads=1), tmp_path / "run")
    config = read_config(tmp_path / "run")
    assert (config.schema, config.vocabulary) == (None, None)
    with pytest.raises(ConfigError, match="keeps no vocabulary"):
        RunTables.open(tmp_path / "run")
    given = RunTables.open(tmp_path / "run", scored.data)
    assert given.tables == RunTables.open(scored.run).tables


@pytest.mark.parametrize("stage", ["vocabulary", "columns", "plan"])
def test_folders_of_another_log_are_not_kept(scored: ScoredRun, tmp_path: Path, stage: str) -> None:
    """They were written again since: their ids, or their columns, are others by now."""
    own = copy_of(scored, tmp_path)
    manifest = json.loads((own.data / stage / "manifest.json").read_text())
    (tmp_path / "other").mkdir()
    other = run_on_lists(tmp_path / "other", seed=1)
    shutil.rmtree(own.data / stage)
    shutil.copytree(other.data / stage, own.data / stage)
    assert Manifest.read(own.data / stage).fingerprint != manifest["checksum"]
    assert ShardOrigin.of(ShardSet.open(own.data)) is None


def test_the_vocabulary_of_another_run_is_refused(scored: ScoredRun, tmp_path: Path) -> None:
    other = run_on_criteo(tmp_path)
    config = read_config(scored.run)
    with pytest.raises(ManifestError, match="is not the vocabulary of"):
        RunTables.open(scored.run, other.data)
    # One of the same tables may still have other ids.
    with pytest.raises(ManifestError, match=r"its fingerprint is .*, want 00000000"):
        open_vocabulary(scored.run, replace(config, vocabulary="0" * 32))
    shutil.copytree(scored.data / "shards", tmp_path / "shards")
    train(tmp_path / "shards", TrainConfig(threads=1), tmp_path / "alone")
    with pytest.raises(ManifestError, match=r"it has \d+ rows of C1, the run \d+ of tags"):
        RunTables.open(tmp_path / "alone", other.data)


def test_a_folder_is_predicted_file_by_file_with_the_bits_of_one_log(
    lists: ScoredRun, tmp_path: Path
) -> None:
    (tmp_path / "log" / "b").mkdir(parents=True)
    header, *lines = lists.log.read_text().splitlines(keepends=True)
    (tmp_path / "log" / "b" / "part-0").write_text("".join([header, *lines[100:]]))
    (tmp_path / "log" / "a.csv").write_text("".join([header, *lines[:100]]))
    (tmp_path / "log" / "_SUCCESS").write_text("")
    predictor = RunPredictor(lists.run)
    np.testing.assert_array_equal(
        logits_of(predictor, predictor.open_log(tmp_path / "log")), lists.evaluated()
    )
    keep = [header.strip().split(",")[0]]
    assert predict_file(predictor, tmp_path / "log", tmp_path / "s.parquet", keep=keep) == NUM_EVALUATION
    kept = pq.read_table(tmp_path / "s.parquet").column(keep[0]).to_pylist()
    assert kept == [line.split(",")[0] for line in lines]
    (tmp_path / "log" / "b" / "part-0").write_text("".join([header, "x\n"]))
    with pytest.raises(InputError, match=r"part-0, line 2: found 1 field"):
        predict_file(predictor, tmp_path / "log", tmp_path / "t.parquet")


def test_a_run_on_csv_predicts_the_same_columns_in_other_formats(lists: ScoredRun, tmp_path: Path) -> None:
    assert lists.lines is not None
    predictor = RunPredictor(lists.run)
    parquet = write_parquet(tmp_path / "log.parquet", lists.lines)
    np.testing.assert_array_equal(logits_of(predictor, predictor.open_log(parquet)), lists.evaluated())
    table = pq.read_table(parquet)
    with pa.ipc.new_file(tmp_path / "log.arrow", table.schema) as file:
        file.write_table(table)
    found = logits_of(predictor, predictor.open_log(tmp_path / "log.arrow"))
    np.testing.assert_array_equal(found, lists.evaluated())


def drawn_rows() -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(200, 16, generator=generator) * torch.logspace(-20, 20, 200).unsqueeze(1)
    rows[3] = 7.5  # a row of one value
    rows[4] = 0
    rows[5, ::2], rows[5, 1::2] = 1.6e38, -1.6e38
    return rows


@pytest.mark.parametrize("row_type", ROW_TYPES)
def test_packed_rows_are_within_their_bound(row_type: RowType) -> None:
    rows = drawn_rows()
    packed, scale = pack_rows(rows, row_type)
    found = unpack_rows(packed, scale)
    assert found.isfinite().all() and (scale is None) == (row_type != "int8")
    error = (found.double() - rows.double()).abs()
    if row_type == "fp32":
        assert torch.equal(found, rows)
    elif row_type == "int8":
        # Half a step, and the rounding of the step and of the sum in float32.
        reach = rows.double().amax(1) - rows.double().amin(1)
        bound = reach / 510 + 2e-5 * rows.double().abs().amax(1)
        assert (error <= bound.unsqueeze(1)).all()
        assert torch.equal(found[3], rows[3])
    elif row_type == "bf16":
        assert (error <= rows.double().abs() / 256).all()
    else:
        inside = rows.abs() <= 65504
        assert (error <= rows.double().abs() / 2048 + 2.0**-25)[inside].all()
        assert (found.abs()[~inside] == 65504).all()


def test_no_rows_are_no_rows() -> None:
    for row_type in ROW_TYPES:
        assert unpack_rows(*pack_rows(torch.empty(0, 4), row_type)).shape == (0, 4)
