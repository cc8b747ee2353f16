"""Evaluate a finished run on the test and validation parts of shards."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..pipeline.errors import ShardError
from .data.shards import Shards
from .metrics.scores import RunQuality
from .model_building.user_code import ModelSource
from .predict import Predictor
from .run_config import RunConfig
from .run_folder.run_files import CONFIG, WEIGHTS
from .run_folder.run_reader import read_config, read_manifest, read_weights, refuse_changed_files
from .run_folder.weights_file import Weights
from .scoring.loaded_model import LoadedModel
from .trainer_building.devices import open_device, set_threads


def evaluate(
    run: Path,
    shards: Path,
    *,
    device: str = "cpu",
    slow_bytes: int | None = None,
    model_source: ModelSource | None = None,
    weights: Weights | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunQuality:
    """Predict the test and validation parts of ``shards`` with the weights of ``run``.

    Args:
        device: where the model and its rows are.
        slow_bytes: memory for embedding rows; if not all fit, those of some batches at a time are read from
            the file of weights. None: as much as there is.
        model_source: makes the module of a user; None imports the class that the run records.
        weights: weights to score in place of those of the run, of the same names and shapes.
        progress: called after each batch with the samples so far and their number in all.

    Raises:
        ConfigError: no such device.
        HotsetError: ``run`` is not a finished run, or damaged.
        ShardError: the shards have no labels, or tables that are not those of the run.
    """
    # Cheap checks before anything is hashed.
    opened_device = open_device(device)
    config = read_config(run)
    weights = read_weights(run) if weights is None else weights
    opened = Shards.open(shards)
    refuse_other_tables(config, opened)
    # A run may have had another budget than its shards, and its scores of hot samples are by its own rows.
    num_hot = config.num_hot
    if num_hot is not None and num_hot != [table.num_hot for table in opened.tables]:
        opened = opened.with_hot_rows(num_hot)
    if (manifest := read_manifest(run)) is not None:
        refuse_changed_files(manifest, (CONFIG, WEIGHTS))
    opened.refuse_damage(["evaluation"])
    set_threads(config.threads)
    model = LoadedModel.load(
        run,
        config,
        weights,
        opened.tables,
        opened.batch_size,
        device=opened_device,
        slow_bytes=slow_bytes,
        model_source=model_source,
    )
    predictor = Predictor(opened, model.dense, model.embeddings, model.meter)
    return predictor.score_run(progress=progress)


def refuse_other_tables(config: RunConfig, shards: Shards) -> None:
    """Raise ShardError where the shards' tables, dim or dense features are not those of the run."""
    folder = shards.manifest.folder
    hint = "evaluate on the shards the run was trained on, or on shards of the same vocabulary"
    # What a row means must be equal, its number and its width; hot rows may differ.
    trained = [(table.name, table.num_rows, table.embedding_dim) for table in config.tables]
    sizes = {"embedding_dim": config.embedding_dim, "num_dense": config.num_dense}
    # The first table that differs is named; a missing or additional one at the end follows.
    found = [(table.name, table.num_rows, table.embedding_dim) for table in shards.tables]
    for wanted, other in zip(trained, found, strict=False):
        if wanted != other:
            raise ShardError(
                f"{folder}: table {_described(other)}, the run has {_described(wanted)}", hint=hint
            )
    if len(trained) != len(found):
        raise ShardError(f"{folder} has {len(found)} tables, the run {len(trained)}", hint=hint)
    for name, size in sizes.items():
        if getattr(shards, name) != size:
            raise ShardError(f"{folder} has {name} {getattr(shards, name)}, the run {size}", hint=hint)


def _described(table: tuple[str, int, int]) -> str:
    name, num_rows, dim = table
    return f"{name} of {num_rows} rows, {dim} wide"
