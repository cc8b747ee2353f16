"""Small runs with the raw lines that they are evaluated on, for tests of predictions and exports."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.generate.generate import GenerateConfig, generate
from hotset.pipeline.preprocess import PreprocessConfig, preprocess
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings, Schema
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.support.logs.list_logs import KINDS
from hotset.tests.support.logs.other_logs import Log, draw_log, schema_text, write_csv, write_parquet
from hotset.train.build_model import ModelSource
from hotset.train.config import TrainConfig, read_config
from hotset.train.data.shards import ShardSet
from hotset.train.evaluate import Predictor, load_model
from hotset.train.run import RunOptions, train
from hotset.train.run_folder.weights import read_weights
from hotset.train.serving.export import features_of
from hotset.train.serving.serving_inputs import FEATURES, ServingInputs

NUM_EVALUATION = 90
_BATCH_SIZE = 16


@dataclass(frozen=True, slots=True)
class ScoredRun:
    """A run, its data, and a raw log of the evaluation part alone."""

    run: Path
    data: Path
    log: Path
    lines: Log | None = None
    """The log as values; None for Criteo's format."""

    def evaluated(self, model_source: ModelSource | None = None) -> NDArray[np.float32]:
        """The logits of the evaluation part, as `evaluate` computes them."""
        shards = ShardSet.open(self.data)
        config, weights = read_config(self.run), read_weights(self.run)
        loaded = load_model(
            self.run, config, weights, shards.tables, shards.batch_size, model_source=model_source
        )
        batches = Predictor(shards, *loaded).logits()
        return np.concatenate([logit_B for _, logit_B in batches])


def run_on_lists(
    folder: Path,
    *,
    format: str = "csv",
    seed: int = 0,
    tables: Mapping[str, str] | None = None,
    **settings: Any,
) -> ScoredRun:
    """A run on the log of `prepared_lists`."""
    return _trained(prepared_lists(folder, format=format, seed=seed, tables=tables), **settings)


def prepared_lists(
    folder: Path, *, format: str = "csv", seed: int = 0, tables: Mapping[str, str] | None = None
) -> ScoredRun:
    """A log of texts, numbers and lists whose tables have two widths, preprocessed; lists may be missing.

    The text "a" is another one for each seed, so that two logs have categories of their own.
    """
    rng = np.random.default_rng(seed)
    write = write_csv if format == "csv" else write_parquet
    sizes = {"train": 150, "test": NUM_EVALUATION}
    logs = {name: _tamed(draw_log(size, KINDS, rng), seed) for name, size in sizes.items()}
    paths = [write(folder / f"{name}.{format}", log) for name, log in logs.items()]
    schema = schema_text(logs["test"], format=format, tables=tables)
    config = PreprocessConfig(
        ingest=IngestConfig(schema=schema),
        count=CountConfig(eval_files=1),
        rank=RankConfig(min_count=2),
        split=SplitConfig(
            embedding_optimizer="adagrad",
            embedding_dim=4,
            feature_dims=FeatureSettings([("site", 8)]),
            hot_bytes=ByteSize(2000),
        ),
        pack=PackConfig(batch_size=_BATCH_SIZE),
    )
    preprocess(paths, config, folder / "data", Resources(workers=1))
    return ScoredRun(folder / "run", folder / "data", paths[1], logs["test"])


def run_on_criteo(folder: Path, **settings: Any) -> ScoredRun:
    """A run on a log of Criteo's format."""
    paths = [folder / "train.tsv", folder / "test.tsv"]
    for number, (path, size) in enumerate(zip(paths, (300, NUM_EVALUATION), strict=True)):
        generate(GenerateConfig(samples=size, seed=number, scale=1000), path, workers=1)
    config = PreprocessConfig(
        count=CountConfig(eval_files=1),
        split=SplitConfig(embedding_dim=4, hot_bytes=ByteSize(2000)),
        pack=PackConfig(batch_size=_BATCH_SIZE),
    )
    preprocess(paths, config, folder / "data", Resources(workers=1))
    return _trained(ScoredRun(folder / "run", folder / "data", paths[1]), **settings)


def _tamed(log: Log, seed: int) -> Log:
    """The log with dense values under no transform cut to [-2, 2]: others make logits of any size."""

    def renamed(value: Any) -> Any:
        if isinstance(value, list):
            return [renamed(element) for element in value]
        return f"a{seed}" if value == "a" else value

    cut = [kind in ("raw", "whole") for kind in log.kinds.values()]
    rows = [
        tuple(
            max(-2, min(2, value)) if is_cut and value is not None else renamed(value)
            for value, is_cut in zip(row, cut, strict=True)
        )
        for row in log.rows
    ]
    return Log(log.kinds, rows)


def _trained(scored: ScoredRun, **settings: Any) -> ScoredRun:
    source = settings.pop("model_source", None)
    config = replace(TrainConfig(placement="hybrid", threads=1), **settings)
    train(scored.data, config, scored.run, RunOptions(model_source=source))
    return scored


def serving_inputs_of(schema: Schema) -> ServingInputs:
    """Return what an exported folder of a run with this schema reads values with."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / FEATURES).write_text(json.dumps(features_of(schema)))
        return ServingInputs(folder)
