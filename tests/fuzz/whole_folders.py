"""Every kind of folder there is, made from one small log: what `fuzz_folders` edits."""

from __future__ import annotations

import contextlib
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from hotset.pipeline.errors import ByteSize
from hotset.pipeline.folders.manifest import Manifest
from hotset.pipeline.folders.output import Output
from hotset.pipeline.preprocess import FOLDERS, PreprocessConfig, preprocess
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.schema.schema_file import setting_of
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig
from hotset.pipeline.stages.other_vocabulary import map_ids
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig
from hotset.pipeline.stages.split import SplitConfig
from hotset.tests.fuzz import folder_readers as readers
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.train.run import train

BEGUN_STAGES = {
    "begun-columns": "ingest",
    "begun-counts": "count",
    "begun-samples": "encode",
    "begun-shards": "pack",
}
"""Folders of runs that were stopped before a stage was sealed."""
_KINDS = {"y": "label", "tags": "list text", "site": "hex8", "price": "float", "user": "integer"}
_RECIPE = """[preprocess]
hot_bytes = "64KiB"
min_count = 2
[train]
placement = "lookahead"
embedding_lr = 0.5
bottom_mlp = [8, 4]
keep_best = true
"""
_HALTED_SAMPLES = 150
"""Samples after which a run is interrupted."""


def write_log(root: Path, seed: int) -> PreprocessConfig:
    """Write a log with lists, floats and texts, and its schema; return how to preprocess it."""
    log = draw_log(160, _KINDS, np.random.default_rng(seed), empty_lists=True)
    if not (root / "log.parquet").exists():
        write_parquet(root / "log.parquet", log)
        (root / "schema.toml").write_text(schema_text(log, format="parquet"))
        (root / "recipe.toml").write_text(_RECIPE)
    return PreprocessConfig(
        ingest=IngestConfig(schema=setting_of(str(root / "schema.toml")), block_bytes=ByteSize(24_000)),
        count=CountConfig(eval_fraction=0.3, valid_fraction=0.1),
        rank=RankConfig(min_count=2),
        split=SplitConfig(
            hot_bytes=ByteSize(600), embedding_dim=4, feature_dims=FeatureSettings((("user", 8),))
        ),
        pack=PackConfig(batch_size=16, seed=4, order="original" if seed % 2 else "grouped"),
    )


class _StoppedError(Exception):
    """A run was stopped before it sealed its folder."""


def make_folders(root: Path, config: PreprocessConfig) -> None:
    """Fill ``root`` with every kind of folder there is."""
    log = root / "log.parquet"
    preprocess([log], config, root / "dir", readers.ONE)
    old = replace(config, rank=RankConfig(min_count=1))
    preprocess([log], old, root / "old", readers.ONE)
    before, after = (Manifest.read(root / name / "vocabulary") for name in ("old", "dir"))
    map_ids(before, after, root / "dir" / "id_map", readers.ONE)
    train(root / "dir", readers.TRAIN, root / "run")
    train(root / "old", readers.TRAIN, root / "old_run")
    _halt(root)
    # A run keeps its vocabulary as links, which an edit of either file would change with the other.
    for name in ("run", "old_run", "halted"):
        shutil.copytree(root / name / "vocabulary", root / "copy")
        shutil.rmtree(root / name / "vocabulary")
        (root / "copy").rename(root / name / "vocabulary")
    seal = Output.seal
    for name, stage in BEGUN_STAGES.items():

        def stop(output: Output, totals: Any, stage: str = stage) -> Manifest:
            if output.folder.name == FOLDERS[stage]:
                raise _StoppedError
            return seal(output, totals)

        with mock.patch.object(Output, "seal", stop), contextlib.suppress(_StoppedError):
            preprocess([log], config, root / name, readers.ONE)


def _halt(root: Path) -> None:
    """Interrupt a run behind a checkpoint and better weights than its first."""

    def stop(stage: str, done: int, total: int, note: str = "") -> None:
        if stage == "train" and done > _HALTED_SAMPLES:
            raise _StoppedError

    with contextlib.suppress(_StoppedError):
        train(
            root / "dir",
            readers.KEEPING_BEST,
            root / "halted",
            checkpoints=readers.EVERY_FEW_STEPS,
            progress=stop,
        )
