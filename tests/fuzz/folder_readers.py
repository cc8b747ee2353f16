"""Every kind of folder there is, made from one small log, and its readers: the cases of `fuzz_folders`.

Each reader is given a folder with DIR, the old vocabulary that DIR's id map is from, and a run, and an empty
folder to write to. It returns something to compare.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Callable
from dataclasses import fields, replace
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.ipc
import torch

from hotset.pipeline.errors import ByteSize, HotsetError, SaidElsewhereError
from hotset.pipeline.folders.manifest import MANIFEST, Manifest, hash_file
from hotset.pipeline.folders.output import Output
from hotset.pipeline.folders.totals import VocabularyTotals
from hotset.pipeline.preprocess import FOLDERS, INPUTS, PreprocessConfig, preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema import FeatureSettings
from hotset.pipeline.schema.schema_file import setting_of
from hotset.pipeline.stages.count import CountConfig
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.pack import PackConfig
from hotset.pipeline.stages.rank import RankConfig, adopt, map_ids
from hotset.pipeline.stages.split import SplitConfig
from hotset.pipeline.statistics.folder import open_table
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.verify import verify
from hotset.tests.support.logs.other_logs import draw_log, schema_text, write_parquet
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.config import TrainConfig
from hotset.train.config_parts import CheckpointSettings, RecipeOptions
from hotset.train.data.shards import ShardSet
from hotset.train.loop import run_steps
from hotset.train.ranks.ranks import RankError, Ranks
from hotset.train.run import RunOptions, train
from hotset.train.serving.predict import RunPredictor, predict_file
from hotset.train.torchrec.batches import RankBatches, ReplicatedRows
from hotset.workflows.option_texts import with_recipe

ONE = Resources(workers=1, memory_bytes=None)
TRAIN = TrainConfig(staging_bytes=ByteSize(3_000), prefetch=1, epochs=2, threads=1)
KEEPING_BEST = replace(TRAIN, evaluate_every=3, recipe=RecipeOptions(keep_best=True))
EVERY_FEW_STEPS = CheckpointSettings(checkpoint_every=4)
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
Reader = Callable[[Path, Path], Any]


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
    preprocess([log], config, root / "dir", ONE)
    old = replace(config, rank=RankConfig(min_count=1))
    preprocess([log], old, root / "old", ONE)
    before, after = (Manifest.read(root / name / "vocabulary") for name in ("old", "dir"))
    map_ids(before, after, root / "dir" / "id_map", ONE)
    train(root / "dir", TRAIN, root / "run")
    train(root / "old", TRAIN, root / "old_run")
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
            preprocess([log], config, root / name, ONE)


def _halt(root: Path) -> None:
    """Interrupt a run behind a checkpoint and better weights than its first."""

    def stop(stage: str, done: int, total: int, note: str = "", step: int = 0, /) -> None:
        if stage == "train" and done > _HALTED_SAMPLES:
            raise _StoppedError

    with contextlib.suppress(_StoppedError):
        train(
            root / "dir",
            KEEPING_BEST,
            root / "halted",
            RunOptions(checkpoints=EVERY_FEW_STEPS, progress=stop),
        )


def files_of(made: Path) -> dict[str, tuple[int, str]]:
    """Bytes and checksum of every file but the manifests below a folder."""
    paths = sorted(path for path in made.rglob("*") if path.is_file() and path.name != MANIFEST)
    return {path.relative_to(made).as_posix(): hash_file(path) for path in paths}


def values_of(made: Manifest) -> dict[str, str]:
    """Every value of every file of a folder; what the bytes of missing ones hold is nobody's value."""
    found = {}
    for entry in made.files:
        try:
            table = pa.ipc.open_file(made.folder / entry.path).read_all()
            table.validate(full=True)  # texts are adopted as they are, and checked by whatever reads them
            found[entry.path] = repr(table.to_pydict())
        except (pa.ArrowException, OSError, ValueError):
            found[entry.path] = entry.xxh3_128
    return found


def run_again(stage: str, config: Any, root: Path, out: Path) -> Any:
    """Run a stage on the folders it reads, beside a link to each."""
    for name in ("columns", *INPUTS[stage]):
        if not (out / name).exists():
            (out / name).symlink_to(root / "dir" / name)
    return files_of(run_stage(stage, config, out, ONE).folder)


def map_ids_again(root: Path, out: Path) -> Any:
    """Map the ids of the old vocabulary to the new one."""
    old, new = (Manifest.read(root / name / "vocabulary") for name in ("old", "dir"))
    return files_of(map_ids(old, new, out / "id_map", ONE).folder)


def adopt_again(root: Path, out: Path) -> Any:
    """Take the vocabulary over for the columns of another log."""
    columns, model = (Manifest.read(root / name / "columns") for name in ("old", "dir"))
    made = adopt(columns, model, Manifest.read(root / "dir" / "vocabulary"), out / "vocabulary", ONE)
    return values_of(made)


def train_again(root: Path, out: Path, **runs: str) -> Any:
    """Train on the shards, perhaps in the order of a run, or from its weights and states."""
    others: dict[str, Any] = {how: root / run for how, run in runs.items()}
    train(root / "dir", TRAIN, out / "run", RunOptions(**others))
    return hash_file(out / "run" / "weights.safetensors")


def train_on_ranks_again(root: Path, out: Path) -> Any:
    """Train on two ranks, each a thread."""
    causes: list[HotsetError] = []

    def work(ranks: Ranks) -> list[bytes]:
        try:
            shards = ShardSet.open(root / "dir")
            trainer = build_trainer(shards, TRAIN, ranks=ranks)
            run_steps(trainer, lambda *_: None)
            return [trainer.embeddings.table(n).numpy().tobytes() for n in range(len(shards.tables))]
        except HotsetError as error:
            # The other ranks only say that one has failed.
            if not isinstance(error, RankError | SaidElsewhereError):
                causes.append(error)
            raise

    try:
        return run_thread_ranks(2, work)[0]
    except HotsetError as error:
        raise causes[0] if causes else error from None


def read_rank_batches(root: Path, out: Path) -> Any:
    """Make the batches of two ranks for TorchRec, as a run does once it has hashed the files."""
    shards = ShardSet.open(root / "dir")
    shards.refuse_damage()
    rows = ReplicatedRows(shards.tables, tuple(table.num_hot for table in shards.tables), "mean")
    found = []
    for rank in range(2):
        with contextlib.closing(RankBatches(shards, rows, rank=rank, world_size=2)) as batches:
            for batch in batches:
                parts = [getattr(group, each.name) for group in batch.groups for each in fields(group)]
                tensors = [batch.label_B, batch.dense_BK, *parts]
                # As numbers, of which -0 and 0 are the same.
                found += [each.tolist() for each in tensors if isinstance(each, torch.Tensor)]
    return found


def resume_run(root: Path, out: Path) -> Any:
    """Finish a run that was interrupted."""
    shutil.copytree(root / "halted", out / "halted")
    train(root / "dir", KEEPING_BEST, out / "halted", RunOptions(checkpoints=EVERY_FEW_STEPS))
    return hash_file(out / "halted" / "weights.safetensors")


def predict_again(root: Path, out: Path) -> Any:
    """Predict the lines of the log with the run and its vocabulary."""
    predict_file(RunPredictor(root / "run"), root / "log.parquet", out / "scores.parquet")
    return hash_file(out / "scores.parquet")


def statistics_of(root: Path, out: Path) -> Any:
    """Compute the statistics of DIR."""
    found = frequency_statistics(root / "dir", ONE)
    # Which folders the figures are from is another matter than what they are.
    return {name: figures for name, figures in found.items() if name != "provenance"}


def tables_of(root: Path, out: Path) -> Any:
    """Read every table row by row, with texts."""
    tables = VocabularyTotals.of(Manifest.read(root / "dir" / "vocabulary")).tables
    return [open_table(root / "dir", table.name).head(50) for table in tables]


def resume(config: PreprocessConfig, folder: str, log: str, root: Path, out: Path) -> Any:
    """Finish a folder that a run left unfinished."""
    shutil.copytree(root / folder, out / "dir", symlinks=True)
    preprocess([root / log], config, out / "dir", ONE)
    return files_of(out / "dir")


def schema_of_file(root: Path, out: Path) -> Any:
    """Parse the schema and read the log with it."""
    setting = setting_of(str(root / "schema.toml"))
    config = IngestConfig(schema=setting, block_bytes=ByteSize(24_000))
    return files_of(ingest([root / "log.parquet"], config, out / "columns", ONE).folder)


def faults_of_dir(root: Path, out: Path, *, rebuild: bool = False) -> list[str]:
    """Check DIR; where ``rebuild``, run every stage again, that of the log included."""
    raw = [root / "log.parquet"] if rebuild else []
    other = root / "old" if rebuild else None
    return verify(root / "dir", ONE, raw=raw, rebuild=rebuild, other_vocabulary=other)


def recipe_of_file(root: Path, out: Path) -> list[str]:
    """Read a recipe as the options of both commands."""
    arguments = ["--recipe", str(root / "recipe.toml")]
    return [word for command in ("preprocess", "train") for word in with_recipe(command, arguments)]
