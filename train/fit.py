"""Training from Python: `hotset.fit`, and what it returns.

These functions are what ``import hotset`` offers. They take paths as text too and settings by name, and leave
the work to `run` and `evaluate`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..pipeline.errors import ConfigError
from ..pipeline.schema.schema import DENSE_PREFIX, nearest
from . import evaluate as _evaluate
from . import run as _run
from .checkpoints.checkpoint_settings import CheckpointSettings
from .config import TrainConfig
from .metrics.scores import Quality
from .model_building.build_model import build_model
from .model_building.choose_model import recorded_model
from .model_building.model_inputs import ModelInputs
from .model_building.user_code import ModelSource, name_of
from .model_building.user_model import UserModel
from .options.exchange_options import ExchangeOptions
from .options.interval import parse_interval
from .options.recipe_options import RecipeOptions
from .run_folder.run_reader import read_config, read_finite, read_weights, refuse_other_weights
from .run_results.run_log import TrainProgress
from .run_results.run_summary import TrainSummary

Folder = str | Path


@dataclass(frozen=True, slots=True)
class FittedRun:
    """A finished training run."""

    folder: Path
    """Where its files are."""
    summary: TrainSummary
    """The quality it reached and its cost."""
    model: ModelSource | None = None
    """Maker of its module, where that was given as an object."""

    def load_model(self) -> nn.Module:
        """Return the dense layers with their trained weights, in evaluation mode; see `load_model`."""
        return load_model(self.folder, model=self.model)

    def table(self, name: str) -> torch.Tensor:
        """Return the (num_rows, embedding_dim) float32 weights of a table in id order, read from the run.

        Raises:
            ConfigError: the run has no such table.
        """
        names = [table.name for table in read_config(self.folder).tables]
        if name not in names:
            raise ConfigError(f"{self.folder} has no table {name!r}", hint=nearest(name, names))
        return read_finite(self.folder, read_weights(self.folder), name)


def fit(
    data: Folder,
    out: Folder,
    *,
    model: str | ModelSource | None = None,
    config: TrainConfig | None = None,
    replay: Folder | None = None,
    slow_dir: Folder | None = None,
    init_from: Folder | None = None,
    tensorboard: Folder | None = None,
    checkpoint_every: int | str | None = None,
    keep_checkpoints: int | None = None,
    progress: TrainProgress | None = None,
    **settings: Any,
) -> FittedRun:
    """Train on preprocessed shards and evaluate at the end, as ``hotset train`` does.

    Where ``out`` holds an unfinished run with these settings, it is resumed from its last checkpoint and ends
    with the bits of a run that was never interrupted.

    Args:
        data: folder that ``hotset preprocess --out`` created.
        out: new folder of the run, or that of one to resume.
        model: a name that ``--model`` takes; a class or function that makes a `torch.nn.Module` of
            `ModelInputs`; or such a module, which is copied and trained from the weights it has. By default
            that of ``config``.
        config: settings of the run; those of `TrainConfig` by default.
        replay: finished run whose batch order is used.
        slow_dir: folder of the spill file of rows beyond ``slow_bytes``; by default ``out``.
        init_from: a run whose weights and states this one starts with.
        tensorboard: folder for a file that TensorBoard reads.
        checkpoint_every: steps (500), or a time ("10min"), between two checkpoints; "off" writes none. By
            default 10 minutes.
        keep_checkpoints: number of checkpoints kept while the run trains; by default 2.
        progress: called as ``progress("train" or "evaluate", done, total, note)``, in samples.
        settings: fields of `TrainConfig` and of its recipe that differ from ``config``, such as
            ``placement="cache"`` and ``lr_schedule="cosine"``; ``model_args`` may be a dictionary. On several
            ranks also ``exchange`` and ``exchange_feedback``.

    Raises:
        HotsetError: what is wrong with the data, the settings or the model, in one line.

    Example:
        ``run = hotset.fit("data", "run", placement="lookahead", epochs=2); print(run.summary.auc)``
    """
    # Options of ranks are no fields of `TrainConfig`, so they are taken out of the settings first.
    of_ranks = {field.name for field in fields(ExchangeOptions)}
    rank_options = ExchangeOptions(**{name: settings.pop(name) for name in of_ranks & set(settings)})
    chosen = _with_settings(config or TrainConfig(), settings)
    # A module or a function that makes one, or the name of a model that hotset knows.
    source: ModelSource | None = None
    if isinstance(model, str):
        chosen = replace(chosen, model=model)
    elif model is not None:
        source = model
        chosen = replace(chosen, model=name_of(source))
    options: dict[str, Any] = {} if progress is None else {"progress": progress}
    # Paths may be text here; below they are paths.
    summary = _run.train(
        Path(data),
        chosen,
        Path(out),
        replay=None if replay is None else Path(replay),
        slow_dir=None if slow_dir is None else Path(slow_dir),
        init_from=None if init_from is None else Path(init_from),
        tensorboard=None if tensorboard is None else Path(tensorboard),
        checkpoints=_checkpoints(checkpoint_every, keep_checkpoints),
        model_source=source,
        rank_options=rank_options,
        **options,
    )
    return FittedRun(Path(out), summary, source)


def evaluate(
    run: Folder | FittedRun,
    data: Folder,
    *,
    model: ModelSource | None = None,
    slow_bytes: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Quality:
    """Score the weights of a run on the evaluation part of shards, as ``hotset evaluate`` does.

    Args:
        run: a finished run, or its folder.
        data: folder that ``hotset preprocess --out`` created.
        model: makes the user's module of the run; by default the class that the run records is imported.
        slow_bytes: memory for embedding rows; by default as much as there is.
        progress: called after each batch with the samples so far and their number in all.

    Raises:
        HotsetError: a damaged run, or shards that are not of its vocabulary.

    Example:
        ``print(hotset.evaluate("run", "data").auc)``
    """
    folder, source = (run.folder, model or run.model) if isinstance(run, FittedRun) else (Path(run), model)
    return _evaluate.evaluate(
        folder, Path(data), slow_bytes=slow_bytes, model_source=source, progress=progress
    )


def load_model(run: Folder, *, model: ModelSource | None = None) -> nn.Module:
    """Return the dense layers of a run with their trained weights, in evaluation mode: a user's own module,
    or hotset's `Dlrm` or `Dcn`.

    Args:
        run: folder of a finished run.
        model: makes the user's module of the run; by default the class that the run records is imported.

    Raises:
        HotsetError: the run is unfinished or damaged, or the module is another one.

    Example:
        ``dense_layers = hotset.load_model("run")``
    """
    folder = Path(run)
    config = read_config(folder)
    weights = read_weights(folder)
    # The model as it was built for the run, then its weights, each checked by name, shape and value.
    inputs = ModelInputs.of(config)
    built = build_model(recorded_model(config), inputs, 0, model)
    refuse_other_weights(folder, weights, config, built)
    built.load_state_dict(
        {name: read_finite(folder, weights, f"{DENSE_PREFIX}{name}") for name in built.state_dict()}
    )
    built.eval()
    # Users get their module as they wrote it, without what hotset wraps around it.
    return built.module if isinstance(built, UserModel) else built


def _checkpoints(every: int | str | None, keep: int | None) -> CheckpointSettings:
    settings = CheckpointSettings()
    if every is not None:
        settings = replace(settings, checkpoint_every=parse_interval(str(every)))
    return settings if keep is None else replace(settings, keep_checkpoints=keep)


def _with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return ``config`` with some of its fields set by name."""
    # The model has an argument of its own; options of ranks were taken out before, and only hints name them.
    own = {field.name for field in fields(TrainConfig)} - {"model"}
    of_recipe = {field.name for field in fields(RecipeOptions)}
    of_ranks = {field.name for field in fields(ExchangeOptions)}
    for name in settings:
        if name not in own | of_recipe:
            known = sorted(own | of_recipe | of_ranks)
            raise ConfigError(f"there is no setting {name!r}", hint=nearest(name, known))
    chosen = {name: value for name, value in settings.items() if name in own}
    # The config has the arguments of a model as JSON, as the command line takes them.
    if isinstance(chosen.get("model_args"), Mapping):
        chosen["model_args"] = json.dumps(dict(chosen["model_args"]))
    # Options of the recipe are beside the others, as they are on the command line.
    recipe = {name: value for name, value in settings.items() if name in of_recipe}
    if recipe:
        chosen["recipe"] = replace(chosen.get("recipe", config.recipe), **recipe)
    return replace(config, **chosen)
