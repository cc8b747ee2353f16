"""The readers of the folders that `fuzz_folders` edits: each stage, the trainer, statistics, `verify`.

Each reader is given a folder with DIR, the old vocabulary that DIR's id map is from, and a run, and an empty
folder to write to. It returns something to compare.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.ipc

from hotset.pipeline.errors import ByteSize, HotsetError, SaidElsewhereError
from hotset.pipeline.folders.checksum import hash_file
from hotset.pipeline.folders.manifest import MANIFEST, Manifest
from hotset.pipeline.folders.totals import VocabularyTotals
from hotset.pipeline.preprocess import INPUTS, PreprocessConfig, preprocess, run_stage
from hotset.pipeline.runtime.tasks import Resources
from hotset.pipeline.schema.schema_file import setting_of
from hotset.pipeline.stages.ingest import IngestConfig, ingest
from hotset.pipeline.stages.other_vocabulary import adopt, map_ids
from hotset.pipeline.statistics.frequencies import frequency_statistics
from hotset.pipeline.statistics.table_rows import open_table
from hotset.pipeline.verify import verify
from hotset.tests.support.thread_ranks import run_thread_ranks
from hotset.train.build import build_trainer
from hotset.train.config import CheckpointSettings, TrainConfig
from hotset.train.data.shards import Shards
from hotset.train.loop import run_steps
from hotset.train.ranks.ranks import RankError, Ranks
from hotset.train.recipe_options import Interval, RecipeOptions
from hotset.train.run import train
from hotset.train.serving.predict import RunPredictor, predict_file
from hotset.workflows.recipe_file import with_recipe

ONE = Resources(workers=1, memory_bytes=None)
TRAIN = TrainConfig(staging_bytes=ByteSize(3_000), prefetch=1, epochs=2, threads=1)
KEEPING_BEST = replace(TRAIN, evaluate_every=3, recipe=RecipeOptions(keep_best=True))
EVERY_FEW_STEPS = CheckpointSettings(checkpoint_every=Interval(steps=4))
Reader = Callable[[Path, Path], Any]


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
    train(root / "dir", TRAIN, out / "run", **others)
    return hash_file(out / "run" / "weights.safetensors")


def train_on_ranks_again(root: Path, out: Path) -> Any:
    """Train on two ranks, each a thread."""
    causes: list[HotsetError] = []

    def work(ranks: Ranks) -> list[bytes]:
        try:
            shards = Shards.open(root / "dir")
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


def resume_run(root: Path, out: Path) -> Any:
    """Finish a run that was interrupted."""
    shutil.copytree(root / "halted", out / "halted")
    train(root / "dir", KEEPING_BEST, out / "halted", checkpoints=EVERY_FEW_STEPS)
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
