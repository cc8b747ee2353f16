"""Training and finished runs from Python: what ``import hotset`` offers.

`fit` trains, and `predict`, `export` and `apply` use a finished run. Functions accept paths as text and
settings by name, and leave the work to `run` and `evaluate`.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, fields, replace
from functools import partial
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypedDict, TypeVar, Unpack, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from ..pipeline.errors import ConfigError, local_path, plain_value
from ..pipeline.formats.user_data import CategoryIds, Frame, array_of, like_frame, table_of, write_frame
from ..pipeline.raw.log_files import inspect_logs
from ..pipeline.runtime.progress import shown_progress
from ..pipeline.schema.schema import nearest
from ..pipeline.schema.schema_file import schema_of
from ..pipeline.settings import Bytes, LastBatch, PreprocessSettings, Real, Whole, refuse_unknown
from . import evaluate as _evaluate
from . import run as _run
from .build_model import LossSource, ModelSource, UserModel, name_of
from .config import (
    DenseOptimizer,
    Engine,
    ExportConfig,
    PlacementName,
    PredictConfig,
    RowType,
    TrainConfig,
    read_config,
)
from .config_parts import (
    CheckpointSettings,
    ExchangeOptions,
    Pooling,
    RecipeOptions,
    Schedule,
    is_first,
    parse_steps_or_time,
)
from .data.dataset import categories_of
from .metrics import Quality
from .own_loop.embedding_module import RowSettings
from .run_folder.weights import read_finite, read_rows, read_weights
from .run_log import TrainSummary, read_summary
from .serving.changes import apply_changes
from .serving.export import export_run
from .serving.predict import RunPredictor, open_vocabulary, reported
from .threads import torch_as_before

if TYPE_CHECKING:
    import polars as pl


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

    @classmethod
    def open(cls, folder: Folder, *, model: ModelSource | None = None) -> FittedRun:
        """Open a finished run, however it was trained.

        Args:
            folder: that of the run.
            model: makes its module, where it cannot be imported.

        Raises:
            HotsetError: the run is unfinished or damaged.

        Example:
            ``hotset.FittedRun.open("run").vectors("item", ["a", "b"])``
        """
        return cls(local_path(folder), read_summary(local_path(folder)), model)

    def __repr__(self) -> str:
        """Return folder, placement, steps and main scores in one line."""
        found = self.summary
        return f"FittedRun({str(self.folder)!r}, {found.placement}, {found.num_steps:,} steps, {found!r})"

    def _repr_html_(self) -> str:
        """Return the scores as a notebook shows them, below the folder and the speed."""
        found = self.summary
        what = f"{self.folder}: {found.placement}, {found.num_steps:,} steps"
        return f"<p>{escape(what)}, {found.samples_per_second:,.0f} samples/s</p>{found._repr_html_()}"

    def load_model(self) -> nn.Module:
        """Return the dense layers with their trained weights, in evaluation mode; see `load_model`."""
        return load_model(self.folder, model=self.model)

    def table(self, name: str) -> torch.Tensor:
        """Return the weights of a table, (num_rows, embedding_dim) float32, in id order.

        Raises:
            ConfigError: the run has no such table.
        """
        names = [table.name for table in read_config(self.folder).tables]
        if name not in names:
            raise ConfigError(f"{self.folder} has no table {name!r}", hint=nearest(name, names))
        return read_finite(self.folder, read_weights(self.folder), name)

    def vectors(self, table: str, categories: Any) -> torch.Tensor:
        """Return the row of each category of a table, (N, embedding_dim) float32.

        Args:
            table: its name, or that of a feature that looks up in it.
            categories: a list, an array or a column of a frame, as the log writes them. None and NaN are
                missing; a category without a row has that of the others, as in `predict`.

        Raises:
            HotsetError: there is no such table, a value is no category of its kind, or the run is damaged.
        """
        found = self._categories_of(table)
        return read_rows(self.folder, found.table.name, found.ids(array_of(categories)))

    def ids(self, table: str, categories: Any) -> NDArray[np.int32]:
        """Return the row number of each category of a table, (N,); see `vectors`."""
        return self._categories_of(table).ids(array_of(categories))

    def categories(self, table: str, ids: Any) -> pl.Series:
        """Return the category of each row of a table by its number, as the log writes it.

        They are integers or texts. A text that the vocabulary does not keep is ``#`` and its hash, which
        `ids` and `vectors` take for it. The rows of missing values and of all other categories have None.

        Raises:
            HotsetError: there is no such table, or no such row.
        """
        return categories_of(self._categories_of(table), ids)

    def _categories_of(self, table: str) -> CategoryIds:
        vocabulary, text = open_vocabulary(self.folder, read_config(self.folder))
        return CategoryIds(vocabulary, schema_of(text), table)


class FitSettings(RowSettings, total=False):
    """Settings of `hotset.fit`: the fields of `TrainConfig`, of its recipe, and of `ExchangeOptions`."""

    placement: PlacementName
    slow_bytes: Bytes | None
    bottom_mlp: Sequence[int] | None
    top_mlp: Sequence[int] | None
    cross_layers: Whole | None
    cross_rank: Whole | None
    dropout: Real | None
    batch_norm: bool
    pooling: Pooling
    model_args: str | Mapping[str, Any] | None
    freeze: Sequence[str]
    loss: str | LossSource | None
    loss_weights: str | Mapping[str, Real] | None
    epochs: Whole
    last_batch: LastBatch
    device: str
    engine: Engine
    kernels: str | None
    dense_optimizer: DenseOptimizer
    dense_lr: Real | None
    dense_dtype: Literal["fp32", "bf16", "auto"]
    fae_variant: Literal["paper", "code"]
    evaluate_every: Whole | str | None
    negative_rate: Real | None
    log_every: Whole
    micro_batches: Whole | None
    recipe: RecipeOptions
    lr_schedule: Schedule
    lr_schedule_of: Literal["all", "dense", "rows"]
    warmup_steps: Whole
    decay_steps: Whole | None
    final_lr: Real
    clip_gradient: Real | None
    dense_decay: Real
    embedding_decay: Real
    max_steps: Whole | None
    max_time: str | None
    patience: Whole | None
    stop_at_auc: Real | None
    keep_best: bool
    best_by: str
    exchange: str
    exchange_feedback: bool


@torch_as_before()
def fit(
    data: Folder,
    out: Folder,
    *,
    model: str | ModelSource | None = None,
    config: TrainConfig | None = None,
    replay: Folder | None = None,
    slow_dir: Folder | None = None,
    init_from: Folder | None = None,
    init_tables: Mapping[str, Folder | Frame] | None = None,
    tensorboard: Folder | None = None,
    checkpoint_every: int | str | None = None,
    keep_checkpoints: int | None = None,
    progress: bool | Callable[[str, int, int, str], object] = True,
    **settings: Unpack[FitSettings],
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
        init_tables: by table, the vectors that its rows start with: a file of Parquet or NumPy, or a frame
            with a column ``category``, and one of lists or one for each dimension. Rows of other categories
            start as without it.
        tensorboard: folder for a file that TensorBoard reads.
        checkpoint_every: steps (500), or a time ("10min"), between two checkpoints; "off" writes none. By
            default 10 minutes.
        keep_checkpoints: number of checkpoints kept while the run trains; by default 2.
        progress: whether to show it on stderr: a bar on a terminal or in a notebook, a line every half minute
            in a log. Or a function, called as ``progress("train" or "evaluate", done, total, note)``, in
            samples.
        settings: fields of `TrainConfig` and of its recipe that differ from ``config``, such as
            ``placement="cache"`` and ``lr_schedule="cosine"``; ``model_args`` and ``loss_weights`` may be
            dictionaries, ``loss`` a function, and sizes text such as "64MiB". On several ranks also
            ``exchange`` and ``exchange_feedback``.

    Raises:
        HotsetError: what is wrong with the data, the settings or the model, in one line.

    Example:
        ``run = hotset.fit("data", "run", placement="lookahead", epochs=2); print(run.summary.auc)``
    """
    # Options of ranks are no fields of `TrainConfig`, so they are taken out of the settings first.
    of_ranks = {field.name for field in fields(ExchangeOptions)}
    given: dict[str, Any] = dict(settings)
    loss = given.get("loss")
    if callable(loss):
        given["loss"] = name_of(loss)
    exchange = ExchangeOptions(**{name: given.pop(name) for name in of_ranks & set(given)})
    config = plain_value("config", (TrainConfig, type(None)), config)
    chosen = _with_settings(config or TrainConfig(), given)
    # A module or a function that makes one, or the name of a model that hotset knows.
    source: ModelSource | None = None
    if isinstance(model, str):
        chosen = replace(chosen, model=model)
    elif model is not None:
        source = model
        if isinstance(source, nn.Module) and chosen.model_args is not None:
            raise ConfigError("model_args are for a class, and the model is built already")
        chosen = replace(chosen, model=name_of(source))
    # Rank 0 speaks for all.
    is_shown = progress if callable(progress) else progress and is_first()
    with (
        shown_progress(is_shown, num_arguments=4) as shown,
        _files_of(init_tables or {}) as files,
    ):
        options = _run.RunOptions(
            replay=_path(replay),
            slow_dir=_path(slow_dir),
            init_from=_path(init_from),
            init_tables=files,
            tensorboard=_path(tensorboard),
            checkpoints=_checkpoints(checkpoint_every, keep_checkpoints),
            model_source=source,
            loss_source=loss if callable(loss) else None,
            exchange=exchange,
            progress=shown,
        )
        return FittedRun(
            local_path(out), _run.train(local_path(data), chosen, local_path(out), options), source
        )


@torch_as_before()
def evaluate(
    run: Folder | FittedRun,
    data: Folder,
    *,
    model: ModelSource | None = None,
    slow_bytes: Bytes | None = None,
    negative_rate: float | None = None,
    progress: bool | Callable[[int, int], None] = True,
) -> Quality:
    """Score the weights of a run on the evaluation part of shards, as ``hotset evaluate`` does.

    Args:
        run: a finished run, or its folder.
        data: folder that ``hotset preprocess --out`` created.
        model: makes the user's module of the run; by default the class that the run records is imported.
        slow_bytes: memory for embedding rows, in bytes or as text ("64GiB"); by default as much as there is.
        negative_rate: share of the samples without a click that the log of ``data`` kept; by default that of
            the log of the training.
        progress: whether to show it, as `fit` does. Or a function, called after each batch with the samples
            so far and their number in all.

    Raises:
        HotsetError: a damaged run, or shards that are not of its vocabulary.

    Example:
        ``print(hotset.evaluate("run", "data").auc)``
    """
    folder, source = _source_of(run, model)
    row_bytes = _config_of(PredictConfig, {"slow_bytes": slow_bytes}).slow_bytes
    with shown_progress(not callable(progress) and progress) as shown:
        report = progress if callable(progress) else partial(shown, "evaluate")
        return _evaluate.evaluate(
            folder,
            local_path(data),
            slow_bytes=row_bytes,
            model_source=source,
            negative_rate=plain_value("negative_rate", (float, type(None)), negative_rate),
            progress=report,
        )


@torch_as_before()
def load_model(run: Folder, *, model: ModelSource | None = None) -> nn.Module:
    """Return the trained dense layers of a run, in evaluation mode.

    They are the user's module, or hotset's `Dlrm` or `Dcn`.

    Args:
        run: folder of a finished run.
        model: makes the user's module of the run; by default the class that the run records is imported.

    Raises:
        HotsetError: the run is unfinished or damaged, or the module is another one.

    Example:
        ``dense_layers = hotset.load_model("run")``
    """
    folder = local_path(run)
    built = _evaluate.load_dense_layers(folder, read_config(folder), read_weights(folder), model)
    built.eval()
    # Users get their module as they wrote it, without what hotset wraps around it.
    return built.module if isinstance(built, UserModel) else built


@contextmanager
def _files_of(tables: Mapping[str, Folder | Frame]) -> Iterator[dict[str, Path]]:
    """Yield a file for each table, written for the time of the block where it is given as a frame."""
    with ExitStack() as stack:
        files: dict[str, Path] = {}
        for name, given in tables.items():
            if isinstance(given, str | Path):
                files[name] = local_path(given)
            else:
                folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
                files[name] = folder / "frame.parquet"
                write_frame(given, files[name])
        yield files


def _checkpoints(every: int | str | None, keep: int | None) -> CheckpointSettings:
    settings = CheckpointSettings()
    if every is not None:
        settings = replace(settings, checkpoint_every=parse_steps_or_time(str(every)))
    return settings if keep is None else replace(settings, keep_checkpoints=keep)


def _with_settings(config: TrainConfig, settings: Mapping[str, Any]) -> TrainConfig:
    """Return ``config`` with some of its fields set by name."""
    # The model is a separate argument.
    own = {field.name for field in fields(TrainConfig)} - {"model"}
    of_recipe = {field.name for field in fields(RecipeOptions)}
    elsewhere = {"preprocess": PreprocessSettings.__annotations__}
    refuse_unknown(settings, FitSettings.__annotations__, elsewhere)
    chosen = {name: value for name, value in settings.items() if name in own}
    # The config has the arguments of a model as JSON, as the command line takes them.
    if isinstance(chosen.get("model_args"), Mapping):
        try:
            chosen["model_args"] = json.dumps(dict(chosen["model_args"]), default=lambda each: each.item())
        except (TypeError, ValueError, AttributeError):
            raise ConfigError("model_args must have numbers, texts and lists of them as values") from None
    if isinstance(chosen.get("loss_weights"), Mapping):
        chosen["loss_weights"] = ",".join(f"{name}={each}" for name, each in chosen["loss_weights"].items())
    # Options of the recipe are accepted next to the others, as on the command line.
    recipe = {name: value for name, value in settings.items() if name in of_recipe}
    if recipe:
        chosen["recipe"] = replace(chosen.get("recipe", config.recipe), **recipe)
    return replace(config, **chosen)


class PredictSettings(TypedDict, total=False):
    """Settings of `hotset.predict`: the fields of `PredictConfig`."""

    batch_size: Whole | None
    threads: Whole | None
    slow_bytes: Bytes | None


class ExportSettings(TypedDict, total=False):
    """Settings of `hotset.export`: the fields of `ExportConfig`."""

    row_type: RowType
    onnx: bool


Config = TypeVar("Config", PredictConfig, ExportConfig)


@overload
def predict(
    run: Folder | FittedRun,
    data: Folder | pl.DataFrame | pl.LazyFrame,
    *,
    has_label: bool = True,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    progress: bool | Callable[[int, int], None] = True,
    **settings: Unpack[PredictSettings],
) -> pl.DataFrame: ...


@overload
def predict(
    run: Folder | FittedRun,
    data: Frame,
    *,
    has_label: bool = True,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    progress: bool | Callable[[int, int], None] = True,
    **settings: Unpack[PredictSettings],
) -> Any: ...


@torch_as_before()
def predict(
    run: Folder | FittedRun,
    data: Folder | Frame | pl.LazyFrame,
    *,
    has_label: bool = True,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    progress: bool | Callable[[int, int], None] = True,
    **settings: Unpack[PredictSettings],
) -> Any:
    """Predict the lines of a raw log or the rows of a frame, as ``hotset predict`` does.

    Args:
        run: a finished run, or its folder.
        data: path of a log in the format that the run was trained on; or a frame of Polars, pandas or Arrow,
            or a dictionary, with its columns. A label in a column with a name is not read.
        has_label: whether the lines of a log without names of columns have labels.
        vocabulary: folder that `hotset.preprocess` wrote, for a run that was trained on shards alone.
        model: makes the user's module of the run; by default the class that the run records is imported.
        progress: whether to show it, as `fit` does. Or a function, called after each batch with the samples
            so far and those expected in all; 0 where that is unknown.
        settings: ``batch_size``, ``threads`` and ``slow_bytes``, see `PredictConfig`.

    Returns:
        A frame with one float32 column, ``probability``, or for several labels ``probability_NAME`` of each,
        and a row for each line or row, in their order; ``prediction`` in place of ``probability`` where the
        loss predicts values. It is of Polars, or of the kind of ``data``; one of pandas has its index.

    Raises:
        HotsetError: a damaged run, or a line or column that does not match the schema.

    Example:
        ``scores = hotset.predict("run", "train.tsv")["probability"]``
    """
    # A run that was just fitted knows what made its module, so nothing needs to be imported.
    folder, source = _source_of(run, model)
    predictor = RunPredictor(
        folder,
        _config_of(PredictConfig, settings),
        vocabulary=_path(vocabulary),
        model_source=source,
    )
    # Messages name the log by its path, and a frame as such.
    expected: Callable[[], int]
    if isinstance(data, str | Path):
        path = local_path(data)
        logs = predictor.open_log(path, has_label=has_label)
        expected = partial(predictor.expected_in, inspect_logs([path]))
    else:
        table = table_of(data)
        logs = predictor.open_table(table)
        expected = partial(int, table.num_rows)
    with shown_progress(not callable(progress) and progress) as shown:
        report = progress if callable(progress) else partial(shown, "predict")
        found = list(reported(predictor.predictions(logs), report, expected))
    names = predictor.columns
    scores = np.concatenate(found) if found else np.empty((0, len(names)), np.float32)
    columns = np.ascontiguousarray(scores.reshape(-1, len(names)).T)
    return like_frame(data, dict(zip(names, columns, strict=True)))


@torch_as_before()
def export(
    run: Folder | FittedRun,
    out: Folder,
    *,
    vocabulary: Folder | None = None,
    model: ModelSource | None = None,
    progress: bool = True,
    **settings: Unpack[ExportSettings],
) -> Path:
    """Write a run as a folder that serves it without hotset, as ``hotset export`` does.

    Args:
        run: a finished run, or its folder.
        out: new folder.
        vocabulary: folder that `hotset.preprocess` wrote, for a run that was trained on shards alone.
        model: makes the user's module of the run; by default the class that the run records is imported.
        progress: whether to show it, as `fit` does.
        settings: ``row_type`` ("fp32", "fp16", "bf16", "int8") and ``onnx``, see `ExportConfig`.

    Returns:
        ``out``, whose ``README.md`` has programs that use it.

    Raises:
        HotsetError: a damaged run, a module that `torch.export` cannot record, or ``out`` exists.

    Example:
        ``folder = hotset.export("run", "exported", row_type="int8")``
    """
    folder, source = _source_of(run, model)
    config = _config_of(ExportConfig, settings)
    with shown_progress(progress) as shown:
        export_run(
            folder,
            local_path(out),
            config,
            vocabulary=_path(vocabulary),
            model_source=source,
            progress=shown,
        )
    return local_path(out)


@torch_as_before()
def apply(
    exported: Folder,
    changes: Folder,
    out: Folder,
    *,
    model: ModelSource | None = None,
    progress: bool = True,
) -> Path:
    """Update an exported folder to a later run, as ``hotset apply`` does.

    The changes are those of ``hotset export --since``.

    Args:
        exported: folder that `hotset.export` wrote of the earlier run, or this function.
        changes: folder of the changes since that run, with rows of the same type.
        out: new folder; its files are those of a whole export of the later run.
        model: makes the user's module of the run; by default the class that the run records is imported.
        progress: whether to show it, as `fit` does.

    Returns:
        ``out``.

    Raises:
        HotsetError: a folder is damaged, the changes begin with another run, or ``out`` exists.
    """
    with shown_progress(progress) as shown:
        apply_changes(
            local_path(exported), local_path(changes), local_path(out), model_source=model, progress=shown
        )
    return local_path(out)


def _path(given: Folder | None) -> Path | None:
    return None if given is None else local_path(given)


def _source_of(run: Folder | FittedRun, model: ModelSource | None) -> tuple[Path, ModelSource | None]:
    """The folder of a run, and what makes its module."""
    return (run.folder, model or run.model) if isinstance(run, FittedRun) else (local_path(run), model)


def _config_of(kind: type[Config], settings: Mapping[str, Any]) -> Config:
    refuse_unknown(settings, {field.name for field in fields(kind)})
    return kind(**settings)
