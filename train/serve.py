"""A finished run in use from Python: `hotset.predict`, `hotset.export` and `hotset.apply_changes`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..pipeline.errors import ConfigError
from ..pipeline.formats.columns import PROBABILITY
from ..pipeline.schema.schema import nearest
from .exporting.apply_changes import apply_changes as apply_to_export
from .exporting.export_run import export_run
from .fit import FittedRun, Folder
from .model_building.user_code import ModelSource
from .options.export_config import ExportConfig
from .options.predict_config import PredictConfig
from .scoring.predict_log import RunPredictor

if TYPE_CHECKING:
    import polars as pl

Config = TypeVar("Config", PredictConfig, ExportConfig)


def predict(
    run: Folder | FittedRun,
    data: Folder | pl.DataFrame,
    *,
    has_label: bool = True,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    **settings: Any,
) -> pl.DataFrame:
    """Predict the lines of a raw log or the rows of a frame, as ``hotset predict`` does.

    Args:
        run: a finished run, or its folder.
        data: path of a log in the format that the run was trained on, or a frame with its columns; a label in
            a column with a name is not read.
        has_label: whether the lines of a log without names of columns have labels.
        vocabulary: folder that `hotset.preprocess` wrote, for a run that was trained on shards alone.
        model: makes the user's module of the run; by default the class that the run records is imported.
        settings: ``batch_size``, ``threads`` and ``slow_bytes``, see `PredictConfig`.

    Returns:
        A frame with one float32 column, ``probability``: a row for each line or row, in their order.

    Raises:
        HotsetError: a damaged run, or a line or column that does not match the schema.

    Example:
        ``scores = hotset.predict("run", "train.tsv")["probability"]``
    """
    import polars as pl

    # A run that was just fitted knows what made its module, so nothing needs to be imported.
    folder, source = _source_of(run, model)
    predictor = RunPredictor(
        folder,
        _config_of(PredictConfig, settings),
        vocabulary=None if vocabulary is None else Path(vocabulary),
        model_source=source,
    )
    # Messages name the log by its path, and a frame as such.
    if isinstance(data, pl.DataFrame):
        parts = predictor.parts_of_table(data.to_arrow())
        where = "the frame"
    else:
        parts = predictor.parts_of_file(Path(data), has_label=has_label)
        where = str(data)
    found = list(predictor.probabilities(parts, where))
    scores = np.concatenate(found) if found else np.empty(0, np.float32)
    return pl.DataFrame({PROBABILITY: scores})


def export(
    run: Folder | FittedRun,
    out: Folder,
    *,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    **settings: Any,
) -> Path:
    """Write a run as a folder that serves it without hotset, as ``hotset export`` does.

    Args:
        run: a finished run, or its folder.
        out: new folder.
        vocabulary: folder that `hotset.preprocess` wrote, for a run that was trained on shards alone.
        model: makes the user's module of the run; by default the class that the run records is imported.
        settings: ``row_type`` ("fp32", "fp16", "bf16", "int8") and ``onnx``, see `ExportConfig`.

    Returns:
        ``out``, whose ``README.md`` has programs that use it.

    Raises:
        HotsetError: a damaged run, a module that `torch.export` cannot record, or ``out`` exists.

    Example:
        ``folder = hotset.export("run", "exported", row_type="int8")``
    """
    folder, source = _source_of(run, model)
    given = None if vocabulary is None else Path(vocabulary)
    config = _config_of(ExportConfig, settings)
    export_run(folder, Path(out), config, vocabulary=given, model_source=source)
    return Path(out)


def apply_changes(
    exported: Folder, changes: Folder, out: Folder, *, model: ModelSource | None = None
) -> Path:
    """Lead an exported folder to a later run by the changes that ``hotset export --since`` wrote.

    Args:
        exported: folder that `hotset.export` wrote of the earlier run, or this function.
        changes: folder of the changes since that run, with rows of the same type.
        out: new folder; its files are those of a whole export of the later run.
        model: makes the user's module of the run; by default the class that the run records is imported.

    Returns:
        ``out``.

    Raises:
        HotsetError: a folder is damaged, the changes begin with another run, or ``out`` exists.
    """
    apply_to_export(Path(exported), Path(changes), Path(out), model_source=model)
    return Path(out)


def _source_of(run: Folder | FittedRun, model: ModelSource | None) -> tuple[Path, ModelSource | None]:
    """The folder of a run, and what makes its module."""
    return (run.folder, model or run.model) if isinstance(run, FittedRun) else (Path(run), model)


def _config_of(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    names = [field.name for field in fields(kind)]
    for name in settings:
        if name not in names:
            raise ConfigError(f"there is no setting {name!r}", hint=nearest(name, names))
    return kind(**settings)
