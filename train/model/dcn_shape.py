"""Sizes of a DCN V2. Imports nothing heavy.

K dense features, N numbers of a sample (the widths of its embeddings and dense features together), R rank.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from ..options.model_config import ModelConfig


@dataclass(frozen=True, slots=True)
class DcnShape:
    """Sizes of a DCN V2; with a seed they decide its initial values."""

    num_dense: int
    """Number of dense features, K."""
    table_dims: tuple[int, ...]
    """Row width of each table; they may differ, and nothing is projected."""
    config: ModelConfig
    """Layers of the networks."""

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
        """Inputs of the layer that gives the logit."""
        return self.deep[-1] + (0 if self.config.structure == "stacked" else self.num_inputs)

    @property
    def layers(self) -> list[tuple[int, int]]:
        """Inputs and outputs of each linear layer."""
        rank = self.config.cross_rank
        full = (self.num_inputs, self.num_inputs)
        cross = [full] if rank is None else [(self.num_inputs, rank), (rank, self.num_inputs)]
        repeated = cross * self.config.cross_layers
        return [*pairwise(self.bottom), *repeated, *pairwise(self.deep), (self.last_inputs, 1)]

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
        """Numbers of a sample that a forward pass keeps beside the outputs of linear layers."""
        return self.num_inputs * (1 + self.config.cross_layers)
