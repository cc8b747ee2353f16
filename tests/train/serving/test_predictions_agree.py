"""Predictions of lines, of shards and of the exported graph agree, whatever the lines hold."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hotset
from hotset.pipeline.errors import ByteSize
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.other_logs import Log, schema_text, write_csv
from hotset.tests.support.scored_runs import ScoredRun, serving_inputs_of
from hotset.train.config import ExportConfig, TrainConfig, read_config
from hotset.train.data.shards import Part, ShardSet
from hotset.train.evaluate import Predictor, load_model
from hotset.train.run import train
from hotset.train.run_folder.weights import read_weights
from hotset.train.serving.export import build_graph
from hotset.train.serving.predict import RunPredictor, RunTables

KINDS = {
    "y": "label",
    "price": "float",
    "shop": "text",
    "tags": "list text",
    "user": "integer",
    "seen": "list integer",
}
TABLES = {"tags": "shop"}
"""Features that look up in the table of another one, and that table."""
KNOWN = ("a", "b", "c")


def rows_of(rng: np.random.Generator, count: int) -> list[tuple[Any, ...]]:
    """Rows of few categories, so that most are known, and some missing values."""

    def maybe(value: Any) -> Any:
        return None if rng.random() < 0.1 else value

    def texts() -> list[str]:
        return [str(text) for text in rng.choice(KNOWN, rng.integers(1, 4))]

    return [
        (
            int(rng.integers(0, 2)),
            maybe(float(rng.integers(-3, 30)) / 4),
            maybe(str(rng.choice(KNOWN))),
            maybe(texts()),
            maybe(int(rng.integers(0, 6))),
            maybe(rng.integers(0, 5, rng.integers(1, 4)).tolist()),
        )
        for _ in range(count)
    ]


@dataclass(frozen=True, slots=True)
class Models:
    """A log with a validation part, preprocessed, and runs of several models on it."""

    data: Path
    joined: Log
    """The lines of the validation part, then of the test part."""
    runs: dict[str, Path]
    num_validation: int


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    folder = tmp_path_factory.mktemp("models")
    rng = np.random.default_rng(5)
    logs = {
        name: Log(KINDS, rows_of(rng, size)) for name, size in (("train", 120), ("valid", 37), ("test", 51))
    }
    paths = [write_csv(folder / f"{name}.csv", log) for name, log in logs.items()]
    config = PreprocessConfig(
        ingest=IngestConfig(schema=schema_text(logs["train"], format="csv", tables=TABLES)),
        count=CountConfig(eval_files=1, valid_files=1),
        rank=RankConfig(min_count=2),
        split=SplitConfig(
            embedding_dim=4, feature_dims=FeatureSettings([("user", 8), ("shop", 2)]), hot_bytes=ByteSize(500)
        ),
        pack=PackConfig(batch_size=16),
    )
    preprocess(paths, config, folder / "data", Resources(workers=1))
    # Means of bags, sums of bags, and a model whose layers see all widths as they are.
    chosen = {"mean": {"pooling": "mean"}, "sum": {}, "cross": {"model": "dcnv2"}}
    for name, fields in chosen.items():
        settings_of_run: dict[str, Any] = {"placement": "hybrid", "threads": 1, "embedding_lr": 0.3} | fields
        train(folder / "data", TrainConfig(**settings_of_run), folder / name)
    joined = replace(logs["valid"], rows=logs["valid"].rows + logs["test"].rows)
    return Models(folder / "data", joined, {name: folder / name for name in chosen}, len(logs["valid"].rows))


def assert_all_agree(run: Path, data: Path, log: Log, folder: Path) -> None:
    """Bits of `evaluate` for the lines, and 1e-5 of them for the exported graph."""
    scored = ScoredRun(run, data, write_csv(folder / "lines.csv", log))
    predictor = RunPredictor(run)
    found = np.concatenate(list(predictor.logits(predictor.open_log(scored.log))))
    wanted = scored.evaluated()
    np.testing.assert_array_equal(found, wanted)
    tables = RunTables.open(run)
    inputs = serving_inputs_of(tables.schema)
    columns = {name: [row[number] for row in log.rows] for number, name in enumerate(log.kinds)}
    _, logit = build_graph(tables, ExportConfig())(*inputs.for_torch(columns))
    np.testing.assert_allclose(logit.numpy(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mean", "sum", "cross"])
@pytest.mark.parametrize("part", ["validation", "test"])
def test_the_lines_of_one_part_agree(models: Models, part: Part, name: str, tmp_path: Path) -> None:
    """Also where a stored batch has samples of both parts: each is predicted from its own first sample."""
    run = models.runs[name]
    first = 0 if part == "validation" else models.num_validation
    stop = models.num_validation if part == "validation" else None
    predictor = RunPredictor(run)
    log = write_csv(tmp_path / "part.csv", Log(KINDS, models.joined.rows[first:stop]))
    found = np.concatenate(list(predictor.logits(predictor.open_log(log))))
    shards = ShardSet.open(models.data)
    assert models.num_validation % shards.batch_size
    loaded = load_model(run, read_config(run), read_weights(run), shards.tables, shards.batch_size)
    batches = Predictor(shards, *loaded).logits(part)
    np.testing.assert_array_equal(found, np.concatenate([logit_B for _, logit_B in batches]))


def any_lines() -> st.SearchStrategy[list[tuple[Any, ...]]]:
    """Lines with known, unknown and missing categories anywhere, and lists of any such."""
    text = st.sampled_from([*KNOWN, "unknown", "ü"])
    number = st.sampled_from([0, 1, 5, -7, 2**62])
    line = st.tuples(
        st.integers(0, 1),
        st.none() | st.sampled_from([0.0, -2.5, 7.25, 1e6]),
        st.none() | text,
        st.none() | st.lists(text, min_size=1, max_size=5),
        st.none() | number,
        st.none() | st.lists(number, min_size=1, max_size=5),
    )
    return st.lists(line, min_size=1, max_size=40)


def check(models: Models, rows: list[tuple[Any, ...]], name: str) -> None:
    log = Log(KINDS, rows)
    with tempfile.TemporaryDirectory() as path:
        folder = Path(path)
        raw = write_csv(folder / "log.csv", log)
        (folder / "log.toml").write_text(schema_text(log, format="csv", tables=TABLES))
        schema = str(folder / "log.toml")
        hotset.preprocess(raw, folder / "data", schema=schema, like=models.data, workers=1)
        assert_all_agree(models.runs[name], folder / "data", log, folder)


@given(rows=any_lines(), name=st.sampled_from(["mean", "sum", "cross"]))
@settings(max_examples=8, deadline=None)
def test_any_lines_agree(models: Models, rows: list[tuple[Any, ...]], name: str) -> None:
    check(models, rows, name)
