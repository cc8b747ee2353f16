"""The model that options name, with its widths and labels, and the shape that fits given shards.

K dense features, D embedding_dim, V = F + 1 vectors that interact (F where K = 0), N numbers of a sample
(embeddings and dense features together), R rank. Imports nothing heavy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Self

from ...pipeline.errors import ConfigError, ShardError
from ...pipeline.folders.manifest import RecordError
from ...pipeline.folders.totals import by_feature
from ...pipeline.schema.schema import nearest
from ..config import TrainConfig
from ..config_parts import DLRM_NAMES, ModelConfig, parse_arguments, parse_loss_weights

if TYPE_CHECKING:
    from ..config import RunConfig
    from ..data.shards import ShardSet


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """Sizes of a DLRM; with a seed they decide its initial values."""

    num_dense: int
    """Number of dense features, K; 0 leaves the bottom MLP out."""
    num_tables: int
    """Number of embeddings of a sample, F: one for each feature."""
    embedding_dim: int
    """Width of the embeddings that interact, D, which is also the last width of the bottom MLP."""
    bottom_widths: tuple[int, ...]
    """Widths of the hidden layers between the dense features and D."""
    top_widths: tuple[int, ...]
    """Widths of the hidden layers between the interaction and the logit."""
    table_dims: tuple[int, ...] = ()
    """Row width of each table where some differ from D: such embeddings are projected to D by a learned
    linear map without bias. Empty: all are D wide."""
    dropout: float = 0.0
    """Share of the outputs of the hidden layers of the top MLP dropped in training."""
    batch_norm: bool = False
    """Whether the outputs of hidden layers are normalized over the batch."""
    num_logits: int = 1
    """Logits of a sample, one for each label."""

    @property
    def num_vectors(self) -> int:
        return self.num_tables + (self.num_dense > 0)

    @property
    def top_inputs(self) -> int:
        pairs = self.num_vectors * (self.num_vectors - 1) // 2
        return pairs + (self.embedding_dim if self.num_dense else 0)

    @property
    def bottom(self) -> tuple[int, ...]:
        """Widths of the bottom MLP, inputs to outputs; empty without dense features."""
        return (self.num_dense, *self.bottom_widths, self.embedding_dim) if self.num_dense else ()

    @property
    def top(self) -> tuple[int, ...]:
        """Widths of the top MLP from its inputs to the logits."""
        return (self.top_inputs, *self.top_widths, self.num_logits)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each linear layer."""
        return [*pairwise(self.bottom), *pairwise(self.top)]

    @property
    def num_weights(self) -> int:
        """Parameters of all linear layers."""
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers)

    @property
    def interaction_products(self) -> int:
        """Multiplications of a sample outside linear layers."""
        return self.num_vectors**2 * self.embedding_dim

    @property
    def interaction_floats(self) -> int:
        """Numbers of a sample that a forward pass keeps besides linear outputs."""
        return self.num_vectors * self.embedding_dim + self.num_vectors**2 + self.top_inputs


@dataclass(frozen=True, slots=True)
class _Preset:
    embedding_dim: int | None
    bottom_widths: tuple[int, ...]
    top_widths: tuple[int, ...]


PRESETS = {
    "kaggle": _Preset(16, (512, 256, 64), (512, 256)),
    "terabyte": _Preset(64, (512, 256), (512, 512, 256)),
    "mlperf": _Preset(128, (512, 256), (1024, 1024, 512, 256)),
    "small": _Preset(None, (64,), (64,)),
}


def preset_name(model: str, embedding_dim: int) -> str:
    """The name of the preset; ``auto`` and ``dlrm`` mean the one that fits ``embedding_dim``."""
    if model not in ("auto", "dlrm"):
        return model
    return next((name for name, preset in PRESETS.items() if preset.embedding_dim == embedding_dim), "small")


def preset_widths(model: str, embedding_dim: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the hidden widths of a preset or ``auto``: bottom MLP, top MLP.

    Raises:
        ConfigError: the preset has another embedding_dim.
    """
    name = preset_name(model, embedding_dim)
    preset = PRESETS[name]
    if preset.embedding_dim not in (None, embedding_dim):
        raise ConfigError(
            f"model {name} has embedding_dim {preset.embedding_dim}, the shards have {embedding_dim}",
            hint=f"use --model auto, or preprocess with --embedding-dim {preset.embedding_dim}",
        )
    return preset.bottom_widths, preset.top_widths


def tables_by_dim(dims: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Group the numbers of tables by embedding_dim, in the order of their first table.

    Args:
        dims: embedding_dim of each table.
    """
    return {
        dim: tuple(number for number, other in enumerate(dims) if other == dim) for dim in dict.fromkeys(dims)
    }


def dlrm_shape(
    widths: str | tuple[tuple[int, ...], tuple[int, ...]],
    num_dense: int,
    num_tables: int,
    embedding_dim: int,
    table_dims: Sequence[int] = (),
) -> DlrmShape:
    """Build the shape for shards of these sizes.

    Args:
        widths: hidden widths of the bottom and the top MLP; or the preset, perhaps ``auto``, that has them.
        num_dense: dense features.
        num_tables: embeddings of a sample, one for each feature.
        embedding_dim: the width that interacts.
        table_dims: embedding_dim of each table; empty where all are ``embedding_dim``.

    Raises:
        ConfigError: the preset has another embedding_dim.
        ShardError: with one table and no dense feature nothing interacts.
    """
    bottom, top = preset_widths(widths, embedding_dim) if isinstance(widths, str) else widths
    # Projections are needed only where some table differs from the common width.
    others = tuple(table_dims) if set(table_dims) - {embedding_dim} else ()
    shape = DlrmShape(num_dense, num_tables, embedding_dim, bottom, top, others)
    if shape.num_vectors < 2:
        raise ShardError(
            "the shards have one table and no dense feature: in a DLRM nothing interacts",
            hint="use --model dcnv2, which takes them, or a class of your own: --model nets:Net",
        )
    return shape


@dataclass(frozen=True, slots=True)
class DcnShape:
    """Sizes of a DCN V2; with a seed they decide its initial values."""

    num_dense: int
    """Number of dense features, K."""
    table_dims: tuple[int, ...]
    """Row width of each table; they may differ, and nothing is projected."""
    config: ModelConfig
    """Layers of the networks."""
    num_logits: int = 1
    """Logits of a sample, one for each label."""

    @property
    def bottom(self) -> tuple[int, ...]:
        """Widths of the bottom MLP from its inputs to its outputs; empty without one."""
        has_bottom = self.num_dense and self.config.bottom_widths
        return (self.num_dense, *self.config.bottom_widths) if has_bottom else ()

    @property
    def num_inputs(self) -> int:
        """Numbers of a sample that are crossed, N."""
        return sum(self.table_dims) + (self.bottom[-1] if self.bottom else self.num_dense)

    @property
    def deep(self) -> tuple[int, ...]:
        """Widths of the deep network from its inputs to its outputs."""
        return (self.num_inputs, *self.config.top_widths)

    @property
    def last_inputs(self) -> int:
        """Inputs of the layer that gives the logits."""
        return self.deep[-1] + (0 if self.config.structure == "stacked" else self.num_inputs)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each linear layer."""
        rank = self.config.cross_rank
        full = (self.num_inputs, self.num_inputs)
        cross = [full] if rank is None else [(self.num_inputs, rank), (rank, self.num_inputs)]
        repeated = cross * self.config.cross_layers
        return [*pairwise(self.bottom), *repeated, *pairwise(self.deep), (self.last_inputs, self.num_logits)]

    @property
    def num_weights(self) -> int:
        """Parameters of all layers; the first of a factored pair has no bias."""
        without_bias = (self.config.cross_rank or 0) * self.config.cross_layers
        return sum((inputs + 1) * outputs for inputs, outputs in self.layers) - without_bias

    @property
    def interaction_products(self) -> int:
        """Multiplications of a sample outside linear layers."""
        return self.num_inputs * self.config.cross_layers

    @property
    def interaction_floats(self) -> int:
        """Numbers of a sample that a forward pass keeps besides linear outputs."""
        return self.num_inputs * (1 + self.config.cross_layers)


@dataclass(frozen=True, slots=True)
class TableInput:
    """The embedding table of a feature, as the constructor of a model sees it."""

    name: str
    """Name of the feature; another one may look up in the same table."""
    num_embeddings: int
    """Rows of the table."""
    embedding_dim: int
    """Width of its embeddings."""
    is_multi_hot: bool = False
    """Whether its feature is list-valued."""


@dataclass(frozen=True, slots=True)
class ModelInputs:
    """The sizes that the constructor of a user's module gets as its first argument."""

    num_dense: int
    """Number of dense features, which may be 0."""
    tables: tuple[TableInput, ...]
    """The table of each feature, in their order."""
    embedding_dim: int
    """Width of the embeddings that the log was preprocessed for; single tables may have others."""
    labels: tuple[str, ...] = ()
    """Names of the labels, in the order of the logits; empty for a log with a single ``label``."""

    @classmethod
    def of(cls, sizes: ShardSet | RunConfig) -> Self:
        """Describe the features and tables of shards, or of the config of a run."""
        tables = (
            TableInput(feature.name, feature.num_rows, feature.embedding_dim, feature.is_multi_hot)
            for table in sizes.tables
            for feature in by_feature([table])
        )
        return cls(sizes.num_dense, tuple(tables), sizes.embedding_dim, sizes.labels)

    @property
    def num_logits(self) -> int:
        """Logits of a sample."""
        return max(1, len(self.labels))

    @property
    def table_dims(self) -> tuple[int, ...]:
        """Width of the embeddings of each table."""
        return tuple(table.embedding_dim for table in self.tables)

    @property
    def total_dim(self) -> int:
        """Width of all embeddings of a sample side by side."""
        return sum(self.table_dims)


_CROSS_OPTIONS = ("cross_layers", "cross_rank")
_MLP_OPTIONS = ("bottom_mlp", "top_mlp")
_ARGUMENTS = {"dcnv2": ("structure",), "tbsm": ("history_length", "attention_widths", "last_widths")}
"""Sizes that few set, which `model_args` holds by their names in `ModelConfig`."""
_REGULARIZATION = ("dropout", "batch_norm")
_DEFAULT_CROSS_LAYERS = 3
"""Cross layers of DCN V2; its paper has 2 to 4."""
_HISTORY_LENGTH = 20
_ELEMENT_WIDTHS = (15, 15)
_ATTENTION_WIDTHS = (15, 15)
_LAST_WIDTHS = (60,)
"""Sizes of TBSM in its own benchmark on Taobao's log (``bench/tbsm_bench.sh`` of facebookresearch/tbsm)."""


def choose_model(config: TrainConfig, embedding_dim: int) -> ModelConfig:
    """Return the model that ``config`` means on shards of this embedding dimension.

    Raises:
        ConfigError: a preset of another embedding dimension, or an option that the model does not have.
    """
    if config.model in DLRM_NAMES:
        return _dlrm(config, embedding_dim)
    if config.model == "dcnv2":
        return _dcn(config, embedding_dim)
    if config.model == "tbsm":
        return _tbsm(config)
    _refuse_options(config, (*_MLP_OPTIONS, *_CROSS_OPTIONS, *_REGULARIZATION))
    return ModelConfig(
        kind="module", class_name=config.model, arguments=config.model_args, pooling=config.pooling
    )


def choose_labels(config: TrainConfig, labels: Sequence[str]) -> tuple[str, ...]:
    """Return the labels that a run is trained on, in the order of its logits.

    Args:
        labels: those of the shards; empty where they have one that all samples have.

    Raises:
        ConfigError: a loss weight of another label, or none above 0.
    """
    weights = parse_loss_weights(config.loss_weights)
    for name in weights:
        if name not in labels:
            has = f"labels {', '.join(labels)}" if labels else "a single label without a name"
            hint = nearest(name, labels) if labels else "leave --loss-weights out"
            raise ConfigError(f"--loss-weights names {name!r}, and the log has {has}", hint=hint)
    chosen = tuple(name for name in labels if weights.get(name, 1.0))
    if labels and not chosen:
        raise ConfigError(
            "--loss-weights leaves out every label of the log", hint="give one of them a weight above 0"
        )
    return chosen


def recorded_name(config: TrainConfig, embedding_dim: int) -> str:
    """Return the model name that a run records: preset, model or class."""
    return preset_name(config.model, embedding_dim) if config.model in DLRM_NAMES else config.model


def _dlrm(config: TrainConfig, embedding_dim: int) -> ModelConfig:
    _refuse_options(config, (*_CROSS_OPTIONS, "model_args"))
    bottom, top = preset_widths(config.model, embedding_dim)
    top = top if config.top_mlp is None else config.top_mlp
    return ModelConfig(
        kind="dlrm",
        bottom_widths=bottom if config.bottom_mlp is None else config.bottom_mlp,
        top_widths=top,
        # Without hidden layers nothing is dropped.
        dropout=config.dropout or 0.0 if top else 0.0,
        batch_norm=config.batch_norm,
        pooling=config.pooling,
    )


def _dcn(config: TrainConfig, embedding_dim: int) -> ModelConfig:
    # The deep network is as wide as the top MLP of the DLRM that fits these shards.
    deep = PRESETS[preset_name("auto", embedding_dim)].top_widths
    deep = deep if config.top_mlp is None else config.top_mlp
    bottom = config.bottom_mlp or ()
    model = ModelConfig(
        kind="dcnv2",
        bottom_widths=bottom,
        top_widths=deep,
        cross_layers=_DEFAULT_CROSS_LAYERS if config.cross_layers is None else config.cross_layers,
        cross_rank=config.cross_rank,
        dropout=config.dropout or 0.0 if deep else 0.0,
        batch_norm=config.batch_norm and bool(bottom or deep),
        pooling=config.pooling,
    )
    return _with_arguments(model, config)


def _tbsm(config: TrainConfig) -> ModelConfig:
    _refuse_options(config, _CROSS_OPTIONS)
    # Its layers are many to a sample and small: neither its paper nor its code regularizes them.
    for name in _REGULARIZATION:
        if getattr(config, name) not in (None, False, 0):
            raise ConfigError(f"--{name.replace('_', '-')} is no option of the model tbsm")
    if config.pooling != "sum":
        raise ConfigError(
            "--pooling is no option of the model tbsm: it takes the elements of a list one by one",
            hint="leave --pooling out",
        )
    top = _ELEMENT_WIDTHS if config.top_mlp is None else config.top_mlp
    if not top:
        raise ConfigError(
            "the top MLP of tbsm needs a layer, whose width is that of the vector of an element",
            hint="give --top-mlp 15,15, or leave it out",
        )
    model = ModelConfig(
        kind="tbsm",
        bottom_widths=config.bottom_mlp or (),
        top_widths=top,
        history_length=_HISTORY_LENGTH,
        attention_widths=_ATTENTION_WIDTHS,
        last_widths=_LAST_WIDTHS,
    )
    return _with_arguments(model, config)


def _with_arguments(model: ModelConfig, config: TrainConfig) -> ModelConfig:
    """Return a model with the sizes that ``--model-args`` gives it."""
    given = parse_arguments(config.model_args)
    for name in given:
        if name not in _ARGUMENTS[model.kind]:
            known = ", ".join(_ARGUMENTS[model.kind])
            raise ConfigError(f"--model-args has {name!r}, and the model {model.kind} takes {known}")
    try:
        return ModelConfig.from_json(model.to_json() | given)
    except RecordError as error:
        raise ConfigError(f"--model-args: {error}") from error


def _refuse_options(config: TrainConfig, names: tuple[str, ...]) -> None:
    """Raise ConfigError where an option is set that the model does not have."""
    for name in names:
        if getattr(config, name) not in (None, False):
            option = f"--{name.replace('_', '-')}"
            raise ConfigError(
                f"{option} is no option of the model {config.model}", hint=_WHERE_IT_BELONGS.get(name)
            )


_WHERE_IT_BELONGS = {
    **dict.fromkeys(_CROSS_OPTIONS, "it belongs to --model dcnv2"),
    **dict.fromkeys(_MLP_OPTIONS, "give your class its widths in --model-args"),
    **dict.fromkeys(_REGULARIZATION, "give your class such layers: torch.nn.Dropout, torch.nn.BatchNorm1d"),
    "model_args": "it belongs to --model dcnv2, tbsm, or a class of your own: package.module:Class",
}
