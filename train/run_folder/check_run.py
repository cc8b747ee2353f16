"""Checks of what the files of a run mean together: settings, vocabulary, weights, states and batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ...pipeline.errors import HotsetError, first_line
from ...pipeline.folders.manifest import Manifest
from ...pipeline.folders.totals import VocabularyTotals
from ...pipeline.formats.arrow_files import read_batch
from ..checkpoints.dense_state import is_optimizer_state
from ..config import TrainConfig
from ..data.batch_order import BATCH_ORDER, read_batch_order
from ..model_building.build_model import build_model
from ..model_building.choose_model import choose_model, recorded_model, recorded_name
from ..model_building.model_inputs import ModelInputs
from ..rows.row_optimizers import RowOptimizer
from ..run_config import RunConfig
from .check_results import parse_object
from .run_files import CONFIG, STATES, SUMMARY, VOCABULARY
from .run_reader import read_finite, read_states, read_weights, refuse_other_weights

_DENSE = "dense."
_OPTIMIZER = "optimizer."
_SQUARES = ("adagrad", "rowwise-adagrad")
"""Optimizers whose state is sums of squares."""


def check_config(run: Path, config: RunConfig, settings: TrainConfig) -> None:
    """Check that what a config repeats or derives is what its settings say; raises HotsetError."""
    path = run / CONFIG
    raw = parse_object(path.read_bytes(), str(path))
    # Runs of earlier versions record less.
    wanted: dict[str, Any] = {}
    if "dense_dtype" in raw and "dense_dtype" in raw["config"]:
        wanted["dense_dtype"] = raw["config"]["dense_dtype"]
    if config.dense_model is not None:
        try:
            wanted["dense_model"] = choose_model(settings, config.embedding_dim).to_json()
            wanted["model"] = recorded_name(settings, config.embedding_dim)
        except HotsetError as error:
            raise HotsetError(f"{path} is damaged: {first_line(error)}") from error
    for name, value in wanted.items():
        if raw.get(name) != value:
            raise HotsetError(
                f"{path} is damaged: {name} is {raw.get(name)!r}, and its settings say {value!r}"
            )


def check_vocabulary(run: Path, config: RunConfig, inputs: dict[str, str]) -> Iterator[str]:
    """Yield the faults of a run's inputs, and of the vocabulary that it keeps.

    Args:
        inputs: fingerprints in the manifest of the run, by folder.
    """
    raw = parse_object((run / CONFIG).read_bytes(), str(run / CONFIG))
    if inputs.get("shards") != raw.get("shards"):
        yield f"{run / CONFIG} is of the shards {raw.get('shards')}, the manifest of {inputs.get('shards')}"
    if VOCABULARY not in inputs:
        return
    if inputs[VOCABULARY] != config.vocabulary:
        yield f"{run / CONFIG} is of the vocabulary {config.vocabulary}, the manifest of {inputs[VOCABULARY]}"
    # Its tables are those of the run, and no category has two ids.
    kept = Manifest.read(run / VOCABULARY)
    tables = VocabularyTotals.of(kept).tables
    found = [(table.name, table.num_rows, table.is_multi_hot) for table in tables]
    wanted = [(table.name, table.num_rows, table.is_multi_hot) for table in config.tables]
    if found != wanted:
        yield f"{run / VOCABULARY} has the tables {found}, the run {wanted}"
    elif kept.stage == "rank":
        for table in tables:
            categories = read_batch(kept, kept.entry(f"{table.name}.arrow")).column("category").drop_null()
            if len(categories.unique()) != len(categories):
                yield f"{run / VOCABULARY}: {table.name} has a category twice"


def check_weights(run: Path, config: RunConfig) -> None:
    """Check that the weights are finite, and those of the config; raises HotsetError."""
    weights = read_weights(run)
    chosen = recorded_model(config)
    # A user's class is not imported to verify bytes: its parameters are those that were written.
    model = None
    if chosen.kind != "module":
        model = build_model(chosen, ModelInputs.of(config), 0)
    refuse_other_weights(run, weights, config, model)
    for name in weights:
        read_finite(run, weights, name)


def check_states(run: Path, config: RunConfig) -> None:
    """Check that optimizer states are finite, and those of the weights; raises HotsetError."""
    path = run / STATES
    if not path.exists():
        return
    states = read_states(run)
    dense = read_weights(run).shapes
    _refuse_other_states(path, states.shapes, config)
    for name in states:
        tensor = states[name]
        if not torch.isfinite(tensor).all():
            raise HotsetError(f"{path} is damaged: {name} holds values that are not finite")
        if not is_optimizer_state(name):
            if _optimizer_of(config) in _SQUARES and tensor.numel() and float(tensor.min()) < 0:
                raise HotsetError(f"{path} is damaged: {name} holds sums of squares below 0")
            continue
        # The state of a parameter has its shape, or is a number.
        shape = dense.get(_DENSE + name.removeprefix(_OPTIMIZER).partition(" ")[0])
        if shape is None or tuple(tensor.shape) not in (shape, ()):
            raise HotsetError(
                f"{path} is damaged: {name} of shape {tuple(tensor.shape)} is of no dense layer"
            )


def _refuse_other_states(path: Path, shapes: Mapping[str, tuple[int, ...]], config: RunConfig) -> None:
    """Raise HotsetError unless the tables have the states of the optimizer that the config names."""
    if config.config is None:
        return
    optimizer = RowOptimizer(config.config.embedding_optimizer, 1.0)
    sizes = {
        table.name: (table.num_rows, optimizer.state_width(table.embedding_dim)) for table in config.tables
    }
    wanted = {name: shape for name, shape in sizes.items() if shape[1]}
    found = {name: shape for name, shape in shapes.items() if not is_optimizer_state(name)}
    for name in sorted(wanted.keys() | found.keys()):
        if wanted.get(name) != found.get(name):
            raise HotsetError(
                f"{path} is damaged: the states of {name} have the shape {found.get(name)}, "
                f"with {optimizer.name} {wanted.get(name)}"
            )


def _optimizer_of(config: RunConfig) -> str | None:
    return None if config.config is None else config.config.embedding_optimizer


def check_order(run: Path, num_epochs: int | None, summary: dict[str, Any]) -> None:
    """Check that the batches are those of whole epochs, as many as the summary says; raises HotsetError."""
    path = run / BATCH_ORDER
    order = read_batch_order(path)
    if order.min(initial=0) < 0:
        raise HotsetError(f"{path} is damaged: it has a batch below 0")
    num_steps = summary.get("num_steps", order.size)
    if order.size != num_steps:
        raise HotsetError(f"{path} is damaged: it has {order.size} steps, {SUMMARY} has {num_steps}")
    # The last epoch of a run that stopped before its end is not whole.
    if num_epochs is None or summary.get("stopped"):
        return
    is_whole = order.size % num_epochs == 0
    epochs = np.sort(order.reshape(num_epochs, -1), axis=1) if is_whole else order
    if not is_whole or (epochs != np.arange(epochs.shape[1])).any():
        raise HotsetError(f"{path} is damaged: it has not each batch once in each epoch")
