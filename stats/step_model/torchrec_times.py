"""The time of a table that lies on one rank, as TorchRec's planner estimates it: for comparison.

Its constants are written down in its code; here they are arguments, so that measured ones can take their
place.

Source:
    torchrec/distributed/planner/constants.py and shard_estimators.py, October 2025: defaults, and the
    formulas of table-wise sharding.
"""

from __future__ import annotations

from dataclasses import dataclass

GIB_PER_MS = 1024**3 / 1000
"""One GiB per second, in bytes per millisecond."""
_ID_BYTES = 8
_LEAST_DIM = 32


@dataclass(frozen=True, kw_only=True, slots=True)
class TorchrecConstants:
    """The planner's constants, in bytes per millisecond; those of a fused table in HBM by default."""

    table_bandwidth: float = 897 * GIB_PER_MS
    """Of the memory that the table lies in, as its kernel reaches it."""
    link_bandwidth: float = 600 * GIB_PER_MS
    """Between ranks."""
    backward_factor: float = 2.0
    """Time of the backward pass over that of the forward pass."""


@dataclass(frozen=True, slots=True)
class TorchrecTimes:
    """Milliseconds of a table in a step."""

    forward_compute: float
    forward_link: float
    backward_compute: float
    backward_link: float

    @property
    def total(self) -> float:
        """All four together."""
        return self.forward_compute + self.forward_link + self.backward_compute + self.backward_link


def table_wise(
    batch_size: int,
    num_ranks: int,
    pooling: float,
    embedding_dim: int,
    constants: TorchrecConstants,
    *,
    float_bytes: int = 4,
) -> TorchrecTimes:
    """Estimate a table that lies as a whole on one rank.

    Args:
        batch_size: samples of one rank.
        num_ranks: ranks whose lookups it serves.
        pooling: lookups of a sample.
        embedding_dim: columns of the table.
        constants: bandwidths.
        float_bytes: of a number in the table and on the link.
    """
    lookups = pooling * batch_size
    # The rank with the table gets the ids of all ranks, reads a row for each, and returns pooled vectors.
    inputs = lookups * num_ranks * _ID_BYTES
    read = lookups * num_ranks * max(embedding_dim, _LEAST_DIM) * float_bytes
    outputs = batch_size * num_ranks * embedding_dim * float_bytes
    compute = (inputs + read + outputs) * _penalty(embedding_dim) / constants.table_bandwidth
    # On a single rank nothing crosses.
    link = outputs / constants.link_bandwidth if num_ranks > 1 else 0.0
    return TorchrecTimes(compute, link, constants.backward_factor * compute, link)


def _penalty(embedding_dim: int) -> float:
    """Return how much longer narrow rows take than their bytes say."""
    if embedding_dim >= 128:
        return 1.0
    return 1.15 if embedding_dim >= 64 else 1.75
