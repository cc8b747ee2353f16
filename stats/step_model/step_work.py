"""The work of a training step, and the features that the seconds of its parts are sums of.

Every feature is a time that follows from measured constants (a product of such a size, rows moved in such a
working set), or a bare count. `part_model` fits how much of each a part really takes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .rate_curves import ProductCurve, RowCurve

MOST_TILE_SAMPLES = 512
"""Samples of a tile of the dense layers, as `train.model.sample_tree` cuts batches."""
NUM_FEATURES = {
    "lookup": 6,
    "bottom": 3,
    "interaction": 4,
    "top": 3,
    "backward": 3,
    "exchange": 5,
    "reduce": 5,
    "update": 6,
    "idle": 4,
    "beside load": 7,
    "beside transfers": 4,
}
"""Features of each part."""
_FLOAT_BYTES = 4
_ROW_MESSAGES = 2
"""Messages of a step for rows: vectors and gradients."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StepWork:
    """What one step has to do, on one rank."""

    batch_size: int
    """Samples that this rank computes."""
    threads: int
    bottom: tuple[int, ...]
    """Widths of the bottom MLP, from its inputs to its outputs; empty without dense features."""
    top: tuple[int, ...]
    """Widths of the top MLP, from its inputs to the logit."""
    num_vectors: int
    """Vectors of a sample that interact."""
    embedding_dim: int
    num_bags: int
    """Embeddings of the batch: samples times features."""
    lookups: float
    """Lookups of the batch."""
    distinct_rows: float
    """Distinct rows of the batch."""
    row_bytes: float
    """Bytes of a row with its optimizer state."""
    table_bytes: float
    """Bytes of all rows that are looked up."""
    input_bytes: float
    """Bytes of the batch as it is read."""
    staged_rows: float = 0.0
    """Distinct rows of the batch that a planner finds slots for."""
    moved_rows: float = 0.0
    """Rows that are loaded and written back beside the loop."""
    is_ahead: bool = True
    """Whether rows may be moved during the step before; if not, a step waits for its own moves."""
    initialized_rows: float = 0.0
    """Rows that get their initial values in a slot."""
    in_place_vectors: float = 0.0
    """Vectors that the loop sends, and gradients that it receives: each once."""
    num_ranks: int = 1
    """Ranks that share the batch."""
    exchanged_rows: float = 0.0
    """Vectors and gradients that this rank sends to others; it receives as many."""
    exchanged_bytes: float = 0.0
    """Bytes of these."""
    codec: str = "none"
    """Codec that they are sent in."""
    reduced_bytes: float = 0.0
    """Bytes that it sends to add up the gradients of the dense layers."""

    @property
    def num_tiles(self) -> int:
        """Tiles of the dense layers."""
        return max(1, math.ceil(self.batch_size / MOST_TILE_SAMPLES))

    @property
    def tile_samples(self) -> float:
        """Samples of a tile, the mean."""
        return self.batch_size / self.num_tiles

    @property
    def num_weights(self) -> int:
        """Parameters of the dense layers."""
        return sum((a + 1) * b for widths in (self.bottom, self.top) for a, b in pairwise(widths))

    @property
    def waste(self) -> float:
        """Time of threads without a tile over that of threads with one, while the last ones are computed."""
        return math.ceil(self.num_tiles / self.threads) * self.threads / self.num_tiles - 1


class CodecSeconds(NamedTuple):
    """Seconds of one thread to encode a row and to decode another one."""

    per_row: float
    per_byte: float
    """For each byte of the row in float32."""


@dataclass(frozen=True, slots=True)
class WorkConstants:
    """Measured constants that features are made of."""

    products: ProductCurve
    """Of one thread, in float32."""
    rows: RowCurve
    """Rows copied from random places, by one thread."""
    updates: RowCurve
    """Rows updated by their gradients, by one thread."""
    copy_bytes_per_second: float
    """Large copies, both ways counted once."""
    message_seconds: float
    """The smallest all-to-all between ranks."""
    message_bytes_per_second: float
    """Of one rank to all others together in a large all-to-all."""
    gather_seconds: float
    """The smallest all-gather."""
    gather_bytes_per_second: float
    """Of one rank to all others together in a large all-gather."""
    codecs: Mapping[str, CodecSeconds] = field(default_factory=dict)
    """What a row takes by codec; those that are not named take nothing."""

    def with_link(self, bytes_per_second: float) -> WorkConstants:
        """Return the constants with another speed of the link between ranks; delays stay."""
        return replace(
            self, message_bytes_per_second=bytes_per_second, gather_bytes_per_second=bytes_per_second
        )


def features_of(work: StepWork, constants: WorkConstants) -> dict[str, NDArray[np.float64]]:
    """Return the features of each part of a step, loop and beside; the fit of a part weighs them.

    ``beside load`` and ``beside transfers`` are the seconds of other threads.
    """
    threads = work.threads
    # Tiles as if divided evenly among threads; what the last round wastes is a feature of idling.
    tiles = work.num_tiles / threads
    samples = work.tile_samples
    products = constants.products
    vector_bytes = _FLOAT_BYTES * work.embedding_dim
    floats = work.num_bags * work.embedding_dim
    # Each distinct row comes from wherever it is once, its other lookups from a cache.
    near = constants.rows.seconds(vector_bytes, 1.0)
    far = constants.rows.seconds(vector_bytes, work.table_bytes)
    update = constants.updates.seconds(work.row_bytes, work.table_bytes)
    pair_products = work.batch_size * work.num_vectors**2 * work.embedding_dim / threads
    # Transfers have a fixed cost only where there are any.
    has_staging = float(work.moved_rows + work.initialized_rows + work.staged_rows > 0)
    # What the loop itself moves between the tiers goes at the speed of a large copy.
    in_place = work.in_place_vectors * vector_bytes / constants.copy_bytes_per_second
    bottom = products.forward_seconds(samples, work.bottom)
    # The logit's layer is left out here: it is computed, and timed, with the interaction.
    top = products.forward_seconds(samples, work.top[:-1])
    bottom_back = products.backward_seconds(samples, work.bottom, to_inputs=False)
    top_back = products.backward_seconds(samples, work.top[:-1], to_inputs=True)
    outputs = sum(work.bottom[1:]) + sum(work.top[1:-1])
    # The gradients of a single tile are used as they are; those of several are added up.
    several_tiles = float(work.num_tiles > 1) * work.num_tiles * work.num_weights / threads
    is_ranked = float(work.num_ranks > 1)
    features = {
        "lookup": (
            1.0,
            work.lookups * near / threads,
            work.distinct_rows * far / threads,
            # Lists are pooled: each of their lookups is a vector to add.
            (work.lookups > work.num_bags) * work.lookups * work.embedding_dim,
            in_place,
            work.in_place_vectors,
        ),
        "bottom": (tiles, tiles * bottom, tiles * samples * sum(work.bottom[1:])),
        # By tiles, multiplications of the dots, floats read, and dots.
        "interaction": (
            tiles,
            pair_products,
            floats / threads,
            work.batch_size * work.num_vectors**2 / threads,
        ),
        "top": (tiles, tiles * top, tiles * samples * sum(work.top[1:-1])),
        "backward": (tiles, tiles * (bottom_back + top_back), tiles * samples * outputs),
        "exchange": (
            is_ranked,
            is_ranked * _ROW_MESSAGES * constants.message_seconds,
            work.exchanged_bytes / constants.message_bytes_per_second,
            _codec_seconds(work, constants),
            work.exchanged_rows * near,
        ),
        "reduce": (
            1.0,
            several_tiles,
            is_ranked * (constants.message_seconds + constants.gather_seconds),
            _sum_seconds(work, constants),
            is_ranked * work.num_weights,
        ),
        "update": (
            1.0,
            work.lookups * vector_bytes / threads,
            work.distinct_rows * update / threads,
            # The dense layers are stepped at the same time as the rows.
            work.num_weights,
            in_place,
            work.in_place_vectors,
        ),
        "idle": (1.0, work.waste * tiles * (bottom + top + bottom_back + top_back), tiles, work.input_bytes),
        "beside load": (
            1.0,
            work.input_bytes,
            work.lookups,
            work.distinct_rows,
            work.staged_rows,
            work.num_bags,
            # Every rank reads the lookups of all ranks, to know what crosses.
            is_ranked * work.num_ranks * work.lookups,
        ),
        "beside transfers": (
            has_staging,
            work.moved_rows * constants.rows.seconds(work.row_bytes, work.table_bytes),
            work.initialized_rows * work.embedding_dim,
            work.moved_rows,
        ),
    }
    return {part: np.array(values, np.float64) for part, values in features.items()}


def _codec_seconds(work: StepWork, constants: WorkConstants) -> float:
    """Return the seconds in which the rows of the exchange are encoded, and those of others decoded."""
    found = constants.codecs.get(work.codec)
    if found is None:
        return 0.0
    return work.exchanged_rows * (found.per_row + _FLOAT_BYTES * work.embedding_dim * found.per_byte)


def _sum_seconds(work: StepWork, constants: WorkConstants) -> float:
    """Return the seconds of the bytes of dense gradients: half of them in either collective."""
    each = work.reduced_bytes / 2
    return each / constants.message_bytes_per_second + each / constants.gather_bytes_per_second
