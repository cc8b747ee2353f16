"""Resolves the options of a run to a model with its widths and labels."""

from __future__ import annotations

from collections.abc import Sequence

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import RecordError
from ...pipeline.schema.schema import nearest
from ..config import DLRM_NAMES, ModelConfig, TrainConfig, parse_arguments
from ..recipe_options import parse_loss_weights
from .shapes import PRESETS, preset_name, preset_widths

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
