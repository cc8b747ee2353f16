"""Evaluate a finished run on the test and validation parts of shards."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import torch

from ..pipeline.errors import ShardError
from ..pipeline.runtime.memory import available_bytes
from ..pipeline.schema.schema_names import DENSE_PREFIX
from ..pipeline.sizes import format_byte_size
from .data.shards import Shards
from .execution.embeddings import Embeddings
from .meter import Meter
from .metrics.scores import RunQuality
from .model.dlrm_shape import tables_by_width
from .model_building.build_model import build_model, build_step
from .model_building.choose_model import recorded_model
from .model_building.model_inputs import ModelInputs
from .model_building.user_code import ModelSource
from .placements.placements import AllFast, Hybrid
from .predict import Predictor
from .rows.row_optimizers import RowOptimizer
from .run_config import RunConfig
from .run_folder.run_files import CONFIG, WEIGHTS
from .run_folder.run_reader import (
    read_config,
    read_finite,
    read_manifest,
    read_weights,
    refuse_changed_files,
    refuse_not_finite,
    refuse_other_weights,
)
from .run_folder.saved_rows import SavedTier
from .run_folder.weights_file import Weights
from .trainer_building.devices import set_threads
from .work_threads import WorkThreads

_log = logging.getLogger(__name__)

_HOST = torch.device("cpu")
_NO_TRAINING = RowOptimizer("sgd", 0.1)


def evaluate(
    run: Path,
    shards: Path,
    *,
    slow_bytes: int | None = None,
    model_source: ModelSource | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> RunQuality:
    """Predict the test and validation parts of ``shards`` with the weights of ``run``, on the host.

    Args:
        slow_bytes: memory for embedding rows; if not all fit, those of some batches at a time are read from
            the file of weights. None: as much as there is.
        model_source: makes the module of a user; None imports the class that the run records.
        progress: called after each batch with the samples so far and their number in all.

    Raises:
        HotsetError: ``run`` is not a finished run, or damaged.
        ShardError: the shards have no labels, or tables that are not those of the run.
    """
    # Cheap checks before anything is hashed.
    config = read_config(run)
    weights = read_weights(run)
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
    predictor = _predictor(run, config, weights, opened, slow_bytes, model_source)
    return predictor.score_run(progress=progress)


def refuse_other_tables(config: RunConfig, shards: Shards) -> None:
    """Raise ShardError where the shards' tables, dim or dense features are not those of the run."""
    folder = shards.manifest.folder
    hint = "evaluate on the shards the run was trained on, or on shards of the same vocabulary"
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


def _predictor(
    run: Path,
    config: RunConfig,
    weights: Weights,
    shards: Shards,
    slow_bytes: int | None,
    model_source: ModelSource | None,
) -> Predictor:
    meter = Meter(_HOST)
    # Seeds and optimizer do not matter: every weight is overwritten, and none is trained.
    chosen = recorded_model(config)
    model = build_model(chosen, ModelInputs.of(shards), 0, model_source)
    refuse_other_weights(run, weights, config, model)
    threads = WorkThreads(config.threads)
    dense = build_step(model, chosen, shards.tables, shards.batch_size, threads, config.dense_dtype)
    model.load_state_dict(
        {name: read_finite(run, weights, f"{DENSE_PREFIX}{name}") for name in model.state_dict()}
    )
    num_bytes = sum(4 * table.num_rows * table.embedding_dim for table in shards.tables)
    room = _room_for_rows(num_bytes) if slow_bytes is None else slow_bytes
    if room is None or num_bytes <= room:
        embeddings = _rows_in_memory(run, weights, shards, meter, threads)
    else:
        _log.info("the rows take %s: they are read as batches need them", format_byte_size(num_bytes))
        embeddings = _rows_in_file(run, weights, shards, meter, threads, room)
    return Predictor(shards, dense, embeddings, meter)


def _room_for_rows(num_bytes: int) -> int | None:
    """Return the memory for rows where they do not fit in what is available; None where they do."""
    # A quarter is left for the dense layers, batches and the page cache.
    available = available_bytes()
    return available // 2 if available is not None and num_bytes > 3 * available // 4 else None


def _rows_in_memory(
    run: Path, weights: Weights, shards: Shards, meter: Meter, threads: WorkThreads
) -> Embeddings:
    widths = tables_by_width([table.embedding_dim for table in shards.tables])
    placements = {dim: AllFast([shards.tables[table] for table in tables]) for dim, tables in widths.items()}
    embeddings = Embeddings.build(shards.tables, placements, _NO_TRAINING, 0, _HOST, meter, threads)
    # One table at a time: only the one at hand is in memory twice.
    for number, table in enumerate(shards.tables):
        embeddings.set_table(number, read_finite(run, weights, table.name))
    return embeddings


def _rows_in_file(
    run: Path, weights: Weights, shards: Shards, meter: Meter, threads: WorkThreads, room_bytes: int
) -> Embeddings:
    for table in shards.tables:
        refuse_not_finite(run, weights, table.name)
    widths = tables_by_width([table.embedding_dim for table in shards.tables])
    chosen = {dim: [shards.tables[table] for table in tables] for dim, tables in widths.items()}
    sizes = {dim: dim * sum(table.num_rows for table in tables) for dim, tables in chosen.items()}
    tiers = {
        dim: SavedTier(tables, dim, weights, room_bytes * sizes[dim] // sum(sizes.values()))
        for dim, tables in chosen.items()
    }
    placements = {dim: Hybrid(tables) for dim, tables in chosen.items()}
    return Embeddings.build(
        shards.tables, placements, _NO_TRAINING, 0, _HOST, meter, threads, slow_tiers=tiers
    )
