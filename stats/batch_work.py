"""Split the work of a batch for threads, and prepare its inputs.

Training and the predictions of its time use the same numbers of pieces: a batch of few lookups has one
thread, however many there are.

Dense values become float32, unchanged or under log1p. Integers under log1p, the values of the Criteo logs,
have a faster kernel with a table of the small ones.

Lookups of multi-hot features become bags in sample order. A bag is the lookups of one feature in one sample,
number ``sample * num_features + feature``. One-hot features have one lookup per bag and need none of this.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .batch_rows import slot_of
from .kernel import kernel
from .simd import prefetch

MOST_TILE_SAMPLES = 512
"""Samples of a tile at most: few enough that its activations stay in the caches of a core."""
_LEAST_TILE_SAMPLES = 256
_FEW_TILES = 4
"""Tiles are made smaller for so many threads, but not below the least size: each tile has a separate
gradient, which is written and added."""


def num_tiles_of(num_samples: int) -> int:
    """Return the tiles of the dense layers, a power of two; an empty batch has one.

    Args:
        num_samples: samples of a share of the batch, 0 or more.
    """
    found = 1
    while num_samples > found * MOST_TILE_SAMPLES or (
        found < _FEW_TILES and num_samples >= 2 * found * _LEAST_TILE_SAMPLES
    ):
        found *= 2
    return found


_VALUES_AHEAD = np.uint64(64)
"""Prefetch distance, values."""


def log1p_table(num_entries: int) -> NDArray[np.float32]:
    """Return log1p of 0, 1, ... computed in float64 and rounded once: the same on any machine."""
    return np.log1p(np.arange(num_entries, dtype=np.float64)).astype(np.float32)


@kernel
def transform_dense(
    values: NDArray[np.int32],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    table: NDArray[np.float32],
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) of some samples as float32, 0 where missing.

    Args:
        values: (num_samples,).
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        table: log1p of the small values, as `log1p_table` computes it.
        out: (num_chosen,) out; may be a strided column.

    Source:
        Naumov et al., arXiv 1906.00091, as its released preprocessing does it.
    """
    has_nulls = is_valid.shape[0] > 0
    num_chosen = np.uint64(chosen.shape[0])
    # Places are unsigned: each signed one would be compared with 0, to count from the end. 1.4 times as fast.
    for place in range(num_chosen):
        # Prefetch a later value: if few are chosen, most of the time is waiting for memory.
        if place + _VALUES_AHEAD < num_chosen:
            prefetch(values, np.uint64(chosen[place + _VALUES_AHEAD]))
        i = np.uint64(chosen[place])
        value = np.uint64(max(values[i], 0))
        if has_nulls:  # by arithmetic: a branch for each value is often mispredicted
            value *= np.uint64((is_valid[i >> np.uint64(3)] >> np.uint8(i & np.uint64(7))) & np.uint8(1))
        is_small = value < np.uint64(table.shape[0])
        out[place] = table[value] if is_small else np.float32(np.log1p(np.float64(value)))


@kernel
def transform_values(
    values: NDArray[np.float64],
    is_valid: NDArray[np.uint8],
    chosen: NDArray[np.int32],
    is_log: bool,
    out: NDArray[np.float32],
) -> None:
    """Write log1p(max(x, 0)) in float64, or x itself, of some samples, rounded once; 0 where missing.

    Args:
        values: (num_samples,), float64 or int32.
        is_valid: Arrow validity bitmap of ``values``, or length 0 where none is missing.
        chosen: (num_chosen,), positions in ``values``.
        is_log: whether it is log1p and not the value itself, which a float32 must be able to hold.
        out: (num_chosen,) out; may be strided.
    """
    has_nulls = is_valid.shape[0] > 0
    for place in range(chosen.shape[0]):
        i = chosen[place]
        value = float(values[i])
        if has_nulls and not (is_valid[i >> 3] >> np.uint8(i & 7)) & 1:
            value = 0.0
        if is_log:
            value = float(np.log1p(value)) if value > 0 else 0.0
        out[place] = np.float32(value)


@kernel
def interleave_bags(
    offsets_B1: NDArray[np.int32],
    values: NDArray[np.int32],
    starts_P: NDArray[np.int64],
    feature: int,
    num_features: int,
    ids_N: NDArray[np.int32],
) -> None:
    """Copy the ids of one feature between those of all features, exactly.

    Args:
        offsets_B1: (num_samples + 1,), ascending; where each sample's ids begin in ``values``.
        values: ids of the feature, sample after sample.
        starts_P: (num_samples * num_features,); where each bag begins in ``ids``.
        feature: which of the features this is.
        num_features: of all of them.
        ids_N: (num_lookups,), written at the bags of ``feature``.
    """
    for sample in range(offsets_B1.size - 1):
        place = starts_P[sample * num_features + feature]
        for i in range(offsets_B1[sample], offsets_B1[sample + 1]):
            ids_N[place] = values[i]
            place += 1


@kernel
def locate_bags(
    ids_N: NDArray[np.int32],
    bags_N: NDArray[np.int64],
    first_F: NDArray[np.int64],
    last_F: NDArray[np.int64],
    base_F: NDArray[np.int64],
    slots_N: NDArray[np.int64],
) -> int:
    """Do as `batch_rows.locate_rows`, for lookups that name their bag.

    Args:
        ids_N: (num_lookups,).
        bags_N: (num_lookups,); bag of each, its feature is ``bag % num_features``.
        first_F: (num_features,); first id of each table the tier holds.
        last_F: (num_features,); one past its last.
        base_F: (num_features,); slot of the row ``first``.
        slots_N: (num_lookups,), written; -1 where the row is not on this tier.

    Returns:
        How many lookups are not on this tier, ids outside any table among them. Exact.
    """
    num_absent = 0
    num_features = np.uint64(first_F.size)  # the remainder of unsigned numbers takes half the time
    for i in range(ids_N.size):
        feature = np.uint64(bags_N[i]) % num_features
        row = np.int64(ids_N[i])
        slot = slot_of(row, first_F[feature], last_F[feature], base_F[feature])
        num_absent += slot < 0
        slots_N[i] = slot
    return num_absent
