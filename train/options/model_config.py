"""The parts of a dense model, as a run records them: enough to build it again. Imports nothing heavy.

`train --model` names a model in one word; the widths that the word stands for are written out here.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ...pipeline.errors import ConfigError
from ...pipeline.folders.manifest import JsonRecord, RecordError, require_range
from ...pipeline.schema.schema import nearest

DLRM_NAMES = ("auto", "kaggle", "terabyte", "mlperf", "small", "dlrm")
"""Names of a DLRM: presets, and two that mean the preset that fits the shards."""
MODEL_NAMES = (*DLRM_NAMES, "dcnv2", "tbsm")
"""Models that come with hotset."""

Structure = Literal["stacked", "parallel"]
Pooling = Literal["sum", "mean"]

_CLASS = re.compile(r"[^\W\d][\w.]*:[\w.<>]+")
"""``package.module:Class``; a class inside a function has ``<locals>`` in its name."""
MOST_WIDTH = 2**20
"""Outputs of a layer: far more than any model has."""
MOST_LAYERS = 64
MOST_HISTORY = 4096
"""Elements of a history: each of them is passed through a DLRM of its own."""


def is_class_name(name: str) -> bool:
    """Return whether ``name`` names a class of the user as ``package.module:Class``."""
    return _CLASS.fullmatch(name) is not None


def refuse_unknown_model(name: str) -> None:
    """Raise ConfigError unless ``name`` is a model that comes with hotset, or ``package.module:Class``."""
    if name in MODEL_NAMES or is_class_name(name):
        return
    raise ConfigError(
        f"model must be one of {', '.join(MODEL_NAMES)}, or your own class as package.module:Class, "
        f"got {name!r}",
        hint=nearest(name, MODEL_NAMES) or "for a class Net in the file nets.py write nets:Net",
    )


def parse_arguments(text: str | None) -> dict[str, Any]:
    """Return the keyword arguments that a JSON object gives to a user's class; none for None.

    Raises:
        ConfigError: it is no JSON object.
    """
    if text is None:
        return {}
    # Anything but an object would not be keyword arguments.
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise ConfigError(
            f"model_args must be a JSON object, got {text!r}", hint="""write it like '{"hidden": 64}'"""
        )
    return found


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelConfig(JsonRecord):
    """A dense model without the sizes that the shards decide."""

    kind: Literal["dlrm", "dcnv2", "tbsm", "module"]
    """DLRM, DCN V2, TBSM, or a user's module."""
    bottom_widths: tuple[int, ...] = ()
    """Widths of the hidden layers of the bottom MLP, which DLRM ends with the embedding dimension. Of DCN V2
    all its layers; none gives the dense features to the cross network as they are."""
    top_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between the interaction and the logit; the deep network of DCN V2; of TBSM
    those between the interaction and the vector of an element, which is as wide as the last."""
    history_length: int = 0
    """Elements of a history before the candidate, of TBSM."""
    attention_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between the similarities of a history and its weights, of TBSM."""
    last_widths: tuple[int, ...] = ()
    """Widths of the hidden layers between context and candidate and the logit, of TBSM."""
    cross_layers: int = 0
    """Layers of the cross network."""
    cross_rank: int | None = None
    """Rank of the matrices of its layers; None: they are full."""
    structure: Structure = "stacked"
    """Whether the deep network is behind the cross network or beside it."""
    dropout: float = 0.0
    """Share of the outputs of each hidden layer of the top MLP, or of the deep network, dropped in
    training."""
    batch_norm: bool = False
    """Whether the outputs of hidden layers are normalized over the batch."""
    pooling: Pooling = "sum"
    """How the rows of a multi-hot feature become one embedding."""
    class_name: str | None = None
    """The user's module as ``package.module:Class``."""
    arguments: str | None = None
    """Keyword arguments of its constructor, a JSON object."""

    @property
    def name(self) -> str:
        """The model as messages call it."""
        return self.class_name or self.kind

    def keyword_arguments(self) -> Mapping[str, Any]:
        """Return the keyword arguments of the constructor."""
        return parse_arguments(self.arguments)

    def refuse_nonsense(self, where: str) -> None:
        for key in ("bottom_widths", "top_widths", "attention_widths", "last_widths"):
            widths = getattr(self, key)
            require_range(f"the number of {where}{key}", len(widths), 0, MOST_LAYERS)
            for number, width in enumerate(widths):
                require_range(f"{where}{key}[{number}]", width, 1, MOST_WIDTH)
        is_tbsm = self.kind == "tbsm"
        require_range(f"{where}history_length", self.history_length, int(is_tbsm), MOST_HISTORY)
        if is_tbsm and not (self.top_widths and self.pooling == "sum"):
            raise RecordError(f"{where}top_widths is empty, or pooling not sum, of a model of kind tbsm")
        require_range(f"{where}cross_layers", self.cross_layers, 0, MOST_LAYERS)
        require_range(f"{where}cross_rank", self.cross_rank, 1, MOST_WIDTH)
        if not 0 <= self.dropout < 1:
            raise RecordError(f"{where}dropout is {self.dropout}, want a share in [0, 1)")
        # A class has a name, other models have none.
        is_named = self.class_name is not None
        if is_named != (self.kind == "module") or (is_named and not is_class_name(str(self.class_name))):
            raise RecordError(f"{where}class_name is {self.class_name!r} of a model of kind {self.kind}")
        try:
            parse_arguments(self.arguments)
        except ConfigError as error:
            raise RecordError(f"{where}arguments: {error}") from error
