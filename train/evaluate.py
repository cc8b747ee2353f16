"""Evaluate a finished run on the evaluation part of shards."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..pipeline.errors import HotsetError, ShardError
from .data.shards import Shards
from .execution.embeddings import Embeddings
from .meter import Meter
from .placements.placements import AllFast
from .predict import Predictor, Scores
from .rows.row_optimizers import RowOptimizer
from .run_folder import DENSE_PREFIX, read_config, read_weights
from .trainer import build_model, set_threads


@dataclass(frozen=True, slots=True)
class EvaluateSummary:
    """How good a run's weights are; None where a score is undefined."""

    auc: float | None
    log_loss: float | None
    """Nats a sample."""
    accuracy: float | None
    num_samples: int
    hot: Scores
    """Of the samples all of whose look-ups are hot."""
    mixed: Scores
    """Of the others."""

    def to_dict(self) -> dict[str, Any]:
        """As plain data."""
        return asdict(self)


def evaluate(run: Path, shards: Path) -> EvaluateSummary:
    """Predict the evaluation part of ``shards`` with the weights of ``run``, on the host.

    Raises:
        HotsetError: ``run`` is no finished run, or damaged.
        ShardError: the shards have no labels, or tables that are not those of the run.
    """
    config, weights = read_config(run), read_weights(run)
    opened = Shards.open(shards)
    refuse_other_tables(run, config, opened)
    opened.refuse_damage(["evaluation"])
    set_threads(config["threads"])
    predictions = _predictor(run, config, weights, opened).predict()
    hot, mixed = predictions.scores_of(hot=True), predictions.scores_of(hot=False)
    return EvaluateSummary(**asdict(predictions.scores), hot=hot, mixed=mixed)


def refuse_other_tables(run: Path, config: dict[str, Any], shards: Shards) -> None:
    """Raise ShardError where the shards' tables, dim or dense features are not those of the run."""
    folder, hint = (
        shards.manifest.folder,
        "evaluate on the shards the run was trained on, or ones of their vocabulary",
    )
    try:
        trained = [(table["name"], table["num_rows"], table["embedding_dim"]) for table in config["tables"]]
        sizes = {"embedding_dim": config["embedding_dim"], "num_dense": config["num_dense"]}
    except (KeyError, TypeError) as error:
        raise HotsetError(f"the config of {run} lacks {error}") from error
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
    run: Path, config: dict[str, Any], weights: dict[str, torch.Tensor], shards: Shards
) -> Predictor:
    host = torch.device("cpu")
    meter = Meter(host)
    model = build_model(shards, config["model"], 0)
    embeddings = Embeddings.build(shards.tables, AllFast, RowOptimizer("sgd", 0.1), 0, host, meter)
    dense = {
        name.removeprefix(DENSE_PREFIX): tensor
        for name, tensor in weights.items()
        if name.startswith(DENSE_PREFIX)
    }
    try:
        model.load_state_dict(dense)
        for number, table in enumerate(shards.tables):
            embeddings.set_table(number, weights[table.name])
    except (RuntimeError, KeyError) as error:
        raise HotsetError(f"the weights of {run} are not those its config describes: {error}") from error
    return Predictor(shards, model, embeddings, meter)
