"""Sizes of a DLRM: presets, and the shape that fits given shards. Imports nothing heavy.

K dense features, D embedding_dim, V = F + 1 vectors that interact (F where K = 0).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...pipeline.errors import ConfigError, ShardError


@dataclass(frozen=True, slots=True)
class DlrmShape:
    """Sizes of a DLRM; with a seed they decide its initial values."""

    num_dense: int
    """Number of dense features, K; 0 leaves the bottom MLP out."""
    num_tables: int
    """Number of embedding tables, F."""
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

    @property
    def num_vectors(self) -> int:
        return self.num_tables + (self.num_dense > 0)

    @property
    def top_inputs(self) -> int:
        pairs = self.num_vectors * (self.num_vectors - 1) // 2
        return pairs + (self.embedding_dim if self.num_dense else 0)

    @property
    def bottom(self) -> tuple[int, ...]:
        """Widths of the bottom MLP from its inputs to its outputs; empty without dense features."""
        return (self.num_dense, *self.bottom_widths, self.embedding_dim) if self.num_dense else ()

    @property
    def top(self) -> tuple[int, ...]:
        """Widths of the top MLP from its inputs to the logit."""
        return (self.top_inputs, *self.top_widths, 1)

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
        """Numbers of a sample that a forward pass keeps beside the outputs of linear layers."""
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
    """Return the widths of the hidden layers of preset ``model`` (or ``auto``): bottom MLP, top MLP.

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


def tables_by_width(dims: Sequence[int]) -> dict[int, tuple[int, ...]]:
    """Group the numbers of tables by row width, widths in the order of their first table.

    Args:
        dims: row width of each table.
    """
    return {
        dim: tuple(number for number, other in enumerate(dims) if other == dim) for dim in dict.fromkeys(dims)
    }


def dlrm_shape(
    model: str, num_dense: int, num_tables: int, embedding_dim: int, table_dims: Sequence[int] = ()
) -> DlrmShape:
    """Build the shape of preset ``model`` (or ``auto``) for shards of these sizes.

    Args:
        model: name of the preset.
        num_dense: dense features.
        num_tables: embedding tables.
        embedding_dim: the width that interacts.
        table_dims: row width of each table; empty where all are ``embedding_dim``.

    Raises:
        ConfigError: the preset has another embedding_dim.
        ShardError: with one table and no dense feature nothing interacts.
    """
    widths = preset_widths(model, embedding_dim)
    return shape_of_widths(*widths, num_dense, num_tables, embedding_dim, table_dims)


def shape_of_widths(
    bottom_widths: tuple[int, ...],
    top_widths: tuple[int, ...],
    num_dense: int,
    num_tables: int,
    embedding_dim: int,
    table_dims: Sequence[int] = (),
) -> DlrmShape:
    """Build the shape with hidden layers of any widths; the other arguments are those of `dlrm_shape`.

    Raises:
        ShardError: with one table and no dense feature nothing interacts.
    """
    # Projections are needed only where some table differs from the common width.
    others = tuple(table_dims) if set(table_dims) - {embedding_dim} else ()
    shape = DlrmShape(num_dense, num_tables, embedding_dim, bottom_widths, top_widths, others)
    if shape.num_vectors < 2:
        raise ShardError("the shards have one table and no dense feature: nothing interacts")
    return shape
